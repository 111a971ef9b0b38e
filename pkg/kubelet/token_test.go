package kubelet

import (
	"context"
	"crypto/x509"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestBearerToken looks at what a kubelet sees of the client: its certificate or its token, never
// both.
func TestBearerToken(t *testing.T) {
	ca := newAuthority(t)
	certificate := ca.leaf(t, x509.ExtKeyUsageServerAuth, "node1")
	clientPEM, keyPEM := pairPEM(t, ca.leaf(t, x509.ExtKeyUsageClientAuth, "me"))
	dir := t.TempDir()
	certificateFile, keyFile := writeFile(t, dir, "crt", clientPEM), writeFile(t, dir, "key", keyPEM)
	tokenFile := writeFile(t, dir, "token", []byte("of-file"))
	source := func(context.Context) (string, error) { return "of-source", nil }
	resource, summary := realSample(t), readSummary(t, shortSummary)

	var header http.Header
	var shown bool
	k := newKubelet(t, &certificate, func(w http.ResponseWriter, r *http.Request) {
		header, shown = r.Header, len(r.TLS.PeerCertificates) > 0
		answerBoth(w, r, resource, summary)
	})
	for name, tt := range map[string]struct {
		config Config
		token  string // that the kubelet sees
		shown  bool   // whether it sees a certificate
	}{
		"nothing":                       {Config{}, "", false},
		"file":                          {Config{BearerTokenFile: tokenFile}, "Bearer of-file", false},
		"inline":                        {Config{Inline: Inline{BearerToken: "inline"}}, "Bearer inline", false},
		"source":                        {Config{Token: source}, "Bearer of-source", false},
		"source replaces file":          {Config{Token: source, BearerTokenFile: tokenFile}, "Bearer of-source", false},
		"source replaces inline":        {Config{Token: source, Inline: Inline{BearerToken: "inline"}}, "Bearer of-source", false},
		"certificate replaces file":     {Config{ClientCertificate: certificateFile, ClientKey: keyFile, BearerTokenFile: tokenFile}, "", true},
		"certificate replaces inline":   {Config{ClientCertificate: certificateFile, ClientKey: keyFile, Inline: Inline{BearerToken: "x"}}, "", true},
		"certificate replaces source":   {Config{ClientCertificate: certificateFile, ClientKey: keyFile, Token: source}, "", true},
		"inline certificate and file":   {Config{BearerTokenFile: tokenFile, Inline: Inline{ClientCertificate: clientPEM, ClientKey: keyPEM}}, "", true},
		"inline certificate and token":  {Config{Inline: Inline{ClientCertificate: clientPEM, ClientKey: keyPEM, BearerToken: "x"}}, "", true},
		"inline certificate and source": {Config{Token: source, Inline: Inline{ClientCertificate: clientPEM, ClientKey: keyPEM}}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			tt.config.Inline.CertificateAuthority = ca.pem()
			c := newTestClient(t, tt.config)
			for _, fetch := range askings() {
				header, shown = nil, false
				if err := fetch(c, t.Context(), k.node("node1"), &usage.Scrape{}); err != nil {
					t.Fatal(err)
				}
				if got := header.Get("Authorization"); got != tt.token || shown != tt.shown {
					t.Errorf("the kubelet sees the token %q and a certificate: %v; want %q, %v", got, shown, tt.token, tt.shown)
				}
			}
		})
	}
}

// TestTokenSource changes the token, and takes it away.
func TestTokenSource(t *testing.T) {
	var seen string
	k := newKubelet(t, nil, func(w http.ResponseWriter, r *http.Request) {
		seen = r.Header.Get("Authorization")
		answer(w, []byte("node_cpu_usage_seconds_total 1\n"))
	})
	var token string
	var failure error
	c := newTestClient(t, Config{PlainHTTP: true})
	c.credentials.tokenSource = func(context.Context) (string, error) { return token, failure }
	for _, token = range []string{"one", "two", "two"} {
		if err := c.Fetch(t.Context(), k.node("n7"), &usage.Scrape{}); err != nil || seen != "Bearer "+token {
			t.Errorf("the kubelet sees %q, error %v; want the token %q", seen, err, token)
		}
	}
	seen, failure = "", errors.New("the reason: the cure")
	err := c.Fetch(t.Context(), k.node("n7"), &usage.Scrape{})
	checkError(t, err, reasonNoToken, "there is no token to send to its kubelet: the reason: the cure")
	if seen != "" {
		t.Error("a request was sent without a token")
	}

	// A source that hangs holds a scrape up until its timeout.
	c.credentials.tokenSource = func(ctx context.Context) (string, error) {
		<-ctx.Done()
		return "", ctx.Err()
	}
	c.resource.timeout = time.Millisecond
	checkError(t, c.Fetch(t.Context(), k.node("n7"), &usage.Scrape{}), reasonNoToken, "deadline exceeded")
}
