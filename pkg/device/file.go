package device

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	promconfig "github.com/prometheus/common/config"
	"github.com/prometheus/common/model"
	"go.yaml.in/yaml/v2"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// File is the content of the configuration file.
type File struct {
	Exporters []Exporter `yaml:"exporters"`
}

// Exporter describes the exporters of one kind. Each node with devices runs one.
type Exporter struct {
	// Name identifies the exporter in metrics and in the log. By default, it is the preset.
	Name string `yaml:"name"`

	// Preset names an exporter whose fields are the defaults of the fields below: "dcgm", NVIDIA's
	// dcgm-exporter as the GPU operator installs it.
	Preset string `yaml:"preset"`

	// Namespace and PodSelector select the exporter's pods, for example app=nvidia-dcgm-exporter.
	Namespace   string `yaml:"namespace"`
	PodSelector string `yaml:"podSelector"`

	Port   string `yaml:"port"`   // its number
	Path   string `yaml:"path"`   // by default /metrics
	Scheme string `yaml:"scheme"` // http (the default) or https

	TLS TLS `yaml:"tls"` // with the scheme https

	Interval time.Duration `yaml:"interval"` // between two scrapes of a pod; by default defaultInterval
	Timeout  time.Duration `yaml:"timeout"`  // of a scrape; by default defaultTimeout, at most Interval
	MaxAge   time.Duration `yaml:"maxAge"`   // values expire at this age; by default 3 × Interval

	// Labels names the labels of a series that identify the container.
	Labels Labels `yaml:"labels"`

	// Resources are the resources that the exporter's series have. They replace those of the preset
	// with the same name.
	Resources []Resource `yaml:"resources"`
}

// TLS is how the certificate of an exporter is verified. By default, a root CA of the system must
// have signed it for the address of the pod.
type TLS struct {
	CAFile             string `yaml:"caFile"`     // is read again when it changes
	ServerName         string `yaml:"serverName"` // in the certificate, instead of the address
	InsecureSkipVerify bool   `yaml:"insecureSkipVerify"`
}

// Labels names labels. Of each list, the first label that a series has counts.
type Labels struct {
	Namespace []string `yaml:"namespace"` // by default namespace
	Pod       []string `yaml:"pod"`       // by default pod
	Container []string `yaml:"container"` // by default container
}

// byName yields the lists and their names.
func (l *Labels) byName(yield func(name string, labels *[]string) bool) {
	_ = yield("namespace", &l.Namespace) && yield("pod", &l.Pod) && yield("container", &l.Container)
}

// has reports whether a label is one of those that are named.
func (l *Labels) has(label []byte) bool {
	for _, names := range l.byName {
		for _, name := range *names {
			if name == string(label) {
				return true
			}
		}
	}
	return false
}

// Resource describes how a resource is computed from series.
type Resource struct {
	Resource string `yaml:"resource"` // its name, such as nvidia.com/gpu
	Series   string `yaml:"series"`   // the name of the series; "-" removes the resource of the preset

	// Values of the series are multiplied by Scale; by default 1. The product is
	// a number of devices, or of bytes.
	Scale float64 `yaml:"scale"`
	Unit  string  `yaml:"unit"` // number (the default) or bytes

	// Combine is how the values of several devices of one container are combined: sum (the default)
	// or max.
	Combine string `yaml:"combine"`

	// Max is the largest value of the series that is possible. Larger ones are not valid: exporters
	// send impossible values if they cannot read a device. 0: there is no limit.
	Max float64 `yaml:"max"`
}

// The defaults of an Exporter.
const (
	defaultInterval = 15 * time.Second
	defaultTimeout  = 10 * time.Second
	defaultAges     = 3 // intervals
)

const (
	minInterval  = 5 * time.Second
	maxInterval  = 10 * time.Minute
	maxMaxAge    = time.Hour
	maxExporters = 32
	noSeries     = "-"

	unitNumber, unitBytes   = "number", "bytes"
	combineSum, combineMax  = "sum", "max"
	schemeHTTP, schemeHTTPS = "http", "https"
)

