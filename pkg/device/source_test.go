package device

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// world has the exporters of a cluster, their responses, and the store. It implements
// http.RoundTripper.
type world struct {
	t     *testing.T
	group *group
	store *store.Store
	clock usage.Clock
	ctx   context.Context

	mu       sync.Mutex
	respond  map[string]func(*http.Request) (*http.Response, error) // by host and port
	requests map[string][]time.Time
	results  []Result
}

// run calls f in a synctest bubble with a world. Its exporters have the interval 10 s, the timeout 5 s
// and the maximum age 30 s.
func run(t *testing.T, f func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e := &parse(t, testConfig).Exporters[0]
		e.Interval, e.Timeout, e.MaxAge = 10*time.Second, 5*time.Second, 30*time.Second
		w := &world{
			t: t, store: &store.Store{Resources: store.NewResources()}, clock: usage.NewClock(time.Now()), ctx: t.Context(),
			respond: map[string]func(*http.Request) (*http.Response, error){}, requests: map[string][]time.Time{},
		}
		source := newSource(Config{
			Sink: w.store.Resources, Scraped: w.scraped, Clock: w.clock,
			IsKnown: func(node, _, pod, _ string) bool { return strings.HasSuffix(pod, node) },
		})
		w.group = source.newGroup(e, w)
		w.group.pods = cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers())
		source.groups = []*group{w.group}
		t.Cleanup(w.group.work.Wait)
		f(t, w)
	})
}

func (w *world) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	w.requests[r.URL.Host] = append(w.requests[r.URL.Host], time.Now())
	respond := w.respond[r.URL.Host]
	w.mu.Unlock()
	if respond == nil {
		return nil, errors.New("no such exporter")
	}
	return respond(r)
}

func (w *world) scraped(r Result) { w.locked(func() { w.results = append(w.results, r) }) }

func (w *world) locked(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// set sets the response of an exporter.
func (w *world) set(host, body string) { w.setFunc(host, answer(http.StatusOK, "", body)) }

func (w *world) setFunc(host string, respond func(*http.Request) (*http.Response, error)) {
	w.locked(func() { w.respond[host] = respond })
}

func answer(status int, kind, body string) func(*http.Request) (*http.Response, error) {
	return func(*http.Request) (*http.Response, error) {
		r := &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(body))}
		if kind != "" {
			r.Header.Set("Content-Type", kind)
		}
		return r, nil
	}
}

// hang does not respond until the request is canceled.
func hang(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

// start adds an exporter's pod.
func (w *world) start(name, node, ip string, age time.Duration) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "n", Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(time.Now().Add(-age)),
		},
		Spec:   corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip},
	}
	w.group.set(w.ctx, pod)
	return pod
}

// set adds or updates a pod, as the informer does.
func (g *group) set(ctx context.Context, pod *corev1.Pod) {
	old, exists, _ := g.pods.Get(pod)
	_ = g.pods.Update(pod)
	if exists {
		g.sync(ctx, old.(*corev1.Pod).Spec.NodeName)
	}
	g.sync(ctx, pod.Spec.NodeName)
}

func (g *group) remove(ctx context.Context, pod *corev1.Pod) {
	_ = g.pods.Delete(pod)
	g.sync(ctx, pod.Spec.NodeName)
}

// value returns the value of x.org/sum of the container c of a pod, or -1.
func (w *world) value(node, pod string) int {
	containers := w.store.Resources.Pod(node, &usage.Pod{
		Namespace: "n", Name: pod, Containers: []usage.Container{{Name: "c"}},
	}, w.clock.At(time.Now()))
	for _, list := range containers {
		for _, r := range list {
			if r.Name == "x.org/sum" {
				return int(r.Value)
			}
		}
	}
	return -1
}

func (w *world) want(what, node, pod string, value int) {
	w.t.Helper()
	synctest.Wait()
	if got := w.value(node, pod); got != value {
		w.t.Errorf("%s: got %d of pod %s on node %s, want %d", what, got, pod, node, value)
	}
}

// reasons returns the reasons of all results, without repetitions, and forgets the results.
func (w *world) reasons() []string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	set := map[string]bool{}
	for _, r := range w.results {
		set[string(r.Reason)] = true
	}
	w.results = nil
	return slices.Sorted(maps.Keys(set))
}

