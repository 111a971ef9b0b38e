package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const minResponseBytes = 64 << 10

func (o *options) addKubeletFlags(fs *pflag.FlagSet) {
	k := &o.Kubelet
	fs.StringVarP(&o.nodeSelector, "node-selector", "l", "",
		"The label selector of the nodes to scrape and serve, such as 'key=value,other!=value'. "+
			"(default: all nodes)")
	fs.DurationVar(&o.RateWindow, "rate-window", 0,
		"The longest time that a CPU rate should cover; at least 1s and at most --max-sample-age. If samples are "+
			"denser than 60 % of it, the rate is the mean over that time, or since the load changed. See "+
			"docs/numbers.md. (default 15s, or --max-sample-age if that is less)")
	fs.IntVar(&k.Port, "kubelet-port", kubelet.DefaultPort, "The port of the kubelets.")
	fs.BoolVar(&k.UseNodeStatusPort, "kubelet-use-node-status-port", false,
		"Use the port in a node's status, if it has one, instead of --kubelet-port.")
	fs.StringSliceVar(&o.addressTypes, "kubelet-preferred-address-types", defaultAddressTypes(),
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

func defaultAddressTypes() []string {
	var types []string
	for _, t := range kubelet.DefaultAddressTypes() {
		types = append(types, string(t))
	}
	return types
}

// longestTimeout returns the largest valid timeout: a response needs the rest of the interval to be
// decoded and stored.
func (o *options) longestTimeout() time.Duration { return o.interval() * 9 / 10 }

func (o *options) validateKubelet() {
	o.errs = append(o.errs, kubeletErrors(o.Kubelet)...)
	o.validateRateWindow()
	if o.KubeletServiceAccount != "" {
		o.checkName("kubelet-service-account", o.KubeletServiceAccount)
		o.checkConflicts("kubelet-service-account", "kubelets receive no token",
			"kubelet-client-certificate", "deprecated-kubelet-completely-insecure")
	}
	if o.KubeletPins != "" {
		o.checkName("kubelet-pins", o.KubeletPins)
		o.checkConflicts("kubelet-pins", "no certificate is verified",
			"kubelet-insecure-tls", "deprecated-kubelet-completely-insecure")
	}
	if o.Kubelet.Timeout > o.longestTimeout() && o.resolutionKnown() {
		o.errorf("--kubelet-request-timeout must be at most 9/10 of --metric-resolution, so %v, but is %v",
			o.longestTimeout(), o.Kubelet.Timeout)
	}
	if o.Kubelet.MaxBodyBytes < minResponseBytes {
		o.errorf("--kubelet-max-response-bytes must be at least %d, but is %d: responses of ordinary nodes would be rejected",
			minResponseBytes, o.Kubelet.MaxBodyBytes)
	}
	if len(o.addressTypes) == 0 {
		o.errorf("--kubelet-preferred-address-types must name at least one type")
	}
	known := defaultAddressTypes()
	for _, t := range o.addressTypes {
		if !slices.Contains(known, t) {
			o.errorf("--kubelet-preferred-address-types: %q is not a type of node addresses; the types are %s",
				t, strings.Join(known, ", "))
		}
	}
}

func (o *options) validateRateWindow() {
	maxSampleAgeKnown := o.resolutionKnown() && !slices.Contains(o.unparsed, "max-sample-age")
	switch {
	case !o.all.Changed("rate-window"):
	case o.RateWindow < usage.MinWindow:
		o.errorf("--rate-window must be at least %v, but is %v", usage.MinWindow, o.RateWindow)
	case o.RateWindow > o.MaxSampleAge && maxSampleAgeKnown:
		o.errorf("--rate-window must be at most --max-sample-age, so %v, but is %v: no rate covers more than that",
			o.MaxSampleAge, o.RateWindow)
	}
}

// checkConflicts adds an error for each of the other flags that is set, for the reason given: with it,
// the flag has no effect.
func (o *options) checkConflicts(flag, reason string, others ...string) {
	for _, other := range others {
		if value := o.all.Lookup(other).Value.String(); value != "" && value != "false" {
			o.errorf("--%s has no effect with --%s, with which %s: remove one of them", flag, other, reason)
		}
	}
}

// kubeletErrors returns the errors in c, with flags instead of names of fields.
func kubeletErrors(c kubelet.Config) []error {
	flags := strings.NewReplacer(
		"CertificateAuthority", "--kubelet-certificate-authority",
		"ClientCertificate", "--kubelet-client-certificate",
		"ClientKey", "--kubelet-client-key",
		"InsecureTLS", "--kubelet-insecure-tls",
		"MaxBodyBytes", "--kubelet-max-response-bytes",
		"PlainHTTP", "--deprecated-kubelet-completely-insecure",
		"Port", "--kubelet-port",
		"Timeout", "--kubelet-request-timeout",
	)
	var errs []error
	for _, e := range c.Validate() {
		text := e.Field + " " + e.Detail
		switch e.Type {
		case field.ErrorTypeInvalid:
			text = fmt.Sprintf("%s is %v, but %s", e.Field, e.BadValue, e.Detail)
		case field.ErrorTypeRequired:
			text = fmt.Sprintf("%s is required %s", e.Field, e.Detail)
		}
		errs = append(errs, errors.New(flags.Replace(text)))
	}
	return errs
}
