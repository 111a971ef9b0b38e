package main

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/kube-vitals/kube-vitals/pkg/servingcert"
)

// addIdentityFlags adds the flags of the certificate that renews itself.
func (o *options) addIdentityFlags(fs *pflag.FlagSet) {
	i := &o.servingCert
	fs.StringVar(&i.Secret, "tls-secret", "", "The Secret to keep the serving certificate in, in the namespace of the Service that "+
		"--tls-names names. The server makes and renews the certificate, and tells the API server whom to trust. The Secret may be "+
		"empty at first.")
	fs.StringVar(&i.ConfigMap, "tls-ca-configmap", "", "The ConfigMap to publish the CAs of the certificates of --tls-secret in, in the "+
		"same namespace, under ca.crt: for clients that verify this server and should not read the Secret. It must exist, and may be empty at first.")
	fs.StringSliceVar(&i.Names, "tls-names", nil, "The names that the certificate of --tls-secret is for. The first is that of the "+
		"Service: SERVICE.NAMESPACE.svc.")
	fs.StringSliceVar(&i.APIServices, "tls-apiservices", i.APIServices, "The APIServices that should lead to this server. The server writes "+
		"the CA of the certificate of --tls-secret into their caBundle, if they lead to its Service and do not skip verification.")
	fs.StringVar(&i.Service, "service", "", "The Service in front of this server, SERVICE.NAMESPACE.svc or SERVICE.NAMESPACE.svc:PORT. "+
		"The server logs and exposes as a metric if the APIServices of --tls-apiservices lead elsewhere or skip verification. "+
		"Defaults to the first of --tls-names, at any port.")
	fs.DurationVar(&i.Lifetime, "tls-lifetime", i.Lifetime, "How long a certificate of --tls-secret is valid. It is renewed in the last "+
		"third of its life, or at once if it is valid for longer than this from now.")
	fs.DurationVar(&i.Settle, "tls-settle", i.Settle, "How long the CA of a renewed certificate has been in the caBundle before the "+
		"certificate is served; at most a sixth of --tls-lifetime.")
}

// newServingCertConfig has the defaults of the flags.
func newServingCertConfig() servingcert.Config {
	return servingcert.Config{
		APIServices: []string{"v1.metrics.k8s.io", "v1beta1.metrics.k8s.io"},
		Lifetime:    servingcert.DefaultLifetime,
		Settle:      servingcert.DefaultSettle,
	}
}

func (o *options) validateIdentity() []error {
	var mistakes []error
	switch {
	case o.servingCert.Secret == "" && len(o.servingCert.Names) > 0 && !o.all.Changed("tls-secret"): // an empty one is a choice
		mistakes = append(mistakes, errors.New("--tls-names needs --tls-secret"))
	case o.servingCert.Secret == "" && o.servingCert.ConfigMap != "" && !o.all.Changed("tls-secret"):
		mistakes = append(mistakes, errors.New("--tls-ca-configmap needs --tls-secret"))
	case o.servingCert.Secret == "" && o.servingCert.Service != "":
		if err := o.servingCert.ValidateService(); err != nil {
			mistakes = append(mistakes, fmt.Errorf("--service: %w", err))
		}
	case o.servingCert.Secret == "":
	case len(o.servingCert.Names) == 0:
		mistakes = append(mistakes, errors.New("--tls-secret needs --tls-names"))
	default:
		if err := o.servingCert.Validate(); err != nil {
			mistakes = append(mistakes, fmt.Errorf("--tls-secret, --tls-names, --service, --tls-lifetime, --tls-settle: %w", err))
		}
	}
	if pair := o.serving.ServerCert.CertKey; o.servingCert.Secret != "" && (pair.CertFile != "" || pair.KeyFile != "") {
		mistakes = append(mistakes, errors.New("--tls-secret and --tls-cert-file contradict each other: there is one serving certificate"))
	}
	return mistakes
}
