package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/internal/leaktest"
	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func TestMain(m *testing.M) {
	if nodes, err := strconv.Atoi(os.Getenv(benchEngineNodes)); err == nil {
		runBenchEngine(nodes)
		return
	}
	leaktest.Main(m)
}

// engine is a fake engine. It understands the queries of the presets.
type engine struct {
	*httptest.Server

	mu          sync.Mutex
	series      map[string][]point // by selector, such as up{a="b"}, with labels in the order of their names
	respond     http.HandlerFunc   // instead of the series, if it is not nil
	byTime      bool               // respond only with samples in the range of the query, as engines do
	behind      time.Duration      // how far the engine's clock is behind, for byTime
	warnings    []string
	isPartial   bool            // VictoriaMetrics
	duplicate   bool            // repeat each series
	contentType string          // "": application/json
	requests    []*http.Request // with parsed forms
}

func newEngine(t *testing.T) *engine {
	e := &engine{series: map[string][]point{}}
	e.Server = httptest.NewServer(http.HandlerFunc(e.serve))
	t.Cleanup(e.Close)
	return e
}

func (e *engine) serve(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	var respond http.HandlerFunc
	e.set(func() { e.requests, respond = append(e.requests, r), e.respond })
	if respond != nil {
		respond(w, r)
		return
	}
	e.serveSeries(w, r)
}

func (e *engine) serveSeries(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	result, err := e.evaluate(r.Form.Get("query"))
	if r.URL.Path != "/api/v1/query" || err != nil {
		http.Error(w, r.URL.Path+" "+fmt.Sprint(err), http.StatusBadRequest)
		return
	}
	if e.duplicate {
		result = append(result, result...)
	}
	w.Header().Set("Content-Type", cmp.Or(e.contentType, "application/json"))
	_ = json.NewEncoder(w).Encode(map[string]any{
		"status": "success", "data": map[string]any{"resultType": "matrix", "result": result}, "warnings": e.warnings,
		"isPartial": e.isPartial,
	})
}

var (
	queryForm = regexp.MustCompile(`^(last_over_time\()?(\w+)\{(.*)\}\[(\d+)s\] offset -(\d+)s\)?$`)
	labelForm = regexp.MustCompile(`(\w+)(!?=)"([^"]*)"`)
)

// evaluate returns the series of a response.
func (e *engine) evaluate(expression string) ([]any, error) {
	query := queryForm.FindStringSubmatch(expression)
	if query == nil {
		return nil, fmt.Errorf("unknown query %s", expression)
	}
	matchers := labelForm.FindAllStringSubmatch(query[3], -1)
	length, _ := time.ParseDuration(query[4] + "s") // digits
	ahead, _ := time.ParseDuration(query[5] + "s")
	end := usage.NodeAt(time.Now()).Add(ahead - e.behind)
	result := []any{}
	for _, selector := range slices.Sorted(maps.Keys(e.series)) {
		name, labels, _ := strings.Cut(selector, "{")
		if name != query[2] {
			continue
		}
		metric := map[string]string{"__name__": name}
		for _, l := range labelForm.FindAllStringSubmatch(labels, -1) {
			metric[l[1]] = l[3]
		}
		if slices.ContainsFunc(matchers, func(m []string) bool { return (metric[m[1]] == m[3]) != (m[2] == "=") }) {
			continue
		}
		values := [][2]any{}
		for _, p := range e.series[selector] {
			if !e.byTime || p.At <= end && p.At > end.Add(-length) {
				values = append(values, [2]any{float64(p.At) / 1e9, fmt.Sprint(p.Value)})
			}
		}
		if query[1] == "" {
			result = append(result, map[string]any{"metric": metric, "values": values})
		} else if len(values) > 0 {
			result = append(result, map[string]any{"metric": metric, "value": values[len(values)-1]})
		}
	}
	return result, nil
}

func (e *engine) set(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
}

// fixture is a Source with an engine, a store and the objects of an API server.
type fixture struct {
	*testing.T
	*engine
	*Source
	store *store.Store
	clock usage.Clock
	start usage.NodeTime
	ended map[string]bool      // containers
	state usage.ContainerState // of all containers
}

const (
	interval = 15 * time.Second
	maxAge   = 150 * time.Second
)

// newSource returns a Source that reads the engine: without a network, as a bubble of synctest requires, unless
// the engine has a server.
func (e *engine) newSource(t *testing.T, c Config) *Source {
	t.Helper()
	c.Interval, c.MaxSampleAge, c.MaxContainers, c.UserAgent = interval, maxAge, 100, "test"
	c.Synced, c.Reloaded = func() bool { return true }, func(string, error) {}
	c.URL = "http://engine"
	if e.Server != nil {
		c.URL = e.URL
	}
	source, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if e.Server == nil {
		source.client.http.Transport = handlerTransport(e.serve)
	}
	source.client.settings.Timeout, source.maxDuration = testenv.Patience, testenv.Patience
	t.Cleanup(source.client.http.CloseIdleConnections)
	return source
}

// handlerTransport calls a handler without a network, which synctest cannot wait for.
type handlerTransport http.HandlerFunc

func (h handlerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	recorder := httptest.NewRecorder()
	h(recorder, r)
	return recorder.Result(), nil
}

