package server

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

// TestVerbosityIsLimitedWhileRunning checks that the log level at which client-go logs bodies can
// be set neither on the port nor on the debug socket.
func TestVerbosityIsLimitedWhileRunning(t *testing.T) {
	t.Cleanup(func() {
		if _, err := setVerbosity("0"); err != nil {
			t.Error(err)
		}
	})
	c := newCluster(t).config(t)
	c.Features.DebugSocketPath = filepath.Join(t.TempDir(), "debug.sock")
	client := startReady(t, c)
	socket := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", c.Features.DebugSocketPath)
	}}
	defer socket.CloseIdleConnections()
	over := func(transport *http.Transport, url string) func(level string) (int, string) {
		return func(level string) (code int, body string) {
			eventually(t, func() string { // the socket may not exist yet
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url+"/debug/flags/v", strings.NewReader(level))
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Authorization", "Bearer alice")
				response, err := transport.RoundTrip(r)
				if err != nil {
					return err.Error()
				}
				defer response.Body.Close()
				content, err := io.ReadAll(response.Body)
				if err != nil {
					t.Fatal(err)
				}
				code, body = response.StatusCode, string(content)
				return ""
			})
			return code, body
		}
	}
	for name, set := range map[string]func(string) (int, string){
		"port": over(client.transport, client.url), "socket": over(socket, "http://socket"),
	} {
		for _, level := range []string{"8", "10", "99999"} {
			code, body := set(level)
			if code != http.StatusBadRequest || !strings.Contains(body, "private key") || klog.V(8).Enabled() {
				t.Errorf("%s: level %s: got status %d: %s", name, level, code, body)
			}
		}
		if code, body := set("1"); code != http.StatusOK || !klog.V(1).Enabled() {
			t.Errorf("%s: level 1: got status %d: %s", name, code, body)
		}
		if code, body := set("0"); code != http.StatusOK || klog.V(1).Enabled() {
			t.Errorf("%s: level 0: got status %d: %s", name, code, body)
		}
	}
}
