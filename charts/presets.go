// Package charts contains the presets of the chart: files of values, one for each Kubernetes
// distribution. docs/distributions.md describes them.
package charts

import (
	"embed"
	"fmt"

	"sigs.k8s.io/yaml"
)

//go:embed kube-vitals/presets/*.yaml
var presets embed.FS

// Preset returns the values of a preset.
func Preset(name string) (map[string]any, error) {
	content, err := presets.ReadFile("kube-vitals/presets/" + name + ".yaml")
	if err != nil {
		return nil, fmt.Errorf("there is no preset %q: %w", name, err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(content, &values); err != nil {
		return nil, fmt.Errorf("preset %q: %w", name, err)
	}
	return values, nil
}