func series(pod string, values ...int) string {
	var text strings.Builder
	for i, v := range values {
		fmt.Fprintf(&text, "u{gpu=\"%d\",namespace=\"n\",pod=\"%s\",container=\"c\"} %d\n", i, pod, v)
	}
	return text.String()
}

// TestSchedule checks that each exporter is scraped soon after it is found, then once in each
// interval, also beside others that hang before their response, or in it.
func TestSchedule(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		start := time.Now()
		const pods = 200
		for i := range pods {
			node := fmt.Sprintf("n%d", i)
			ip := fmt.Sprintf("10.0.0.%d", i)
			w.start("e"+node, node, ip, 0)
			switch i % 4 {
			case 1:
				w.setFunc(ip+":1", hang)
			case 3:
				w.setFunc(ip+":1", drip)
			default:
				w.set(ip+":1", series("a-"+node, 1))
			}
		}
		time.Sleep(startWindow)
		for i := 0; i < pods; i += 2 {
			w.want("after the first scrape", fmt.Sprintf("n%d", i), fmt.Sprintf("a-n%d", i), 1000)
		}
		time.Sleep(2 * time.Minute)
		w.mu.Lock()
		defer w.mu.Unlock()
		spread := map[time.Duration]int{}
		for host, times := range w.requests {
			if first := times[0].Sub(start); first >= startWindow {
				t.Errorf("%s: the first scrape is after %v", host, first)
			}
			if gap := times[1].Sub(times[0]); gap >= w.group.Interval+w.group.Timeout {
				t.Errorf("%s: the second scrape is %v after the first", host, gap)
			}
			for i := 2; i < len(times); i++ {
				if gap := times[i].Sub(times[i-1]); gap != w.group.Interval {
					t.Fatalf("%s: got a gap of %v", host, gap)
				}
			}
			spread[times[5].Sub(start)%w.group.Interval/time.Second]++
		}
		if len(spread) < 10 || slices.Max(slices.Collect(maps.Values(spread))) > pods/4 {
			t.Errorf("scrapes in each second of the interval: %v", spread)
		}
		if e := w.group.source.Exporters()[0]; len(e.Pods) != pods || e.Failing() != pods/2 ||
			e.Containers["x.org/sum"] != pods/2 || e.Containers["x.org/max"] != 0 ||
			e.Oldest > w.group.Interval {
			t.Errorf("got %+v", e)
		}
	})
}

// TestExporterFails checks that the last values are served until they expire, and that they return with
// the next success.
func TestExporterFails(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		host := "10.0.0.1:1"
		w.set(host, series("a-n1", 1, 2))
		w.start("e", "n1", "10.0.0.1", 0)
		time.Sleep(time.Minute)
		w.want("at first", "n1", "a-n1", 3000)
		w.reasons()
		for _, fault := range []struct {
			respond func(*http.Request) (*http.Response, error)
			want    reason.Reason
		}{
			{hang, reason.Timeout},
			{answer(http.StatusInternalServerError, "", series("a-n1", 9)), reason.ServerError},
			{answer(http.StatusNotFound, "", series("a-n1", 9)), reason.NotFound},
			{answer(http.StatusFound, "", series("a-n1", 9)), reason.BadStatus},
			{answer(http.StatusOK, "text/html; charset=utf-8", series("a-n1", 9)), reason.BadFormat},
			{answer(http.StatusOK, "application/openmetrics-text; version=1.0.0", series("a-n1", 9)), reason.BadFormat},
			{answer(http.StatusOK, "", ""), reason.NoSamples},
			{answer(http.StatusOK, "text/plain", strings.Repeat("u 1\n", maxSeries+1)), reason.BodyTooLarge},
			{func(*http.Request) (*http.Response, error) { panic("x") }, reason.InternalFailure},
			{drip, reason.Timeout},
		} {
			w.setFunc(host, fault.respond)
			time.Sleep(w.group.Interval + w.group.Timeout)
			w.want("after a failure: "+string(fault.want), "n1", "a-n1", 3000)
			e := w.group.source.Exporters()[0]
			if p := e.Pods[0]; e.Failing() != 1 || p.Node != "n1" || p.Name != "e" || p.Reason != fault.want ||
				p.Err == nil || p.LastSuccess.IsZero() || !p.Last.After(p.LastSuccess) || p.Devices != 2 {
				t.Errorf("%s: got %+v", fault.want, e)
			}
			time.Sleep(w.group.MaxAge)
			w.want("after the maximum age: "+string(fault.want), "n1", "a-n1", -1)
			if got := w.reasons(); !slices.Contains(got, string(fault.want)) || len(got) > 2 {
				t.Errorf("got %q, want %q", got, fault.want)
			}
			w.set(host, series("a-n1", 1, 2))
			time.Sleep(w.group.Interval)
			w.want("after the recovery", "n1", "a-n1", 3000)
			w.reasons()
		}
		e := w.group.source.Exporters()[0]
		if p := e.Pods[0]; e.Failing() != 0 || p.Err != nil || p.Last != p.LastSuccess || p.Devices != 2 {
			t.Errorf("got %+v", e)
		}
	})
}

