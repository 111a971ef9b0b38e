package kubelet

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// cadence is a load under which every healthy node must be scraped in each interval.
type cadence struct {
	cpus    int
	healthy int // kubelets that respond within minResponseTime to maxResponseTime
	hanging int // kubelets that hang while dialing, in the handshake, before the headers, or in the body
}

const (
	cadenceInterval = 15 * time.Second
	maxCadence      = 1.3 // intervals between two scrapes of a node, for 99 % of them
	minResponseTime = 300 * time.Millisecond
	maxResponseTime = 700 * time.Millisecond
)

func cadences() []cadence {
	return []cadence{{1, 1000, 0}, {4, 1000, 0}, {1, 5000, 0}, {4, 5000, 0}, {1, 100, 1000}}
}

func (load cadence) String() string {
	return fmt.Sprintf("%d slow nodes and %d that hang, %d CPUs", load.healthy, load.hanging, load.cpus)
}

// usesTLS reports whether kubelets use TLS. Those that hang do, so that some hang in the handshake.
func (load cadence) usesTLS() bool { return load.hanging > 0 }

// TestEveryNodeIsScrapedInEachInterval runs the scraper and the client with simulated kubelets in
// fake time.
func TestEveryNodeIsScrapedInEachInterval(t *testing.T) {
	for _, load := range cadences() {
		t.Run(load.String(), func(t *testing.T) {
			p99, longest := load.measure(t)
			if p99 > maxCadence {
				t.Errorf("got 99 %% of the gaps between scrapes below %.2f intervals, the longest of %.2f, want %.1f",
					p99, longest, maxCadence)
			}
		})
	}
}

// BenchmarkCadence reports the gaps that TestEveryNodeIsScrapedInEachInterval bounds.
func BenchmarkCadence(b *testing.B) {
	for _, load := range cadences() {
		b.Run(load.String(), func(b *testing.B) {
			var p99, longest float64
			for b.Loop() {
				// Only a test can have fake time.
				testing.RunTests(func(_, _ string) (bool, error) { return true, nil }, []testing.InternalTest{{
					Name: b.Name(), F: func(t *testing.T) { p99, longest = load.measure(t) },
				}})
			}
			b.ReportMetric(p99, "p99-intervals")
			b.ReportMetric(longest, "max-intervals")
		})
	}
}

// measure returns the 99th percentile of the gaps between two scrapes of a healthy node, and the
// longest one, in intervals.
func (load cadence) measure(t *testing.T) (p99, longest float64) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(load.cpus))
	synctest.Test(t, func(t *testing.T) {
		fleet := &fleet{cadence: load, last: map[string]time.Time{}}
		if load.usesTLS() {
			certificate := kubelettest.SelfSigned([]string{"kubelet"}, nil)
			fleet.server = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
		}
		client := newTestClient(t, Config{
			AddressTypes: []string{"InternalIP"},
			TLS:          rest.TLSClientConfig{Insecure: load.usesTLS()}, PlainHTTP: !load.usesTLS(),
		})
		client.dialer = fleet.dial
		scraper := scrape.New(scrape.Config{
			Fetcher: client, Sink: fleet, Observer: fleet, Interval: cadenceInterval,
		})
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{})) // without a log
		var running sync.WaitGroup
		running.Go(func() { scraper.Run(ctx) })
		for i := range load.healthy + load.hanging {
			name := fmt.Sprintf("n%d", i)
			scraper.Set(&corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
				Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
					{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.0.%d.%d", i>>8, i&0xff)},
				}},
			})
		}
		time.Sleep(cadenceInterval) // from now on, all scrapes are regular ones
		fleet.reset()
		time.Sleep(2 * cadenceInterval)
		p99, longest = fleet.gaps(t)
		cancel()
		running.Wait()
		forgetAll(client)
		fleet.kubelets.Wait()
	})
	return p99, longest
}

// fleet simulates the kubelets. It is also the Sink and the Observer of the scraper.
type fleet struct {
	cadence
	server   *tls.Config // nil for plain HTTP
	kubelets sync.WaitGroup

	mu     sync.Mutex
	last   map[string]time.Time // time of a node's last scrape
	spaces []time.Duration      // between two scrapes of a node
}

// reset removes the measured gaps, but not the times of the last scrapes.
func (f *fleet) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spaces = nil
}

