package feed

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/metrics/pkg/apis/metrics"
	"k8s.io/metrics/pkg/apis/metrics/install"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"

	"github.com/kube-vitals/kube-vitals/pkg/api/encode"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func newEncoder() *encode.Encoder {
	scheme := apiruntime.NewScheme()
	install.Install(scheme)
	metav1.AddToGroupVersion(scheme, metricsv1.SchemeGroupVersion)
	return encode.NewEncoder(serializer.NewCodecFactory(scheme), scheme.PrioritizedVersionsForGroup(metrics.GroupName))
}

// world has the pods that are served.
type world struct {
	*Feed
	encoder *encode.Encoder
	clock   usage.Clock

	mu     sync.Mutex
	pods   map[string]*pod // by "namespace/name"
	uid    byte
	reads  int  // snapshots
	broken bool // snapshots panic
}

type pod struct {
	object *inventory.Object
	usage  *usage.Pod
}

func newWorld() *world {
	w := &world{encoder: newEncoder(), clock: usage.NewClock(time.Now()), pods: map[string]*pod{}}
	w.Feed = New(Config{
		Snapshot: func(namespace string) []encode.Item {
			w.mu.Lock()
			w.reads++
			broken := w.broken
			w.mu.Unlock()
			if broken {
				panic("broken")
			}
			return w.list(namespace, everything)
		},
		NewBookmark: func(version string) apiruntime.Object {
			return &metrics.PodMetrics{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}}
		},
		Now: w.now,
	})
	return w
}

func (w *world) now() usage.Time { return w.clock.At(time.Now()) }

func everything(*inventory.Object) bool { return true }

func hasLabel(value string) func(*inventory.Object) bool {
	return func(o *inventory.Object) bool { return o.Labels.Get("app") == value }
}

// list returns what a LIST returns.
func (w *world) list(namespace string, matches func(*inventory.Object) bool) []encode.Item {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := w.encoder.NewList(encode.PodMetrics, time.Now(), len(w.pods))
	for _, key := range slices.SortedFunc(maps.Keys(w.pods), func(a, b string) int {
		return strings.Compare(strings.ReplaceAll(a, "/", "\x00"), strings.ReplaceAll(b, "/", "\x00"))
	}) {
		p := w.pods[key]
		if (namespace == "" || namespace == p.object.Namespace) && matches(p.object) {
			list.Add(p.object, (*encode.Pod)(p.usage), nil)
		}
	}
	return list.Items
}

// put adds a pod, or changes its label; its metrics are sampled now. A new UID makes it another pod.
func (w *world) put(namespace, name, app string, newUID bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := namespace + "/" + name
	o := &inventory.Object{Namespace: namespace, Name: name, Labels: inventory.NewLabels(map[string]string{"app": app})}
	if old := w.pods[key]; old != nil && !newUID {
		o.UID = old.object.UID
	} else {
		w.uid++
		o.UID[0] = w.uid
	}
	at := w.now()
	w.pods[key] = &pod{o, &usage.Pod{
		Namespace: namespace, Name: name, At: at, AsOf: at, Window: time.Second,
		Containers: []usage.Container{{Name: "main", Amount: usage.Amount{CPUNanocores: uint64(at), At: at}}},
	}}
}

func (w *world) remove(namespace, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.pods, namespace+"/"+name)
}

// client reads lists and follows watches as an informer does.
type client struct {
	world     *world
	selection Selection
	matches   func(*inventory.Object) bool
	watchList bool // it lists with initial events of a watch
	pages     int  // of its lists; 0: one
	delay     func() time.Duration

	state   map[string]string // content by "namespace/name"
	version string            // "": it must list
	lists   int
	events  []string // "TYPE name", since it was last reset
	errors  int
}

func (w *world) client(namespace, app string) *client {
	c := &client{world: w, selection: Selection{User: "user", Namespace: namespace}, matches: everything}
	if app != "" {
		c.selection.Selectors, c.matches = [32]byte([]byte(strings.Repeat(app, 32))), hasLabel(app)
	}
	return c
}

func contentOf(item *encode.Item) string {
	return fmt.Sprint(item.Object.Labels.Map(), item.Object.UID[0], item.GetObject().(*metrics.PodMetrics).Containers)
}

