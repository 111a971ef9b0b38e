package main

import (
	"math"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const minResponseBytes, maxResponseBytes = 64 << 10, 1 << 30

func (o *options) addKubeletFlags(fs *pflag.FlagSet) {
	k := &o.Kubelet
	fs.StringVarP(&o.NodeSelector, "node-selector", "l", "",
		"The label selector of the nodes to scrape and serve, such as 'key=value,other!=value'. "+
			"(default: all nodes)")
	fs.DurationVar(&o.RateWindow, "rate-window", 0,
		"The longest time that a CPU rate should cover; at least 1s and at most --max-sample-age. If samples are "+
			"denser than 70 % of it, the rate is the mean over that time, or since the load changed. See "+
			"docs/numbers.md. (default 15s, or --max-sample-age if that is less)")
	fs.IntVar(&k.Port, "kubelet-port", kubelet.DefaultPort, "The port of the kubelets.")
	fs.BoolVar(&k.UseNodeStatusPort, "kubelet-use-node-status-port", false,
		"Use the port in a node's status, if it has one, instead of --kubelet-port.")
	fs.StringSliceVar(&k.AddressTypes, "kubelet-preferred-address-types", kubelet.DefaultAddressTypes(),
		"The types of node addresses to use, in order of preference. If there is no route to a node's first address of a "+
			"type, the next one of that type is used, one of the other address family if there is one.")
	fs.DurationVar(&k.Timeout, "kubelet-request-timeout", 0,
		"The timeout of a request to a kubelet; at most half of --max-sample-age, which is the timeout for a kubelet "+
			"that took longer recently. (default 10s, or --metric-resolution if that is less)")
	fs.StringVar(&k.TLS.CAFile, "kubelet-certificate-authority", "",
		"The file with the CA certificates that verify the kubelets' serving certificates. "+
			"(default: the cluster's CA)")
	fs.StringVar(&k.TLS.CertFile, "kubelet-client-certificate", "",
		"The file with the client certificate for kubelets. If it is set, no token is sent to "+
			"them.")
	fs.StringVar(&k.TLS.KeyFile, "kubelet-client-key", "", "The file with the key of --kubelet-client-certificate.")
	fs.StringVar(&o.KubeletServiceAccount, "kubelet-service-account", "",
		"The ServiceAccount, in the namespace of this pod, whose short-lived tokens are sent to "+
			"kubelets. It should have no permissions except get on nodes/metrics and nodes/stats; "+
			"kube-vitals needs create on its serviceaccounts/token. (default: kubelets receive "+
			"kube-vitals' own credentials)")
	fs.StringVar(&o.KubeletPins, "kubelet-pins", "",
		"The ConfigMap, in the namespace of this pod, that pins the keys of kubelets with self-signed "+
			"certificates at first sight. Tokens are sent to pinned keys and to kubelets that "+
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
	fs.BoolVar(&k.TLS.Insecure, "kubelet-insecure-tls", false,
		"Do not verify the kubelets' serving certificates. For tests only: an attacker on the "+
			"network can read the credentials and forge metrics.")
	fs.BoolVar(&k.PlainHTTP, "deprecated-kubelet-completely-insecure", false,
		"DEPRECATED: Connect to kubelets without encryption and without credentials.")
}

func (o *options) validateKubelet() {
	o.validateRateWindow()
	o.validateCredentials()
	if port := o.Kubelet.Port; port < 1 || port > math.MaxUint16 {
		o.errorf("--kubelet-port must be from 1 to %d, but is %d", math.MaxUint16, port)
	}
	switch {
	case o.Kubelet.Timeout <= 0:
		o.errorf("--kubelet-request-timeout must be above 0, but is %v", o.Kubelet.Timeout)
	case o.Kubelet.Timeout > o.Kubelet.SlowTimeout && o.maxSampleAgeKnown():
		o.errorf("--kubelet-request-timeout must be at most half of --max-sample-age, so %v, but is %v",
			o.Kubelet.SlowTimeout, o.Kubelet.Timeout)
	}
	if n := o.Kubelet.MaxBodyBytes; n < minResponseBytes || n > maxResponseBytes {
		o.errorf("--kubelet-max-response-bytes must be from %d, which ordinary nodes need, to %d, but is %d",
			minResponseBytes, maxResponseBytes, n)
	}
	if len(o.Kubelet.AddressTypes) == 0 {
		o.errorf("--kubelet-preferred-address-types must name at least one type")
	}
	known := kubelet.DefaultAddressTypes()
	for _, t := range o.Kubelet.AddressTypes {
		if !slices.Contains(known, t) {
			o.errorf("--kubelet-preferred-address-types: %q is not a type of node addresses; the types are %s",
				t, strings.Join(known, ", "))
		}
	}
}

// validateCredentials checks that the flags that say how kubelets are verified, and this server to them, fit
// together.
func (o *options) validateCredentials() {
	const (
		account, pins    = "kubelet-service-account", "kubelet-pins"
		certificate, key = "kubelet-client-certificate", "kubelet-client-key"
		insecure         = "kubelet-insecure-tls"
		plainHTTP        = "deprecated-kubelet-completely-insecure"
	)
	if o.isSet(account) {
		o.checkName(account, o.KubeletServiceAccount)
	}
	if o.isSet(pins) {
		o.checkName(pins, o.KubeletPins)
	}
	if o.isSet(certificate) != o.isSet(key) {
		o.errorf("--%s and --%s must be set together", certificate, key)
	}
	o.checkConflicts(account, "kubelets receive no token", certificate, plainHTTP)
	o.checkConflicts(pins, "no certificate is verified", insecure, plainHTTP)
	o.checkConflicts("kubelet-certificate-authority", "no certificate is verified", insecure, plainHTTP)
	o.checkConflicts(insecure, "there is no TLS", plainHTTP)
	o.checkConflicts(certificate, "there is no TLS", plainHTTP)
}

func (o *options) validateRateWindow() {
	switch {
	case !o.all.Changed("rate-window"):
	case o.RateWindow < usage.MinWindow:
		o.errorf("--rate-window must be at least %v, but is %v", usage.MinWindow, o.RateWindow)
	case o.RateWindow > o.MaxSampleAge && o.maxSampleAgeKnown():
		o.errorf("--rate-window must be at most --max-sample-age, so %v, but is %v: no rate covers more than that",
			o.MaxSampleAge, o.RateWindow)
	}
}

// isSet reports whether a flag has a text, or is true.
func (o *options) isSet(flag string) bool {
	value := o.all.Lookup(flag).Value.String()
	return value != "" && value != "false"
}

// checkConflicts adds an error for each of the other flags that is set beside this one: with it, this one has no
// effect, for the given reason.
func (o *options) checkConflicts(flag, reason string, others ...string) {
	for _, other := range others {
		if o.isSet(flag) && o.isSet(other) {
			o.errorf("--%s has no effect with --%s, because %s: remove one of them", flag, other, reason)
		}
	}
}
