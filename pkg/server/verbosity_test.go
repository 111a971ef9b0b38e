package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
)

// TestLogHasNoSecrets reads metrics with the highest log level: the log has requests, but no tokens, keys, labels
// or metrics.
func TestLogHasNoSecrets(t *testing.T) {
	log := &testenv.Log{}
	klog.LogToStderr(false)
	klog.SetOutput(log)
	if _, err := setVerbosity("7"); err != nil {
		t.Fatal(err)
	}
	boot := time.Now().Add(-time.Hour)
	k := kubelettest.New("node-1", kubelettest.Config{Boot: boot, Authorize: func(r *http.Request) int {
		if r.Header.Get("Authorization") != "Bearer kubelet-secret" {
			t.Errorf("the kubelet got the credentials %q", r.Header["Authorization"])
		}
		return http.StatusOK
	}})
	k.SetNode(kubelettest.Usage{CPU: 1.234567891, Memory: 1234567891})
	k.Run("default", "web", "app", kubelettest.Usage{CPU: 0.345678912, Memory: 345678912}, time.Now().Add(-time.Minute))
	cluster := newCluster(t)
	certificate := kubelettest.NewCA().Issue([]string{"node-1"}, nil)
	pod := runningPod("default", "web", "node-1")
	pod.Labels = map[string]string{"app": "web", "owner": "label-secret"}
	cluster.add(nodeAt("node-1", k.Start(t, &certificate)), pod)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/serviceaccounts/reader/token") {
			cluster.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, `{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", `+
			`"spec": {"expirationSeconds": 3600}, "status": {"token": "kubelet-secret"}}`)
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	cluster.url = server.URL
	c := cluster.config(t)
	c.KubeletServiceAccount = "reader"
	client := start(t, c)
	t.Cleanup(func() {
		client.stop()
		if _, err := setVerbosity("0"); err != nil {
			t.Error(err)
		}
		klog.SetOutput(os.Stderr)
		klog.LogToStderr(true)
	})

	const pods, wrong = "/apis/metrics.k8s.io/v1/namespaces/default/pods", invalidToken + "-secret"
	secrets := []string{"kubelet-secret", "label-secret", "Bearer alice", "Bearer mallory", wrong, "PRIVATE KEY"}
	usages := regexp.MustCompile(`"(?:cpu|memory)":"([^"]+)"`)
	for _, path := range []string{nodesPath, pods + "?labelSelector=app%3Dweb"} {
		eventually(t, func() string {
			found := usages.FindAllStringSubmatch(client.await(http.StatusOK, path, "alice"), -1)
			for _, usage := range found {
				secrets = append(secrets, usage[1], usage[1][:len(usage[1])-1]) // without the unit, too
			}
			if len(found) != 2 {
				return path + " has no metrics"
			}
			return ""
		})
	}
	client.await(http.StatusUnauthorized, nodesPath, wrong)
	client.await(http.StatusForbidden, nodesPath, "mallory")
	client.await(http.StatusNotFound, pods+"/none", "alice")
	client.await(http.StatusOK, "/metrics", "alice")
	eventually(t, func() string {
		if !strings.Contains(log.String(), pods+"/none") {
			return "the log has no requests"
		}
		return ""
	})
	client.stop()
	for line := range strings.Lines(log.String()) {
		for _, secret := range secrets {
			if strings.Contains(line, secret) {
				t.Errorf("the log has %q: %.500s", secret, line)
			}
		}
	}
}

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