func keyOf(item *encode.Item) string { return item.Object.Namespace + "/" + item.Object.Name }

func stateOf(items []encode.Item) map[string]string {
	state := map[string]string{}
	for i := range items {
		state[keyOf(&items[i])] = contentOf(&items[i])
	}
	return state
}

func (c *client) list() {
	version := c.world.Begin()
	items := c.world.list(c.selection.Namespace, c.matches)
	c.lists++
	c.state, c.version = stateOf(items), strconv.FormatUint(version, 10)
	for page := range max(1, c.pages) {
		part := items[page*len(items)/max(1, c.pages) : (page+1)*len(items)/max(1, c.pages)]
		if page == 0 {
			c.world.Remember(version, c.selection, part)
		} else {
			c.world.RememberPage(version, c.selection, part)
		}
	}
}

// watch begins a watch at the version of the client.
func (c *client) watch(ctx context.Context) (watch.Interface, error) {
	o := Options{Selection: c.selection, Matches: c.matches, Version: c.version, Bookmarks: true}
	if c.watchList && c.version == "" {
		initial := true
		o.InitialEvents, c.state = &initial, map[string]string{}
	}
	return c.world.Watch(ctx, o)
}

// run follows the watch until the context ends.
func (c *client) run(ctx context.Context) error {
	for ctx.Err() == nil {
		if c.version == "" && !c.watchList {
			c.list()
		}
		w, err := c.watch(ctx)
		if apierrors.IsResourceExpired(err) {
			c.version = ""
			continue
		} else if err != nil {
			return err
		}
		for event := range w.ResultChan() {
			if err := c.apply(event); err != nil {
				return err
			}
			if c.delay != nil {
				time.Sleep(c.delay())
			}
			if c.version == "" && event.Type == watch.Error {
				break
			}
		}
		w.Stop()
		if c.watchList && !c.complete() {
			c.version = ""
		}
	}
	return nil
}

// complete reports whether the client has a version at which it can continue.
func (c *client) complete() bool { return c.version != "" }

// apply applies an event to the state.
func (c *client) apply(event watch.Event) error {
	switch object := event.Object.(type) {
	case *metav1.Status:
		c.errors++
		c.version = ""
		if event.Type != watch.Error || object.Reason != metav1.StatusReasonExpired {
			return fmt.Errorf("got %s %+v", event.Type, object)
		}
	case *metrics.PodMetrics:
		if event.Type != watch.Bookmark {
			return fmt.Errorf("got a typed object in %s", event.Type)
		}
		c.version = object.ResourceVersion
	case *encode.Event:
		if !c.matches(object.Object) {
			return fmt.Errorf("got %s of %s, which is not selected", event.Type, keyOf(&object.Item))
		}
		c.events = append(c.events, fmt.Sprintf("%s %s", event.Type, object.Object.Name))
		if event.Type == watch.Deleted {
			delete(c.state, keyOf(&object.Item))
		} else {
			c.state[keyOf(&object.Item)] = contentOf(&object.Item)
		}
		if !c.watchList || c.version != "" { // as a reflector, not during initial events
			c.version = strconv.FormatUint(object.Version, 10)
		}
	}
	return nil
}

// check compares the state with what a LIST returns now.
func (c *client) check(t *testing.T) {
	t.Helper()
	want := stateOf(c.world.list(c.selection.Namespace, c.matches))
	if !maps.Equal(c.state, want) {
		t.Errorf("%+v: got %v, want %v", c.selection, c.state, want)
	}
}

