// Package command puts names that others choose into commands that are printed.
package command

import "k8s.io/apimachinery/pkg/util/validation"

// Name returns a name as an argument of a printed command if it is a DNS name (RFC 1123), which a
// shell cannot read as anything else, and which is not a flag. Otherwise it returns the placeholder,
// such as NAME: some names are nearly free text, such as those of CertificateSigningRequests, and
// readers paste commands.
func Name(name, placeholder string) string {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return placeholder
	}
	return name
}
