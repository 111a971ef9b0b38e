package kubelet

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	slowNode = "n7"
	maxAge   = 4 * cadenceInterval
)

// slowKubelet is a kubelet whose node uses a core. It samples every 10 seconds, and works on a request
// for some time, whether the client waits or not.
type slowKubelet struct {
	headersFirst bool          // and the body when the work is done
	trickles     bool          // sends a byte of the body now and then while it works
	samplesLate  bool          // at the end of its work, not at the start
	untimed      bool          // without timestamps
	ahead        time.Duration // of its clock
	slowEach     int           // each such request takes 25 s; 0: none

	mu       sync.Mutex
	delay    time.Duration // of the work
	begun    []time.Time   // when requests arrived
	working  int           // requests
	overlaps int           // requests that arrived while another one was worked on
	served   sync.WaitGroup
}

func (k *slowKubelet) dial(context.Context, string, string) (net.Conn, error) {
	ours, theirs := net.Pipe()
	k.served.Go(func() {
		defer theirs.Close()
		for in := bufio.NewReader(theirs); ; {
			if _, err := http.ReadRequest(in); err != nil || k.respond(theirs) != nil {
				return
			}
		}
	})
	return ours, nil
}

// set sets the duration of the work, and forgets the requests so far.
func (k *slowKubelet) set(delay time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.delay, k.begun, k.overlaps = delay, nil, 0
}

func (k *slowKubelet) respond(conn net.Conn) error {
	k.mu.Lock()
	k.begun = append(k.begun, time.Now())
	if k.working > 0 {
		k.overlaps++
	}
	k.working++
	delay := k.delay
	if k.slowEach != 0 && len(k.begun)%k.slowEach == 0 {
		delay = 25 * time.Second
	}
	k.mu.Unlock()
	defer func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.working--
	}()

	dated := func() string {
		const head = "HTTP/1.1 200 OK\r\nContent-Type: " + textType + "\r\nDate: %s\r\nContent-Length: %d\r\n\r\n"
		return fmt.Sprintf(head, time.Now().Add(k.ahead).UTC().Format(http.TimeFormat), slowBytes)
	}
	early := ""
	if k.headersFirst || k.trickles {
		early = dated()
	}
	_, sent := io.WriteString(conn, early) // a client that has gone does not end the work
	body := k.sample()
	for range 10 {
		if k.trickles && sent == nil {
			_, sent = io.WriteString(conn, "#")
		}
		time.Sleep(delay / 10)
	}
	if k.samplesLate {
		body = k.sample()
	}
	if k.trickles {
		body = body[10:]
	}
	if early == "" {
		body = dated() + body
	}
	if sent == nil {
		_, sent = io.WriteString(conn, body)
	}
	return sent
}

// slowBytes is the length of a body.
const slowBytes = 200

// sample returns slowBytes of text with the last sample.
func (k *slowKubelet) sample() string {
	at := time.Now().Truncate(10 * time.Second)
	stamp := fmt.Sprintf(" %d", at.Add(k.ahead).UnixMilli())
	if k.untimed {
		stamp = ""
	}
	text := fmt.Sprintf("node_cpu_usage_seconds_total %d%s\nnode_memory_working_set_bytes 1e9%[2]s\n", at.Unix(), stamp)
	return strings.Repeat("#", slowBytes-1-len(text)) + "\n" + text
}

// slowWorld is a slowKubelet that is scraped.
type slowWorld struct {
	*slowKubelet
	*scrape.Scraper
	store *store.Store
	clock usage.Clock
	stop  func()
}

func (w *slowWorld) Scraped(scrape.Result) {}
func (w *slowWorld) Summarized(error)      {}

// testSlow scrapes a kubelet in fake time.
func testSlow(t *testing.T, k *slowKubelet, f func(*testing.T, *slowWorld)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		clock := usage.NewClock(time.Now())
		client := newTestClient(t, Config{
			PlainHTTP: true, AddressTypes: []string{"InternalIP"}, Clock: clock,
			Timeout: DefaultTimeout, SlowTimeout: maxAge / 2,
		})
		client.dialer = k.dial
		w := &slowWorld{slowKubelet: k, clock: clock, store: store.New(store.Config{
			MaxSampleAge: maxAge, RateWindow: 15 * time.Second, // only of a node, so it looks up no container
		})}
		w.Scraper = scrape.New(scrape.Config{
			Fetcher: client, Sink: w.store, Observer: w, Interval: cadenceInterval, MinWindow: 4 * time.Second,
			Active: scrape.Active{Resolution: 4 * time.Second, Budget: 2},
		})
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{}))
		var running sync.WaitGroup
		running.Go(func() { w.Run(ctx) })
		w.stop = func() { cancel(); running.Wait() }
		node := nodeAt(slowNode, "10.0.0.1:10250")
		node.UID = types.UID(node.Name)
		w.Set(node)
		f(t, w)
		w.stop()
		forgetAll(client)
		k.served.Wait()
	})
}

