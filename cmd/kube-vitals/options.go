package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/compatibility"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // for --logging-format=json

	"github.com/kube-vitals/kube-vitals/pkg/device"
	"github.com/kube-vitals/kube-vitals/pkg/extra"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
	"github.com/kube-vitals/kube-vitals/pkg/prometheus"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/server"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	minResolution = 5 * time.Second
	// defaultShutdownDelay is the time for the cluster to stop sending requests before the port is
	// closed.
	defaultShutdownDelay = 5 * time.Second
	minResponseBytes     = 64 << 10
	// defaultAllowedTTL is how long an allowed request is cached. HorizontalPodAutoscalers read
	// every 15 seconds: with the library's default of 10 seconds, each of their LISTs would cause
	// an access review, although the API server has already authorized the request.
	defaultAllowedTTL = 2 * time.Minute
	// defaultRateWindow is between the 10 and 20 seconds that rates cover if kubelets read the counters
	// at their usual pace and are scraped every 15 seconds.
	defaultRateWindow = 15 * time.Second
)

// options are the flags, most of which are fields of the server's configuration. Flags that
// metrics-server has, too, have the same names, meanings and defaults.
type options struct {
	server.Config
	all      *pflag.FlagSet // of all sections
	unparsed []string       // names of flags with a value that could not be parsed
	help     bool
	version  bool
	logging  *logs.Options

	nodeSelector string
	source       string
	resources    []string
	addressTypes []string
	nodeEvents   bool
}

