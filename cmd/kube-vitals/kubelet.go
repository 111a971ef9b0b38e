package main

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
)

// kubeletMistakes returns the mistakes in c, with flags instead of names of fields.
func kubeletMistakes(c kubelet.Config) []error {
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
	var mistakes []error
	for _, e := range c.Validate() {
		text := e.Field + " " + e.Detail
		switch e.Type {
		case field.ErrorTypeInvalid:
			text = fmt.Sprintf("%s is %v, but %s", e.Field, e.BadValue, e.Detail)
		case field.ErrorTypeRequired:
			text = fmt.Sprintf("%s is required %s", e.Field, e.Detail)
		}
		mistakes = append(mistakes, errors.New(flags.Replace(text)))
	}
	return mistakes
}