// start runs the client until the returned function is called.
func (c *client) start(t *testing.T) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.run(ctx); err != nil {
			t.Error(err)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// settle waits until all changes have been sent.
func settle() {
	time.Sleep(3 * interval)
	synctest.Wait()
}

// TestEvents checks which events a change causes for clients with and without a selector.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.Close()
		w.put("ns", "a", "x", false)
		w.put("ns", "b", "y", false)
		w.put("other", "a", "x", false)
		time.Sleep(time.Second)
		all, selected := w.client("ns", ""), w.client("ns", "x")
		for _, c := range []*client{all, selected} {
			defer c.start(t)()
		}
		settle()
		for _, test := range []struct {
			name          string
			change        func()
			all, selected string
		}{
			{"nothing", func() {}, "", ""},
			{"new metrics", func() { w.put("ns", "a", "x", false) }, "MODIFIED a", "MODIFIED a"},
			{"another namespace", func() { w.put("other", "a", "x", false) }, "", ""},
			{"another label", func() { w.put("ns", "a", "y", false) }, "MODIFIED a", "DELETED a"},
			{"still another label", func() { w.put("ns", "a", "z", false) }, "MODIFIED a", ""},
			{"a matching label", func() { w.put("ns", "a", "x", false) }, "MODIFIED a", "ADDED a"},
			{"a new pod", func() { w.put("ns", "c", "x", false) }, "ADDED c", "ADDED c"},
			{"a successor", func() { w.put("ns", "c", "x", true) }, "DELETED c, ADDED c", "DELETED c, ADDED c"},
			{"a successor with another label", func() { w.put("ns", "c", "y", true) }, "DELETED c, ADDED c", "DELETED c"},
			{"no metrics", func() { w.remove("ns", "a") }, "DELETED a", "DELETED a"},
			{"several", func() {
				w.put("ns", "z", "y", false)
				w.put("ns", "0", "x", false)
				w.remove("ns", "b")
			}, "ADDED 0, DELETED b, ADDED z", "ADDED 0"},
			{"a pod that comes and goes between two comparisons", func() {
				w.put("ns", "short", "x", false)
				w.remove("ns", "short")
			}, "", ""},
		} {
			all.events, selected.events = nil, nil
			test.change()
			settle()
			if got := strings.Join(all.events, ", "); got != test.all {
				t.Errorf("%s: got %s, want %s", test.name, got, test.all)
			}
			if got := strings.Join(selected.events, ", "); got != test.selected {
				t.Errorf("%s: with a selector: got %s, want %s", test.name, got, test.selected)
			}
			all.check(t)
			selected.check(t)
		}
		if all.lists != 1 || selected.lists != 1 {
			t.Errorf("got %d and %d lists, want 1 each", all.lists, selected.lists)
		}
	})
}

// TestEqualMetricsCauseNoEvent checks that a snapshot with the same content is not a change.
func TestEqualMetricsCauseNoEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.Close()
		w.put("ns", "a", "x", false)
		c := w.client("ns", "")
		defer c.start(t)()
		settle()
		w.mu.Lock()
		old := w.pods["ns/a"]
		object, sample := *old.object, *old.usage
		object.Containers = []inventory.ContainerState{{Name: "main"}}
		sample.Containers = slices.Clone(sample.Containers)
		sample.AsOf++
		w.pods["ns/a"] = &pod{&object, &sample}
		w.mu.Unlock()
		settle()
		if len(c.events) > 0 {
			t.Errorf("got %v, want no event", c.events)
		}
	})
}

// TestModel compares the state of clients that follow watches with a LIST, while pods change at
// random and watches break, end, are slow, or are ended by the Feed.
func TestModel(t *testing.T) {
	for seed := range uint64(40) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			w := newWorld()
			defer w.Close()
			var mu sync.Mutex // of random
			var settling atomic.Bool
			pick := func(n int) int {
				mu.Lock()
				defer mu.Unlock()
				return random.IntN(n)
			}
			change := func() {
				namespace, name := fmt.Sprint("ns", pick(3)), fmt.Sprint("pod", pick(8))
				if pick(4) == 0 {
					w.remove(namespace, name)
				} else {
					w.put(namespace, name, fmt.Sprint(pick(3)), pick(6) == 0)
				}
			}
			for range 20 {
				change()
			}
			var clients []*client
			for i := range 12 {
				c := w.client([]string{"", "ns0", "ns1", "ns2"}[i%4], []string{"", "0", "1"}[i%3])
				c.watchList, c.pages = i%5 == 0, i%3
				if i%4 == 3 {
					c.delay = func() time.Duration {
						if settling.Load() {
							return 0
						}
						return time.Duration(pick(2000)) * time.Millisecond
					}
				}
				clients = append(clients, c)
			}
			stops := make([]func(), len(clients))
			for range 300 {
				switch i := pick(len(clients)); pick(10) {
				case 0: // a watch begins, or breaks and continues later
					if stops[i] == nil {
						stops[i] = clients[i].start(t)
					} else {
						stops[i]()
						stops[i] = nil
					}
				case 1:
					time.Sleep(time.Duration(pick(3000)) * time.Millisecond)
				case 2:
					if pick(20) == 0 {
						time.Sleep(time.Duration(pick(60)) * time.Second)
					}
				default:
					change()
				}
			}
			settling.Store(true)
			for i, c := range clients {
				if stops[i] == nil {
					stops[i] = c.start(t)
				}
			}
			time.Sleep(5 * time.Second)
			settle()
			for i, c := range clients {
				stops[i]()
				if c.check(t); t.Failed() {
					t.Fatalf("seed %d, client %d", seed, i)
				}
			}
		})
	}
}

