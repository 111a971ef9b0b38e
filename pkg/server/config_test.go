package server

import (
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
)

func TestKubeletConfig(t *testing.T) {
	inCluster := &rest.Config{BearerTokenFile: "token", TLSClientConfig: rest.TLSClientConfig{CAFile: "ca"}}
	outside := &rest.Config{TLSClientConfig: rest.TLSClientConfig{CAFile: "ca", CertFile: "cert", KeyFile: "key"}}
	for name, test := range map[string]struct {
		flags  kubelet.Config
		client *rest.Config
		want   [4]string // CA, certificate, key, token
	}{
		"in the cluster":      {kubelet.Config{}, inCluster, [4]string{"ca", "", "", "token"}},
		"outside":             {kubelet.Config{}, outside, [4]string{"ca", "cert", "key", ""}},
		"a CA of its own":     {kubelet.Config{CertificateAuthority: "own"}, inCluster, [4]string{"own", "", "", "token"}},
		"own credentials":     {kubelet.Config{ClientCertificate: "c", ClientKey: "k"}, outside, [4]string{"ca", "c", "k", ""}},
		"without trust":       {kubelet.Config{InsecureTLS: true}, inCluster, [4]string{"", "", "", "token"}},
		"without credentials": {kubelet.Config{PlainHTTP: true}, outside, [4]string{}},
	} {
		c := kubeletConfig(test.flags, test.client)
		if got := [4]string{c.CertificateAuthority, c.ClientCertificate, c.ClientKey, c.BearerTokenFile}; got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
