package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/server"
)

// parse returns the configuration of a command line, or its errors.
func parse(args ...string) (server.Config, error) {
	o := newOptions()
	o.parse(args)
	c := o.config()
	return c, errors.Join(o.errs...)
}

// parsed returns the options of a valid command line.
func parsed(t *testing.T, args ...string) *options {
	t.Helper()
	o := newOptions()
	if o.parse(args); o.errs != nil {
		t.Fatal(o.errs)
	}
	return o
}

func TestDefaults(t *testing.T) {
	c, err := parse()
	if err != nil {
		t.Fatal(err)
	}
	for name, same := range map[string]bool{
		"resolution":      c.Resolution == 15*time.Second,
		"max sample age":  c.MaxSampleAge == time.Minute,
		"rate window":     c.RateWindow == 15*time.Second,
		"kubelet port":    c.Kubelet.Port == 10250 && !c.Kubelet.UseNodeStatusPort,
		"kubelet timeout": c.Kubelet.Timeout == 10*time.Second,
		"address types": slices.Equal(c.Kubelet.AddressTypes, []string{
			"Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"}),
		"kubelet credentials": c.KubeletServiceAccount == "" && c.KubeletPins == "" && !c.Kubelet.AllowLoopback,
		"kubelet TLS":         !c.Kubelet.TLS.Insecure && !c.Kubelet.PlainHTTP,
		"all nodes":           c.NodeSelector == "",
		"warnings":            c.MissingMetricsWarnings,
		"port":                c.Serving.BindPort == 443,
		"profiling":           c.Features.EnableProfiling,
		"shutdown":            c.Generic.ShutdownDelayDuration > 0,
		"certificate":         c.Serving.ServerCert.CertDirectory == "",
		"public paths":        slices.Equal(c.Authorization.AlwaysAllowPaths, []string{"/healthz", "/readyz", "/livez"}),
		"cached tokens":       c.Authentication.CacheTTL == 10*time.Second,
		"cached permissions": c.Authorization.AllowCacheTTL == 2*time.Minute &&
			c.Authorization.DenyCacheTTL == 10*time.Second,
		"authentication file": c.Authentication.RemoteKubeConfigFile == "" && c.Authorization.RemoteKubeConfigFile == "",
	} {
		if !same {
			t.Errorf("got another default of the %s: %+v", name, c)
		}
	}
}

