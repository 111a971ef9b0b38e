package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/view"
)

// storageCluster has a node with the pods web, static, replaced, elsewhere and unknown. Only web and static
// are bound to the node with the UID that the kubelet reports. That of a static pod is a hash there.
func storageCluster(t *testing.T) (*cluster, *kubelettest.Kubelet) {
	t.Helper()
	k := kubelettest.New("node-1", kubelettest.Config{Boot: time.Now().Add(-time.Hour)})
	k.SetNode(kubelettest.Usage{CPU: 1, Memory: 1 << 30})
	k.SetStorage("", "", "", 8<<30)
	cluster := newCluster(t)
	certificate := kubelettest.NewCA().Issue([]string{"node-1"}, nil)
	cluster.add(nodeAt("node-1", k.Start(t, &certificate)))
	for name, uids := range map[string][2]string{ // in the API server, at the kubelet
		"web": {"1-1", "1-1"}, "static": {"2-2", "f00d"}, "replaced": {"3-4", "3-3"}, "elsewhere": {"5-5", "5-5"},
		"unknown": {"", "6-6"},
	} {
		for _, container := range []string{"app", "proxy"} {
			k.Run("default", name, container, kubelettest.Usage{CPU: 0.5, Memory: 1 << 20}, time.Now().Add(-time.Minute))
			k.SetStorage("default", name, container, 10<<20)
		}
		k.SetStorage("default", name, "", 80<<20)
		k.SetUID("default", name, uids[1])
		pod := runningPod("default", name, "node-1")
		pod.UID = types.UID(uids[0])
		if name == "elsewhere" {
			pod.Spec.NodeName = "node-2"
		}
		if name != "unknown" {
			cluster.add(pod)
		}
	}
	return cluster, k
}

// onlyComplete restricts a fault to complete summaries.
func onlyComplete(fault kubelettest.Fault) kubelettest.Fault {
	return func(r *kubelettest.Response) {
		if r.Request.URL.Path == kubelettest.SummaryPath && r.Request.URL.RawQuery == "" {
			fault(r)
		}
	}
}

// storageOf returns the ephemeral storage of the containers of each pod, and of the node.
func (c *client) storageOf() (storage string, newest time.Time) {
	c.t.Helper()
	var pods metricsv1beta1.PodMetricsList
	var node metricsv1beta1.NodeMetrics
	for path, object := range map[string]any{"namespaces/default/pods": &pods, "nodes/node-1": &node} {
		response, body := c.get("/apis/metrics.k8s.io/v1beta1/"+path, "alice")
		if response.StatusCode != http.StatusOK {
			return fmt.Sprint(response.StatusCode), time.Time{}
		}
		if err := json.Unmarshal([]byte(body), object); err != nil {
			c.t.Fatal(err)
		}
	}
	var all []string
	show := func(list corev1.ResourceList) string {
		if q, ok := list["ephemeral-storage"]; ok {
			return " " + q.String()
		}
		return " -"
	}
	for _, pod := range pods.Items {
		line := pod.Name
		for _, container := range pod.Containers {
			line += show(container.Usage)
		}
		all = append(all, line)
		newest = pod.Timestamp.Time
	}
	slices.Sort(all)
	return strings.Join(append(all, "node"+show(node.Usage)), ", "), newest
}

func (c *client) awaitStorage(what, want string) {
	c.t.Helper()
	eventually(c.t, func() string {
		if got, _ := c.storageOf(); got != want {
			return fmt.Sprintf("%s: got %s, want %s", what, got, want)
		}
		return ""
	})
}

// TestStorageExpires checks that storage is served for 3 of its intervals, which are not shorter than those
// of CPU and memory.
func TestStorageExpires(t *testing.T) {
	for interval, want := range map[time.Duration]time.Duration{
		time.Minute: 3 * time.Minute, 10 * time.Second: 45 * time.Second,
	} {
		a := assembly{
			Config: Config{StorageInterval: interval, Resolution: 15 * time.Second}, view: &view.View{Store: &store.Store{}},
			instruments: newTestInstruments(),
		}
		if got := a.storageConfig().Sink.(*store.EphemeralStorage).MaxAge; got != want {
			t.Errorf("with an interval of %v: got a maximum age of %v, want %v", interval, got, want)
		}
	}
}

const (
	allStorage = "replaced - -, static 90Mi 10Mi, web 90Mi 10Mi, node 8Gi"
	noStorage  = "replaced - -, static - -, web - -, node -"
)

// TestEphemeralStorage serves the storage of pods that are bound to a node, and stops when the kubelet
// does not report it any more. CPU and memory are served all the time.
func TestEphemeralStorage(t *testing.T) {
	cluster, k := storageCluster(t)
	c := cluster.config(t)
	c.Resolution, c.MaxSampleAge = time.Second, time.Minute
	c.StorageInterval = time.Second
	c.Kubelet.Timeout = 5 * time.Second // of requests that hang
	client := start(t, c)
	client.awaitStorage("at first", allStorage)

	k.SetFaults(onlyComplete(kubelettest.Hang))
	client.awaitStorage("the kubelet hangs", noStorage)
	_, before := client.storageOf()
	eventually(t, func() string {
		if _, now := client.storageOf(); !now.After(before) {
			return "CPU and memory are not scraped while requests for storage hang"
		}
		return ""
	})
	k.SetFaults(onlyComplete(kubelettest.Status(http.StatusForbidden)))
	client.awaitSeries(
		`kube_vitals_ephemeral_storage_scrapes_total{reason="forbidden",result="failure"}`,
		`kube_vitals_ephemeral_storage_scrapes_total{reason="timeout",result="failure"}`,
		`kube_vitals_ephemeral_storage_scrape_duration_seconds_count`)
	_, body := client.get("/metrics", "alice")
	if strings.Contains(body, `kube_vitals_node_failing{node="node-1",reason="forbidden"}`) ||
		strings.Contains(body, `kube_vitals_scrapes_total{reason="forbidden"`) {
		t.Error("the failure counts as one of a scrape of CPU and memory")
	}

	k.SetFaults()
	k.SetStorage("default", "web", "", 180<<20)
	client.awaitStorage("afterwards", "replaced - -, static 90Mi 10Mi, web 190Mi 10Mi, node 8Gi")
}
