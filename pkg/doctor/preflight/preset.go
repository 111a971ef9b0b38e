package preflight

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/kube-vitals/kube-vitals/charts"
)

// addPreset adds the chart's preset of a name, if there is one: some distributions need none.
func (p *preflight) addPreset(name string) {
	values, err := readPreset(name)
	if err == nil {
		p.presets, p.values = append(p.presets, name), append(p.values, values...)
	}
}

// readPreset returns the values of a preset as helm --set reads them.
func readPreset(name string) ([]string, error) {
	content, err := charts.Preset(name)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the file
	}
	var values map[string]any
	if err := yaml.Unmarshal(content, &values); err != nil {
		return nil, fmt.Errorf("preset %s: %w", name, err)
	}
	return flags("", values), nil
}

// flags returns values as helm --set reads them, sorted.
func flags(path string, value any) (all []string) {
	switch v := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			all = append(all, flags(strings.TrimPrefix(path+"."+key, "."), v[key])...)
		}
	case []any:
		for i := range v {
			all = append(all, flags(fmt.Sprintf("%s[%d]", path, i), v[i])...)
		}
	case nil:
		return []string{path + "=null"}
	default:
		return []string{fmt.Sprintf("%s=%v", path, v)}
	}
	return all
}
