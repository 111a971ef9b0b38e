package prometheus

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

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func TestMain(m *testing.M) {
	if nodes, err := strconv.Atoi(os.Getenv(benchEngineNodes)); err == nil {
		runBenchEngine(nodes)
		return
	}
	goleak.VerifyTestMain(m)
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

var (
	queryForm   = regexp.MustCompile(`^(last_over_time\()?([a-zA-Z_]+)\{(.*)\}\[(\d+)s\] offset -(\d+)s\)?$`)
	matcherForm = regexp.MustCompile(`([a-z_]+)(=~|!~|!=|=)("(?:[^"\\]|\\.)*")`)
)

// matcher returns a function that reports whether labels match all matchers of a selector.
func matcher(matchers string) func(labels map[string]string) bool {
	type condition struct {
		label   string
		operand string
		pattern *regexp.Regexp // nil: the operand must be equal
		negated bool
	}
	var all []condition
	for _, m := range matcherForm.FindAllStringSubmatch(matchers, -1) {
		operand, err := strconv.Unquote(m[3])
		if err != nil {
			panic(err)
		}
		c := condition{label: m[1], operand: operand, negated: strings.HasPrefix(m[2], "!")}
		if strings.HasSuffix(m[2], "~") {
			c.pattern = regexp.MustCompile("^(?:" + operand + ")$")
		}
		all = append(all, c)
	}
	return func(labels map[string]string) bool {
		return !slices.ContainsFunc(all, func(c condition) bool {
			value := labels[c.label]
			return c.negated == (value == c.operand && c.pattern == nil || c.pattern != nil && c.pattern.MatchString(value))
		})
	}
}

func (e *engine) serve(w http.ResponseWriter, r *http.Request) {
	_ = r.ParseForm()
	e.mu.Lock()
	e.requests = append(e.requests, r)
	respond, warnings, byTime, behind := e.respond, e.warnings, e.byTime, e.behind
	series, duplicate, isPartial := maps.Clone(e.series), e.duplicate, e.isPartial
	e.mu.Unlock()
	if respond != nil {
		respond(w, r)
		return
	}
	result, err := evaluate(r.Form.Get("query"), series, byTime, behind)
	if r.URL.Path != "/api/v1/query" || err != nil {
		http.Error(w, r.URL.Path+" "+fmt.Sprint(err), http.StatusBadRequest)
		return
	}
	if duplicate {
		result = append(result, result...)
	}
	w.Header().Set("Content-Type", cmp.Or(e.contentType, "application/json"))
	_ = json.NewEncoder(w).Encode(map[string]any{
		"status": "success", "data": map[string]any{"resultType": "matrix", "result": result}, "warnings": warnings,
		"isPartial": isPartial,
	})
}

// sample is a series of a response.
type sample struct {
	Metric map[string]string `json:"metric"`
	Values [][2]any          `json:"values,omitempty"`
	Value  *[2]any           `json:"value,omitempty"`
}

func evaluate(expression string, series map[string][]point, byTime bool, behind time.Duration) ([]sample, error) {
	query := queryForm.FindStringSubmatch(expression)
	if query == nil {
		return nil, fmt.Errorf("unknown query %s", expression)
	}
	result := []sample{}
	isMatch := matcher(query[3])
	for _, selector := range slices.Sorted(maps.Keys(series)) {
		name, labels, _ := strings.Cut(strings.TrimSuffix(selector, "}"), "{")
		metric := map[string]string{"__name__": name}
		for labels != "" {
			label, rest, _ := strings.Cut(labels, `="`)
			metric[label], rest, _ = strings.Cut(rest, `"`)
			labels = strings.TrimPrefix(rest, ",")
		}
		if name != query[2] || !isMatch(metric) {
			continue
		}
		values := [][2]any{}
		for _, p := range series[selector] {
			if byTime && !inRange(p, query[4], query[5], behind) {
				continue
			}
			values = append(values, [2]any{float64(p.At) / 1e9, fmt.Sprint(p.Value)})
		}
		if query[1] == "" {
			result = append(result, sample{Metric: metric, Values: values})
		} else if len(values) > 0 {
			result = append(result, sample{Metric: metric, Value: &values[len(values)-1]})
		}
	}
	return result, nil
}

// inRange reports whether a sample is in a range of seconds that ends a number of seconds ahead.
func inRange(p point, length, ahead string, behind time.Duration) bool {
	l, _ := strconv.Atoi(length) // digits
	a, _ := strconv.Atoi(ahead)
	end := usage.At(time.Now()).Add(time.Duration(a)*time.Second - behind)
	return p.At <= end && p.At > end.Add(-time.Duration(l)*time.Second)
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
	store   *store.Store
	clock   usage.Clock
	start   usage.Time
	ended   map[string]bool // containers
	started Start           // of all containers
}

const (
	interval = 15 * time.Second
	maxAge   = 150 * time.Second
)

// newSource returns a Source that reads the engine without a network, as a synctest bubble requires.
func (e *engine) newSource(t *testing.T, c Config) *Source {
	c.URL, c.Interval, c.MaxSampleAge, c.MaxContainers = "http://engine", interval, maxAge, 100
	source, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	source.client.http.CloseIdleConnections()
	source.client.http = &http.Client{Transport: handlerTransport(e.serve)}
	return source
}

func newFixture(t *testing.T, config string) *fixture {
	now := time.Now()
	f := &fixture{T: t, engine: newEngine(t), clock: usage.NewClock(now), start: usage.At(now.Truncate(time.Millisecond)),
		ended: map[string]bool{}}
	f.store = store.New(store.Config{MaxSampleAge: maxAge, MaxContainers: 100})
	file := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	source, err := New(Config{
		URL: f.Server.URL, File: file, Interval: interval, MaxSampleAge: maxAge, MaxContainers: 100,
		Sink: f.store, Clock: f.clock, UserAgent: "test",
		Synced: func() bool { return true }, Reloaded: func(string, error) {},
		Started: func(node, _, _, container string) (Start, bool) {
			start := f.started
			start.IsRunning = !f.ended[container]
			return start, node == "n1"
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	f.Source = source
	f.client.file.Timeout, f.maxDuration = testenv.Patience, testenv.Patience
	t.Cleanup(func() { source.client.http.CloseIdleConnections() })
	source.Set(newNode("n1", "10.0.0.1"))
	return f
}

func newNode(name, address string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}},
	}
}

// samples returns points at seconds relative to the start of the test.
func (f *fixture) samples(pairs ...float64) []point {
	var points []point
	for i := 0; i < len(pairs); i += 2 {
		points = append(points, point{At: f.start.Add(time.Duration(pairs[i] * float64(time.Second))), Value: pairs[i+1]})
	}
	return points
}

// put sets the CPU samples of a container, and a memory of 5 bytes. The labels follow those of the
// container, in the form of the exposition format.
func (f *fixture) put(container, labels string, pairs ...float64) {
	f.set(func() {
		selector := `{container="` + container + `",namespace="ns",node="n1",pod="web"` + labels + `}`
		points := f.samples(pairs...)
		f.series["container_cpu_usage_seconds_total"+selector] = points
		f.series["container_memory_working_set_bytes"+selector] = []point{{At: points[len(points)-1].At, Value: 5}}
	})
}

// refresh refreshes and fails the test on an error.
func (f *fixture) mustRefresh() Result {
	f.Helper()
	result := f.refresh(context.Background())
	if result.Err != nil {
		f.Fatal(result.Err)
	}
	return result
}

// pod returns the millicores and the windows in seconds of the pod's containers, such as
// "app 250 15s", or "" if the pod has no metrics.
func (f *fixture) pod() string {
	p := f.store.Pod("n1", "ns", "web", f.clock.At(time.Now()))
	if p == nil {
		return ""
	}
	var all []string
	for _, c := range p.Containers {
		all = append(all, fmt.Sprintf("%s %d %v", c.Name, c.CPUNanocores/1e6, c.Window))
	}
	return strings.Join(all, ", ")
}

func (f *fixture) wantPod(want string) {
	f.Helper()
	if got := f.pod(); got != want {
		f.Errorf("got %q, want %q", got, want)
	}
}