// drip responds with a body that never ends, one line a second.
func drip(r *http.Request) (*http.Response, error) {
	reader, writer := io.Pipe()
	go func() {
		for r.Context().Err() == nil {
			select {
			case <-r.Context().Done():
			case <-time.After(time.Second):
				io.WriteString(writer, series("a-n1", 9))
			}
		}
		writer.CloseWithError(r.Context().Err())
	}()
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: reader}, nil
}

// TestTwoPodsOnANode checks that devices do not count twice while an update of the exporters runs
// two pods on a node, that the older one counts, and that either pod may fail or end.
func TestTwoPodsOnANode(t *testing.T) {
	run(t, func(_ *testing.T, w *world) {
		w.set("10.0.0.1:1", series("a-n1", 1))
		old := w.start("old", "n1", "10.0.0.1", time.Hour)
		time.Sleep(time.Minute)
		w.want("the old pod alone", "n1", "a-n1", 1000)

		w.set("10.0.0.2:1", series("a-n1", 2))
		recent := w.start("new", "n1", "10.0.0.2", 0)
		for range 10 {
			time.Sleep(w.group.Interval)
			w.want("both pods", "n1", "a-n1", 1000)
		}
		w.setFunc("10.0.0.1:1", hang)
		time.Sleep(2*w.group.Interval + w.group.Timeout)
		w.want("the old pod fails", "n1", "a-n1", 2000)

		w.set("10.0.0.1:1", series("a-n1", 3))
		time.Sleep(w.group.Interval + w.group.Timeout)
		w.want("the old pod is back", "n1", "a-n1", 3000)

		w.set("10.0.0.2:1", "") // it has started again, but has not read the devices yet
		w.group.remove(w.ctx, old)
		w.want("the old pod was deleted", "n1", "a-n1", 3000)
		time.Sleep(w.group.Interval)
		w.want("the new pod is starting", "n1", "a-n1", 3000)
		w.set("10.0.0.2:1", series("a-n1", 2))
		time.Sleep(w.group.Interval)
		w.want("the new pod replaces it", "n1", "a-n1", 2000)

		w.group.remove(w.ctx, recent)
		time.Sleep(w.group.MaxAge - w.group.Interval)
		w.want("both pods were deleted", "n1", "a-n1", 2000)
		time.Sleep(w.group.Interval)
		w.want("after the maximum age", "n1", "a-n1", -1)
	})
}

