// Command verify proves that charts/ and manifests/ describe the same objects: it renders the chart
// with helm and the kustomizations with kustomize, for the same settings, and fails with the list
// of places where the two differ. It also fails where the chart's README and the descriptions in
// its schema are not what the comments in values.yaml say.
//
// With -write it writes the README and the schema instead. With -chart and -file it compares a
// packaged chart with a manifest of the same release, and nothing else.
//
// What only helm adds is left out of the comparison: the labels helm.sh/chart and
// app.kubernetes.io/managed-by, and hooks.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
)

// release and namespace are what manifests/ is written for; both stand in names and labels.
const (
	release   = "kube-vitals"
	namespace = "kube-system"
)

// A setting is one way to install kube-vitals that both forms offer.
type setting struct {
	components []string // folders in manifests/components that are put on manifests/base
	values     []string // the chart's values that say the same, as for helm --set
}

func settings() []setting {
	return []setting{
		{},
		{components: []string{"high-availability"}, values: []string{"replicas=2", "podDisruptionBudget.enabled=true"}},
		{components: []string{"insecure-kubelets"}, values: []string{"kubelet.insecureTLS=true"}},
		{components: []string{"cert-manager"}, values: []string{"tls.type=cert-manager"}},
		{components: []string{"prometheus"}, values: []string{"serviceMonitor.enabled=true", "prometheusRule.enabled=true"}},
		{
			components: []string{"cert-manager", "high-availability", "insecure-kubelets"},
			values:     []string{"tls.type=cert-manager", "replicas=2", "podDisruptionBudget.enabled=true", "kubelet.insecureTLS=true"},
		},
	}
}

// String says it in the terms of manifests/.
func (s setting) String() string {
	return strings.Join(append([]string{"manifests/base"}, s.components...), " + ")
}

func main() {
	var tools tools
	root := flag.String("root", "..", "folder of the repository")
	flag.StringVar(&tools.helm, "helm", "helm", "helm 3 program")
	flag.StringVar(&tools.kustomize, "kustomize", "kustomize", "kustomize 5 program")
	flag.StringVar(&tools.helmDocs, "helm-docs", "helm-docs", "helm-docs program")
	chart := flag.String("chart", "", "compare this packaged chart with -file, and nothing else")
	file := flag.String("file", "", "manifest of the same objects as the chart's")
	write := flag.Bool("write", false, "write the chart's README and the descriptions in its schema, and nothing else")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	same := fmt.Sprintf("chart and manifests say the same, in %d settings", len(settings()))
	switch {
	case *write:
		err, same = writeGenerated(ctx, tools, *root), "README.md and values.schema.json are written"
	case *chart != "" || *file != "":
		err, same = compareFile(ctx, tools, *chart, *file), *chart+" and "+*file+" say the same"
	default:
		err = verify(ctx, tools, *root, settings())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(same)
}

// compareFile compares a chart as it is by default with a manifest, and returns all differences as
// one error.
func compareFile(ctx context.Context, tools tools, chart, file string) error {
	rendered, err := tools.chart(ctx, chart, nil)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("there is no manifest to compare with the chart: %w", err)
	}
	written, err := parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	var errs []error
	for _, d := range differences(rendered, written) {
		errs = append(errs, fmt.Errorf("%s: %s", file, d))
	}
	return errors.Join(errs...)
}

// verify compares the settings and the generated files, and returns all differences as one error,
// one line each.
func verify(ctx context.Context, tools tools, root string, settings []setting) error {
	errs := []error{compareGenerated(ctx, tools, root)}
	for _, s := range settings {
		differences, err := s.compare(ctx, tools, root)
		if err != nil {
			return err
		}
		for _, d := range differences {
			errs = append(errs, fmt.Errorf("%s: %s", s, d))
		}
	}
	return errors.Join(errs...)
}

func (s setting) compare(ctx context.Context, tools tools, root string) ([]string, error) {
	rendered, err := tools.chart(ctx, filepath.Join(root, "charts", "kube-vitals"), s.values)
	if err != nil {
		return nil, err
	}
	built, err := tools.kustomization(ctx, filepath.Join(root, "manifests"), s.components)
	if err != nil {
		return nil, err
	}
	return differences(rendered, built), nil
}

// generated returns what the files of the chart that are made from values.yaml should contain, by
// their paths.
func generated(ctx context.Context, tools tools, root string) (map[string][]byte, error) {
	chart := filepath.Join(root, "charts", "kube-vitals")
	schemaFile := filepath.Join(chart, "values.schema.json")
	schema, err := os.ReadFile(schemaFile)
	if err != nil {
		return nil, fmt.Errorf("read the schema of the chart's values: %w", err)
	}
	values, err := os.ReadFile(filepath.Join(chart, "values.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read the chart's values: %w", err)
	}
	described, err := describe(schema, values)
	if err != nil {
		return nil, err
	}
	readme, err := tools.readme(ctx, filepath.Join(root, "charts"))
	if err != nil {
		return nil, err
	}
	return map[string][]byte{filepath.Join(chart, "README.md"): readme, schemaFile: described}, nil
}

func compareGenerated(ctx context.Context, tools tools, root string) error {
	files, err := generated(ctx, tools, root)
	if err != nil {
		return err
	}
	var errs []error
	for _, file := range slices.Sorted(maps.Keys(files)) {
		got, err := os.ReadFile(file)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("read a generated file of the chart: %w", err))
		case !bytes.Equal(got, files[file]):
			errs = append(errs, fmt.Errorf("%s is out of date: run make generate", file))
		}
	}
	return errors.Join(errs...)
}

func writeGenerated(ctx context.Context, tools tools, root string) error {
	files, err := generated(ctx, tools, root)
	if err != nil {
		return err
	}
	for file, text := range files {
		if err := os.WriteFile(file, text, 0o644); err != nil {
			return fmt.Errorf("write a generated file of the chart: %w", err)
		}
	}
	return nil
}
