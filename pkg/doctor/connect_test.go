package doctor

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"

	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// TestPortForward examines a server in the cluster: doctor connects to the pod's port behind the Service
// leads, also if the user may not list EndpointSlices, and reads the certificate and the page of nodes there. The
// API server is older than WebSockets for port-forwards, so it upgrades to SPDY only.
func TestPortForward(t *testing.T) {
	w := newWorld(t)
	w.inCluster(1, serverPod(true, running()))
	w.forwards = true
	w.status["/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices"] = forbidden("list endpointslices")
	report, text := w.examine(t)
	for _, id := range []string{"certificate", "nodes", "clocks"} {
		if find(report, id).Status != OK {
			t.Errorf("%s is not ok:\n%s", id, text)
		}
	}
	if want := []string{"/nodez Bearer " + token}; !slices.Equal(w.requests, want) {
		t.Errorf("got requests %q, want %q", w.requests, want)
	}
}

// forward connects a port-forward to kube-vitals, as the API server and a kubelet do.
func (w *world) forward(out http.ResponseWriter, r *http.Request) {
	if _, err := httpstream.Handshake(r, out, []string{"portforward.k8s.io"}); err != nil {
		panic(err)
	}
	conn := spdy.NewResponseUpgrader().UpgradeResponse(out, r, func(s httpstream.Stream, accepted <-chan struct{}) error {
		if port := s.Headers().Get("port"); port != "10251" {
			return fmt.Errorf("unexpected port %s", port)
		}
		go func() {
			<-accepted
			if s.Headers().Get("streamType") == "error" {
				_ = s.Close()
				return
			}
			vitals, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", w.port))
			if err != nil {
				panic(err)
			}
			go func() { _, _ = io.Copy(vitals, s); _ = vitals.Close() }()
			_, _ = io.Copy(s, vitals)
			_ = s.Close()
		}()
		return nil
	})
	<-conn.CloseChan()
}
