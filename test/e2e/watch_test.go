package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"
	metrics "k8s.io/metrics/pkg/client/clientset/versioned"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

// TestWatch watches metrics through the aggregation layer, with kubectl and with informers of
// client-go: they see metrics change, pods appear and disappear, metrics of a dead node expire, and
// kube-vitals restart.
func TestWatch(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	if err := c.Simulation.AddNode(t.Context(), simulation.Node{Name: "other", Unschedulable: true}); err != nil {
		t.Fatal(err)
	}
	c.install(t, "--enable-watch", "--metric-resolution=5s", "--max-sample-age=15s")
	for _, version := range versions {
		out := c.kubectl(t, "get", "--raw", "/apis/metrics.k8s.io/"+version)
		if n := strings.Count(out, `"verbs":["get","list","watch"]`); n != 2 {
			t.Errorf("%s: %d resources can be watched, want 2: %s", version, n, out)
		}
	}
	const namespace = "watched"
	if err := c.CreateNamespace(t.Context(), namespace); err != nil {
		t.Fatal(err)
	}
	c.createPods(t, namespace, oneNode, "a", "b")

	kubectls := map[string]*process.Process{
		"all":      c.watchWithKubectl(t, "podmetrics", "-n", namespace, "-o", "wide", "--output-watch-events"),
		"selected": c.watchWithKubectl(t, "podmetrics", "-n", namespace, "-l", "app=b"),
		"one":      c.watchWithKubectl(t, "podmetrics", "b", "-n", namespace),
		"nodes":    c.watchWithKubectl(t, "nodemetrics"),
		"JSON":     c.watchWithKubectl(t, "podmetrics", "-n", namespace, "-o", `jsonpath={.metadata.name}{"\n"}`),
	}
	informers := map[string]*podInformer{}
	for _, contentType := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		for _, watchList := range []bool{true, false} {
			name := fmt.Sprintf("%s, WatchList %t", contentType, watchList)
			informers[name] = c.startInformer(t, namespace, contentType, watchList)
		}
	}
	c.awaitInformers(t, informers, namespace)
	for name, i := range informers {
		if list := strings.Contains(name, "WatchList false"); (i.lists.Load() > 0) != list {
			t.Errorf("%s: the informer has listed: %t, want %t", name, !list, list)
		}
	}

	// The metrics change with each scrape.
	awaitLines(t, kubectls["all"], "MODIFIED a", 2)
	awaitLines(t, kubectls["all"], "MODIFIED b", 2)
	awaitLines(t, kubectls["selected"], "b", 3)
	awaitLines(t, kubectls["one"], "b", 3)
	awaitLines(t, kubectls["nodes"], "node", 3)
	awaitLines(t, kubectls["JSON"], "b", 3)
	if text := printed(t, kubectls["all"]); strings.Count(text, "NAME") != 1 ||
		!strings.HasPrefix(text, "EVENT NAME CPU(CORES) MEMORY(BYTES) WINDOW AGE(METRICS) NODE\nADDED a ") {
		t.Errorf("kubectl printed\n%s", text)
	}
	if text := printed(t, kubectls["selected"]); strings.Count(text, "NAME") != 1 || strings.Contains(text, "\na ") {
		t.Errorf("kubectl with a selector printed\n%s", text)
	}

	// A pod appears; labels move another one in and out of a selection; a pod is deleted.
	run := func(pod, node string) {
		c.kubectl(t, "run", pod, "-n", namespace, "--image=none", "--overrides", `{"spec": {"nodeName": "`+node+`"}}`)
	}
	run("c", "other")
	awaitLines(t, kubectls["all"], "ADDED c", 1)
	c.Simulation.Kubelet("other").SetFaults(kubelettest.Hang) // its metrics will expire
	c.kubectl(t, "label", "pod", "a", "-n", namespace, "--overwrite", "app=b")
	awaitLines(t, kubectls["selected"], "a", 1)
	c.kubectl(t, "delete", "pod", "b", "-n", namespace, "--force")
	awaitLines(t, kubectls["all"], "DELETED b", 1)
	awaitLines(t, kubectls["all"], "DELETED c", 1)
	c.awaitInformers(t, informers, namespace)

	// kube-vitals restarts: versions of the old process are not valid, and informers list again.
	if err := c.server.Stop(shutdownTimeout); err != nil {
		t.Errorf("kube-vitals exits with %v", err)
	}
	for name, k := range kubectls {
		select {
		case <-k.Done():
		case <-time.After(timeout):
			t.Errorf("%s: kubectl does not end with the server:\n%s", name, k.Tail())
		}
	}
	c.restart(t)
	run("d", oneNode)
	eventually(t, "informers to have a pod that was created after the restart", func(context.Context) error {
		var err error
		for name, i := range informers {
			if _, known, _ := i.GetStore().GetByKey(namespace + "/d"); !known {
				err = errors.Join(err, fmt.Errorf("%s: the informer does not have it", name))
			}
		}
		return err
	})
	c.awaitInformers(t, informers, namespace)
	table := c.kubectl(t, "get", "apiservices", "v1.metrics.k8s.io", "v1beta1.metrics.k8s.io")
	if strings.Contains(table, "False") {
		t.Errorf("the APIServices are not available:\n%s", table)
	}
}

