package e2e

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

// TestFIPS runs kube-vitals with GODEBUG=fips140=only, under which every algorithm that FIPS 140-3
// does not approve fails. It covers the serving certificate that the server creates, connections
// from the API server and to it, scrapes of kubelets, tokens for them and of clients, and kubectl top.
func TestFIPS(t *testing.T) {
	t.Parallel()
	path, err := shared.KubeVitals()
	must(t, err)
	script := fmt.Sprintf("#!/bin/sh\nGODEBUG=fips140=only exec '%s' \"$@\"\n", path)
	wrapper := filepath.Join(t.TempDir(), "kube-vitals")
	must(t, os.WriteFile(wrapper, []byte(script), 0o700))
	c := startBare(t, cluster.Config{KubeVitals: wrapper, Nodes: []simulation.Node{{Name: "node"}}})
	c.install(t)
	c.awaitTop(t)
	token, err := c.Kubectl(t.Context(), "create", "token", "default", "--namespace=default")
	must(t, err)
	user := newClient(t, c.server).withToken(strings.TrimSpace(token)) // is known, but has no permissions
	user.wantStatus(t, nodesPath, http.StatusForbidden)
	for _, test := range []struct {
		name   string
		config *tls.Config
		works  bool
	}{
		{name: "approved: P-256", config: &tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP256}}, works: true},
		{name: "approved: AES-GCM in TLS 1.2", config: &tls.Config{
			MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256},
			CurvePreferences: []tls.CurveID{tls.CurveP256}}, works: true},
		{name: "X25519", config: &tls.Config{CurvePreferences: []tls.CurveID{tls.X25519}}},
		{name: "ChaCha20 in TLS 1.2", config: &tls.Config{
			MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{tls.TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			client := newClient(t, c.server)
			test.config.RootCAs = client.transport.TLSClientConfig.RootCAs
			test.config.ServerName = client.transport.TLSClientConfig.ServerName
			client.transport.TLSClientConfig = test.config
			if err := client.ok(t.Context(), "/readyz"); (err == nil) != test.works {
				t.Errorf("got error %v; want a connection: %v", err, test.works)
			}
		})
	}
}