// newFixture returns a fixture with a node n1 that has all containers.
func newFixture(t *testing.T, config string) *fixture {
	t.Helper()
	return newEngine(t).newFixture(t, writeFile(t, t.TempDir(), "config.yaml", config))
}

func writeFile(t *testing.T, dir, name, content string) (file string) {
	t.Helper()
	file = filepath.Join(dir, name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// stateOf returns what the API server shows of a container that started long ago.
func stateOf(isRunning bool) usage.ContainerState {
	return usage.ContainerState{
		Running: isRunning, Alive: isRunning, EarliestStart: usage.NodeTime(usage.OldestStart * time.Second),
	}
}

func (e *engine) newFixture(t *testing.T, file string) *fixture {
	t.Helper()
	now := time.Now()
	f := &fixture{T: t, engine: e, clock: usage.NewClock(now), start: usage.NodeAt(now.Truncate(time.Millisecond)),
		ended: map[string]bool{}}
	f.store = store.New(store.Config{MaxSampleAge: maxAge, MaxContainers: 100,
		State: func(_, _, _, container string) usage.ContainerState { return stateOf(!f.ended[container]) }})
	f.Source = e.newSource(t, Config{
		File: file, Sink: f.store, Clock: f.clock,
		State: func(node, _, _, container string) usage.ContainerState {
			state := f.state
			state.Accepted, state.Running = node == "n1", !f.ended[container]
			return state
		},
	})
	f.Set(newNode("n1", "10.0.0.1"))
	return f
}

func newNode(name, address string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}},
	}
}

// at returns the time at a number of seconds relative to the start of the test.
func (f *fixture) at(seconds float64) usage.NodeTime {
	return f.start.Add(time.Duration(seconds * float64(time.Second)))
}

// samples returns points at seconds relative to the start of the test.
func (f *fixture) samples(pairs ...float64) []point {
	var points []point
	for i := 0; i < len(pairs); i += 2 {
		points = append(points, point{At: f.at(pairs[i]), Value: pairs[i+1]})
	}
	return points
}

// putSeries sets the samples of a series.
func (e *engine) putSeries(selector string, points ...point) {
	e.set(func() { e.series[selector] = points })
}

// putCPU sets the CPU samples of a node or container, and a memory of 5 bytes at the same times.
func (e *engine) putCPU(kind, labels string, points ...point) {
	e.putSeries(kind+"_cpu_usage_seconds_total"+labels, points...)
	memory := slices.Clone(points)
	for i := range memory {
		memory[i].Value = 5
	}
	e.putSeries(kind+"_memory_working_set_bytes"+labels, memory...)
}

// containerLabels returns the labels of a container of n1, such as those of "web/app", and others in the form of
// the exposition format.
func containerLabels(name, others string) string {
	pod, container, _ := strings.Cut(name, "/")
	return fmt.Sprintf(`{container=%q,namespace="ns",node="n1",pod=%q%s}`, container, pod, others)
}

// put sets samples of a container of the pod web.
func (f *fixture) put(container, others string, pairs ...float64) {
	f.putCPU("container", containerLabels("web/"+container, others), f.samples(pairs...)...)
}

// putStart sets the start of a container of the pod web.
func (f *fixture) putStart(container string, seconds float64) {
	f.putSeries("container_start_time_seconds"+containerLabels("web/"+container, ""),
		point{At: f.start, Value: float64(f.at(seconds)) / 1e9})
}

// putTogether sets CPU samples of other containers with the same times.
func (f *fixture) putTogether(containers int, pairs ...float64) {
	for i := range containers {
		f.putSeries("container_cpu_usage_seconds_total"+containerLabels(fmt.Sprint("other/c", i), ""), f.samples(pairs...)...)
	}
}

// mustRefresh refreshes and fails the test on an error.
func (f *fixture) mustRefresh() Result {
	f.Helper()
	result := f.refresh(context.Background())
	if result.Err != nil {
		f.Fatal(result.Err)
	}
	return result
}

// podUsage returns what is served of the pod web, or nil.
func (f *fixture) podUsage() *usage.Pod {
	return f.store.Pod("n1", "ns", "web", f.clock.At(time.Now()))
}

// logLines returns a context with a logger, and the lines that it has logged.
func logLines(t *testing.T) (ctx context.Context, lines *[]string) {
	lines = new([]string)
	logger := funcr.New(func(_, args string) { *lines = append(*lines, args) }, funcr.Options{})
	return klog.NewContext(t.Context(), logger), lines
}

// authorization returns the credentials of the last request.
func (f *fixture) authorization() string {
	return f.requests[len(f.requests)-1].Header.Get("Authorization")
}

// wantPod compares the millicores and the windows of the pod's containers, such as "app 250 15s". It is "" if
// the pod has no metrics.
func (f *fixture) wantPod(want string) {
	f.Helper()
	var all []string
	if p := f.podUsage(); p != nil {
		for _, c := range p.Containers {
			all = append(all, fmt.Sprintf("%s %d %v", c.Name, c.CPUNanocores/1e6, c.Window))
		}
	}
	if got := strings.Join(all, ", "); got != want {
		f.Errorf("got %q, want %q", got, want)
	}
}
