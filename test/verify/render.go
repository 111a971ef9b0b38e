package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// kubeVersion is the cluster that the chart is rendered for: helm without a cluster assumes one
// that is too old.
const kubeVersion = "1.36.0"

// tools are the programs that render, by name or path.
type tools struct{ helm, kustomize, helmDocs string }

// chart renders a chart without its hooks.
func (t tools) chart(ctx context.Context, folder string, values []string) (objects, error) {
	args := []string{"template", release, folder, "--namespace", namespace, "--kube-version", kubeVersion, "--no-hooks"}
	for _, v := range values {
		args = append(args, "--set", v)
	}
	return render(ctx, t.helm, args...)
}

// kustomization builds manifests/base with components, as someone would who uses them from a folder
// of their own.
func (t tools) kustomization(ctx context.Context, manifests string, components []string) (_ objects, err error) {
	folder, err := os.MkdirTemp("", "kustomization")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	manifests, err = relative(folder, manifests)
	if err != nil {
		return nil, err
	}
	text := fmt.Sprintf("resources:\n- %s/base\ncomponents:\n", manifests)
	for _, c := range components {
		text += fmt.Sprintf("- %s/components/%s\n", manifests, c)
	}
	if err := os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		return nil, err
	}
	return render(ctx, t.kustomize, "build", folder)
}

// relative is the path of a folder as seen from another, both free of links: kustomize takes no
// absolute ones.
func relative(from, to string) (string, error) {
	for _, path := range []*string{&from, &to} {
		absolute, err := filepath.Abs(*path)
		if err != nil {
			return "", err
		}
		if *path, err = filepath.EvalSymlinks(absolute); err != nil {
			return "", err
		}
	}
	return filepath.Rel(from, to)
}

// readme returns what the chart's README should be.
func (t tools) readme(ctx context.Context, charts string) ([]byte, error) {
	return output(ctx, t.helmDocs, "--chart-search-root", charts, "--dry-run", "--log-level", "error")
}

func render(ctx context.Context, program string, args ...string) (objects, error) {
	text, err := output(ctx, program, args...)
	if err != nil {
		return nil, err
	}
	objs, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("output of %s %s: %w", program, strings.Join(args, " "), err)
	}
	return objs, nil
}

func output(ctx context.Context, program string, args ...string) ([]byte, error) {
	text, err := exec.CommandContext(ctx, program, args...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
		}
		return nil, fmt.Errorf("run %s %s: %w", program, strings.Join(args, " "), err)
	}
	return text, nil
}
