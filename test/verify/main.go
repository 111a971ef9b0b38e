// Command verify proves that charts/ and manifests/ describe the same objects: it renders the chart with helm and the
// kustomizations with kustomize, for the same settings, and fails with the list of places where the two differ. It also
// fails where the chart's README is not what helm-docs makes of the values and their comments.
//
// What only helm adds is left out of the comparison: the labels helm.sh/chart and app.kubernetes.io/managed-by, and hooks.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
)

// release and namespace are what manifests/ is written for; both stand in names and labels.
const (
	release   = "kube-vitals"
	namespace = "kube-system"
)

// A setting is one way to install kube-vitals that both forms offer.
type setting struct {
	kustomization string   // folder, relative to the repository
	values        []string // the chart's values that say the same, as for helm --set
}

func settings() []setting {
	return []setting{
		{kustomization: "manifests/base", values: []string{"tls.type=self-signed"}},
	}
}

func main() {
	var tools tools
	root := flag.String("root", "..", "folder of the repository")
	flag.StringVar(&tools.helm, "helm", "helm", "helm 3 program")
	flag.StringVar(&tools.kustomize, "kustomize", "kustomize", "kustomize 5 program")
	flag.StringVar(&tools.helmDocs, "helm-docs", "helm-docs", "helm-docs program")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := verify(ctx, tools, *root); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// verify compares every setting, and the README, and returns all differences as one error, one line each.
func verify(ctx context.Context, tools tools, root string) error {
	errs := []error{compareReadme(ctx, tools, root)}
	for _, s := range settings() {
		differences, err := s.compare(ctx, tools, root)
		if err != nil {
			return err
		}
		for _, d := range differences {
			errs = append(errs, fmt.Errorf("%s: %s", s.kustomization, d))
		}
	}
	return errors.Join(errs...)
}

func (s setting) compare(ctx context.Context, tools tools, root string) ([]string, error) {
	rendered, err := tools.chart(ctx, filepath.Join(root, "charts", "kube-vitals"), s.values)
	if err != nil {
		return nil, err
	}
	built, err := tools.kustomization(ctx, filepath.Join(root, s.kustomization))
	if err != nil {
		return nil, err
	}
	return differences(rendered, built), nil
}

func compareReadme(ctx context.Context, tools tools, root string) error {
	file := filepath.Join(root, "charts", "kube-vitals", "README.md")
	got, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("the chart has no README: %w", err)
	}
	want, err := tools.readme(ctx, filepath.Join(root, "charts"))
	if err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%s is out of date: run helm-docs --chart-search-root charts", file)
	}
	return nil
}
