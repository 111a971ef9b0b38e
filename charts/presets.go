// Package charts has the presets of the chart, for the plugin of kubectl.
package charts

import "embed"

//go:embed kube-vitals/presets/*.yaml
var presets embed.FS

// Preset returns the values in a preset, such as "kubeadm", as YAML. It returns fs.ErrNotExist if the chart has none
// of that name.
func Preset(name string) ([]byte, error) {
	return presets.ReadFile("kube-vitals/presets/" + name + ".yaml")
}