func TestFlags(t *testing.T) {
	for args, same := range map[string]func(server.Config) bool{
		"--metric-resolution=30s": func(c server.Config) bool {
			return c.Resolution == 30*time.Second && c.MaxSampleAge == 2*time.Minute && c.Kubelet.Timeout == 10*time.Second
		},
		"--metric-resolution=5s": func(c server.Config) bool {
			return c.MaxSampleAge == 20*time.Second && c.Kubelet.Timeout == 4500*time.Millisecond
		},
		"--max-sample-age 45s": func(c server.Config) bool { return c.MaxSampleAge == 45*time.Second },
		"--rate-window=1s":     func(c server.Config) bool { return c.RateWindow == time.Second },
		"--rate-window=1m":     func(c server.Config) bool { return c.RateWindow == time.Minute },
		"--metric-resolution=5s --max-sample-age=10s": func(c server.Config) bool {
			return c.RateWindow == 10*time.Second
		},
		"--kubelet-request-timeout 3s":      func(c server.Config) bool { return c.Kubelet.Timeout == 3*time.Second },
		"-l zone=a":                         func(c server.Config) bool { return c.NodeSelector == "zone=a" },
		"--node-selector zone!=a":           func(c server.Config) bool { return c.NodeSelector == "zone!=a" },
		"--missing-metrics-warnings=false":  func(c server.Config) bool { return !c.MissingMetricsWarnings },
		"--kubelet-use-node-status-port":    func(c server.Config) bool { return c.Kubelet.UseNodeStatusPort },
		"--kubelet-port=1":                  func(c server.Config) bool { return c.Kubelet.Port == 1 },
		"--kubelet-insecure-tls":            func(c server.Config) bool { return c.Kubelet.TLS.Insecure },
		"--kubelet-certificate-authority=f": func(c server.Config) bool { return c.Kubelet.TLS.CAFile == "f" },
		"--kubelet-client-certificate=c --kubelet-client-key=k": func(c server.Config) bool {
			return c.Kubelet.TLS.CertFile == "c" && c.Kubelet.TLS.KeyFile == "k"
		},
		"--deprecated-kubelet-completely-insecure": func(c server.Config) bool { return c.Kubelet.PlainHTTP },
		"--kubelet-preferred-address-types=InternalIP,Hostname": func(c server.Config) bool {
			return slices.Equal(c.Kubelet.AddressTypes, []string{"InternalIP", "Hostname"})
		},
		"--kubeconfig=f": func(c server.Config) bool {
			return c.Kubeconfig == "f" && c.Authentication.RemoteKubeConfigFile == "f" &&
				c.Authorization.RemoteKubeConfigFile == "f"
		},
		"--kubeconfig=f --authentication-kubeconfig=g --authorization-kubeconfig=h": func(c server.Config) bool {
			return c.Authentication.RemoteKubeConfigFile == "g" && c.Authorization.RemoteKubeConfigFile == "h"
		},
		"--kubelet-max-response-bytes=65536": func(c server.Config) bool { return c.Kubelet.MaxBodyBytes == 1<<16 },
		"--tls-secret=s --tls-names=a.b.svc,a.b --tls-lifetime=24h": func(c server.Config) bool {
			cert := c.ServingCert
			return cert.Secret == "s" && slices.Equal(cert.Names, []string{"a.b.svc", "a.b"}) &&
				slices.Equal(cert.APIServices, []string{"v1.metrics.k8s.io", "v1beta1.metrics.k8s.io"}) &&
				cert.Lifetime == 24*time.Hour && cert.Settle == 10*time.Minute
		},
		"--tls-secret=s --tls-names=a.b.svc --tls-ca-configmap=c": func(c server.Config) bool {
			return c.ServingCert.ConfigMap == "c"
		},
		"--tls-ca-configmap=c --tls-names=a --tls-secret=": func(c server.Config) bool { // disables it
			return c.ServingCert.Secret == ""
		},
		"--service=a.b.svc": func(c server.Config) bool { return c.ServingCert.Service == "a.b.svc" },
		"--tls-secret=s --tls-names=a.b.svc --service=a.b.svc:8443": func(c server.Config) bool {
			return c.ServingCert.Service == "a.b.svc:8443"
		},
		"--kubelet-service-account=kube-vitals-kubelet": func(c server.Config) bool {
			return c.KubeletServiceAccount == "kube-vitals-kubelet"
		},
		"--kubelet-pins=p": func(c server.Config) bool { return c.KubeletPins == "p" },
		"--node-events --deployment=kube-vitals": func(c server.Config) bool {
			return c.EventDeployment == "kube-vitals"
		},
		"--deployment=kube-vitals --node-events=false": func(c server.Config) bool { // disables it
			return c.EventDeployment == ""
		},
		"--kubelet-allow-loopback": func(c server.Config) bool { return c.Kubelet.AllowLoopback },
		"--kubelet-gzip":           func(c server.Config) bool { return c.Kubelet.Gzip },
		"--secure-port=10250 --cert-dir=/tmp": func(c server.Config) bool {
			return c.Serving.BindPort == 10250 && c.Serving.ServerCert.CertDirectory == "/tmp"
		},
		"--profiling=false --enable-priority-and-fairness=false": func(c server.Config) bool {
			return !c.Features.EnableProfiling
		},
	} {
		c, err := parse(strings.Fields(args)...)
		if err != nil {
			t.Errorf("%s: %v", args, err)
		} else if !same(c) {
			t.Errorf("%s: got %+v", args, c)
		}
	}
}

// TestFlagsOfMetricsServer checks that command lines of metrics-server are valid.
func TestFlagsOfMetricsServer(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "metrics-server-flags.txt"))
	if err != nil {
		t.Fatal(err)
	}
	flags := newOptions().all
	for name := range strings.FieldsSeq(string(text)) {
		if flags.Lookup(name) == nil {
			t.Errorf("got no --%s", name)
		}
	}
}