// presets returns the presets by name.
//
// Of dcgm-exporter, the facts are those of version 4.5.3: etc/default-counters.csv has the units of
// the fields, deployment/values.yaml the port. The GPU operator sets the namespace and the label.
// The limits exclude values that DCGM cannot know (dcgm-exporter#418). The largest GPUs have less
// than 1 TiB of memory.
func presets() map[string]Exporter {
	return map[string]Exporter{
		"": {},
		"dcgm": {
			Namespace:   "gpu-operator",
			PodSelector: "app=nvidia-dcgm-exporter",
			Port:        "9400",
			Resources: []Resource{
				{Resource: "nvidia.com/gpu", Series: "DCGM_FI_DEV_GPU_UTIL", Scale: 0.01, Max: 100},
				{
					Resource: "nvidia.com/gpu-memory", Series: "DCGM_FI_DEV_FB_USED", Scale: 1 << 20, Unit: unitBytes,
					Max: 1 << 24,
				},
			},
		},
	}
}

// Parse parses the configuration file and sets its defaults. Names of files in it are relative to
// dir. The error has all mistakes.
func Parse(content []byte, dir string) (*File, error) {
	f := &File{}
	if err := yaml.UnmarshalStrict(content, f); err != nil {
		return nil, fmt.Errorf("the file is not a valid configuration: %w", err)
	}
	var all errs
	all.check(len(f.Exporters) == 0, "exporters is empty: describe at least one exporter, such as {preset: dcgm}")
	all.check(len(f.Exporters) > maxExporters, "exporters has %d elements, but at most %d are possible",
		len(f.Exporters), maxExporters)
	names, resources := map[string]bool{}, map[string]string{}
	for i := range f.Exporters {
		e := &f.Exporters[i]
		e.setDefaults(dir)
		where := fmt.Sprintf("exporters[%d]", i)
		if e.Name != "" {
			where = fmt.Sprintf("exporter %q", e.Name)
		}
		for _, err := range e.validate() {
			all.check(true, "%s: %w", where, err)
		}
		all.check(names[e.Name] && e.Name != "", "%s: another exporter has the same name: set name", where)
		names[e.Name] = true
		for _, r := range e.Resources {
			other, isKnown := resources[r.Resource]
			all.check(isKnown && r.Resource != "", "%s: resource %q: %s has it already: devices would count twice", where,
				r.Resource, other)
			if !isKnown {
				resources[r.Resource] = where
			}
		}
	}
	return f, errors.Join(all...)
}

// errs are the mistakes of a file.
type errs []error

// check adds an error if something is wrong.
func (e *errs) check(wrong bool, format string, args ...any) {
	if wrong {
		*e = append(*e, fmt.Errorf(format, args...))
	}
}

// setDefaults sets the fields of the preset and the other defaults.
func (e *Exporter) setDefaults(dir string) {
	p, isKnown := presets()[e.Preset]
	if !isKnown {
		p = presets()["dcgm"] // so that fields without a value are no further mistakes
		p.Resources = nil
	}
	e.Name = cmp.Or(e.Name, e.Preset)
	e.Namespace = cmp.Or(e.Namespace, p.Namespace)
	e.PodSelector = cmp.Or(e.PodSelector, p.PodSelector)
	e.Port = cmp.Or(e.Port, p.Port)
	e.Path = cmp.Or(e.Path, "/metrics")
	e.Scheme = cmp.Or(e.Scheme, schemeHTTP)
	e.Interval = cmp.Or(e.Interval, defaultInterval)
	e.Timeout = cmp.Or(e.Timeout, min(defaultTimeout, e.validInterval()))
	e.MaxAge = cmp.Or(e.MaxAge, defaultAges*e.validInterval())
	for name, labels := range e.Labels.byName {
		if len(*labels) == 0 {
			*labels = []string{name}
		}
	}
	e.TLS.CAFile = promconfig.JoinDir(dir, e.TLS.CAFile)

	for _, r := range p.Resources {
		i := slices.IndexFunc(e.Resources, func(own Resource) bool { return own.Resource == r.Resource })
		switch {
		case i < 0:
			e.Resources = append(e.Resources, r)
		case e.Resources[i].Series == noSeries:
			e.Resources = slices.Delete(e.Resources, i, i+1)
		}
	}
	for i := range e.Resources {
		r := &e.Resources[i]
		r.Scale = cmp.Or(r.Scale, 1)
		r.Unit = cmp.Or(r.Unit, unitNumber)
		r.Combine = cmp.Or(r.Combine, combineSum)
	}
}

// validInterval returns the valid interval that is closest to Interval, so that a wrong interval
// causes no further mistakes.
func (e *Exporter) validInterval() time.Duration {
	return min(max(e.Interval, minInterval), maxInterval)
}