// TestListNewerThanState checks that a watch that begins at a LIST has no events if nothing has
// changed since, although the last comparison was before the LIST.
func TestListNewerThanState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.Close()
		w.put("ns", "a", "x", false)
		defer w.client("ns", "").start(t)()
		settle()
		time.Sleep(interval / 2)
		w.put("ns", "a", "y", false)
		w.put("ns", "b", "x", false)
		c := w.client("ns", "")
		defer c.start(t)()
		settle()
		if len(c.events) > 0 || c.lists != 1 {
			t.Errorf("got %v after %d lists, want no event", c.events, c.lists)
		}
		c.check(t)
	})
}

// TestVersions checks at which versions a watch can begin.
func TestVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, other := newWorld(), newWorld()
		defer w.Close()
		defer other.Close()
		other.process = w.process ^ 2 // another replica
		for _, w := range []*world{w, other} {
			w.put("ns", "a", "x", false)
		}
		begin := func(w *world, c *client, version string) error {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			c.version = version
			watching, err := w.Watch(ctx, Options{Selection: c.selection, Matches: c.matches, Version: version})
			if err == nil {
				watching.Stop()
			}
			return err
		}
		wantExpired := func(name string, err error) {
			t.Helper()
			if !apierrors.IsResourceExpired(err) || !strings.Contains(err.Error(), "list again") {
				t.Errorf("%s: got %v, want Expired", name, err)
			}
		}
		wantNone := func(name string, err error) {
			t.Helper()
			if err != nil {
				t.Errorf("%s: got %v", name, err)
			}
		}
		c := w.client("ns", "x")
		wantExpired("an unknown version", begin(w, c, "17"))
		if len(w.scopes) > 0 {
			t.Error("a rejected watch causes comparisons")
		}
		if err := begin(w, c, "v1"); !apierrors.IsBadRequest(err) {
			t.Errorf("no number: got %v, want BadRequest", err)
		}
		c.list()
		first := c.version
		wantExpired("a list of another replica", begin(other, c, first))
		wantExpired("a list of another user", begin(w, &client{
			selection: Selection{User: "other", Namespace: "ns", Selectors: c.selection.Selectors}, matches: everything}, first))
		wantExpired("a list of another selection", begin(w, w.client("ns", "y"), first))
		wantExpired("a list of another namespace", begin(w, w.client("", "x"), first))
		wantNone("a list", begin(w, c, first))
		wantNone("a list, again", begin(w, c, first))
		wantNone("", begin(w, c, ""))
		wantNone("0", begin(w, c, "0"))

		follow := w.client("ns", "")
		defer follow.start(t)()
		settle()
		c.list()
		second := c.version
		item := w.list("ns", everything)[0]
		wantExpired("an object in a list", begin(w, c, strconv.FormatUint(w.VersionOf(item.Usage), 10)))
		wantNone("a list while there are watches", begin(w, c, second))
		w.put("ns", "a", "x", false)
		settle()
		wantNone("a list before a change", begin(w, c, second))
		wantNone("a change", begin(w, c, follow.version))
		number, _ := strconv.ParseUint(follow.version, 10, 64)
		wantExpired("between two changes", begin(w, c, strconv.FormatUint(number-1<<processBits, 10)))
		wantExpired("the future", begin(w, c, strconv.FormatUint(number+1<<processBits, 10)))
		for range 2 * minLog {
			w.put("ns", "a", "x", false)
			time.Sleep(interval)
		}
		settle()
		wantExpired("a change that the log has dropped", begin(w, c, strconv.FormatUint(number, 10)))
		wantExpired("a list that is no longer remembered", begin(w, c, second))
		if n := len(w.scopes["ns"].log); n > minLog {
			t.Errorf("the log has %d changes of one pod, want at most %d", n, minLog)
		}
	})
}