// TestManyPodsOnANode checks that the two oldest pods of a node are scraped, in whatever order they
// become known, and that the others are counted.
func TestManyPodsOnANode(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		scraped := func() string {
			w.locked(func() { clear(w.requests) })
			time.Sleep(2 * w.group.Interval)
			w.mu.Lock()
			defer w.mu.Unlock()
			return strings.Join(slices.Sorted(maps.Keys(w.requests)), " ")
		}
		check := func(what, want string, leftOut int, example string) {
			t.Helper()
			if got := scraped(); got != want {
				t.Errorf("%s: got requests to %s, want %s", what, got, want)
			}
			s := w.group.exporter(w.clock.At(time.Now()))
			if s.LeftOut != leftOut || s.LeftOutPod != example || len(s.Pods) != len(strings.Fields(want)) {
				t.Errorf("%s: got %+v, want %d left out, such as %s", what, s, leftOut, example)
			}
		}
		w.start("e4", "n1", "10.0.0.4", time.Second)
		e3 := w.start("e3", "n1", "10.0.0.3", time.Second)
		other := w.start("f", "n2", "10.0.1.1", 0)
		check("two", "10.0.0.3:1 10.0.0.4:1 10.0.1.1:1", 0, "")
		e1 := w.start("e1", "n1", "10.0.0.1", time.Hour)
		check("an older one", "10.0.0.1:1 10.0.0.3:1 10.0.1.1:1", 1, "n1 e4")
		w.start("e5", "n1", "10.0.0.5", 0)
		w.start("e2", "n1", "10.0.0.2", time.Minute)
		w.start("e2", "n1", "10.0.0.2", time.Minute)
		check("two more", "10.0.0.1:1 10.0.0.2:1 10.0.1.1:1", 3, "n1 e3")
		w.group.remove(w.ctx, e3)
		w.group.remove(w.ctx, e1)
		check("after one of them ended", "10.0.0.2:1 10.0.0.4:1 10.0.1.1:1", 1, "n1 e5")
		w.group.remove(w.ctx, other)
		w.group.remove(w.ctx, other)
		check("after another one ended", "10.0.0.2:1 10.0.0.4:1", 1, "n1 e5")
	})
}

// TestOtherNodes checks that an exporter can only report values of pods of its node.
func TestOtherNodes(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		w.set("10.0.0.1:1", series("a-n1", 1))
		w.set("10.0.0.2:1", series("a-n1", 50)+series("a-n2", 2))
		w.start("e1", "n1", "10.0.0.1", 0)
		w.start("e2", "n2", "10.0.0.2", 0)
		time.Sleep(time.Minute)
		w.want("a pod of its node", "n2", "a-n2", 2000)
		w.want("a pod of another node", "n1", "a-n1", 1000)
		w.mu.Lock()
		defer w.mu.Unlock()
		for _, r := range w.results {
			if n := r.Skipped["unknown_container"]; n != 0 && n != 1 {
				t.Errorf("got %+v", r)
			}
		}
	})
}

// TestPodChanges checks that a pod is scraped as long as it runs, at its present address.
func TestPodChanges(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		w.set("10.0.0.1:1", series("a-n1", 1))
		pod := w.start("e", "n1", "10.0.0.1", 0)
		time.Sleep(time.Minute)
		// requests returns the number of requests to an address in so much time.
		requests := func(host string, during time.Duration) int {
			w.locked(func() { clear(w.requests) })
			time.Sleep(during)
			w.mu.Lock()
			defer w.mu.Unlock()
			return len(w.requests[host])
		}
		change := func(f func(*corev1.Pod)) {
			next := pod.DeepCopy()
			f(next)
			w.group.set(w.ctx, next)
			pod = next
		}
		change(func(p *corev1.Pod) { p.Labels = map[string]string{"x": "y"} })
		if n := requests("10.0.0.1:1", w.group.Interval); n != 1 {
			t.Errorf("after a change of labels: got %d requests in an interval", n)
		}
		change(func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.9" })
		w.set("10.0.0.9:1", series("a-n1", 9))
		if n := requests("10.0.0.1:1", w.group.Interval); n != 0 {
			t.Errorf("got %d requests to the old address", n)
		}
		w.want("another address", "n1", "a-n1", 9000)
		change(func(p *corev1.Pod) { p.UID, p.Status.PodIP = "other", "10.0.0.1" })
		time.Sleep(w.group.Interval)
		w.want("another pod of the same name", "n1", "a-n1", 1000)
		for name, f := range map[string]func(*corev1.Pod){
			"failed":      func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
			"terminating": func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} },
			"no address":  func(p *corev1.Pod) { p.Status.PodIP = "" },
			"not bound":   func(p *corev1.Pod) { p.Spec.NodeName = "" },
		} {
			running := pod.DeepCopy()
			change(f)
			synctest.Wait()
			if n := requests("10.0.0.1:1", time.Minute); n != 0 {
				t.Errorf("%s: got %d requests", name, n)
			}
			change(func(p *corev1.Pod) { *p = *running })
			time.Sleep(w.group.Interval)
			w.want("after "+name, "n1", "a-n1", 1000)
		}
	})
}

