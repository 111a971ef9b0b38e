package kubelet

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
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
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// cadence is a load under which every healthy node must be scraped once in each interval.
type cadence struct {
	name    string
	cpus    int
	healthy int           // kubelets that answer
	fastest time.Duration // their answers take that long
	slowest time.Duration // to that long
	hanging int           // kubelets that hang: while they are dialed, in the handshake, before the headers, or in the body
	tls     bool
}

const (
	cadenceInterval = 15 * time.Second
	maxCadence      = 1.3 // intervals between two scrapes of a node, for 99 % of them
)

func cadences() []cadence {
	const fastest, slowest = 300 * time.Millisecond, 700 * time.Millisecond
	return []cadence{
		{name: "1000 slow nodes, 1 CPU", cpus: 1, healthy: 1000, fastest: fastest, slowest: slowest},
		{name: "1000 slow nodes, 4 CPUs", cpus: 4, healthy: 1000, fastest: fastest, slowest: slowest},
		{name: "5000 slow nodes, 1 CPU", cpus: 1, healthy: 5000, fastest: fastest, slowest: slowest},
		{name: "5000 slow nodes, 4 CPUs", cpus: 4, healthy: 5000, fastest: fastest, slowest: slowest},
		{name: "100 nodes beside 1000 that hang, 1 CPU", cpus: 1, healthy: 100, fastest: fastest, slowest: slowest, hanging: 1000, tls: true},
	}
}

// TestEveryNodeIsScrapedInEachInterval runs the scraper and the client, with simulated kubelets, in
// fake time.
func TestEveryNodeIsScrapedInEachInterval(t *testing.T) {
	for _, load := range cadences() {
		t.Run(load.name, func(t *testing.T) {
			p99, longest := load.measure(t)
			if p99 > maxCadence {
				t.Errorf("99 %% of the gaps between two scrapes of a node are below %.2f intervals, the longest is %.2f; want %.1f",
					p99, longest, maxCadence)
			}
		})
	}
}

// BenchmarkCadence reports the gaps that TestEveryNodeIsScrapedInEachInterval bounds.
func BenchmarkCadence(b *testing.B) {
	for _, load := range cadences() {
		b.Run(load.name, func(b *testing.B) {
			var p99, longest float64
			for b.Loop() {
				// Fake time is to be had in a test only.
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
		if load.tls {
			certificate := newAuthority(t).leaf(t, x509.ExtKeyUsageServerAuth, "kubelet")
			fleet.server = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
		}
		client := newTestClient(t, Config{
			AddressTypes: []corev1.NodeAddressType{corev1.NodeInternalIP}, InsecureTLS: load.tls, PlainHTTP: !load.tls,
		})
		client.dialer = fleet.dial
		scraper := scrape.New(scrape.Config{
			Fetcher: client, Sink: fleet, Observer: fleet, Reason: Reason, Interval: cadenceInterval,
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
		client.Close()
		fleet.kubelets.Wait()
	})
	return p99, longest
}

// fleet is the kubelets, and the Sink and the Observer of the scraper.
type fleet struct {
	cadence
	server   *tls.Config // nil: without TLS
	kubelets sync.WaitGroup

	mu     sync.Mutex
	last   map[string]time.Time // when a node was put last
	spaces []time.Duration      // between two scrapes of a node
}

// reset drops what was measured, but not when each node was put last.
func (f *fleet) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.spaces = nil
}

func (f *fleet) gaps(t *testing.T) (p99, longest float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.last) != f.healthy || len(f.spaces) < f.healthy {
		t.Errorf("%d nodes were scraped, %d times; want %d nodes, each at least once", len(f.last), len(f.spaces), f.healthy)
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
func (f *fleet) NodeDeleted(string)                               {}
func (f *fleet) Scraped(scrape.Result)                            {}
func (f *fleet) Summarized(error)                                 {}

// phase is where a kubelet hangs.
type phase int

const (
	answers phase = iota // it does not
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
	hangs := answers
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

// serve answers the requests on a connection, until the phase in which the kubelet hangs.
func (f *fleet) serve(conn net.Conn, hangs phase) {
	for in := bufio.NewReader(conn); ; {
		if _, err := http.ReadRequest(in); err != nil || hangs == inHeaders {
			_, _ = io.Copy(io.Discard, conn)
			return
		}
		time.Sleep(f.fastest + rand.N(f.slowest-f.fastest))
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

// TestHangingKubeletsReturnTheirPermits: however many kubelets hang, and in whichever phase, there
// are permits for others.
func TestHangingKubeletsReturnTheirPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pool := make(permits, 1)
		first, err := pool.acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// It computes for longer than it may wait.
		ctx, cancel := context.WithTimeout(t.Context(), 10*permitTimeout)
		if refused, err := pool.acquire(ctx); !errors.Is(err, context.DeadlineExceeded) || refused.queueTime() != 10*permitTimeout {
			t.Errorf("a permit was taken from a request that computes: %v after %v", err, refused.queueTime())
		} else {
			refused.release()
		}
		cancel()
		// Now it waits, as it may not any more.
		first.pause()
		second, err := pool.acquire(t.Context())
		if err != nil || second.queueTime() != 0 {
			t.Fatalf("a request that has waited for long keeps its permit: %v after %v", err, second.queueTime())
		}
		first.resume()
		first.release()
		if len(pool) != 1 {
			t.Error("a permit was returned twice")
		}
		second.pause()
		third, err := pool.acquire(t.Context())
		if err != nil || third.queueTime() != permitTimeout {
			t.Fatalf("a request that waits keeps its permit: %v after %v, want after %v", err, third.queueTime(), permitTimeout)
		}
		second.release()
		third.release()
		third.release()
		if len(pool) != 0 {
			t.Errorf("%d permits are held, want none", len(pool))
		}
	})
}
