package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/compatibility"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // for --logging-format=json

	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
	"github.com/kube-vitals/kube-vitals/pkg/server"
)

const (
	minResolution = 5 * time.Second
	// defaultShutdownDelay is the time for the cluster to stop sending requests before the port is
	// closed.
	defaultShutdownDelay = 5 * time.Second
	// defaultAllowedTTL is how long an allowed request is cached. HorizontalPodAutoscalers read
	// every 15 seconds: with the library's default of 10 seconds, each of their LISTs would cause
	// an access review, although the API server has already authorized the request.
	defaultAllowedTTL = 2 * time.Minute
	// defaultRateWindow is between the 10 and 20 seconds that rates cover if kubelets read the counters
	// at their usual pace and are scraped every 15 seconds.
	defaultRateWindow = 15 * time.Second
)

// options are the flags. Most are fields of the server's configuration. Flags that metrics-server has, too, have the
// same names, meanings and defaults.
type options struct {
	server.Config
	all         *pflag.FlagSet // of all sections
	errs        []error        // what is wrong with the flags
	unparsed    []string       // names of flags with a value that could not be parsed
	environment []string       // the flags that environment variables have set, sorted
	help        bool
	version     bool
	logging     *logs.Options

	source string
}

func newOptions() *options {
	o := &options{
		Config: server.Config{
			Version: version, Commit: commit,
			Generic: genericoptions.NewServerRunOptionsForComponent("kube-vitals",
				compatibility.NewComponentGlobalsRegistry()),
			Serving:        genericoptions.NewSecureServingOptions(),
			Authentication: genericoptions.NewDelegatingAuthenticationOptions(),
			Authorization:  genericoptions.NewDelegatingAuthorizationOptions(),
			Audit:          genericoptions.NewAuditOptions(),
			Features:       genericoptions.NewFeatureOptions(),
		},
		all:     pflag.NewFlagSet("kube-vitals", pflag.ContinueOnError),
		logging: logs.NewOptions(),
	}
	o.Generic.ShutdownDelayDuration = defaultShutdownDelay
	o.Authorization.AllowCacheTTL = defaultAllowedTTL
	o.Serving.Required = true
	o.Serving.ServerCert.CertDirectory = ""
	o.Features.EnablePriorityAndFairness = false

	o.addFlags(o.Flags.FlagSet("kube-vitals"))
	o.addActiveFlags(o.Flags.FlagSet("kube-vitals"))
	o.addStorageFlags(o.Flags.FlagSet("kube-vitals"))
	o.addKubeletFlags(o.Flags.FlagSet(kubeletSection))
	o.addSourceFlags(o.Flags.FlagSet("prometheus client"))
	o.addDeviceFlags(o.Flags.FlagSet("devices"))
	o.addEventFlags(o.Flags.FlagSet("events"))
	o.addServingCertFlags(o.Flags.FlagSet("serving certificate that renews itself"))
	o.Generic.AddUniversalFlags(o.Flags.FlagSet("generic"))
	o.Serving.AddFlags(o.Flags.FlagSet("apiserver secure serving"))
	o.Authentication.AddFlags(o.Flags.FlagSet("apiserver authentication"))
	o.Authorization.AddFlags(o.Flags.FlagSet("apiserver authorization"))
	o.Audit.AddFlags(o.Flags.FlagSet("apiserver audit log"))
	o.Features.AddFlags(o.Flags.FlagSet("features"))
	logsapi.AddFlags(o.logging, o.Flags.FlagSet("logging"))
	for _, name := range o.Flags.Order {
		o.all.AddFlagSet(o.Flags.FlagSets[name])
	}
	o.all.Lookup("v").Usage += fmt.Sprintf("; limited to %d, above which the log would contain tokens and keys",
		server.MaxVerbosity)
	o.hideIdleFlags()
	return o
}

func (o *options) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Kubeconfig, "kubeconfig", "",
		"The kubeconfig file for the Kubernetes API server; required outside of a cluster. It is "+
			"also the default of --authentication-kubeconfig and --authorization-kubeconfig.")
	fs.DurationVar(&o.Resolution, "metric-resolution", 15*time.Second,
		"The time between two scrapes of a kubelet; at least 5s.")
	fs.DurationVar(&o.MaxSampleAge, "max-sample-age", 0,
		"The age at which metrics expire if there are no newer ones; at least 2 × "+
			"--metric-resolution. (default 4 × --metric-resolution, or 10 × with "+
			"--source=prometheus)")
	fs.BoolVar(&o.MissingMetricsWarnings, "missing-metrics-warnings", true,
		"Add a warning to tables, such as those of 'kubectl get podmetrics', if nodes or pods are "+
			"missing: how many, and why. Only users who may get these nodes or pods see it.")

	fs.BoolVar(&o.version, "version", false, "Print the version and exit.")
	fs.BoolVarP(&o.help, "help", "h", false, "Print this help and exit.")
}

