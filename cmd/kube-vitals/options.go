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

	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
	"github.com/kube-vitals/kube-vitals/pkg/server"
	"github.com/kube-vitals/kube-vitals/pkg/servingcert"
)

const (
	minResolution = 5 * time.Second
	// defaultShutdownDelay gives the cluster the time to send no more requests before the port is
	// closed.
	defaultShutdownDelay = 5 * time.Second
	minResponseBytes     = 64 << 10
	// defaultAllowedTTL is how long an allowed request is remembered. HorizontalPodAutoscalers read
	// every 15 seconds: with the library's 10 seconds, each of their LISTs would cost the API
	// server, which has allowed it already, an access review.
	defaultAllowedTTL = 2 * time.Minute
)

// options are the flags. Their names, meanings and defaults are metrics-server's where it has them.
type options struct {
	sections cliflag.NamedFlagSets
	all      *pflag.FlagSet // those of all sections
	unparsed []string       // flags with a value that could not be parsed
	help     bool
	version  bool
	logging  *logs.Options

	kubeconfig   string
	nodeSelector string
	resolution   time.Duration
	maxSampleAge time.Duration // 0: by the resolution

	kubelet        kubelet.Config
	kubeletAccount string
	addressTypes   []string
	servingCert    servingcert.Config

	generic        *genericoptions.ServerRunOptions
	serving        *genericoptions.SecureServingOptions
	authentication *genericoptions.DelegatingAuthenticationOptions
	authorization  *genericoptions.DelegatingAuthorizationOptions
	audit          *genericoptions.AuditOptions
	features       *genericoptions.FeatureOptions
}

func newOptions() *options {
	o := &options{
		all:            pflag.NewFlagSet("kube-vitals", pflag.ContinueOnError),
		logging:        logs.NewOptions(),
		resolution:     15 * time.Second,
		kubelet:        kubelet.Config{Port: kubelet.DefaultPort},
		addressTypes:   defaultAddressTypes(),
		servingCert:    newServingCertConfig(),
		generic:        genericoptions.NewServerRunOptionsForComponent("kube-vitals", compatibility.NewComponentGlobalsRegistry()),
		serving:        genericoptions.NewSecureServingOptions(),
		authentication: genericoptions.NewDelegatingAuthenticationOptions(),
		authorization:  genericoptions.NewDelegatingAuthorizationOptions(),
		audit:          genericoptions.NewAuditOptions(),
		features:       genericoptions.NewFeatureOptions(),
	}
	o.generic.ShutdownDelayDuration = defaultShutdownDelay
	o.authorization.AllowCacheTTL = defaultAllowedTTL
	o.serving.Required = true
	o.serving.ServerCert.CertDirectory = ""
	o.features.EnablePriorityAndFairness = false

	o.addFlags(o.sections.FlagSet("kube-vitals"))
	o.addKubeletFlags(o.sections.FlagSet("kubelet client"))
	o.addIdentityFlags(o.sections.FlagSet("serving certificate that renews itself"))
	o.generic.AddUniversalFlags(o.sections.FlagSet("generic"))
	o.serving.AddFlags(o.sections.FlagSet("apiserver secure serving"))
	o.authentication.AddFlags(o.sections.FlagSet("apiserver authentication"))
	o.authorization.AddFlags(o.sections.FlagSet("apiserver authorization"))
	o.audit.AddFlags(o.sections.FlagSet("apiserver audit log"))
	o.features.AddFlags(o.sections.FlagSet("features"))
	logsapi.AddFlags(o.logging, o.sections.FlagSet("logging"))
	for _, name := range o.sections.Order {
		o.all.AddFlagSet(o.sections.FlagSets[name])
	}
	o.all.Lookup("v").Usage += fmt.Sprintf("; above %d, where the log would contain tokens and keys, it counts as %[1]d", server.MaxVerbosity)
	o.hideIdleFlags()
	return o
}

func (o *options) addFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.kubeconfig, "kubeconfig", "", "The kubeconfig file to reach the Kubernetes API server with; "+
		"needed outside of the cluster only. It also stands for --authentication-kubeconfig and --authorization-kubeconfig "+
		"where those are not given.")
	fs.DurationVar(&o.resolution, "metric-resolution", o.resolution, "The time between two scrapes of a kubelet; at least 5s.")
	fs.DurationVar(&o.maxSampleAge, "max-sample-age", 0, "The age up to which a figure is served when there is no newer one; "+
		"at least 2 × --metric-resolution. (default 4 × --metric-resolution)")
	fs.Bool("verify-pod-nodes", false, "Has no effect.")
	if err := fs.MarkDeprecated("verify-pod-nodes", "the metrics of a pod always come from the node that the pod is bound to"); err != nil {
		panic(err) // the flag is there, and the message is not empty
	}
	fs.BoolVar(&o.version, "version", false, "Print the version and exit.")
	fs.BoolVarP(&o.help, "help", "h", false, "Print this help and exit.")
}