// validate returns all mistakes.
func (e *Exporter) validate() errs {
	var all errs
	_, isKnown := presets()[e.Preset]
	all.check(!isKnown, "preset is %q, but must be dcgm", e.Preset)
	all.check(validation.IsDNS1123Label(e.Name) != nil, "name is %q, but must consist of at most 63 lower-case letters, "+
		"digits and hyphens", e.Name)
	all.check(validation.IsDNS1123Label(e.Namespace) != nil, "namespace is %q, but must be the name of a namespace",
		e.Namespace)
	selector, err := labels.Parse(e.PodSelector)
	all.check(err != nil, "podSelector: %w", err)
	all.check(err == nil && selector.Empty(), "podSelector is empty, but must select the exporter's pods: any pod of the "+
		"namespace could report values otherwise")
	port, err := strconv.Atoi(e.Port)
	all.check(err != nil || validation.IsValidPortNum(port) != nil,
		"port is %q, but must be a number from 1 to 65535", e.Port)
	all.check(!strings.HasPrefix(e.Path, "/") || strings.ContainsAny(e.Path, "#? \t\r\n"),
		"path is %q, but must start with / and have no query", e.Path)
	all.check(e.Scheme != schemeHTTP && e.Scheme != schemeHTTPS, "scheme is %q, but must be http or https", e.Scheme)
	all.check(e.Scheme == schemeHTTP && e.TLS != (TLS{}), "tls has no effect without scheme: https")
	all.check(e.Interval < minInterval || e.Interval > maxInterval, "interval is %v, but must be from %v to %v",
		e.Interval, minInterval, maxInterval)
	interval := e.validInterval()
	all.check(e.Timeout <= 0 || e.Timeout > interval, "timeout is %v, but must be above 0 and at most the interval, %v",
		e.Timeout, interval)
	all.check(e.MaxAge < 2*interval || e.MaxAge > maxMaxAge, "maxAge is %v, but must be at least twice the interval, "+
		"so %v, and at most %v", e.MaxAge, 2*interval, maxMaxAge)
	for field, labels := range e.Labels.byName {
		for _, name := range *labels {
			all.check(!model.LegacyValidation.IsValidLabelName(name), "labels.%s: %q is not a name of a label", field, name)
		}
	}
	_, err = newTransport(e)
	all.check(err != nil, "%w", err)
	all.check(len(e.Resources) == 0 && isKnown, "resources is empty: name the series of at least one resource")
	for i := range e.Resources {
		for _, err := range e.Resources[i].validate() {
			all.check(true, "resource %q: %w", e.Resources[i].Resource, err)
		}
	}
	return all
}

func (r *Resource) validate() errs {
	var all errs
	// As of extended resources: the API server accepts no other names in requests of containers.
	domain, _, hasDomain := strings.Cut(r.Resource, "/")
	problems := validation.IsQualifiedName(r.Resource)
	all.check(!hasDomain || problems != nil, "it is not a name of a device, such as nvidia.com/gpu: it must have a "+
		"domain, a slash, and a name")
	all.check(domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io"),
		"the domain kubernetes.io is reserved")
	all.check(!model.LegacyValidation.IsValidMetricName(r.Series), "series is %q, but must be the name of a series",
		r.Series)
	all.check(!isPositive(r.Scale), "scale is %v, but must be above 0", r.Scale)
	all.check(r.Max != 0 && !isPositive(r.Max), "max is %v, but must be above 0", r.Max)
	all.check(r.Unit != unitNumber && r.Unit != unitBytes, "unit is %q, but must be %s or %s", r.Unit, unitNumber,
		unitBytes)
	all.check(r.Combine != combineSum && r.Combine != combineMax, "combine is %q, but must be %s or %s", r.Combine,
		combineSum, combineMax)
	return all
}

func isPositive(f float64) bool { return f > 0 && !math.IsInf(f, 0) }

// unit returns the unit of the resource's values in the API.
func (r *Resource) unit() usage.Unit {
	if r.Unit == unitBytes {
		return usage.Bytes
	}
	return usage.Milli
}

// maxValue is the largest value of a device, in bytes or thousandths. The sum of maxSeries of them
// does not overflow.
const maxValue = 1 << 49

// convert returns the value of a series in the unit of the resource, and whether it is possible.
func (r *Resource) convert(v float64) (uint64, bool) {
	if math.IsNaN(v) || v < 0 || r.Max > 0 && v > r.Max {
		return 0, false
	}
	v *= r.Scale
	if r.unit() == usage.Milli {
		v *= 1000
	}
	if v = math.Round(v); v > maxValue {
		return 0, false
	}
	return uint64(v), true
}
