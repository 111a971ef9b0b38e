package main

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/kube-vitals/kube-vitals/pkg/engine"
)

// The values of --source.
const (
	sourceKubelet = "kubelet"
	sourceEngine  = "prometheus"
)

// minEngineSampleAge is the least maximum age of samples from an engine. The range of its queries is
// 3/4 of that, and must have two samples.
const minEngineSampleAge = 40 * time.Second

const kubeletSection = "kubelet client"

func (o *options) addSourceFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.source, "source", sourceKubelet,
		"Where usage is read from: 'kubelet' (all kubelets) or 'prometheus' (an engine with Prometheus' HTTP API that "+
			"scrapes the kubelets, such as Prometheus, Thanos or Mimir). See docs/prometheus.md.")
	fs.StringVar(&o.Engine.URL, "prometheus-url", "",
		"The URL of the engine, without /api/v1; for --source=prometheus. Example: http://prometheus.monitoring.svc:9090")
	fs.StringVar(&o.Engine.File, "prometheus-config", "",
		"The YAML file with the credentials for the engine, the names of its series and their labels. It is read again "+
			"when it changes. (default: no credentials, the series of the kubelets' /metrics/resource)")
}

// usesEngine reports whether usage is read from an engine instead of kubelets.
func (o *options) usesEngine() bool { return o.source == sourceEngine }

// validateSource checks that the flags of one source are set, and only those.
func (o *options) validateSource() {
	switch o.source {
	case sourceKubelet:
		for _, name := range []string{"prometheus-url", "prometheus-config"} {
			if o.all.Changed(name) {
				o.errorf("--%s has no effect without --source=prometheus: set that, or remove --%[1]s", name)
			}
		}
		return
	case sourceEngine:
	default:
		o.errorf("--source is %q, but must be %s or %s", o.source, sourceKubelet, sourceEngine)
		return
	}
	if o.MaxSampleAge < minEngineSampleAge && o.resolutionKnown() {
		o.errorf("--max-sample-age must be at least %v with --source=prometheus, but is %v: engines scrape kubelets every "+
			"15 to 60 seconds", minEngineSampleAge, o.MaxSampleAge)
	}
	if o.Engine.URL == "" {
		o.errorf("--prometheus-url is required with --source=prometheus")
	} else if _, err := engine.ParseURL(o.Engine.URL); err != nil {
		o.errorf("--prometheus-url: %w", err)
	}
	ofKubelets := o.Flags.FlagSets[kubeletSection]
	o.all.Visit(func(flag *pflag.Flag) {
		name := flag.Name
		isOfKubelets := ofKubelets.Lookup(name) != nil && name != "node-selector"
		if isOfKubelets || name == "active-resolution" || name == "active-budget" {
			o.errorf("--%s has no effect with --source=prometheus, which does not connect to kubelets: remove it", name)
		}
	})
}

func (o *options) addDeviceFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Devices.File, "device-config", "",
		"The YAML file with the exporters of the usage of devices such as GPUs, and the names of their series. "+
			"See docs/devices.md. (default: no devices)")
}
