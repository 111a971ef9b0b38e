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

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// cadence is a load under which every healthy node must be scraped in each interval.
type cadence struct {
	healthy int // kubelets that respond within minResponseTime to maxResponseTime
	hanging int // kubelets that hang while dialing, in the handshake, before the headers, or in the body
	slow    int // kubelets that respond after slowResponseTime, which is more than the timeout of the first request
}

const (
	cadenceInterval = 15 * time.Second
	maxCadence      = 1.3 // intervals between two scrapes of a node, for 99 % of them
	minResponseTime = 300 * time.Millisecond
	maxResponseTime = 700 * time.Millisecond

	slowResponseTime = 12 * time.Second
)

// usesTLS reports whether kubelets use TLS. Those that hang do, so that some hang in the handshake.
func (load cadence) usesTLS() bool { return load.hanging > 0 }

// TestEveryNodeIsScrapedInEachInterval runs the scraper and the client with simulated kubelets in
// fake time, on one processor.
func TestEveryNodeIsScrapedInEachInterval(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for _, load := range []cadence{{5000, 0, 0}, {100, 1000, 0}, {4000, 0, 1000}} {
		name := fmt.Sprintf("%d nodes, %d that hang and %d slow ones", load.healthy, load.hanging, load.slow)
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, load.test)
		})
	}
}

func (load cadence) test(t *testing.T) {
	fleet := &fleet{cadence: load, last: map[string]time.Time{}}
	if load.usesTLS() {
		certificate := kubelettest.SelfSigned([]string{"kubelet"}, nil)
		fleet.server = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	}
	client := newTestClient(t, Config{
		AddressTypes: []string{"InternalIP"},
		Timeout:      DefaultTimeout, SlowTimeout: 2 * cadenceInterval,
		TLS: rest.TLSClientConfig{Insecure: load.usesTLS()}, PlainHTTP: !load.usesTLS(),
	})
	client.dialer = fleet.dial
	scraper := scrape.New(scrape.Config{Fetcher: client, Sink: fleet, Observer: fleet, Interval: cadenceInterval})
	ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), klog.Logger{})) // without a log
	var running sync.WaitGroup
	running.Go(func() { scraper.Run(ctx) })
	for i := range load.healthy + load.hanging + load.slow {
		node := nodeAt(fmt.Sprintf("n%d", i), fmt.Sprintf("10.0.%d.%d:10250", i>>8, i&0xff))
		node.UID = types.UID(node.Name)
		scraper.Set(node)
	}
	time.Sleep(cadenceInterval) // from now on, all scrapes are regular ones
	if load.slow > 0 {
		time.Sleep(3 * cadenceInterval) // those of slow nodes, too, after a retry and a response
	}
	fleet.mu.Lock()
	fleet.gaps = nil
	fleet.mu.Unlock()
	time.Sleep(2 * cadenceInterval)
	fleet.check(t)
	cancel()
	running.Wait()
	forgetAll(client)
	fleet.kubelets.Wait()
}

// fleet simulates the kubelets. It is also the Sink and the Observer of the scraper.
type fleet struct {
	cadence
	server   *tls.Config // nil for plain HTTP
	kubelets sync.WaitGroup

	mu   sync.Mutex
	last map[string]time.Time // time of a node's last scrape
	gaps []time.Duration      // between two scrapes of a node
}

func (f *fleet) check(t *testing.T) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if want := f.healthy + f.slow; len(f.last) != want || len(f.gaps) < want {
		t.Errorf("got %d nodes and %d gaps, want %d nodes and at least as many gaps", len(f.last), len(f.gaps), want)
	}
	for _, last := range f.last { // gaps that have not ended
		f.gaps = append(f.gaps, time.Since(last))
	}
	slices.Sort(f.gaps)
	if p99 := f.gaps[len(f.gaps)*99/100].Seconds() / cadenceInterval.Seconds(); p99 > maxCadence {
		t.Errorf("got 99 %% of the gaps between scrapes below %.2f intervals, want %.1f", p99, maxCadence)
	}
}

func (f *fleet) Put(node string, _ *usage.Scrape) usage.Report {
	f.mu.Lock()
	defer f.mu.Unlock()
	if last, ok := f.last[node]; ok {
		f.gaps = append(f.gaps, time.Since(last))
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
	if node >= f.healthy+f.slow {
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
			f.serve(tls.Server(theirs, f.server), node, hangs)
		default:
			f.serve(theirs, node, hangs)
		}
	})
	return ours, nil
}

// serve responds to the requests on a connection, until the phase when the kubelet hangs.
func (f *fleet) serve(conn net.Conn, node int, hangs phase) {
	for in := bufio.NewReader(conn); ; {
		if _, err := http.ReadRequest(in); err != nil || hangs == inHeaders {
			_, _ = io.Copy(io.Discard, conn)
			return
		}
		if node < f.healthy || hangs != never {
			time.Sleep(minResponseTime + rand.N(maxResponseTime-minResponseTime))
		} else {
			time.Sleep(slowResponseTime)
		}
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

// TestNoPermitToRead checks that a response that no CPU is left for is not reported as one that the kubelet did not
// send in time.
func TestNoPermitToRead(t *testing.T) {
	for hanging, want := range map[int]reason.Reason{0: reason.InternalFailure, 8: reason.Timeout} {
		synctest.Test(t, func(t *testing.T) {
			fleet := &fleet{cadence: cadence{hanging: hanging}}
			node := "10.0.0.7:10250" // if it hangs, in the body
			if hanging == 0 {
				fleet.healthy = 8
			}
			client := newTestClient(t, Config{Timeout: DefaultTimeout, PlainHTTP: true})
			client.dialer = fleet.dial
			for range cap(client.reading) {
				client.reading <- struct{}{}
			}
			if err := fetchError(t, client, nodeAt("n", node)); reason.Of(err) != want {
				t.Errorf("got %v, want the reason %s", err, want)
			}
			forgetAll(client)
			fleet.kubelets.Wait()
		})
	}
}

// TestNoPermitToConnectAgain checks the same of a request that finds its connection closed.
func TestNoPermitToConnectAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &slowKubelet{}
		client := newTestClient(t, Config{Timeout: DefaultTimeout, PlainHTTP: true, AddressTypes: []string{"InternalIP"}})
		var last net.Conn
		client.dialer = func(ctx context.Context, network, address string) (conn net.Conn, err error) {
			last, err = k.dial(ctx, network, address)
			return last, err
		}
		node := nodeAt(slowNode, "10.0.0.1:10250")
		if err := fetchError(t, client, node); err != nil {
			t.Fatal(err)
		}
		_ = last.Close()
		for range cap(client.connecting) {
			client.connecting <- struct{}{}
		}
		checkError(t, fetchError(t, client, node), reason.InternalFailure, "waited for kube-vitals, for 10s of 10s")
		forgetAll(client)
		k.served.Wait()
	})
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