// TestVersionsIncrease checks that versions increase, also if the wall clock is set back.
func TestVersionsIncrease(t *testing.T) {
	at := usage.At(time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC))
	f := New(Config{Now: func() usage.Time { return at }})
	last := uint64(0)
	for _, step := range []time.Duration{0, 0, time.Microsecond, 0, time.Hour, 0, 10 * time.Nanosecond, 0} {
		at = at.Add(step)
		version := f.next()
		if version <= last || version > 1<<63 || version&(1<<processBits-1) != f.process || version&issued == 0 {
			t.Errorf("got version %d after %d", version, last)
		}
		last = version
	}
}

// TestNothingRunsWithoutWatchers checks that lists cause no comparisons, that comparisons end some
// time after the last watch, and that lists are not remembered for long.
func TestNothingRunsWithoutWatchers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.Close()
		w.put("ns", "a", "x", false)
		idle := runtime.NumGoroutine()
		c := w.client("ns", "")
		c.list()
		time.Sleep(time.Hour)
		synctest.Wait()
		if w.reads > 0 || runtime.NumGoroutine() > idle || len(w.remembered) > 0 || w.cleanup != nil {
			t.Errorf("got %d snapshots, %d goroutines, %d remembered lists after a list", w.reads,
				runtime.NumGoroutine()-idle, len(w.remembered))
		}
		c.version = ""
		stop := c.start(t)
		settle()
		stop()
		version := c.version
		time.Sleep(linger / 2)
		if len(w.scopes) == 0 {
			t.Error("a scope ends at once, want it to wait for clients that return")
		}
		c.version = version
		stop = c.start(t)
		settle()
		stop()
		if c.lists != 2 {
			t.Errorf("got %d lists, want the client to continue", c.lists)
		}
		time.Sleep(linger + 2*interval)
		synctest.Wait()
		reads := w.reads
		time.Sleep(time.Hour)
		synctest.Wait()
		if w.reads > reads || runtime.NumGoroutine() > idle || len(w.scopes) > 0 || w.total > 0 || len(w.watchers) > 0 {
			t.Errorf("got %d snapshots, %d goroutines, %d scopes after the last watch", w.reads-reads,
				runtime.NumGoroutine()-idle, len(w.scopes))
		}
	})
}

// TestSlowWatcher checks that a watcher that does not read holds up neither comparisons nor other
// watchers, keeps little memory, and ends with an error when it reads again.
func TestSlowWatcher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.Close()
		for i := range 50 {
			w.put("ns", fmt.Sprint("pod", i), "x", false)
		}
		fast := w.client("ns", "")
		defer fast.start(t)()
		slow := w.client("ns", "")
		slow.list()
		stuck, err := slow.watch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			for i := range 50 {
				w.put("ns", fmt.Sprint("pod", i), "x", false)
			}
			settle()
			fast.check(t)
		}
		if fast.errors > 0 || fast.lists > 1 {
			t.Errorf("the other client has %d errors and %d lists", fast.errors, fast.lists)
		}
		n := 0
		for event := range stuck.ResultChan() {
			n++
			if err := slow.apply(event); err != nil {
				t.Error(err)
			}
		}
		if slow.errors != 1 || n > resultBuffer+readSize+2 {
			t.Errorf("got %d events and %d errors, want at most what was read before, and one error", n, slow.errors)
		}
	})
}

// TestManyDeletions checks that a watcher that reads gets all events when most objects end at once, as
// when a Deployment is scaled down.
func TestManyDeletions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.Close()
		const pods = 10 * minLog
		for i := range pods {
			w.put("ns", fmt.Sprint("pod", i), "x", false)
		}
		c := w.client("ns", "")
		defer c.start(t)()
		settle()
		for i := range pods - 1 {
			w.remove("ns", fmt.Sprint("pod", i))
		}
		settle()
		c.check(t)
		if c.errors > 0 || c.lists != 1 || len(c.events) != pods-1 {
			t.Errorf("got %d events, %d errors and %d lists, want %d events and 1 list",
				len(c.events), c.errors, c.lists, pods-1)
		}
	})
}

