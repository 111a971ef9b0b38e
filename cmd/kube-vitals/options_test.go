package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/scrape"
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
		"devices":         c.Devices.File == "" && c.Engine.URL == "",
		"resolution":      c.Resolution == 15*time.Second,
		"max sample age":  c.MaxSampleAge == time.Minute,
		"rate window":     c.RateWindow == 15*time.Second,
		"kubelet port":    c.Kubelet.Port == 10250 && !c.Kubelet.UseNodeStatusPort,
		"kubelet timeout": c.Kubelet.Timeout == 10*time.Second && c.Kubelet.SlowTimeout == 30*time.Second,
		"address types": slices.Equal(c.Kubelet.AddressTypes, []string{
			"Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"}),
		"kubelet credentials": c.KubeletServiceAccount == "" && c.KubeletPins == "" && !c.Kubelet.AllowLoopback,
		"kubelet TLS":         !c.Kubelet.TLS.Insecure && !c.Kubelet.PlainHTTP,
		"all nodes":           c.NodeSelector == "",
		"warnings":            c.MissingMetricsWarnings,
		"port":                c.Serving.BindPort == 443,
		"profiling":           c.Features.EnableProfiling,
		"shutdown":            c.Generic.ShutdownDelayDuration == 5*time.Second,
		"requests":            c.Generic.MaxRequestsInFlight == 400 && c.Generic.RequestTimeout == time.Minute,
		"lifetime":            c.ServingCert.Lifetime == 90*24*time.Hour && c.ServingCert.Settle == 10*time.Minute,
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
			return c.MaxSampleAge == 20*time.Second && c.Kubelet.Timeout == 5*time.Second &&
				c.Kubelet.SlowTimeout == 10*time.Second
		},
		"--metric-resolution=10s --max-sample-age=20s": func(c server.Config) bool {
			return c.Kubelet.Timeout == 10*time.Second && c.Kubelet.SlowTimeout == 10*time.Second
		},
		"--kubelet-request-timeout=30s": func(c server.Config) bool {
			return c.Kubelet.Timeout == 30*time.Second && c.Kubelet.SlowTimeout == 30*time.Second
		},
		"--metric-resolution=5s --max-sample-age=10s": func(c server.Config) bool { return c.RateWindow == 10*time.Second },
		"--rate-window=1m":                            func(c server.Config) bool { return c.RateWindow == time.Minute },
		"--max-sample-age 45s --rate-window=1s -l zone=a --missing-metrics-warnings=false": func(c server.Config) bool {
			return c.MaxSampleAge == 45*time.Second && c.RateWindow == time.Second && c.NodeSelector == "zone=a" &&
				!c.MissingMetricsWarnings
		},
		"--node-selector zone!=a": func(c server.Config) bool { return c.NodeSelector == "zone!=a" },
		"--kubelet-use-node-status-port --kubelet-port=1 --kubelet-preferred-address-types=InternalIP,Hostname " +
			"--kubelet-request-timeout 3s --kubelet-max-response-bytes=65536 --kubelet-gzip": func(c server.Config) bool {
			k := c.Kubelet
			return k.UseNodeStatusPort && k.Port == 1 && slices.Equal(k.AddressTypes, []string{"InternalIP", "Hostname"}) &&
				k.Timeout == 3*time.Second && k.MaxBodyBytes == 1<<16 && k.Gzip
		},
		"--kubelet-certificate-authority=f --kubelet-client-certificate=c --kubelet-client-key=k": func(
			c server.Config) bool {
			return c.Kubelet.TLS.CAFile == "f" && c.Kubelet.TLS.CertFile == "c" && c.Kubelet.TLS.KeyFile == "k"
		},
		"--kubelet-insecure-tls --kubelet-allow-loopback": func(c server.Config) bool {
			return c.Kubelet.TLS.Insecure && c.Kubelet.AllowLoopback
		},
		"--deprecated-kubelet-completely-insecure": func(c server.Config) bool { return c.Kubelet.PlainHTTP },
		"--kubelet-service-account=kube-vitals-kubelet --kubelet-pins=p": func(c server.Config) bool {
			return c.KubeletServiceAccount == "kube-vitals-kubelet" && c.KubeletPins == "p"
		},
		"--kubeconfig=f": func(c server.Config) bool {
			return c.Kubeconfig == "f" && c.Authentication.RemoteKubeConfigFile == "f" &&
				c.Authorization.RemoteKubeConfigFile == "f"
		},
		"--kubeconfig=f --authentication-kubeconfig=g --authorization-kubeconfig=h": func(c server.Config) bool {
			return c.Authentication.RemoteKubeConfigFile == "g" && c.Authorization.RemoteKubeConfigFile == "h"
		},
		"--tls-secret=s --tls-names=a.b.svc,a.b --tls-lifetime=24h --tls-ca-configmap=c": func(c server.Config) bool {
			cert := c.ServingCert
			return cert.Secret == "s" && slices.Equal(cert.Names, []string{"a.b.svc", "a.b"}) &&
				slices.Equal(cert.APIServices, []string{"v1.metrics.k8s.io", "v1beta1.metrics.k8s.io"}) &&
				cert.Lifetime == 24*time.Hour && cert.Settle == 10*time.Minute && cert.ConfigMap == "c"
		},
		"--tls-ca-configmap=c --tls-names=a --tls-secret=": func(c server.Config) bool { // disables it
			return c.ServingCert.Secret == ""
		},
		"--service=a.b.svc": func(c server.Config) bool { return c.ServingCert.Service == "a.b.svc" },
		"--tls-secret=s --tls-names=a.b.svc --service=a.b.svc:8443": func(c server.Config) bool {
			return c.ServingCert.Service == "a.b.svc:8443"
		},
		"--deployment=d":               func(c server.Config) bool { return c.EventDeployment == "d" },
		"--deployment=d --deployment=": func(c server.Config) bool { return c.EventDeployment == "" },
		"--secure-port=10250 --cert-dir=/tmp --profiling=false --enable-priority-and-fairness=false": func(
			c server.Config) bool {
			return c.Serving.BindPort == 10250 && c.Serving.ServerCert.CertDirectory == "/tmp" && !c.Features.EnableProfiling
		},
	} {
		c, err := parse(strings.Fields(args)...)
		if err != nil || !same(c) {
			t.Errorf("%s: got %+v, %v", args, c, err)
		}
	}
}