func (o *options) addKubeletFlags(fs *pflag.FlagSet) {
	k := &o.kubelet
	fs.StringVarP(&o.nodeSelector, "node-selector", "l", "", "The label selector of the nodes to scrape and serve, such as "+
		"'key=value,other!=value'; all nodes without one.")
	fs.IntVar(&k.Port, "kubelet-port", k.Port, "The port of the kubelets.")
	fs.BoolVar(&k.UseNodeStatusPort, "kubelet-use-node-status-port", false, "Use the port that a node's status tells, where it "+
		"tells one, instead of --kubelet-port.")
	fs.StringSliceVar(&o.addressTypes, "kubelet-preferred-address-types", o.addressTypes, "The types of node addresses, in the "+
		"order in which they are tried.")
	fs.DurationVar(&k.Timeout, "kubelet-request-timeout", 0, "The time after which a request to a kubelet is given up; at most "+
		"9/10 of --metric-resolution. (default 10s, or 9/10 of --metric-resolution where that is less)")
	fs.StringVar(&k.CertificateAuthority, "kubelet-certificate-authority", "", "The file with the CA certificates that the "+
		"kubelets' serving certificates are verified with. (default: the cluster's CA)")
	fs.StringVar(&k.ClientCertificate, "kubelet-client-certificate", "", "The file with the client certificate to show to kubelets. "+
		"No token is sent to them then.")
	fs.StringVar(&k.ClientKey, "kubelet-client-key", "", "The file with the key of --kubelet-client-certificate.")
	fs.StringVar(&o.kubeletAccount, "kubelet-service-account", "", "The ServiceAccount, in the namespace of this pod, whose "+
		"short-lived tokens are sent to kubelets. It should have no other rights than get on nodes/metrics and nodes/stats; "+
		"kube-vitals needs create on serviceaccounts/token of its name. (default: kubelets are sent kube-vitals' own "+
		"credentials)")
	fs.BoolVar(&k.AllowLoopback, "kubelet-allow-loopback", false, "Allow 127.0.0.0/8 and ::1 as addresses of kubelets. For tests "+
		"and development only.")
	fs.Int64Var(&k.MaxBodyBytes, "kubelet-max-response-bytes", kubelet.DefaultMaxBodyBytes, "The size from which on a kubelet's answer is "+
		"refused, uncompressed. The default has room for 2000 pods of 3 containers.")
	fs.BoolVar(&k.Gzip, "kubelet-gzip", false, "Ask kubelets to compress their answers: a tenth of the bytes, for more CPU at both ends. "+
		"See docs/performance.md.")
	fs.BoolVar(&k.InsecureTLS, "kubelet-insecure-tls", false, "Do not verify the kubelets' serving certificates. For tests only: "+
		"whoever sits in between can read the credentials and make up figures.")
	fs.BoolVar(&k.PlainHTTP, "deprecated-kubelet-completely-insecure", false, "DEPRECATED: Talk to kubelets without encryption "+
		"and without credentials.")
}

// hideIdleFlags leaves flags out of --help that do nothing here, or that only the API server
// library's developers need. They are accepted for the sake of command lines that were written for
// metrics-server.
func (o *options) hideIdleFlags() {
	for _, name := range []string{
		"emulated-version", "emulation-forward-compatible", "runtime-config-emulation-forward-compatible",
		"min-compatibility-version", "feature-gates", "max-mutating-requests-inflight", "min-request-timeout",
		"storage-initialization-timeout", "shutdown-watch-termination-grace-period", "enable-priority-and-fairness",
	} {
		o.all.Lookup(name).Hidden = true
	}
}

// config checks the flags, says all that is wrong with them, and gives what they mean.
func (o *options) config() (server.Config, error) {
	o.complete()
	selector, err := labels.Parse(o.nodeSelector)
	if err != nil {
		err = fmt.Errorf("--node-selector: %w", err)
	}
	mistakes := append([]error{err}, o.validate()...)
	mistakes = append(mistakes, o.validateKubelet()...)
	mistakes = append(mistakes, o.validateIdentity()...)
	mistakes = append(mistakes, o.validateLibrary()...)
	if err := errors.Join(mistakes...); err != nil {
		return server.Config{}, err
	}
	for _, t := range o.addressTypes {
		o.kubelet.AddressTypes = append(o.kubelet.AddressTypes, corev1.NodeAddressType(t))
	}
	return server.Config{
		Version:      version,
		Commit:       commit,
		Kubeconfig:   o.kubeconfig,
		NodeSelector: selector,
		Resolution:   o.resolution,
		MaxSampleAge: o.maxSampleAge,
		Kubelet:      o.kubelet,

		KubeletServiceAccount: o.kubeletAccount,

		ServingCert:    o.servingCert,
		Generic:        o.generic,
		Serving:        o.serving,
		Authentication: o.authentication,
		Authorization:  o.authorization,
		Audit:          o.audit,
		Features:       o.features,
	}, nil
}

