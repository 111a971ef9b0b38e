package server

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
)

// TestVerbosityIsLimitedWhileRunning checks that the log level at which client-go logs bodies can
// be set neither on the port nor on the debug socket.
func TestVerbosityIsLimitedWhileRunning(t *testing.T) {
	t.Cleanup(func() {
		if _, err := setVerbosity("0"); err != nil {
			t.Error(err)
		}
	})
	c, _ := newCluster(t).config(t)
	c.Features.DebugSocketPath = filepath.Join(t.TempDir(), "debug.sock")
	h := startHandler(t, c)
	overPort := func(level string) (int, string) {
		r := httptest.NewRequest(http.MethodPut, "/debug/flags/v", strings.NewReader(level))
		r.Header.Set("Authorization", "Bearer alice")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String()
	}
	socket := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", c.Features.DebugSocketPath)
	}}
	defer socket.CloseIdleConnections()
	overSocket := func(level string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://socket/debug/flags/v",
			strings.NewReader(level))
		if err != nil {
			t.Fatal(err)
		}
		response, err := socket.RoundTrip(r)
		for deadline := time.Now().Add(testenv.Patience); err != nil && time.Now().Before(deadline); {
			time.Sleep(10 * time.Millisecond) // the socket may not exist yet
			response, err = socket.RoundTrip(r)
		}
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(body)
	}
	for name, set := range map[string]func(string) (int, string){"port": overPort, "socket": overSocket} {
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
