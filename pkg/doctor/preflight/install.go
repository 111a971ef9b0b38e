package preflight

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/kube-vitals/kube-vitals/charts"
	"github.com/kube-vitals/kube-vitals/pkg/doctor"
)

const (
	publishedChart = "oci://ghcr.io/kube-vitals/charts/kube-vitals"
	localChart     = "charts/kube-vitals" // of a checkout
	// ownImage has placeholders: no image is published for a version that is not released.
	ownImage = " --set image.repository=REGISTRY/kube-vitals,image.tag=TAG"
)

// The value that decides which certificates of kubelets are accepted.
const (
	kubeletValues = "kubelet"
	tlsValue      = "tls"
	pinned        = "pin"
)

var released = regexp.MustCompile(`^v\d+\.\d+\.\d+$`)

// checkInstall chooses the values, and returns the command.
func (p *preflight) checkInstall(context.Context) []doctor.Check {
	c := doctor.Check{ID: "install", Title: "installation", Status: doctor.OK}
	values := map[string]any{}
	for _, name := range p.presets {
		preset, err := charts.Preset(name)
		if err != nil { // a test checks that all exist
			return []doctor.Check{doctor.Denied(c, err)}
		}
		merge(values, preset)
	}
	p.chooseTLS(values)
	merge(values, p.values)
	command := p.command(values)
	p.install = &doctor.Install{Distribution: string(p.distribution), Presets: p.presets, Command: command}
	switch {
	case len(p.presets) == 0 && len(values) == 0:
		c.Seen = "the default values fit"
	case len(p.presets) == 0:
		c.Seen = "no preset fits; these values follow from the checks"
	case len(values) == 0:
		c.Seen = fmt.Sprintf("preset %s, which is the default values", strings.Join(p.presets, " and "))
	default:
		c.Seen = fmt.Sprintf("preset %s, adapted to the checks", strings.Join(p.presets, " and "))
	}
	switch {
	case p.nodes.err != nil || p.nodes.all == 0:
		c.Status, c.Reason = doctor.Warning, incomplete
		c.Seen = "the nodes could not be examined, so other values than these may be necessary"
	case !p.kubelets.verified && !p.kubelets.selfSigned:
		c.Seen += "; the certificates of kubelets were not examined, see kubelet TLS"
	}
	c.Cure = command
	if p.distribution == openShift {
		c.Cure = lines("copy OpenShift's CA of kubelets first, as docs/distributions.md#openshift shows", command)
	}
	return []doctor.Check{c}
}

// chooseTLS replaces what is usual for the distribution by what was seen.
func (p *preflight) chooseTLS(values map[string]any) {
	switch {
	case p.kubelets.selfSigned:
		merge(values, map[string]any{kubeletValues: map[string]any{tlsValue: pinned}})
	case p.kubelets.verified:
		if kubelet, ok := values[kubeletValues].(map[string]any); ok {
			delete(kubelet, tlsValue)
			if len(kubelet) == 0 {
				delete(values, kubeletValues)
			}
		}
	}
}

// merge merges values as helm does: maps are merged, everything else is replaced.
func merge(into, from map[string]any) {
	for key, value := range from {
		old, isMap := into[key].(map[string]any)
		if new, ok := value.(map[string]any); ok {
			if !isMap {
				old = map[string]any{}
				into[key] = old
			}
			merge(old, new)
			continue
		}
		into[key] = value
	}
}

func (p *preflight) namespace() string {
	return cmp.Or(p.owner.kubeVitalsNamespace(), p.Namespace, "kube-system")
}

func (o owner) kubeVitalsNamespace() string {
	if o.installed {
		return o.namespace
	}
	return ""
}

// command returns the command of helm.
func (p *preflight) command(values map[string]any) string {
	chart, image := localChart, ownImage
	if released.MatchString(p.Version) {
		chart, image = publishedChart+" --version "+strings.TrimPrefix(p.Version, "v"), ""
	}
	command := "helm install kube-vitals " + chart
	if p.owner.installed {
		command = "helm upgrade " + quote(cmp.Or(p.owner.release, "kube-vitals")) + " " + chart + " --reset-then-reuse-values"
	}
	command += " --namespace " + quote(p.namespace()) + image
	for _, flag := range flags("", values) {
		command += " --set " + flag
	}
	return command
}

// flags returns values in the format of helm --set, quoted for a shell.
func flags(prefix string, value any) (all []string) {
	switch v := value.(type) {
	case map[string]any:
		for _, key := range sortedKeys(v) {
			name := strings.ReplaceAll(key, ".", `\.`)
			if prefix != "" {
				name = prefix + "." + name
			}
			all = append(all, flags(name, v[key])...)
		}
		return all
	case []any:
		for i := range v {
			all = append(all, flags(fmt.Sprintf("%s[%d]", prefix, i), v[i])...)
		}
		return all
	case nil:
		return []string{quote(prefix + "=null")}
	case string:
		return []string{quote(prefix + "=" + strings.NewReplacer(`\`, `\\`, ",", `\,`).Replace(v))}
	}
	return []string{quote(fmt.Sprintf("%s=%v", prefix, value))}
}

// quote quotes a word for a shell if necessary.
func quote(word string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_=./:,@"
	if strings.Trim(word, plain) == "" {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
