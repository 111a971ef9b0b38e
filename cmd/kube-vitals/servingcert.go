package main

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/kube-vitals/kube-vitals/pkg/servingcert"
)

// addServingCertFlags adds the flags of the serving certificate that kube-vitals manages.
func (o *options) addServingCertFlags(fs *pflag.FlagSet) {
	c := &o.ServingCert
	fs.StringVar(&c.Secret, "tls-secret", "",
		"The Secret that stores the serving certificate, in the namespace of the first of "+
			"--tls-names. The server creates and renews the certificate, and publishes its CA to the "+
			"API server. The Secret may be empty at first.")
	fs.StringVar(&c.ConfigMap, "tls-ca-configmap", "",
		"The ConfigMap, in the namespace of --tls-secret, that publishes the CAs of its certificates "+
			"as ca.crt: for clients that verify this server but should not read "+
			"the Secret. The ConfigMap must exist, and may be empty at first.")
	fs.StringSliceVar(&c.Names, "tls-names", nil,
		"The DNS names of the certificate of --tls-secret. The first is that of the Service: "+
			"SERVICE.NAMESPACE.svc. (default: the names of --service, with the cluster domain cluster.local)")
	fs.StringSliceVar(&c.APIServices, "tls-apiservices", []string{"v1.metrics.k8s.io", "v1beta1.metrics.k8s.io"},
		"The APIServices of this server. The server writes the CA of the certificate of "+
			"--tls-secret into their caBundle, if they refer to its Service and do not skip "+
			"verification.")
	fs.StringVar(&c.Service, "service", "",
		"The Service of this server, SERVICE.NAMESPACE.svc or SERVICE.NAMESPACE.svc:PORT. If an "+
			"APIService of --tls-apiservices refers to another one or skips verification, the server "+
			"logs it and exposes a metric. Defaults to the first of --tls-names, with any port.")
	fs.DurationVar(&c.Lifetime, "tls-lifetime", servingcert.DefaultLifetime,
		"How long a certificate of --tls-secret is valid. It is renewed in the last third of its "+
			"lifetime, or at once if it is still valid for longer than this.")
	fs.DurationVar(&c.Settle, "tls-settle", servingcert.DefaultSettle,
		"How long to wait, after publishing the CA of a renewed certificate, before serving the "+
			"certificate; at most a sixth of --tls-lifetime.")
}

// serviceNames returns the DNS names of a Service in the form of --service, or nil if it has another form.
func serviceNames(service string) []string {
	host, _, _ := strings.Cut(service, ":")
	name, ok := strings.CutSuffix(host, ".svc")
	if !ok {
		return nil
	}
	return []string{host, host + ".cluster.local", name}
}

func (o *options) validateServingCert() {
	c := &o.ServingCert
	switch {
	case c.Secret == "" && len(c.Names) > 0 && !o.all.Changed("tls-secret"): // --tls-secret= disables it
		o.errorf("--tls-names needs --tls-secret")
	case c.Secret == "" && c.ConfigMap != "" && !o.all.Changed("tls-secret"):
		o.errorf("--tls-ca-configmap needs --tls-secret")
	case c.Secret != "" && len(c.Names) == 0:
		o.errorf("--tls-secret needs --tls-names or --service=SERVICE.NAMESPACE.svc")
	case c.Secret != "" || c.Service != "":
		if err := c.Validate(); err != nil {
			o.errorf("--tls-names, --tls-lifetime, --tls-settle, --service: %w", err)
		}
	}
	if pair := o.Serving.ServerCert.CertKey; c.Secret != "" && (pair.CertFile != "" || pair.KeyFile != "") {
		o.errorf("--tls-secret and --tls-cert-file exclude each other: there is one serving certificate")
	}
}