func TestErrors(t *testing.T) {
	checkErrors(t, map[string][]string{
		"--tls-names=a.b.svc":          {"--tls-names needs --tls-secret"},
		"--tls-secret=s":               {"--tls-secret needs --tls-names"},
		"--tls-secret=s --tls-names=":  {"--tls-secret needs --tls-names"},
		"--tls-secret=s --service=a.b": {"--tls-secret needs --tls-names"},
		"--tls-ca-configmap=c":         {"--tls-ca-configmap needs --tls-secret"},
		"--tls-secret= --service=a.b":  {"--service: the Service must be named NAME.NAMESPACE.svc or"},
		"--service=a.b.svc:no":         {"NAME.NAMESPACE.svc:PORT"},
		"--tls-secret=s --tls-names=a.b.svc --service=c.b.svc": {
			`"c.b.svc", but the first name of the serving certificate is "a.b.svc"`},
		"--tls-secret=s --tls-names=a": {`NAME.NAMESPACE.svc:PORT, but it is "a"`},
		"--tls-secret=s --tls-names=a.b.svc --tls-lifetime=1m": {
			"since it is renewed in its last third: they are 1m0s and 10m0s"},
		"--tls-secret=s --tls-names=a.b.svc --tls-cert-file=c --tls-private-key-file=k --tls-settle=0": {
			"--tls-secret and --tls-cert-file exclude each other"},
		"--metric-resolution=4s": {
			"--metric-resolution must be at least 5s, but is 4s"},
		"--metric-resolution=-1s": {
			"--metric-resolution must be at least 5s, but is -1s"},
		"--max-sample-age=29s": {
			"--max-sample-age must be at least 2 × --metric-resolution, so 30s, but is 29s"},
		"--max-sample-age=0s": {"--max-sample-age must be at least"},
		"--rate-window=900ms": {"--rate-window must be at least 1s, but is 900ms"},
		"--rate-window=0s":    {"--rate-window must be at least 1s, but is 0s"},
		"--rate-window=61s": {
			"--rate-window must be at most --max-sample-age, so 1m0s, but is 1m1s: no rate covers more than that"},
		"--rate-window=2m --max-sample-age=banana":    {`"banana"`},
		"--rate-window=2m --metric-resolution=banana": {`"banana"`},
		"--rate-window=banana --max-sample-age=30s":   {`"banana"`},
		"--kubelet-request-timeout=14s": {
			"--kubelet-request-timeout must be at most 9/10 of --metric-resolution, so 13.5s, but is 14s"},
		"--kubelet-request-timeout=-1s": {"--kubelet-request-timeout"},
		"--kubelet-port=65536":          {"--kubelet-port"},
		"--kubelet-preferred-address-types=InternalIp": {
			`"InternalIp" is not a type of node addresses; the types are Hostname, `},
		"--kubelet-preferred-address-types=": {
			"--kubelet-preferred-address-types must name at least one"},
		"--kubelet-client-key=k":                                          {"--kubelet-client-certificate"},
		"--kubelet-insecure-tls --kubelet-certificate-authority=f":        {"--kubelet-insecure-tls"},
		"--deprecated-kubelet-completely-insecure --kubelet-insecure-tls": {"--deprecated-kubelet-completely-insecure"},
		"--kubelet-service-account=a/b": {
			`--kubelet-service-account: "a/b" is not a valid name`},
		"--kubelet-service-account=a --kubelet-client-certificate=c --kubelet-client-key=k": {
			"--kubelet-service-account has no effect with --kubelet-client-certificate"},
		"--kubelet-service-account=a --deprecated-kubelet-completely-insecure": {
			"--kubelet-service-account has no effect with --deprecated-kubelet-completely-insecure"},
		"--kubelet-pins=a/b --kubelet-insecure-tls": {
			`--kubelet-pins: "a/b" is not a valid name`,
			"--kubelet-pins has no effect with --kubelet-insecure-tls"},
		"--kubelet-pins=a --deprecated-kubelet-completely-insecure": {
			"--kubelet-pins has no effect with --deprecated-kubelet-completely-insecure"},
		"--node-events":                  {"--node-events needs --deployment: if many nodes fail"},
		"--deployment=a":                 {"--deployment needs --node-events"},
		"--node-events --deployment=a/b": {`--deployment: "a/b" is not a valid name`},
		"--kubelet-max-response-bytes=65535": {
			"--kubelet-max-response-bytes must be at least 65536, but is 65535"},
		"--node-selector=a=(": {"--node-selector: "},
		"--secure-port=0":     {"--secure-port 0"},
		"--tls-cert-file=f": {
			"--tls-cert-file and --tls-private-key-file must be set together"},
		"--tls-min-version=9":        {"--tls-min-version: "},
		"--tls-cipher-suites=x":      {"--tls-cipher-suites: "},
		"--max-requests-inflight=-1": {"--max-requests-inflight"},
		"--feature-gates=X=true":     {"--feature-gates"},
		"--logging-format=xml":       {"logging"},
		"--nonsense": {
			"unknown flag: --nonsense; see --help"},
		"stray": {
			`unexpected argument "stray"; see --help`},
		"--metric-resolution=banana": {
			`invalid argument "banana" for "--metric-resolution" flag`},
		"--metric-resolution=banana --max-sample-age=20s --kubelet-request-timeout=50s": {`"banana"`},
		"--max-sample-age=banana --kubelet-request-timeout=banana": {
			`"--max-sample-age"`, `"--kubelet-request-timeout"`},
		"--max-sample-age=90s --max-sample-age=banana": {`"banana"`},
		"--kubelet-port=x --kubelet-max-response-bytes=x --secure-port=x --bind-address=x --max-requests-inflight=x": {
			`"--kubelet-port"`, `"--kubelet-max-response-bytes"`, `"--secure-port"`, `"--bind-address"`,
			`"--max-requests-inflight"`},
		"--profiling=x": {`"--profiling"`},
		"--tls-secret=s --tls-names=a.b.svc --tls-lifetime=x --tls-settle=x": {`"--tls-lifetime"`, `"--tls-settle"`},
		"--metric-resoluton=30s": {"unknown flag: --metric-resoluton; see --help"},
		"--x":                    {"unknown flag: --x; see --help"},
		"-x":                     {"unknown shorthand flag: 'x' in -x; see --help"},
		"-metric-resolution=30s": {
			"unknown shorthand flag: 'm' in -metric-resolution=30s; see --help"},
		"-help":                            {"unknown shorthand flag: 'e' in -elp; see --help"},
		"--nonsense value --kubelet-port=": {"--nonsense", `"--kubelet-port"`},
		"--foo --bar=1 --metric-resolution=1s -z --baz": {
			"--foo", "--bar", "-z", "--baz", "--metric-resolution must be"},
		"--metric-resolution":                          {"flag needs an argument: --metric-resolution; see --help"},
		"--metric-resolution=x --kubelet-port=y stray": {`"--metric-resolution"`, `"--kubelet-port"`, `"stray"`},
		"--metric-resolution=1s --kubelet-port=-1 -l a=( --secure-port=0": {
			"--metric-resolution", "--kubelet-port", "--node-selector", "--secure-port"},
		// Flags that cannot be parsed do not hide the errors of others.
		"--metric-resolution=1s --kubelet-port=-1 stray --bar": {
			"--bar", "stray", "--metric-resolution", "--kubelet-port"},
	})
}

// checkErrors checks that each command line has these errors, one on a line, and no others.
func checkErrors(t *testing.T, wanted map[string][]string) {
	t.Helper()
	for args, want := range wanted {
		_, err := parse(strings.Fields(args)...)
		if err == nil {
			t.Errorf("%s: got no error", args)
			continue
		}
		lines := strings.Split(err.Error(), "\n")
		if len(lines) != len(want) {
			t.Errorf("%s: got %d errors, want %q:\n%v", args, len(lines), want, err)
		}
		for _, part := range want {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: got no %q in\n%v", args, part, err)
			}
		}
	}
}

func TestVersion(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"--version"}, &out); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(out.String(), "kube-vitals "+version+", commit ") {
		t.Errorf("got %q", out.String())
	}
}
