package kubelet

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// storageKubelet returns a kubelet with a container that uses 30 bytes, in a pod that uses 100 in all.
func storageKubelet(t *testing.T) (*kubelettest.Kubelet, *corev1.Node) {
	t.Helper()
	k := kubelettest.New("n7", kubelettest.Config{})
	k.SetNode(kubelettest.Usage{CPU: 1, Memory: 1 << 30})
	k.SetContainer("default", "web", "app", kubelettest.Usage{CPU: 0.5, Memory: 1 << 20})
	k.SetStorage("", "", "", 1000)
	k.SetStorage("default", "web", "app", 30)
	k.SetStorage("default", "web", "", 70)
	return k, nodeAt("n7", k.Start(t, nil).String())
}

func showStorage(s *usage.Scrape) string {
	var b strings.Builder
	for _, v := range s.Storage {
		fmt.Fprintf(&b, "%s/%s/%s=%d ", v.Namespace, v.Pod, v.Container, v.Bytes)
	}
	return b.String()
}

// harmless are the faults that do not affect storage.
var harmless = []string{
	"late", "slow", "placeholder rates", "no rates", "null rates", "impossible rates", "negative counters",
	"memory in words", "no start time", "times of yesterday", "no times", "none",
}

const correctStorage = "default/web/app=30 default/web/=70 //=1000 "

// TestFetchStorage fetches the complete summary with each fault of a kubelet, and then a correct one.
func TestFetchStorage(t *testing.T) {
	k, node := storageKubelet(t)
	c := newTestClient(t, Config{PlainHTTP: true})
	var got usage.Scrape
	if err := fetchResource(c, t.Context(), node, &got); err != nil || got.Storage != nil {
		t.Fatalf("got storage %s of /metrics/resource, error %v", showStorage(&got), err)
	}
	quick := alwaysConnects(newTestClient(t, Config{PlainHTTP: true, Timeout: 300 * time.Millisecond}))
	for _, fault := range append(kubelettest.SummaryFaults(), kubelettest.NamedFault{Name: "none"}) {
		k.SetFaults()
		if fault.Fault != nil {
			k.SetFaults(fault.Fault)
		}
		client, mayFail := c, false
		if slices.Contains([]string{"hang", "late", "slow"}, fault.Name) {
			client, mayFail = quick, true
		}
		err := fetchStorage(client, t.Context(), node, &got)
		switch affected := !slices.Contains(harmless, fault.Name); {
		case err == nil && (affected || showStorage(&got) != correctStorage):
			t.Errorf("%s: got %s without an error", fault.Name, showStorage(&got))
		case err != nil && (!affected && !mayFail || !strings.HasPrefix(err.Error(), `node "n7": complete summary: `) ||
			!slices.Contains(reason.Scrapes(), reason.Of(err))):
			t.Errorf("%s: got error %v of reason %q", fault.Name, err, reason.Of(err))
		}
		k.SetFaults()
		if err := fetchStorage(c, t.Context(), node, &got); err != nil || showStorage(&got) != correctStorage {
			t.Errorf("after %s: got %s, error %v", fault.Name, showStorage(&got), err)
		}
	}
}

func TestFetchStorageForbidden(t *testing.T) {
	k, node := storageKubelet(t)
	k.SetFaults(kubelettest.Status(http.StatusForbidden))
	err := fetchStorage(newTestClient(t, Config{PlainHTTP: true}), t.Context(), node, &usage.Scrape{})
	checkError(t, err, reason.Forbidden, "complete summary: ")
	checkError(t, err, reason.Forbidden, "grant get on nodes/stats to the user that kube-vitals runs as; "+
		"without the summary, ephemeral-storage is not served")
}

// TestFetchStorageDelaysNothing checks that requests for storage to kubelets that hang delay no other
// requests to the same kubelets, and that the connections are shared otherwise.
func TestFetchStorageDelaysNothing(t *testing.T) {
	const hanging = 20 * permitsPerCPU
	var waiting, served atomic.Int64
	release := make(chan struct{})
	k := newKubelet(t, nil, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == summaryPath {
			waiting.Add(1)
			<-release
		}
		served.Add(1)
		respond(w, realResource(t))
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
	eventually(t, "all requests to hang", func() bool { return waiting.Load() == hanging })
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
	eventually(t, "one connection to each node", func() bool { return k.open.Load() == hanging })
}