// observe lets time pass, and returns the ages and CPU rates of what is served, one each second. An age of -1
// stands for nothing.
func (w *slowWorld) observe(d time.Duration) (ages, rates []float64) {
	for range d / time.Second {
		time.Sleep(time.Second)
		now, age := w.clock.At(time.Now()), -1.0
		if n := w.store.Node(slowNode, now); n != nil {
			age = now.Sub(n.AsOf).Seconds()
			rates = append(rates, float64(n.CPUNanocores)/1e9)
		}
		ages = append(ages, age)
	}
	return ages, rates
}

// requests returns when the requests since the last set began, and the largest number of them in a minute.
func (k *slowKubelet) requests() (begun []time.Time, perMinute int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, first := range k.begun {
		n := 0
		for _, at := range k.begun[i:] {
			if at.Sub(first) < time.Minute {
				n++
			}
		}
		perMinute = max(perMinute, n)
	}
	return k.begun, perMinute
}

const noResponse = time.Hour

// TestSlowKubelets checks that metrics are current, and their rates true, while a kubelet takes up to half of
// the maximum age to respond. It gets one request at a time.
func TestSlowKubelets(t *testing.T) {
	for name, tt := range map[string]struct {
		kubelet   *slowKubelet
		delay     time.Duration
		perMinute int // requests at most
	}{
		"5 s":                            {&slowKubelet{}, 5 * time.Second, 4},
		"12 s":                           {&slowKubelet{}, 12 * time.Second, 4},
		"12 s, samples at the end":       {&slowKubelet{samplesLate: true}, 12 * time.Second, 4},
		"12 s, without timestamps":       {&slowKubelet{untimed: true}, 12 * time.Second, 4},
		"20 s, clock behind":             {&slowKubelet{ahead: -20 * time.Second}, 20 * time.Second, 3},
		"20 s, clock far behind":         {&slowKubelet{ahead: -time.Hour}, 20 * time.Second, 3},
		"20 s, clock ahead":              {&slowKubelet{ahead: 20 * time.Second}, 20 * time.Second, 3},
		"25 s":                           {&slowKubelet{}, 25 * time.Second, 3},
		"25 s, samples at the end":       {&slowKubelet{samplesLate: true}, 25 * time.Second, 3},
		"25 s after the headers":         {&slowKubelet{headersFirst: true, samplesLate: true}, 25 * time.Second, 3},
		"25 s, one byte after the other": {&slowKubelet{trickles: true}, 25 * time.Second, 3},
		"never":                          {&slowKubelet{}, noResponse, 2},
		"never, after the headers":       {&slowKubelet{headersFirst: true}, noResponse, 2},
	} {
		t.Run(name, func(t *testing.T) {
			testSlow(t, tt.kubelet, func(t *testing.T, w *slowWorld) {
				w.set(time.Second)
				time.Sleep(2 * time.Minute)
				w.set(tt.delay)
				if ages, _ := w.observe(90 * time.Second); tt.delay < noResponse && slices.Min(ages) < 0 {
					t.Errorf("metrics expired when the kubelet became slow: %v", ages)
				}
				w.set(tt.delay)
				ages, rates := w.observe(10 * time.Minute)
				switch oldest := slices.Max(ages); {
				case tt.delay == noResponse:
					if oldest >= 0 {
						t.Errorf("got metrics of an age of %v s", oldest)
					}
				case slices.Min(ages) < 0 || oldest >= maxAge.Seconds() || w.overlaps > 0:
					t.Errorf("got ages from %v to %v s, and %d requests beside another one", slices.Min(ages), oldest, w.overlaps)
				case tt.kubelet.untimed: // the times of responses are used, but samples are 10 s apart
				case slices.Min(rates) != 1 || slices.Max(rates) != 1:
					t.Errorf("got rates from %v to %v", slices.Min(rates), slices.Max(rates))
				}
				if _, n := w.requests(); n > tt.perMinute {
					t.Errorf("got %d requests in a minute, want at most %d", n, tt.perMinute)
				}
				if n, _ := w.Node(slowNode); n.Slow != (tt.delay > DefaultTimeout) {
					t.Errorf("got %+v", n)
				}
			})
		})
	}
}

