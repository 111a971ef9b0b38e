package main

import (
	"strings"
	"testing"
)

func TestCAConfigMapFlag(t *testing.T) {
	for args, want := range map[string]string{ // a part of the error
		"--tls-secret=s --tls-names=a.b.svc --tls-ca-configmap=c": "",
		"--tls-secret= --tls-ca-configmap=c":                      "", // a later --tls-secret= disables it
		"--tls-ca-configmap=c":                                    "--tls-ca-configmap needs --tls-secret",
	} {
		c, err := parse(strings.Fields(args)...)
		switch {
		case (err == nil) != (want == ""), err != nil && !strings.Contains(err.Error(), want):
			t.Errorf("%s: got %v, want %q in it", args, err, want)
		case err == nil && c.ServingCert.ConfigMap != "c":
			t.Errorf("%s: got ConfigMap %q, want c", args, c.ServingCert.ConfigMap)
		}
	}
}

func TestServiceFlag(t *testing.T) {
	for args, want := range map[string]string{ // a part of the error
		"--service=a.b.svc":                                         "",
		"--service=a.b.svc:8443":                                    "",
		"--tls-secret= --service=a.b":                               "NAME.NAMESPACE.svc:PORT",
		"--service=a.b.svc:no":                                      "NAME.NAMESPACE.svc:PORT",
		"--tls-secret=s --tls-names=":                               "--tls-secret needs --tls-names",
		"--tls-secret=s --service=a.b":                              "--tls-secret needs --tls-names",
		"--tls-secret=s --tls-names=a.b.svc --service=a.b.svc:8443": "",
		"--tls-secret=s --tls-names=a.b.svc --service=c.b.svc":      `first name of the serving certificate is "a.b.svc"`,
	} {
		c, err := parse(strings.Fields(args)...)
		switch {
		case (err == nil) != (want == ""), err != nil && !strings.Contains(err.Error(), want):
			t.Errorf("%s: got %v, want %q in it", args, err, want)
		case err == nil && !strings.HasPrefix(c.ServingCert.Service, "a.b.svc"):
			t.Errorf("%s: got Service %q, want a.b.svc", args, c.ServingCert.Service)
		}
	}
}