func (f *fleet) gaps(t *testing.T) (p99, longest float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.last) != f.healthy || len(f.spaces) < f.healthy {
		t.Errorf("got %d nodes and %d gaps, want %d nodes and at least as many gaps", len(f.last), len(f.spaces), f.healthy)
	}
	for _, last := range f.last { // gaps that have not ended
		f.spaces = append(f.spaces, time.Since(last))
	}
	slices.Sort(f.spaces)
	at := func(i int) float64 { return f.spaces[i].Seconds() / cadenceInterval.Seconds() }
	return at(len(f.spaces) * 99 / 100), at(len(f.spaces) - 1)
}

func (f *fleet) Put(node string, _ *usage.Scrape) usage.Report {
	f.mu.Lock()
	defer f.mu.Unlock()
	if last, ok := f.last[node]; ok {
		f.spaces = append(f.spaces, time.Since(last))
	}
	f.last[node] = time.Now()
	return usage.Report{}
}

func (f *fleet) PutSummary(string, *usage.Scrape) []usage.Missing { return nil }
func (f *fleet) Forget(string)                                    {}
func (f *fleet) Scraped(scrape.Result)                            {}
func (f *fleet) Summarized(error)                                 {}

// phase is when a kubelet hangs.
type phase int

const (
	never phase = iota
	inDial
	inHandshake
	inHeaders
	inBody
)

// dial connects to the kubelet at an address.
func (f *fleet) dial(ctx context.Context, _, address string) (net.Conn, error) {
	var high, low int
	if _, err := fmt.Sscanf(address, "10.0.%d.%d:", &high, &low); err != nil {
		return nil, err
	}
	node := high<<8 + low
	hangs := never
	if node >= f.healthy {
		hangs = []phase{inDial, inDial, inHandshake, inHandshake, inHandshake, inHandshake, inHeaders, inBody}[node%8]
	}
	if hangs == inDial {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	ours, theirs := net.Pipe()
	f.kubelets.Go(func() {
		defer theirs.Close()
		switch {
		case hangs == inHandshake:
			_, _ = io.Copy(io.Discard, theirs)
		case f.server != nil:
			f.serve(tls.Server(theirs, f.server), hangs)
		default:
			f.serve(theirs, hangs)
		}
	})
	return ours, nil
}

// serve responds to the requests on a connection, until the phase in which the kubelet hangs.
func (f *fleet) serve(conn net.Conn, hangs phase) {
	for in := bufio.NewReader(conn); ; {
		if _, err := http.ReadRequest(in); err != nil || hangs == inHeaders {
			_, _ = io.Copy(io.Discard, conn)
			return
		}
		time.Sleep(minResponseTime + rand.N(maxResponseTime-minResponseTime))
		now := time.Now().UnixMilli()
		body := fmt.Sprintf("node_cpu_usage_seconds_total %d %d\nnode_memory_working_set_bytes 1e9 %d\n", now/1000, now, now)
		head := fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n", textType, len(body))
		if hangs == inBody {
			body = ""
		}
		if _, err := io.WriteString(conn, head+body); err != nil {
			return
		}
	}
}

// TestPermits checks, in fake time, that a request that computes keeps its permit, and that one
// that waits returns it after permitTimeout.
func TestPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := make(permits, 1)
		first, err := pool.acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*permitTimeout)
		defer cancel()
		second, err := pool.acquire(ctx)
		second.release()
		if !errors.Is(err, context.DeadlineExceeded) || second.queued != 10*permitTimeout {
			t.Errorf("computing: got error %v after %v, want a timeout", err, second.queued)
		}
		first.pause() // its permit has expired
		second, err = pool.acquire(t.Context())
		if err != nil || second.queued != 0 {
			t.Fatalf("waiting after expiry: got error %v after %v, want a permit at once", err, second.queued)
		}
		first.resume()
		first.release()
		if n := len(pool); n != 1 {
			t.Errorf("got %d permits held, want 1", n)
		}
		second.pause()
		third, err := pool.acquire(t.Context())
		if err != nil || third.queued != permitTimeout {
			t.Fatalf("waiting: got error %v after %v, want a permit after %v", err, third.queued, permitTimeout)
		}
		second.release()
		third.release()
		third.release()
		if n := len(pool); n != 0 {
			t.Errorf("got %d permits held, want 0", n)
		}
	})
}