// TestInitialEventsAreLimitedInTime checks that a watcher that does not read its initial events
// ends.
func TestInitialEventsAreLimitedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.Close()
		for i := range resultBuffer + 10 {
			w.put("ns", fmt.Sprint("pod", i), "x", false)
		}
		c := w.client("ns", "")
		stuck, err := c.watch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(initialTimeout + time.Second)
		n := 0
		for range stuck.ResultChan() {
			n++
		}
		if n != resultBuffer {
			t.Errorf("got %d events, want the %d that were waiting", n, resultBuffer)
		}
	})
}

// TestInitialEvents checks the events with which a watch without a version begins.
func TestInitialEvents(t *testing.T) {
	yes, no := true, false
	for _, test := range []struct {
		version   string
		initial   *bool
		bookmarks bool
		want      string
	}{
		{"", nil, false, "ADDED b, ADDED c"},
		{"0", nil, true, "ADDED b, ADDED c, BOOKMARK "},
		{"", &yes, true, "ADDED b, ADDED c, BOOKMARK true"},
		{"0", &yes, true, "ADDED b, ADDED c, BOOKMARK true"},
		{"12345", &yes, true, "ADDED b, ADDED c, BOOKMARK true"}, // of another replica, perhaps
		{"", &yes, false, "ADDED b, ADDED c"},
		{"", &no, true, "BOOKMARK "},
		{"0", &no, false, ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			defer w.Close()
			w.put("ns", "a", "y", false)
			w.put("ns", "b", "x", false)
			w.put("ns", "c", "x", false)
			ctx, cancel := context.WithCancel(t.Context())
			watching, err := w.Watch(ctx, Options{
				Selection: Selection{Namespace: "ns"}, Matches: hasLabel("x"),
				Version: test.version, InitialEvents: test.initial, Bookmarks: test.bookmarks,
			})
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			cancel()
			var got []string
			for event := range watching.ResultChan() {
				if m, ok := event.Object.(*metrics.PodMetrics); ok {
					got = append(got, "BOOKMARK "+m.Annotations[metav1.InitialEventsAnnotationKey])
					if version, err := strconv.ParseUint(m.ResourceVersion, 10, 64); err != nil || !w.scopes["ns"].knows(version) {
						t.Errorf("%+v: no watch can begin at the bookmark %s", test, m.ResourceVersion)
					}
					continue
				}
				got = append(got, fmt.Sprintf("%s %s", event.Type, event.Object.(*encode.Event).Object.Name))
			}
			if got := strings.Join(got, ", "); got != test.want {
				t.Errorf("%+v: got %s, want %s", test, got, test.want)
			}
		})
	}
}

// TestBookmarks checks that there are bookmarks at intervals and before the end of a watch, at which
// a client can continue although no event was for it.
func TestBookmarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.Close()
		c := w.client("ns", "x")
		w.put("ns", "a", "x", false)
		c.list()
		ctx, cancel := context.WithTimeout(t.Context(), 25*time.Second)
		defer cancel()
		watching, err := c.watch(ctx)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for range 25 {
				w.put("ns", "other", "y", false)
				time.Sleep(time.Second)
			}
		}()
		var bookmarks []time.Duration
		start := time.Now()
		for event := range watching.ResultChan() {
			if event.Type != watch.Bookmark {
				t.Errorf("got %s", event.Type)
			}
			bookmarks = append(bookmarks, time.Since(start).Round(time.Second))
			if err := c.apply(event); err != nil {
				t.Error(err)
			}
		}
		if want := []time.Duration{0, 10 * time.Second, 20 * time.Second, 24 * time.Second}; !slices.Equal(bookmarks, want) {
			t.Errorf("got bookmarks at %v, want %v", bookmarks, want)
		}
		stop := c.start(t)
		settle()
		stop()
		if c.lists != 1 {
			t.Errorf("got %d lists, want the client to continue after the last bookmark", c.lists)
		}
	})
}

