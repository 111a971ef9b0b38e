package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// repository is where the image of the chart and of the manifests is.
const repository = "ghcr.io/kube-vitals/kube-vitals"

// chart packages the chart, with the release's version for the chart and for what it installs.
func (r release) chart(ctx context.Context) (err error) {
	folder, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	chart := filepath.Join(folder, "kube-vitals")
	if err := os.CopyFS(chart, os.DirFS(filepath.Join(r.root, "charts", "kube-vitals"))); err != nil {
		return fmt.Errorf("the chart cannot be read: %w", err)
	}
	if err := pin(filepath.Join(chart, "values.yaml"), r.digest); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, r.helm, "package", chart,
		"--version", r.bare(), "--app-version", r.bare(), "--destination", r.out)
	if err := run(cmd); err != nil {
		return fmt.Errorf("the chart cannot be packaged: %w", err)
	}
	file := filepath.Join(r.out, "kube-vitals-"+r.bare()+".tgz")
	packaged, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("the packaged chart cannot be read: %w", err)
	}
	settled, err := settle(packaged, r.at)
	if err != nil {
		return fmt.Errorf("the packaged chart cannot be read: %w", err)
	}
	return os.WriteFile(file, settled, 0o644)
}

// pin sets image.digest in a file of values, if there is a digest.
func pin(file, digest string) error {
	if digest == "" {
		return nil
	}
	values, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("the chart's values cannot be read: %w", err)
	}
	_, image, found := bytes.Cut(values, []byte("\nimage:\n"))
	before, after, empty := bytes.Cut(image, []byte("\n  digest: \"\"\n"))
	if !found || !empty || bytes.Contains(before, []byte("\n\n")) { // the end of the section
		return fmt.Errorf("%s has no empty image.digest to set", file)
	}
	values = slices.Concat(values[:len(values)-len(image)], before, []byte("\n  digest: "+digest+"\n"), after)
	return os.WriteFile(file, values, 0o644)
}

// settle is the same archive with all its files of that time. Helm lets them be of now, so that no
// two archives are the same.
func settle(archive []byte, at time.Time) ([]byte, error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	zipped := gzip.NewWriter(&out)
	from, to := tar.NewReader(unzipped), tar.NewWriter(zipped)
	for {
		header, err := from.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		header.ModTime = at
		if err := to.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := io.Copy(to, from); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(to.Close(), zipped.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// manifest writes manifests/base as one file, with the image of the release.
func (r release) manifest(ctx context.Context) (err error) {
	folder, err := os.MkdirTemp("", "release")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if err := os.CopyFS(filepath.Join(folder, "base"), os.DirFS(filepath.Join(r.root, "manifests", "base"))); err != nil {
		return fmt.Errorf("manifests/base cannot be read: %w", err)
	}
	image := fmt.Sprintf("newTag: %q", r.version)
	if r.digest != "" {
		image = "digest: " + r.digest
	}
	text := fmt.Sprintf("resources: [base]\nlabels:\n- pairs: {app.kubernetes.io/version: %q}\nimages:\n- name: %s\n  %s\n",
		r.bare(), repository, image)
	if err := os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		return err
	}
	if err := run(exec.CommandContext(ctx, r.kustomize, "build", folder, "--output", filepath.Join(r.out, "kube-vitals.yaml"))); err != nil {
		return fmt.Errorf("the manifests cannot be rendered: %w", err)
	}
	return nil
}