// hideIdleFlags hides flags from --help that have no effect here, or that only developers of the
// API server library need. They are accepted because command lines for metrics-server may have
// them.
func (o *options) hideIdleFlags() {
	for _, name := range []string{
		"emulated-version", "emulation-forward-compatible", "runtime-config-emulation-forward-compatible",
		"min-compatibility-version", "feature-gates", "max-mutating-requests-inflight", "min-request-timeout",
		"storage-initialization-timeout", "shutdown-watch-termination-grace-period", "enable-priority-and-fairness",
		"disable-http2-serving", "http2-max-streams-per-connection", "goaway-chance",
	} {
		o.all.Lookup(name).Hidden = true
	}
}

// config returns the configuration that the flags set, and adds all errors in them.
func (o *options) config() server.Config {
	o.complete()
	if selector, err := labels.Parse(o.NodeSelector); err != nil {
		o.errorf("--node-selector: %w", err)
	} else {
		o.NodeSelector = selector.String() // "": all
	}
	for _, validate := range []func(){
		o.validate, o.validateKubelet, o.validateActive, o.validateSource, o.validateStorage, o.validateServingCert,
		o.validateEvents, o.validateLibrary,
	} {
		validate()
	}
	return o.Config
}

// complete sets the defaults that depend on other flags.
func (o *options) complete() {
	server.LimitVerbosity(o.logging)
	if !o.all.Changed("max-sample-age") {
		o.MaxSampleAge = 4 * o.interval()
		if o.usesEngine() { // engines usually scrape kubelets every 30 seconds, whatever the resolution is
			o.MaxSampleAge = 10 * o.interval()
		}
	}
	if !o.all.Changed("rate-window") && !o.usesEngine() {
		o.RateWindow = min(defaultRateWindow, o.MaxSampleAge)
	}
	// Command lines of users have spaces and empty elements.
	for _, list := range []*[]string{&o.Kubelet.AddressTypes, &o.ServingCert.Names, &o.ServingCert.APIServices} {
		*list = strings.FieldsFunc(strings.Join(*list, ","), func(r rune) bool { return r == ',' || r == ' ' })
	}
	o.Kubelet.SlowTimeout = max(o.MaxSampleAge/2, o.interval()) // a response is requested while the one before is served
	if !o.all.Changed("kubelet-request-timeout") {
		o.Kubelet.Timeout = min(kubelet.DefaultTimeout, o.interval())
	}
	if c := &o.ServingCert; c.Secret != "" && len(c.Names) == 0 {
		c.Names = serviceNames(c.Service)
	}
	o.Authentication.RemoteKubeConfigFile = cmp.Or(o.Authentication.RemoteKubeConfigFile, o.Kubeconfig)
	o.Authorization.RemoteKubeConfigFile = cmp.Or(o.Authorization.RemoteKubeConfigFile, o.Kubeconfig)
}

// interval returns the resolution, or the shortest valid one if the flag is wrong, so that other
// flags cause no further errors.
func (o *options) interval() time.Duration { return max(o.Resolution, minResolution) }

// resolutionKnown reports whether other flags can be compared with --metric-resolution.
func (o *options) resolutionKnown() bool { return !slices.Contains(o.unparsed, "metric-resolution") }

// maxSampleAgeKnown does so for --max-sample-age.
func (o *options) maxSampleAgeKnown() bool {
	return o.resolutionKnown() && !slices.Contains(o.unparsed, "max-sample-age")
}

func (o *options) validate() {
	if o.Resolution < minResolution {
		o.errorf("--metric-resolution must be at least %v, but is %v", minResolution, o.Resolution)
	}
	if least := 2 * o.interval(); o.MaxSampleAge < least && o.resolutionKnown() {
		o.errorf("--max-sample-age must be at least 2 × --metric-resolution, so %v, but is %v: the metrics of a node would "+
			"expire before the next ones arrive", least, o.MaxSampleAge)
	}
}

// validateLibrary checks the flags of the API server library.
func (o *options) validateLibrary() {
	o.errs = slices.Concat(o.errs, o.Generic.Validate(), o.Serving.Validate(), o.Authentication.Validate(),
		o.Authorization.Validate(), o.Audit.Validate(), o.Features.Validate())
	if err := o.Generic.ComponentGlobalsRegistry.Set(); err != nil {
		o.errorf("--feature-gates, --emulated-version: %w", err)
	}
	if pair := o.Serving.ServerCert.CertKey; (pair.CertFile != "") != (pair.KeyFile != "") {
		o.errorf("--tls-cert-file and --tls-private-key-file must be set together")
	}
	if _, err := cliflag.TLSVersion(o.Serving.MinTLSVersion); err != nil {
		o.errorf("--tls-min-version: %w", err)
	}
	if _, err := cliflag.TLSCipherSuites(o.Serving.CipherSuites); err != nil {
		o.errorf("--tls-cipher-suites: %w", err)
	}
	if err := logsapi.Validate(o.logging, nil, nil).ToAggregate(); err != nil {
		o.errorf("the logging flags: %w", err)
	}
}

// errorf adds an error. All of them are reported at once.
func (o *options) errorf(format string, args ...any) {
	o.errs = append(o.errs, fmt.Errorf(format, args...))
}

// checkName adds an error if a flag has no valid name of an object.
func (o *options) checkName(flag, name string) {
	if problems := validation.IsDNS1123Subdomain(name); problems != nil {
		o.errorf("--%s: %q is not a valid name: %s", flag, name, strings.Join(problems, "; "))
	}
}
