package kubelet

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// newStorageKubelet returns a kubelet with a container that uses 30 bytes, in a pod that uses 100 in all.
func newStorageKubelet() *kubelettest.Kubelet {
	k := kubelettest.New("n7", kubelettest.Config{})
	k.SetNode(kubelettest.Usage{CPU: 1, Memory: 1 << 30})
	k.Run("default", "web-0", "app", kubelettest.Usage{CPU: 0.5, Memory: 1 << 20}, time.Now().Add(-time.Minute))
	k.SetStorage("", "", "", 1000)
	k.SetStorage("default", "web-0", "app", 30)
	k.SetStorage("default", "web-0", "", 70)
	return k
}

// checkStorage fetches the storage of a newStorageKubelet, and checks it or the reason of the error.
func checkStorage(t *testing.T, c *Client, node *corev1.Node, want reason.Reason) {
	t.Helper()
	var scrape usage.Scrape
	err := fetchStorage(c, t.Context(), node, &scrape)
	if want != "" {
		checkError(t, err, want, "complete summary: ")
		const cure = "grant get on nodes/stats to the user that kubelets see (kube-vitals-kubelet in the chart); " +
			"without the summary, ephemeral-storage is not served"
		if want == reason.Forbidden && !strings.Contains(explained(err), cure) {
			t.Errorf("got error %v, want the cure %q", err, cure)
		}
		return
	}
	got := ""
	for _, s := range scrape.Storage {
		got += fmt.Sprintf("%s/%s/%s=%d ", s.Namespace, s.Pod, s.Container, s.Bytes)
	}
	if err != nil || got != "default/web-0/app=30 default/web-0/=70 //=1000 " || len(scrape.Containers) > 0 {
		t.Errorf("got storage %s and %d containers, error %v", got, len(scrape.Containers), err)
	}
}

// TestFetchStorageDelaysNothing checks that requests for storage to kubelets that hang delay no other
// requests to the same kubelets, and that the connections are shared otherwise.
func TestFetchStorageDelaysNothing(t *testing.T) {
	const hanging = 20 * permitsPerCPU
	var waiting, served atomic.Int64
	release := make(chan struct{})
	k := newKubelet(t, nil, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == summaryQuery.path {
			waiting.Add(1)
			<-release
		}
		served.Add(1)
		serveNode(w, r)
	})
	c := newTestClient(t, Config{PlainHTTP: true})
	fetch := func() {
		t.Helper()
		for i := range hanging {
			var got usage.Scrape
			if err := fetchResource(c, t.Context(), k.node(fmt.Sprintf("node%d", i)), &got); err != nil {
				t.Fatal(err)
			}
		}
	}
	fetch() // connects
	if n := k.opened.Load(); n != hanging {
		t.Errorf("got %d connections, want %d", n, hanging)
	}
	var group sync.WaitGroup
	for i := range hanging {
		group.Go(func() {
			err := fetchStorage(c, t.Context(), k.node(fmt.Sprintf("node%d", i)), &usage.Scrape{})
			if reason.Of(err) != reason.BadFormat {
				t.Errorf("got error %v, want one about the format", err)
			}
		})
	}
	testenv.Eventually(t, "all requests to hang", func() bool { return waiting.Load() == hanging })
	if n := k.opened.Load(); n != hanging {
		t.Errorf("got %d connections, want %d", n, hanging)
	}
	if len(c.reading) != 0 || len(c.connecting) != 0 {
		t.Error("the requests hold permits of others")
	}
	fetch()
	if n := served.Load(); n != 2*hanging {
		t.Errorf("got %d responses while requests hang, want %d", n, 2*hanging)
	}
	close(release)
	group.Wait()
	testenv.Eventually(t, "one connection to each node", func() bool { return k.open.Load() == hanging })
}