// TestAddressTypes checks that spaces, empty elements, and commas at which helm has split the list have no effect.
func TestAddressTypes(t *testing.T) {
	for _, args := range [][]string{
		{"--kubelet-preferred-address-types= InternalIP, ExternalIP ,,Hostname"},
		{"--kubelet-insecure-tls", "--kubelet-preferred-address-types=InternalIP", "ExternalIP", "Hostname", "--v=2"},
	} {
		c, err := parse(args...)
		want := []string{"InternalIP", "ExternalIP", "Hostname"}
		if err != nil || !slices.Equal(c.Kubelet.AddressTypes, want) {
			t.Errorf("got %q, %v, want %q", c.Kubelet.AddressTypes, err, want)
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

// TestErrors checks that each command line has these errors, one on a line, and no others.
func TestErrors(t *testing.T) {
	const plainHTTP = "--deprecated-kubelet-completely-insecure"
	const noTLS = " has no effect with " + plainHTTP + ", because there is no TLS: remove one of them"
	const unverified = "--kubelet-certificate-authority has no effect with %s, because no certificate is verified: " +
		"remove one of them"
	const pair = "--kubelet-client-certificate and --kubelet-client-key must be set together"
	for args, want := range map[string][]string{
		"--tls-names=a.b.svc":          {"--tls-names needs --tls-secret"},
		"--tls-secret=s":               {"--tls-secret needs --tls-names"},
		"--tls-secret=s --service=a.b": {"--tls-secret needs --tls-names"},
		"--tls-ca-configmap=c":         {"--tls-ca-configmap needs --tls-secret"},
		"--tls-secret= --service=a.b":  {"--service: the Service must be named NAME.NAMESPACE.svc or"},
		"--service=a.b.svc:no":         {"NAME.NAMESPACE.svc:PORT"},
		"--tls-secret=s --tls-names=a.b.svc --service=c.b.svc": {
			`"c.b.svc", but the first name of the serving certificate is "a.b.svc"`},
		"--tls-secret=s --tls-names=a": {`NAME.NAMESPACE.svc:PORT, but it is "a"`},
		"--tls-secret=s --tls-names=a.b.svc,10.0.0.7,a": {
			`the names of the serving certificate must be DNS names, but one is "10.0.0.7"`},
		"--tls-secret=s --tls-names=a.b.svc --tls-lifetime=1m": {
			"since it is renewed in its last third: they are 1m0s and 10m0s"},
		"--tls-secret=s --tls-names=a.b.svc --tls-cert-file=c --tls-private-key-file=k --tls-settle=0 --kubelet-port=0": {
			"--kubelet-port must be from 1", "a certificate must be at least 6 times",
			"--tls-secret and --tls-cert-file exclude each other"},
		"--metric-resolution=4s": {
			"--metric-resolution must be at least 5s, but is 4s"},
		"--max-sample-age=29s": {
			"--max-sample-age must be at least 2 × --metric-resolution, so 30s, but is 29s"},
		"--rate-window=900ms": {"--rate-window must be at least 1s, but is 900ms"},
		"--rate-window=0s":    {"--rate-window must be at least 1s, but is 0s"},
		"--rate-window=61s": {
			"--rate-window must be at most --max-sample-age, so 1m0s, but is 1m1s: no rate covers more than that"},
		"--rate-window=2m --max-sample-age=banana":    {`"banana"`},
		"--rate-window=2m --metric-resolution=banana": {`"banana"`},
		"--rate-window=banana --max-sample-age=30s":   {`"banana"`},
		"--kubelet-request-timeout=31s": {
			"--kubelet-request-timeout must be at most half of --max-sample-age, so 30s, but is 31s"},
		"--kubelet-preferred-address-types=InternalIp": {
			`"InternalIp" is not a type of node addresses; the types are Hostname, `},
		"--kubelet-preferred-address-types=": {
			"--kubelet-preferred-address-types must name at least one"},
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
		"--deployment=a/b": {`--deployment: "a/b" is not a valid name`},
		"--kubelet-max-response-bytes=65535": {
			"--kubelet-max-response-bytes must be from 65536, which ordinary nodes need, to 1073741824, but is 65535"},
		"--kubelet-max-response-bytes=9223372036854775807": {"to 1073741824, but is 9223372036854775807"},
		"--node-selector=a=(":                              {"--node-selector: "},
		"--secure-port=0":                                  {"--secure-port 0"},
		"--tls-cert-file=f": {
			"--tls-cert-file and --tls-private-key-file must be set together"},
		"--tls-min-version=9":        {"--tls-min-version: "},
		"--tls-cipher-suites=x":      {"--tls-cipher-suites: "},
		"--max-requests-inflight=-1": {"--max-requests-inflight"},
		"--feature-gates=X=true":     {"--feature-gates"},
		"--logging-format=xml":       {"logging"},
		"--logtostderr --stderrthreshold=2": {
			"unknown flag: --logtostderr; remove it: the log is written to stderr", "--stderrthreshold; remove it"},
		"--nonsense": {
			"unknown flag: --nonsense; see --help"},
		"--kubelet-preferred-address-types=InternalIP --v=2 Hostname": {`unexpected argument "Hostname"; see --help`},
		"--kubelet-preferred-address-types=InternalIP Hostnam":        {`"Hostnam" is not a type of node addresses`},
		"--authorization-always-allow-paths=/livez,/readyz /metrics":  {`unexpected argument "/metrics"; see --help`},
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
		"--tls-secret=s --tls-names=a.b.svc --tls-lifetime=x --tls-settle=x": {`"--tls-lifetime"`, `"--tls-settle"`},
		"-x": {"unknown shorthand flag: 'x' in -x; see --help"},
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
		"--kubelet-port=65536":           {"--kubelet-port must be from 1 to 65535, but is 65536"},
		"--kubelet-request-timeout=-1s":  {"--kubelet-request-timeout must be above 0, but is -1s"},
		"--kubelet-request-timeout=0":    {"--kubelet-request-timeout must be above 0, but is 0s"},
		"--kubelet-client-certificate=c": {pair},
		"--kubelet-client-key=k":         {pair},

		"--kubelet-insecure-tls --kubelet-certificate-authority=f": {fmt.Sprintf(unverified, "--kubelet-insecure-tls")},
		plainHTTP + " --kubelet-insecure-tls --kubelet-client-certificate=c --kubelet-client-key=k": {
			"--kubelet-insecure-tls" + noTLS, "--kubelet-client-certificate" + noTLS},
		plainHTTP + " --kubelet-port=-1 --kubelet-certificate-authority=f": {
			"--kubelet-port must be from 1 to 65535, but is -1", fmt.Sprintf(unverified, plainHTTP)},
		"--active-resolution=999ms":                      {"must be 0 (off) or at least 1s, but is 999ms"},
		"--active-resolution=15s":                        {"must be less than --metric-resolution, 15s, but is 15s"},
		"--metric-resolution=6s --active-resolution=10s": {"--metric-resolution, 6s, but is 10s"},
		"--metric-resolution=1s --active-resolution=2s":  {"--metric-resolution must be at least 5s"},
		"--active-budget=0.9":                            {"--active-budget must be a number of at least 1"},
		"--active-budget=NaN":                            {"--active-budget must be a number of at least 1"},
		"--active-budget=+Inf --active-resolution=500ms": {"--active-budget must be", "--active-resolution must be 0"},
		"--source=prometheus --prometheus-url=http://p --active-resolution=5s --active-budget=3": {
			"--active-resolution has no effect with --source=prometheus", "--active-budget has no effect"},
		"--ephemeral-storage-interval=9s": {
			"--ephemeral-storage-interval must be 0 (off) or at least 10s, but is 9s"},
		"--ephemeral-storage-interval=-1m": {
			"--ephemeral-storage-interval must be 0 (off) or at least 10s, but is -1m0s"},
		"--source=prometheus --prometheus-url=http://p --ephemeral-storage-interval=1m": {
			"ephemeral-storage is read from kubelets, so it cannot be served with --source=prometheus"},
		"--source=x":                {`--source is "x", but must be kubelet or prometheus`},
		"--source=prometheus":       {"--prometheus-url is required"},
		"--prometheus-url=http://p": {"--prometheus-url has no effect without --source=prometheus"},
		"--prometheus-config=f":     {"--prometheus-config has no effect"},
		"--source=prometheus --prometheus-url=http://p --max-sample-age=35s": {"--max-sample-age must be at least 40s"},
		"--source=prometheus --prometheus-url=http://p --rate-window=15s": {
			"--rate-window has no effect with --source=prometheus, which does not connect to kubelets: remove it"},
		"--source=prometheus --prometheus-url=p:9090 --kubelet-port=1 --kubelet-insecure-tls": {
			"--prometheus-url: it must start with http://", "--kubelet-port has no effect with --source=prometheus",
			"--kubelet-insecure-tls has no effect"},
		// Flags that cannot be parsed do not hide the errors of others.
		"--metric-resolution=1s --kubelet-port=-1 stray --bar": {
			"--bar", "stray", "--metric-resolution", "--kubelet-port"},
	} {
		_, err := parse(strings.Fields(args)...)
		lines := strings.Split(fmt.Sprint(err), "\n")
		if err == nil || len(lines) != len(want) {
			t.Errorf("%s: got %d errors, want %q:\n%v", args, len(lines), want, err)
		}
		for _, part := range want {
			if !strings.Contains(fmt.Sprint(err), part) {
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

func TestActiveNodes(t *testing.T) {
	for args, want := range map[string]scrape.Active{
		"":                             {Resolution: defaultActiveResolution, Budget: 2},
		"--metric-resolution=30s":      {Resolution: defaultActiveResolution, Budget: 2},
		"--metric-resolution=5s":       {Resolution: defaultActiveResolution, Budget: 2},
		"--active-resolution=0":        {Budget: 2},
		"--active-resolution=10s":      {Resolution: 10 * time.Second, Budget: 2},
		"--active-budget=1.5":          {Resolution: defaultActiveResolution, Budget: 1.5},
		"--active-resolution=14999ms":  {Resolution: 14999 * time.Millisecond, Budget: 2},
		"--active-resolution=1s -l a=": {Resolution: time.Second, Budget: 2},
		"--metric-resolution=5s --active-resolution=2s --active-budget=1": {Resolution: 2 * time.Second, Budget: 1},
	} {
		c, err := parse(strings.Fields(args)...)
		if err != nil || c.Active != want {
			t.Errorf("%s: got %+v, %v, want %+v", args, c.Active, err, want)
		}
	}
}

func TestStorageInterval(t *testing.T) {
	for args, want := range map[string]time.Duration{
		"":                                 0,
		"--ephemeral-storage-interval=0":   0,
		"--ephemeral-storage-interval=10s": 10 * time.Second,
		"--source=prometheus --prometheus-url=http://p --ephemeral-storage-interval=0s": 0,
	} {
		c, err := parse(strings.Fields(args)...)
		if err != nil || c.StorageInterval != want {
			t.Errorf("%s: got interval %v, error %v; want %v", args, c.StorageInterval, err, want)
		}
	}
}

func TestSource(t *testing.T) {
	c, err := parse("--source=prometheus", "--prometheus-url=http://p:9090", "--prometheus-config=f",
		"--node-selector=a=b", "--missing-metrics-warnings", "--deployment=d", "--device-config=g")
	if err != nil || c.Engine.URL != "http://p:9090" || c.Engine.File != "f" ||
		c.MaxSampleAge != 150*time.Second || c.RateWindow != 0 || !c.MissingMetricsWarnings || c.EventDeployment != "d" ||
		c.Devices.File != "g" {
		t.Errorf("got %+v, maximum age %v, %v", c.Engine, c.MaxSampleAge, err)
	}
}