// TestExpiredValuesAreFreed checks that nothing stays in memory of nodes that are gone.
func TestExpiredValuesAreFreed(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		removed := &removals{Sink: w.store.Resources}
		w.group.source.Sink = removed
		w.set("10.0.0.1:1", series("a-n1", 1))
		e := w.start("e", "n1", "10.0.0.1", 0)
		time.Sleep(time.Minute)
		synctest.Wait()
		w.group.removeExpired(w.clock.At(time.Now()))
		w.want("before they expire", "n1", "a-n1", 1000)
		w.group.remove(w.ctx, e)
		time.Sleep(w.group.MaxAge)
		w.group.removeExpired(w.clock.At(time.Now()))
		if !slices.Equal(removed.nodes, []string{"n1"}) || len(w.group.active) != 0 || len(w.group.targets) != 0 {
			t.Errorf("got %q, %d nodes and %d pods", removed.nodes, len(w.group.active), len(w.group.targets))
		}
	})
}

// removals records the nodes that are removed.
type removals struct {
	Sink
	nodes []string
}

func (r *removals) Remove(node, source string) {
	r.nodes = append(r.nodes, node)
	r.Sink.Remove(node, source)
}

// measured responds with a value that was measured some time ago.
func measured(ago time.Duration) func(*http.Request) (*http.Response, error) {
	return func(r *http.Request) (*http.Response, error) {
		line := strings.TrimSuffix(series("a-n1", 1), "\n") + fmt.Sprintf(" %d\n", time.Now().Add(-ago).UnixMilli())
		return answer(http.StatusOK, "", line)(r)
	}
}

// TestOldTimestamps checks that values with timestamps expire by them, but not before the next
// scrape.
func TestOldTimestamps(t *testing.T) {
	run(t, func(_ *testing.T, w *world) {
		w.setFunc("10.0.0.1:1", measured(14990*time.Millisecond)) // the limit is 30 s − 10 s − 5 s
		w.start("e", "n1", "10.0.0.1", 0)
		time.Sleep(startWindow)
		for range 600 {
			w.want("between scrapes", "n1", "a-n1", 1000)
			time.Sleep(100 * time.Millisecond)
		}
	})
}

// TestTimestampsOfRemovedPods checks that a new pod does not get a value that was measured before an
// earlier pod of its name was deleted, even if the exporter sends it later.
func TestTimestampsOfRemovedPods(t *testing.T) {
	run(t, func(_ *testing.T, w *world) {
		w.setFunc("10.0.0.1:1", measured(9900*time.Millisecond)) // the interval is 10 s
		w.start("e", "n1", "10.0.0.1", 0)
		time.Sleep(30 * time.Second)
		w.want("before the removal", "n1", "a-n1", 1000)
		w.store.RemovePod("n1", "n", "a-n1", w.clock.At(time.Now()))
		for range 98 {
			w.want("after the removal", "n1", "a-n1", -1)
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(15 * time.Second)
		w.want("a value of the new pod", "n1", "a-n1", 1000)
	})
}

// TestNameOfAnotherSource checks that an exporter can have the name of another source of the store.
func TestNameOfAnotherSource(t *testing.T) {
	run(t, func(t *testing.T, w *world) {
		w.group.Name = usage.EphemeralStorage
		w.store.Resources.Put("n1", usage.EphemeralStorage, usage.ResourceReport{
			At: w.clock.At(time.Now()), MaxAge: time.Hour, Node: []usage.Resource{{Name: usage.EphemeralStorage, Value: 5}},
		})
		w.set("10.0.0.1:1", series("a-n1", 1))
		w.start("e", "n1", "10.0.0.1", 0)
		time.Sleep(startWindow)
		w.want("after the start", "n1", "a-n1", 1000)
		if got := w.store.Resources.Node("n1", w.clock.At(time.Now())); len(got) != 1 || got[0].Value != 5 {
			t.Errorf("got %v of the other source", got)
		}
	})
}
