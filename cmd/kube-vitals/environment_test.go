package main

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/pkg/server"
)

// installed are the variables that the chart sets by default.
const installed = "KUBE_VITALS_SERVICE=m.k.svc:443 KUBE_VITALS_TLS_SECRET=s " +
	"KUBE_VITALS_TLS_CA_CONFIGMAP=c KUBE_VITALS_KUBELET_SERVICE_ACCOUNT=a KUBE_VITALS_DEPLOYMENT=d"

// parseIn returns the configuration of a command line in an environment, or its errors.
func parseIn(environment, args string) (server.Config, error) {
	o := newOptions()
	o.parse(strings.Fields(args))
	o.parseEnvironment(strings.Fields(environment))
	c := o.config()
	return c, errors.Join(o.errs...)
}

func TestEnvironment(t *testing.T) {
	isManaged := func(c server.Config) bool {
		cert := c.ServingCert
		return cert.Secret == "s" && cert.ConfigMap == "c" &&
			slices.Equal(cert.Names, []string{"m.k.svc", "m.k.svc.cluster.local", "m.k"}) &&
			cert.Service == "m.k.svc:443" && c.KubeletServiceAccount == "a" && c.EventDeployment == "d"
	}
	for _, tt := range []struct {
		environment, args string
		same              func(server.Config) bool
	}{
		{installed, "", isManaged},
		// The usual lists of metrics-server, which replace the args of the manifest.
		{installed, "--cert-dir=/tmp --secure-port=10250 --kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname " +
			"--kubelet-use-node-status-port --metric-resolution=15s", isManaged},
		{installed, "--cert-dir=/tmp --secure-port=4443 --kubelet-insecure-tls --kubelet-preferred-address-types=InternalIP",
			func(c server.Config) bool { return isManaged(c) && c.Kubelet.TLS.Insecure }},
		// The command line wins, also for flags with a list.
		{installed, "--tls-names=m.k.svc --deployment=e", func(c server.Config) bool {
			return slices.Equal(c.ServingCert.Names, []string{"m.k.svc"}) && c.EventDeployment == "e"
		}},
		{installed + " KUBE_VITALS_TLS_NAMES=m.k.svc,m.k.svc.example", "", func(c server.Config) bool {
			return slices.Equal(c.ServingCert.Names, []string{"m.k.svc", "m.k.svc.example"})
		}},
		{installed, "--deployment=", func(c server.Config) bool { return c.EventDeployment == "" }},
		{installed, "--tls-secret=", func(c server.Config) bool { return c.ServingCert.Secret == "" }},
		{installed, "--tls-cert-file=f --tls-private-key-file=k", func(c server.Config) bool {
			return c.ServingCert.Secret == "" && c.ServingCert.ConfigMap == "" && c.ServingCert.Service == "m.k.svc:443" &&
				c.Serving.ServerCert.CertKey.CertFile == "f"
		}},
		{"KUBE_VITALS_TLS_CERT_FILE=f KUBE_VITALS_TLS_PRIVATE_KEY_FILE=k", "", func(c server.Config) bool {
			return c.Serving.ServerCert.CertKey.CertFile == "f" && c.Serving.ServerCert.CertKey.KeyFile == "k"
		}},
		{installed, "--deprecated-kubelet-completely-insecure", func(c server.Config) bool {
			return c.KubeletServiceAccount == "" && c.Kubelet.PlainHTTP
		}},
		{installed, "--deprecated-kubelet-completely-insecure=false", isManaged},
		{installed, "--kubelet-client-certificate=c --kubelet-client-key=k", func(c server.Config) bool {
			return c.KubeletServiceAccount == "" && c.Kubelet.TLS.CertFile == "c"
		}},
		{"KUBE_VITALS_TLS_SECRET= KUBE_VITALS_DEPLOYMENT=", "", func(c server.Config) bool {
			return c.ServingCert.Secret == "" && c.EventDeployment == ""
		}},
		// What Kubernetes sets for Services named kube-vitals, kube-vitals-kubelet and kube-vitals-secure.
		{"KUBE_VITALS_SERVICE_HOST=10.0.0.1 KUBE_VITALS_SERVICE_PORT=443 KUBE_VITALS_PORT=tcp://10.0.0.1:443 " +
			"KUBE_VITALS_KUBELET_PORT=tcp://10.0.0.2:10250 KUBE_VITALS_SECURE_PORT=tcp://10.0.0.3:1", "",
			func(c server.Config) bool {
				return c.ServingCert.Service == "" && c.Kubelet.Port == 10250 && c.Serving.BindPort == 443
			}},
	} {
		c, err := parseIn(tt.environment, tt.args)
		if err != nil || !tt.same(c) {
			t.Errorf("%s %s: got %+v, %v", tt.environment, tt.args, c, err)
		}
	}
	for environment, want := range map[string]string{
		`KUBE_VITALS_TLS_NAMES="`:             "environment variable KUBE_VITALS_TLS_NAMES: invalid argument",
		"KUBE_VITALS_SERVICE=m":               "the Service must be named NAME.NAMESPACE.svc",
		"KUBE_VITALS_KUBELET_PINS=p":          "--kubelet-pins has no effect with --kubelet-insecure-tls",
		"KUBE_VITALS_TLS_NAMES=kube-vitals.k": "--tls-names needs --tls-secret",
	} {
		if _, err := parseIn(environment, "--kubelet-insecure-tls"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %s", environment, err, want)
		}
	}
}

// TestNoServiceVariables checks that Kubernetes sets none of these variables for a Service, whatever its name.
func TestNoServiceVariables(t *testing.T) {
	for flag := range environmentFlags() {
		name := environmentName(flag)
		if strings.HasSuffix(name, "_HOST") || strings.Contains(name, "_PORT") {
			t.Errorf("%s may be a variable for a Service", name)
		}
		if newOptions().all.Lookup(flag) == nil {
			t.Errorf("%s sets no flag", name)
		}
	}
}