// complete sets the defaults that depend on other flags.
func (o *options) complete() {
	server.LimitVerbosity(o.logging)
	if !o.all.Changed("max-sample-age") {
		o.maxSampleAge = 4 * o.interval()
	}
	if !o.all.Changed("kubelet-request-timeout") {
		o.kubelet.Timeout = min(kubelet.DefaultTimeout, o.longestTimeout())
	}
	if o.authentication.RemoteKubeConfigFile == "" {
		o.authentication.RemoteKubeConfigFile = o.kubeconfig
	}
	if o.authorization.RemoteKubeConfigFile == "" {
		o.authorization.RemoteKubeConfigFile = o.kubeconfig
	}
}

// interval is the resolution, or the shortest there can be where the flag is wrong: one mistake is
// told once.
func (o *options) interval() time.Duration { return max(o.resolution, minResolution) }

// resolutionKnown reports whether other flags can be compared with --metric-resolution.
func (o *options) resolutionKnown() bool { return !slices.Contains(o.unparsed, "metric-resolution") }

// longestTimeout leaves time in the interval for an answer to be taken in.
func (o *options) longestTimeout() time.Duration { return o.interval() * 9 / 10 }

func (o *options) validate() []error {
	var mistakes []error
	if o.resolution < minResolution {
		mistakes = append(mistakes, fmt.Errorf("--metric-resolution must be at least %v, but is %v", minResolution, o.resolution))
	}
	if least := 2 * o.interval(); o.maxSampleAge < least && o.resolutionKnown() {
		mistakes = append(mistakes, fmt.Errorf("--max-sample-age must be at least 2 × --metric-resolution, so %v, but is %v: "+
			"the figures of a node would go before the next ones come", least, o.maxSampleAge))
	}
	return mistakes
}

func (o *options) validateKubelet() []error {
	mistakes := append(kubeletMistakes(o.kubelet), o.validateKubeletAccount()...)
	if o.kubelet.Timeout > o.longestTimeout() && o.resolutionKnown() {
		mistakes = append(mistakes, fmt.Errorf("--kubelet-request-timeout must be at most 9/10 of --metric-resolution, so %v, but is %v",
			o.longestTimeout(), o.kubelet.Timeout))
	}
	if o.kubelet.MaxBodyBytes < minResponseBytes {
		mistakes = append(mistakes, fmt.Errorf("--kubelet-max-response-bytes must be at least %d, but is %d: answers of usual nodes would be refused",
			minResponseBytes, o.kubelet.MaxBodyBytes))
	}
	if len(o.addressTypes) == 0 {
		mistakes = append(mistakes, errors.New("--kubelet-preferred-address-types must name at least one type"))
	}
	known := defaultAddressTypes()
	for _, t := range o.addressTypes {
		if !slices.Contains(known, t) {
			mistakes = append(mistakes, fmt.Errorf("--kubelet-preferred-address-types: %q is not a type of node addresses; there are %s",
				t, strings.Join(known, ", ")))
		}
	}
	return mistakes
}

func (o *options) validateKubeletAccount() []error {
	if o.kubeletAccount == "" {
		return nil
	}
	var mistakes []error
	if problems := validation.IsDNS1123Subdomain(o.kubeletAccount); problems != nil {
		mistakes = append(mistakes, fmt.Errorf("--kubelet-service-account: %q is not a name of a ServiceAccount: %s",
			o.kubeletAccount, strings.Join(problems, "; ")))
	}
	for _, other := range []struct {
		flag string
		set  bool
	}{
		{"--kubelet-client-certificate", o.kubelet.ClientCertificate != ""},
		{"--deprecated-kubelet-completely-insecure", o.kubelet.PlainHTTP},
	} {
		if other.set {
			mistakes = append(mistakes, fmt.Errorf("--kubelet-service-account has no meaning with %s, with which no token is sent to "+
				"kubelets: leave one of them out", other.flag))
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
	mistakes := slices.Concat(o.generic.Validate(), o.serving.Validate(), o.authentication.Validate(), o.authorization.Validate(),
		o.audit.Validate(), o.features.Validate())
	if err := o.generic.ComponentGlobalsRegistry.Set(); err != nil {
		mistakes = append(mistakes, fmt.Errorf("--feature-gates, --emulated-version: there is nothing to be set: %w", err))
	}
	if pair := o.serving.ServerCert.CertKey; (pair.CertFile != "") != (pair.KeyFile != "") {
		mistakes = append(mistakes, errors.New("--tls-cert-file and --tls-private-key-file need each other"))
	}
	if _, err := cliflag.TLSVersion(o.serving.MinTLSVersion); err != nil {
		mistakes = append(mistakes, fmt.Errorf("--tls-min-version: %w", err))
	}
	if _, err := cliflag.TLSCipherSuites(o.serving.CipherSuites); err != nil {
		mistakes = append(mistakes, fmt.Errorf("--tls-cipher-suites: %w", err))
	}
	if err := logsapi.Validate(o.logging, nil, nil).ToAggregate(); err != nil {
		mistakes = append(mistakes, fmt.Errorf("the logging flags: %w", err))
	}
	return mistakes
}
