// Command verify proves that charts/ and manifests/ describe the same objects: it renders the chart with helm and the
// kustomizations with kustomize, for the same settings, and fails with the list of places where the two differ.
//
// What only helm adds is left out of the comparison: the labels helm.sh/chart and app.kubernetes.io/managed-by, and hooks.
package main

import (
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
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := verify(ctx, tools, *root); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// verify compares every setting and returns all differences as one error, one line each.
func verify(ctx context.Context, tools tools, root string) error {
	var errs []error
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