// TestLimits checks the limits of watchers and of remembered items.
func TestLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.Close()
		ctx, cancel := context.WithCancel(t.Context())
		add := func(user string, n int) (admitted int) {
			for range n {
				_, err := w.Watch(ctx, Options{Selection: Selection{User: user}, Matches: everything})
				switch {
				case err == nil:
					admitted++
				case !apierrors.IsTooManyRequests(err):
					t.Fatal(err)
				}
			}
			return admitted
		}
		if n := add("greedy", MaxWatchers); n != MaxWatchers/2 {
			t.Errorf("one user has %d watches, want %d", n, MaxWatchers/2)
		}
		if n := add("other", MaxWatchers/2-1) + add("third", 5); n != MaxWatchers/2 {
			t.Errorf("others have %d watches, want %d", n, MaxWatchers/2)
		}
		cancel()
		synctest.Wait()
		if w.total != 0 || len(w.watchers) != 0 {
			t.Errorf("%d watchers are left", w.total)
		}
		kept := func() (lists, size int) {
			w.Feed.mu.Lock()
			defer w.Feed.mu.Unlock()
			return len(w.remembered), w.kept
		}
		items := make([]encode.Item, maxRemembered/4)
		for i := range uint64(10) {
			w.Remember(i, Selection{}, items)
		}
		if n, _ := kept(); n != 3 || w.find(9, Selection{}) == nil {
			t.Errorf("%d lists are remembered, want the last 3", n)
		}
		w.Remember(10, Selection{}, make([]encode.Item, 2*maxRemembered))
		if n, _ := kept(); n != 1 || w.find(10, Selection{}) == nil {
			t.Errorf("%d lists are remembered, want only the one that is too large", n)
		}
		for i := range uint64(2 * maxRemembered) {
			w.Remember(100+i, Selection{}, nil)
		}
		if n, size := kept(); n > maxRemembered || size != n {
			t.Errorf("%d empty lists are remembered, want at most %d", n, maxRemembered)
		}
		time.Sleep(3 * rememberFor)
		synctest.Wait()
		if n, size := kept(); n > 0 || size != 0 {
			t.Errorf("%d lists are remembered, of size %d, want none", n, size)
		}
	})
}

// TestForgedPage checks that other users cannot change what is remembered of a LIST.
func TestForgedPage(t *testing.T) {
	w := newWorld()
	defer w.Close()
	w.put("ns", "a", "x", false)
	w.put("ns", "b", "x", false)
	items := w.list("ns", everything)
	owner, other := Selection{User: "owner"}, Selection{User: "other"}
	w.Remember(1, owner, items[:1])
	w.RememberPage(1, other, items[1:])
	if r := w.find(1, owner); len(r.items) != 1 {
		t.Errorf("another user has added a page: %d items", len(r.items))
	}
	w.RememberPage(1, owner, items[:1])
	if w.find(1, owner) != nil {
		t.Error("a page was added twice, want the list to be forgotten")
	}
}

// TestPanicEndsWatches checks that a panic while metrics are compared ends the watches only.
func TestPanicEndsWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.Close()
		w.put("ns", "a", "x", false)
		c := w.client("ns", "")
		c.list()
		watching, err := c.watch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		setBroken := func(broken bool) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.broken = broken
		}
		setBroken(true)
		time.Sleep(2 * interval)
		for event := range watching.ResultChan() {
			if err := c.apply(event); err != nil {
				t.Error(err)
			}
		}
		if c.errors != 1 {
			t.Errorf("got %d errors, want 1", c.errors)
		}
		setBroken(false)
		stop := c.start(t)
		w.put("ns", "a", "x", false)
		settle()
		stop()
		c.check(t)
	})
}

// TestEncodedFormsAreReleased checks that events keep their encoded forms for a short time only.
func TestEncodedFormsAreReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		defer w.Close()
		for range 2 {
			defer w.client("ns", "").start(t)()
		}
		settle()
		for range 10 {
			w.put("ns", "a", "x", false)
			time.Sleep(interval)
			synctest.Wait()
		}
		kept := 0
		for _, c := range w.scopes["ns"].log {
			if c.event.Shared() {
				kept++
			}
		}
		if n := len(w.scopes["ns"].log); kept == 0 || kept > encodedFor+1 || n < 8 {
			t.Errorf("%d of %d events keep encoded forms, want at most %d", kept, n, encodedFor+1)
		}
	})
}