// watchWithKubectl runs kubectl get --watch until the test ends.
func (c *testCluster) watchWithKubectl(t *testing.T, args ...string) *process.Process {
	t.Helper()
	p, err := process.Start(process.Config{
		Path: c.Binary(binaries.NewKubectl), Log: filepath.Join(t.TempDir(), "kubectl.log"),
		Args: append([]string{"--kubeconfig", c.Kubeconfig, "--cache-dir", t.TempDir(), "get", "--watch"}, args...),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

// printed returns the output of a process, with single spaces.
func printed(t *testing.T, p *process.Process) string {
	t.Helper()
	log, err := p.Log()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(log, "\n")
	for i, line := range lines {
		lines[i] = strings.Join(strings.Fields(line), " ")
	}
	return strings.Join(lines, "\n")
}

// awaitLines waits until a process has printed at least n lines that begin with these words.
func awaitLines(t *testing.T, p *process.Process, words string, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d lines of kubectl with %s", n, words), func(context.Context) error {
		text := printed(t, p)
		got := 0
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line+" ", words+" ") || strings.HasPrefix(line, words+"\n") {
				got++
			}
		}
		if got < n {
			return fmt.Errorf("got %d:\n%s", got, text)
		}
		return nil
	})
}

// podInformer is an informer of PodMetrics.
type podInformer struct {
	cache.SharedIndexInformer
	lists atomic.Int64
}

// startInformer starts an informer of a namespace, whose reflector either lists and then watches,
// or watches with initial events.
func (c *testCluster) startInformer(t *testing.T, namespace, contentType string, watchList bool) *podInformer {
	t.Helper()
	config := rest.CopyConfig(c.REST)
	config.ContentType = contentType
	client, err := metrics.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	pods := client.MetricsV1().PodMetricses(namespace)
	i := &podInformer{}
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			i.lists.Add(1)
			return pods.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return pods.Watch(ctx, o)
		},
	}
	i.SharedIndexInformer = cache.NewSharedIndexInformer(
		cache.ToListWatcherWithWatchListSemantics(lw, watchListClient(watchList)), &metricsv1.PodMetrics{}, 0, nil)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		i.RunWithContext(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return i
}

// watchListClient is a client that supports WatchList, or not.
type watchListClient bool

func (c watchListClient) IsWatchListSemanticsUnSupported() bool { return !bool(c) }

// awaitInformers waits until all informers have what a LIST returns.
func (c *testCluster) awaitInformers(t *testing.T, informers map[string]*podInformer, namespace string) {
	t.Helper()
	client, err := metrics.NewForConfig(c.REST)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "informers to have what a LIST returns", func(ctx context.Context) error {
		list, err := client.MetricsV1().PodMetricses(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		want := map[string]string{}
		for _, pod := range list.Items {
			want[pod.Name] = fmt.Sprint(pod.Labels, pod.Timestamp.UTC(), pod.Window, pod.Containers)
		}
		for name, i := range informers {
			got := map[string]string{}
			for _, object := range i.GetStore().List() {
				pod := object.(*metricsv1.PodMetrics)
				got[pod.Name] = fmt.Sprint(pod.Labels, pod.Timestamp.UTC(), pod.Window, pod.Containers)
			}
			if !i.HasSynced() || !maps.Equal(got, want) {
				err = errors.Join(err, fmt.Errorf("%s: got %q, want %q", name, got, want))
			}
		}
		return err
	})
}
