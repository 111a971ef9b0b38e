package server

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
)

// smallBuffers accepts connections that buffer little of what is written.
type smallBuffers struct{ net.Listener }

func (l smallBuffers) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(4 << 10)
	}
	return c, err
}

// stall sends a request, and reads no more than the headers of the response. The server must have smallBuffers. It
// returns the connection.
func stall(t *testing.T, address, path, user string) (net.Conn, *http.Response) {
	t.Helper()
	dialer := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error { // before the server knows the size
		return c.Control(func(fd uintptr) {
			if err := syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10); err != nil {
				t.Error(err)
			}
		})
	}}
	tcp, err := dialer.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tcp.Close() })
	conn := tls.Client(tcp, &tls.Config{InsecureSkipVerify: true})
	fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n\r\n", path, user)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return tcp, response
}

// TestStalledClients checks that a server ends the connection of a client that does not read, and offers no HTTP/2.
func TestStalledClients(t *testing.T) {
	c := newCluster(t).config(t)
	c.Generic.RequestTimeout, c.maxWriteTime = time.Hour, time.Second
	c.Serving.Listener = smallBuffers{c.Serving.Listener}
	client := startReady(t, c).another()
	client.transport.ForceAttemptHTTP2 = true
	if response, _ := client.get("/openapi/v2", "alice"); response.Proto != "HTTP/1.1" {
		t.Errorf("got a response by %s", response.Proto)
	}
	conn, _ := stall(t, c.Serving.Listener.Addr().String(), "/openapi/v2", "alice")
	conn.SetDeadline(time.Now().Add(testenv.Patience))
	var err error
	for ; err == nil; time.Sleep(time.Millisecond) {
		_, err = conn.Write([]byte{0})
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("a connection whose client does not read is kept")
	}
}

// TestOnlyMetricsAreCompressed requests all that the server lists: no response but those of metrics.k8s.io takes the
// memory of a compressor.
func TestOnlyMetricsAreCompressed(t *testing.T) {
	client := startReady(t, newCluster(t).config(t))
	var listed metav1.RootPaths
	_, body := client.get("/", "root")
	if err := json.Unmarshal([]byte(body), &listed); err != nil || !slices.Contains(listed.Paths, "/openapi/v2") {
		t.Fatalf("got %v, %s", err, body)
	}
	client.header = http.Header{"Accept-Encoding": {"gzip"}}
	for _, path := range append(listed.Paths, "/openapi/v3/apis/metrics.k8s.io/v1") {
		if strings.HasPrefix(path, "/debug/") { // for administrators
			continue
		}
		response, _ := client.get(path, "root")
		if got := response.Header.Get("Content-Encoding"); got != "" {
			t.Errorf("%s: got status %d, a response in %s", path, response.StatusCode, got)
		}
	}
}

// TestLibraryOptions checks that the flags of the library have an effect, and that the memory of responses
// is limited.
func TestLibraryOptions(t *testing.T) {
	c := newCluster(t).config(t)
	c.Features.EnableProfiling = false
	c.Audit.LogOptions.Path = writeFile(t, "audit.log", nil)
	c.Audit.PolicyFile = writeFile(t, "policy.yaml",
		[]byte(`{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}`))
	s, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	client := run(t, s)
	client.await(http.StatusOK, "/readyz", "")
	for _, path := range []string{"/debug/pprof/", "/debug/flags/v"} {
		client.await(http.StatusNotFound, path, "alice")
	}
	const list = "/apis/metrics.k8s.io/v1/pods"
	client.await(http.StatusOK, list, "alice")
	large := runningPod("default", "large", "node-a")
	// In YAML, each container counts as 16 KiB.
	large.Spec.Containers = make([]corev1.Container, responseMemory(memoryLimit()).Max/(16<<10)+1)
	large.Status.ContainerStatuses = make([]corev1.ContainerStatus, len(large.Spec.Containers))
	if err := s.assembly.view.Pods.Update(large); err != nil {
		t.Fatal(err)
	}
	client.header = http.Header{"Accept": {"application/yaml"}}
	client.await(http.StatusNotAcceptable, list, "alice")
	eventually(t, func() string {
		if log, err := os.ReadFile(c.Audit.LogOptions.Path); err != nil || !strings.Contains(string(log), `"`+list+`"`) {
			return fmt.Sprintf("the audit log does not have the request: %v: %s", err, log)
		}
		return ""
	})
}

// TestTLSOptions checks that the flags limit what is negotiated.
func TestTLSOptions(t *testing.T) {
	weak := &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: []uint16{
		tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384, tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
	}}
	weak.InsecureSkipVerify = true
	for name, test := range map[string]struct {
		version string
		ciphers []string
		allowed bool
	}{
		"default":             {"", nil, true},
		"--tls-min-version":   {"VersionTLS13", nil, false},
		"--tls-cipher-suites": {"", []string{"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"}, false},
	} {
		c := newCluster(t).config(t)
		c.Serving.MinTLSVersion, c.Serving.CipherSuites = test.version, test.ciphers
		start(t, c).await(http.StatusOK, "/livez", "")
		conn, err := tls.Dial("tcp", c.Serving.Listener.Addr().String(), weak)
		if (err == nil) != test.allowed {
			t.Errorf("%s: got %v, want a connection: %v", name, err, test.allowed)
		}
		if err == nil {
			conn.Close()
		}
	}
}