// TestKubeletIsSlowNowAndThen has a kubelet whose requests are slow now and then. None is given up, which
// would leave its work to the kubelet, also if the node is active.
func TestKubeletIsSlowNowAndThen(t *testing.T) {
	for name, slowEach := range map[string]int{"inactive": 2, "active": 6} {
		t.Run(name, func(t *testing.T) {
			testSlow(t, &slowKubelet{slowEach: slowEach}, func(t *testing.T, w *slowWorld) {
				observe := func(d time.Duration) (ages, rates []float64) {
					w.set(time.Second)
					for range d / time.Minute {
						if name == "active" {
							w.NoteRead(slices.Values([]string{slowNode}))
						}
						a, r := w.observe(time.Minute)
						ages, rates = append(ages, a...), append(rates, r...)
					}
					return ages, rates
				}
				observe(3 * time.Minute)
				ages, rates := observe(10 * time.Minute)
				if _, n := w.requests(); n > 4 && name == "inactive" || w.overlaps > 0 {
					t.Errorf("got %d requests in a minute, and %d beside another one", n, w.overlaps)
				}
				if slices.Min(ages) < 0 || slices.Min(rates) != 1 || slices.Max(rates) != 1 {
					t.Errorf("got ages from %v, and rates from %v to %v", slices.Min(ages), slices.Min(rates), slices.Max(rates))
				}
			})
		})
	}
}

// TestPatienceEnds checks that a kubelet is given more time only for a while after a slow request, and that a
// request that has the time ends with the Scraper.
func TestPatienceEnds(t *testing.T) {
	testSlow(t, &slowKubelet{}, func(t *testing.T, w *slowWorld) {
		gaps := func(delay time.Duration) (gaps []time.Duration) {
			t.Helper()
			w.set(delay)
			time.Sleep(2 * time.Minute)
			begun, _ := w.requests()
			for i := range begun[1:] {
				gaps = append(gaps, begun[i+1].Sub(begun[i]))
			}
			return gaps
		}
		for range 3 {
			if got := gaps(noResponse); got[0] != DefaultTimeout || got[1] != maxAge/2 || got[2] != maxAge/2 {
				t.Errorf("requests without a response: got %v between them", got)
			}
			if got := gaps(9 * time.Second); slices.Max(got) >= 2*cadenceInterval {
				t.Errorf("got %v between requests after the kubelet recovered", got)
			}
		}
		w.set(noResponse)
		time.Sleep(time.Minute)
		start := time.Now()
		w.stop()
		if took := time.Since(start); took != 0 {
			t.Errorf("stopped after %v", took)
		}
	})
}

// TestSlowWithALongTimeout checks that a kubelet is slow after DefaultTimeout, however long its requests may last: it
// must not get several at a time.
func TestSlowWithALongTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &slowKubelet{delay: 12 * time.Second}
		c := newTestClient(t, Config{PlainHTTP: true, AddressTypes: []string{"InternalIP"}, Timeout: 30 * time.Second})
		c.dialer = k.dial
		timing, err := c.Fetch(t.Context(), nodeAt(slowNode, "10.0.0.1:10250"), func(*usage.Scrape) {})
		if want := (usage.Timing{Took: k.delay, Slow: true}); err != nil || timing != want {
			t.Errorf("got %+v, %v, want %+v", timing, err, want)
		}
		forgetAll(c)
		k.served.Wait()
	})
}

// TestTokenDoesNotMakeAKubeletSlow checks that the time of a request has no wait for a token.
func TestTokenDoesNotMakeAKubeletSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &slowKubelet{delay: 2600 * time.Millisecond}
		c := newTestClient(t, Config{PlainHTTP: true, AddressTypes: []string{"InternalIP"}, Timeout: DefaultTimeout})
		c.dialer = k.dial
		c.credentials.tokenSource = func(context.Context) (string, error) {
			time.Sleep(7500 * time.Millisecond)
			return "token", nil
		}
		timing, err := c.Fetch(t.Context(), nodeAt(slowNode, "10.0.0.1:10250"), func(*usage.Scrape) {})
		if want := (usage.Timing{Took: k.delay}); err != nil || timing != want {
			t.Errorf("got %+v, %v, want %+v", timing, err, want)
		}
		forgetAll(c)
		k.served.Wait()
	})
}

// TestWaitingNeedsNoMemory checks that requests have neither a permit nor a workspace until the body begins.
func TestWaitingNeedsNoMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const kubelets = 3 * permitsPerCPU
		k := &slowKubelet{headersFirst: true, delay: 5 * time.Second}
		c := newTestClient(t, Config{PlainHTTP: true, AddressTypes: []string{"InternalIP"}})
		c.dialer = k.dial
		var workspaces atomic.Int32
		c.workspaces.New = func() any { workspaces.Add(1); return newWorkspace(1) }
		var fetching sync.WaitGroup
		for i := range kubelets {
			fetching.Go(func() {
				if err := fetchError(t, c, nodeAt(fmt.Sprint("n", i), "10.0.0.1:10250")); err != nil {
					t.Error(err)
				}
			})
		}
		time.Sleep(4 * time.Second)
		if n := workspaces.Load(); n != 0 || len(c.connecting) != 0 || len(c.reading) != 0 {
			t.Errorf("got %d workspaces and %d+%d permits in use", n, len(c.connecting), len(c.reading))
		}
		fetching.Wait()
		forgetAll(c)
		k.served.Wait()
	})
}