func newOptions() *options {
	o := &options{
		Config: server.Config{
			Version: version, Commit: commit,
			Resolution:  15 * time.Second,
			Kubelet:     kubelet.Config{Port: kubelet.DefaultPort},
			Prometheus:  &prometheus.Config{},
			Devices:     &device.Config{},
			ServingCert: newServingCertConfig(),
			Generic: genericoptions.NewServerRunOptionsForComponent("kube-vitals",
				compatibility.NewComponentGlobalsRegistry()),
			Serving:        genericoptions.NewSecureServingOptions(),
			Authentication: genericoptions.NewDelegatingAuthenticationOptions(),
			Authorization:  genericoptions.NewDelegatingAuthorizationOptions(),
			Audit:          genericoptions.NewAuditOptions(),
			Features:       genericoptions.NewFeatureOptions(),
		},
		all:          pflag.NewFlagSet("kube-vitals", pflag.ContinueOnError),
		logging:      logs.NewOptions(),
		source:       sourceKubelet,
		resources:    defaultResources(),
		addressTypes: defaultAddressTypes(),
	}
	o.Generic.ShutdownDelayDuration = defaultShutdownDelay
	o.Authorization.AllowCacheTTL = defaultAllowedTTL
	o.Serving.Required = true
	o.Serving.ServerCert.CertDirectory = ""
	o.Features.EnablePriorityAndFairness = false

	o.addFlags(o.Flags.FlagSet("kube-vitals"))
	o.addActiveFlags(o.Flags.FlagSet("kube-vitals"))
	o.addResourceFlags(o.Flags.FlagSet("kube-vitals"))
	o.addKubeletFlags(o.Flags.FlagSet(kubeletSection))
	o.addPrometheusFlags(o.Flags.FlagSet("prometheus client"))
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
	fs.DurationVar(&o.Resolution, "metric-resolution", o.Resolution,
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

func (o *options) addKubeletFlags(fs *pflag.FlagSet) {
	k := &o.Kubelet
	fs.StringVarP(&o.nodeSelector, "node-selector", "l", "",
		"The label selector of the nodes to scrape and serve, such as 'key=value,other!=value'. "+
			"(default: all nodes)")
	fs.DurationVar(&o.RateWindow, "rate-window", 0,
		"The longest time that a CPU rate should cover; at least 1s and at most --max-sample-age. If samples are "+
			"denser than 60 % of it, the rate is the mean over that time, or since the load changed. See "+
			"docs/numbers.md. (default 15s, or --max-sample-age if that is less)")
	fs.IntVar(&k.Port, "kubelet-port", k.Port, "The port of the kubelets.")
	fs.BoolVar(&k.UseNodeStatusPort, "kubelet-use-node-status-port", false,
		"Use the port in a node's status, if it has one, instead of --kubelet-port.")
	fs.StringSliceVar(&o.addressTypes, "kubelet-preferred-address-types", o.addressTypes,
		"The types of node addresses to use, in order of preference.")
	fs.DurationVar(&k.Timeout, "kubelet-request-timeout", 0,
		"The timeout of a request to a kubelet; at most 9/10 of --metric-resolution. (default "+
			"10s, or 9/10 of --metric-resolution if that is less)")
	fs.StringVar(&k.CertificateAuthority, "kubelet-certificate-authority", "",
		"The file with the CA certificates that verify the kubelets' serving certificates. "+
			"(default: the cluster's CA)")
	fs.StringVar(&k.ClientCertificate, "kubelet-client-certificate", "",
		"The file with the client certificate for kubelets. If it is set, no token is sent to "+
			"them.")
	fs.StringVar(&k.ClientKey, "kubelet-client-key", "", "The file with the key of --kubelet-client-certificate.")
	fs.StringVar(&o.KubeletServiceAccount, "kubelet-service-account", "",
		"The ServiceAccount, in the namespace of this pod, whose short-lived tokens are sent to "+
			"kubelets. It should have no permissions except get on nodes/metrics and nodes/stats; "+
			"kube-vitals needs create on its serviceaccounts/token. (default: kubelets receive "+
			"kube-vitals' own credentials)")
	fs.StringVar(&o.KubeletPins, "kubelet-pins", "",
		"The ConfigMap, in the namespace of this pod, in which the keys of kubelets with self-signed "+
			"certificates are pinned at first sight. Tokens are sent to pinned keys and to kubelets that "+
			"a CA verifies. kube-vitals needs list, watch and update on it. See "+
			"docs/security.md. (default: self-signed certificates are rejected)")
	fs.BoolVar(&k.AllowLoopback, "kubelet-allow-loopback", false,
		"Allow 127.0.0.0/8 and ::1 as addresses of kubelets. For tests and development only.")
	fs.Int64Var(&k.MaxBodyBytes, "kubelet-max-response-bytes", kubelet.DefaultMaxBodyBytes,
		"Maximum uncompressed size of a kubelet's response; larger ones are rejected. The "+
			"default is enough for 2000 pods with 3 containers.")
	fs.BoolVar(&k.Gzip, "kubelet-gzip", false,
		"Request compressed responses from kubelets: a tenth of the bytes, but more CPU on both "+
			"sides. See docs/scaling.md.")
	fs.BoolVar(&k.InsecureTLS, "kubelet-insecure-tls", false,
		"Do not verify the kubelets' serving certificates. For tests only: an attacker on the "+
			"network can read the credentials and forge metrics.")
	fs.BoolVar(&k.PlainHTTP, "deprecated-kubelet-completely-insecure", false,
		"DEPRECATED: Connect to kubelets without encryption and without credentials.")
}

// hideIdleFlags hides flags from --help that have no effect here, or that only developers of the
// API server library need. They are accepted because command lines for metrics-server may have
// them.
func (o *options) hideIdleFlags() {
	for _, name := range []string{
		"emulated-version", "emulation-forward-compatible", "runtime-config-emulation-forward-compatible",
		"min-compatibility-version", "feature-gates", "max-mutating-requests-inflight", "min-request-timeout",
		"storage-initialization-timeout", "shutdown-watch-termination-grace-period", "enable-priority-and-fairness",
	} {
		o.all.Lookup(name).Hidden = true
	}
}

// config returns the configuration that the flags set, or all errors in them.
func (o *options) config() (server.Config, error) {
	o.complete()
	selector, err := labels.Parse(o.nodeSelector)
	if err != nil {
		err = fmt.Errorf("--node-selector: %w", err)
	}
	mistakes := slices.Concat([]error{err}, o.validate(), o.validateKubelet(), o.validateActive(), o.validateSource(),
		o.validateResources(), o.validateServingCert(), o.validateEvents(), o.validateLibrary())
	if err := errors.Join(mistakes...); err != nil {
		return server.Config{}, err
	}
	c := o.Config
	c.NodeSelector = selector
	for _, t := range o.addressTypes {
		c.Kubelet.AddressTypes = append(c.Kubelet.AddressTypes, corev1.NodeAddressType(t))
	}
	if c.Active.Resolution == 0 {
		c.Active = scrape.Active{}
	}
	if !o.usesPrometheus() {
		c.Prometheus = nil
	}
	if c.Devices.File == "" {
		c.Devices = nil
	}
	if !slices.Contains(o.resources, extra.EphemeralStorage) {
		c.EphemeralStorage.Interval = 0
	}
	if !o.nodeEvents {
		c.EventDeployment = ""
	}
	return c, nil
}

// complete sets the defaults that depend on other flags.
func (o *options) complete() {
	server.LimitVerbosity(o.logging)
	if !o.all.Changed("max-sample-age") {
		o.MaxSampleAge = o.defaultMaxSampleAge()
	}
	if !o.all.Changed("rate-window") && !o.usesPrometheus() {
		o.RateWindow = min(defaultRateWindow, o.MaxSampleAge)
	}
	if !o.all.Changed("kubelet-request-timeout") {
		o.Kubelet.Timeout = min(kubelet.DefaultTimeout, o.longestTimeout())
	}
	o.completeActive()
	if o.Authentication.RemoteKubeConfigFile == "" {
		o.Authentication.RemoteKubeConfigFile = o.Kubeconfig
	}
	if o.Authorization.RemoteKubeConfigFile == "" {
		o.Authorization.RemoteKubeConfigFile = o.Kubeconfig
	}
}

// interval returns the resolution, or the shortest valid one if the flag is wrong, so that other
// flags cause no further errors.
func (o *options) interval() time.Duration { return max(o.Resolution, minResolution) }

// resolutionKnown reports whether other flags can be compared with --metric-resolution.
func (o *options) resolutionKnown() bool { return !slices.Contains(o.unparsed, "metric-resolution") }

// longestTimeout returns the largest valid timeout: a response needs the rest of the interval to be
// decoded and stored.
func (o *options) longestTimeout() time.Duration { return o.interval() * 9 / 10 }

func (o *options) validate() []error {
	var mistakes []error
	if o.Resolution < minResolution {
		mistakes = append(mistakes,
			fmt.Errorf("--metric-resolution must be at least %v, but is %v", minResolution, o.Resolution))
	}
	if least := 2 * o.interval(); o.MaxSampleAge < least && o.resolutionKnown() {
		mistakes = append(mistakes, fmt.Errorf("--max-sample-age must be at least 2 × --metric-resolution, so %v, "+
			"but is %v: the metrics of a node would expire before the next ones arrive", least, o.MaxSampleAge))
	}
	return mistakes
}

func (o *options) validateKubelet() []error {
	mistakes := slices.Concat(kubeletMistakes(o.Kubelet), o.validateRateWindow(), o.validateKubeletAccount(),
		o.validateKubeletPins())
	if o.Kubelet.Timeout > o.longestTimeout() && o.resolutionKnown() {
		mistakes = append(mistakes, fmt.Errorf("--kubelet-request-timeout must be at most 9/10 of --metric-resolution, "+
			"so %v, but is %v", o.longestTimeout(), o.Kubelet.Timeout))
	}
	if o.Kubelet.MaxBodyBytes < minResponseBytes {
		mistakes = append(mistakes, fmt.Errorf("--kubelet-max-response-bytes must be at least %d, but is %d: "+
			"responses of ordinary nodes would be rejected", minResponseBytes, o.Kubelet.MaxBodyBytes))
	}
	if len(o.addressTypes) == 0 {
		mistakes = append(mistakes, errors.New("--kubelet-preferred-address-types must name at least one type"))
	}
	known := defaultAddressTypes()
	for _, t := range o.addressTypes {
		if !slices.Contains(known, t) {
			mistakes = append(mistakes, fmt.Errorf("--kubelet-preferred-address-types: %q is not a type of node addresses; "+
				"the types are %s", t, strings.Join(known, ", ")))
		}
	}
	return mistakes
}

func (o *options) validateRateWindow() []error {
	maxSampleAgeKnown := o.resolutionKnown() && !slices.Contains(o.unparsed, "max-sample-age")
	switch {
	case !o.all.Changed("rate-window"):
		return nil
	case o.RateWindow < usage.MinWindow:
		return []error{fmt.Errorf("--rate-window must be at least %v, but is %v", usage.MinWindow, o.RateWindow)}
	case o.RateWindow > o.MaxSampleAge && maxSampleAgeKnown:
		return []error{fmt.Errorf("--rate-window must be at most --max-sample-age, so %v, but is %v: no rate covers more "+
			"than that", o.MaxSampleAge, o.RateWindow)}
	}
	return nil
}

func (o *options) validateKubeletAccount() []error {
	if o.KubeletServiceAccount == "" {
		return nil
	}
	var mistakes []error
	if problems := validation.IsDNS1123Subdomain(o.KubeletServiceAccount); problems != nil {
		mistakes = append(mistakes, fmt.Errorf("--kubelet-service-account: %q is not a valid name: %s",
			o.KubeletServiceAccount, strings.Join(problems, "; ")))
	}
	for _, other := range []struct {
		flag string
		set  bool
	}{
		{"--kubelet-client-certificate", o.Kubelet.ClientCertificate != ""},
		{"--deprecated-kubelet-completely-insecure", o.Kubelet.PlainHTTP},
	} {
		if other.set {
			mistakes = append(mistakes, fmt.Errorf("--kubelet-service-account has no effect with %s, with which kubelets "+
				"receive no token: remove one of them", other.flag))
		}
	}
	return mistakes
}

func (o *options) validateKubeletPins() []error {
	if o.KubeletPins == "" {
		return nil
	}
	var mistakes []error
	if problems := validation.IsDNS1123Subdomain(o.KubeletPins); problems != nil {
		mistakes = append(mistakes, fmt.Errorf("--kubelet-pins: %q is not a valid name: %s",
			o.KubeletPins, strings.Join(problems, "; ")))
	}
	for _, other := range []struct {
		flag string
		set  bool
	}{
		{"--kubelet-insecure-tls", o.Kubelet.InsecureTLS},
		{"--deprecated-kubelet-completely-insecure", o.Kubelet.PlainHTTP},
	} {
		if other.set {
			mistakes = append(mistakes, fmt.Errorf("--kubelet-pins has no effect with %s, with which no certificate is "+
				"verified: remove one of them", other.flag))
		}
	}
	return mistakes
}

func defaultAddressTypes() []string {
	var types []string
	for _, t := range kubelet.DefaultAddressTypes() {
		types = append(types, string(t))
	}
	return types
}

// validateLibrary checks the flags of the API server library.
func (o *options) validateLibrary() []error {
	mistakes := slices.Concat(o.Generic.Validate(), o.Serving.Validate(), o.Authentication.Validate(),
		o.Authorization.Validate(), o.Audit.Validate(), o.Features.Validate())
	if err := o.Generic.ComponentGlobalsRegistry.Set(); err != nil {
		mistakes = append(mistakes, fmt.Errorf("--feature-gates, --emulated-version: %w", err))
	}
	if pair := o.Serving.ServerCert.CertKey; (pair.CertFile != "") != (pair.KeyFile != "") {
		mistakes = append(mistakes, errors.New("--tls-cert-file and --tls-private-key-file must be set together"))
	}
	if _, err := cliflag.TLSVersion(o.Serving.MinTLSVersion); err != nil {
		mistakes = append(mistakes, fmt.Errorf("--tls-min-version: %w", err))
	}
	if _, err := cliflag.TLSCipherSuites(o.Serving.CipherSuites); err != nil {
		mistakes = append(mistakes, fmt.Errorf("--tls-cipher-suites: %w", err))
	}
	if err := logsapi.Validate(o.logging, nil, nil).ToAggregate(); err != nil {
		mistakes = append(mistakes, fmt.Errorf("the logging flags: %w", err))
	}
	return mistakes
}
