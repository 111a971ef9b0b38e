package server

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/klog/v2"
)

// TestVerbosityIsLimitedWhileRunning checks that the log level that makes client-go log bodies can
// be set neither on the port nor on the debug socket.
func TestVerbosityIsLimitedWhileRunning(t *testing.T) {
	t.Cleanup(func() {
		if _, err := setVerbosity("0"); err != nil {
			t.Error(err)
		}
	})
	c := newCluster(t).config(t)
	c.Features.DebugSocketPath = filepath.Join(t.TempDir(), "debug.sock")
	port, socket := startReady(t, c), newClient(t, "http://socket")
	socket.transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", c.Features.DebugSocketPath)
	}
	for name, client := range map[string]*client{"port": port, "socket": socket} {
		set := func(level string) (code int, body string) {
			eventually(t, func() string { // the socket may not exist yet
				var response *http.Response
				response, body = client.send(http.MethodPut, "/debug/flags/v", "alice", level)
				if code = response.StatusCode; code == 0 {
					return body
				}
				return ""
			})
			return code, body
		}
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
