package kubelet

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// hostile is a kubelet that answers each request with a text, and then with another one again and
// again until the client hangs up. It allocates nothing meanwhile, so that what is allocated is the
// client's.
type hostile struct {
	net.Listener
	head, again []byte
}

func newHostile(t *testing.T, head, again string) *hostile {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &hostile{listener, []byte(head), []byte(again)}
	var work sync.WaitGroup
	work.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			work.Go(func() { h.serve(conn) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		work.Wait()
	})
	return h
}

func (h *hostile) serve(conn net.Conn) {
	defer conn.Close()
	if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
		return
	}
	_, err := conn.Write(h.head)
	for err == nil {
		_, err = conn.Write(h.again)
	}
}

// TestHostileAnswersCostABoundedBuffer has kubelets send without end, in every place where that is
// possible. What that costs is in proportion to the bound on an answer, and the same client reads
// the next kubelet's answer as if nothing had been.
func TestHostileAnswersCostABoundedBuffer(t *testing.T) {
	const limit = 256 << 10
	const bound = 4*limit + 256<<10 // bytes: a buffer that has been doubled to its full size, and what every request costs
	resource, summary := largeAnswer(30, 2), largeSummary(30, 2)
	compressed := func(text []byte) string {
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write(text)
		_ = z.Close()
		return b.String()
	}
	const started = "HTTP/1.1 200 OK\r\n"
	const body = "\r\n"
	const chunked = "Transfer-Encoding: chunked\r\n"
	const gzipped = "Content-Encoding: gzip\r\n"
	chunk := func(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }
	long := strings.Repeat("a", 16<<10)

	tests := []struct {
		name        string
		head, again func(text []byte, contentType string) string
		reason      string
	}{
		{"body", func(_ []byte, ct string) string { return started + ct + body },
			func(text []byte, _ string) string { return string(text) }, reasonTooLarge},
		{"body in chunks", func(_ []byte, ct string) string { return started + ct + chunked + body },
			func(text []byte, _ string) string { return chunk(string(text)) }, reasonTooLarge},
		{"body that says how long it is", func(_ []byte, ct string) string { return started + ct + "Content-Length: 1000000000000\r\n" + body },
			func(text []byte, _ string) string { return string(text) }, reasonTooLarge},
		{"line", func(_ []byte, ct string) string { return started + ct + body },
			func([]byte, string) string { return long }, reasonTooLarge},
		{"blanks", func(_ []byte, ct string) string { return started + ct + body },
			func([]byte, string) string { return strings.Repeat(" ", 16<<10) }, reasonTooLarge},
		{"nesting", func(_ []byte, ct string) string { return started + ct + body },
			func([]byte, string) string { return strings.Repeat("[", 16<<10) }, reasonTooLarge},
		{"gzip bomb", func(_ []byte, ct string) string { return started + ct + gzipped + body },
			func([]byte, string) string { return compressed(make([]byte, 1<<20)) }, reasonTooLarge},
		{"gzip of nothing", func(_ []byte, ct string) string { return started + ct + gzipped + body },
			func([]byte, string) string { return strings.Repeat(compressed(nil), 100) }, reasonTooLarge},
		{"gzip header", func(_ []byte, ct string) string {
			return started + ct + gzipped + body + "\x1f\x8b\x08\x08\x00\x00\x00\x00\x00\xff" // with a name that follows
		}, func([]byte, string) string { return long }, reasonContentEncoding},
		{"chunks of a byte", func(_ []byte, ct string) string { return started + ct + chunked + body },
			func([]byte, string) string { return strings.Repeat("1;"+long[:1000]+"\r\na\r\n", 16) }, reasonTruncated},
		{"size of a chunk", func(_ []byte, ct string) string { return started + ct + chunked + body },
			func([]byte, string) string { return strings.Repeat("0", 16<<10) }, reasonTruncated},
		{"trailers", func(text []byte, ct string) string {
			return started + ct + chunked + body + chunk(string(text)) + "0\r\n"
		},
			func([]byte, string) string { return strings.Repeat("X: y\r\n", 1000) }, reasonTruncated},
		{"status line", func([]byte, string) string { return started[:len(started)-2] },
			func([]byte, string) string { return long }, reasonProtocol},
		{"headers", func([]byte, string) string { return started },
			func([]byte, string) string { return strings.Repeat("X: y\r\n", 1000) }, reasonProtocol},
		{"header", func([]byte, string) string { return started + "X: " },
			func([]byte, string) string { return long }, reasonProtocol},
		{"informational answers", func([]byte, string) string { return "" },
			func([]byte, string) string { return strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 100) }, reasonProtocol},
		{"text of an error", func([]byte, string) string { return "HTTP/1.1 500 Internal Server Error\r\n\r\n" },
			func([]byte, string) string { return long }, reasonServer},
		{"redirection", func([]byte, string) string { return "HTTP/1.1 302 Found\r\nLocation: /" + long[:8000] + "\r\n\r\n" },
			func([]byte, string) string { return long }, reasonStatus},
	}
	questions := []struct {
		name, contentType string
		text              []byte
		ask               asking
	}{
		{"Fetch", "Content-Type: text/plain; version=0.0.4\r\n", resource, (*Client).Fetch},
		{"FetchSummary", "Content-Type: application/json\r\n", summary, (*Client).FetchSummary},
	}
	healthy := newKubelet(t, nil, func(w http.ResponseWriter, r *http.Request) { answerBoth(w, r, resource, summary) })
	for _, q := range questions {
		for _, tt := range tests {
			t.Run(q.name+"/"+tt.name, func(t *testing.T) {
				h := newHostile(t, tt.head(q.text, q.contentType), tt.again(q.text, q.contentType))
				c := newTestClient(t, Config{PlainHTTP: true, MaxBodyBytes: limit, Gzip: true})
				var dst usage.Scrape
				node := nodeAt("n7", h.Addr().String())
				err := error(nil)
				if cost := allocated(func() { err = q.ask(c, t.Context(), node, &dst) }); cost > bound {
					t.Errorf("%d bytes are allocated, want at most %d", cost, bound)
				}
				checkError(t, err, tt.reason, "")
				if len(dst.Containers) > 0 {
					t.Errorf("there are %d containers after an error", len(dst.Containers))
				}
				if err := q.ask(c, t.Context(), healthy.node("node1"), &dst); err != nil || len(dst.Containers) != 60 {
					t.Errorf("the next kubelet's answer is read with error %v and %d containers, want 60", err, len(dst.Containers))
				}
			})
		}
	}
}

// allocated gives how many bytes are allocated while f runs.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestLargeAnswersCostABoundedScrape sends what is within the bound on an answer and yet more than
// any node has: what is kept of it is in proportion to the bounds on containers and names.
func TestLargeAnswersCostABoundedScrape(t *testing.T) {
	limits := decode.Limits{MaxContainers: 500, MaxLabelBytes: 63}
	long := strings.Repeat("x", 1000)
	resourceLine := func(namespace, pod, container string) string {
		return fmt.Sprintf("container_cpu_usage_seconds_total{container=%q,namespace=%q,pod=%q} 1\n", container, namespace, pod)
	}
	summaryOf := func(pods ...string) string {
		return `{"node":{"cpu":{"usageCoreNanoSeconds":1}},"pods":[` + strings.Join(pods, ",") + `]}`
	}
	summaryPod := func(namespace, pod string, containers ...string) string {
		return fmt.Sprintf(`{"podRef":{"namespace":%q,"name":%q},"containers":[%s]}`, namespace, pod, strings.Join(containers, ","))
	}
	summaryContainer := func(name string) string { return fmt.Sprintf(`{"name":%q,"cpu":{"usageCoreNanoSeconds":1}}`, name) }

	const nodeLine = "node_cpu_usage_seconds_total 1\n"
	var manyLines, manyOfAPod, longLines strings.Builder
	var manyPods, manyContainers, longNames []string
	const n = 10000
	for i := range n {
		name := fmt.Sprintf("%d", i)
		manyLines.WriteString(resourceLine("n", name, "c"))
		manyOfAPod.WriteString(resourceLine("n", "p", name))
		manyPods = append(manyPods, summaryPod("n", name, summaryContainer("c")))
		manyContainers = append(manyContainers, summaryContainer(name))
		if i < n/10 {
			longLines.WriteString(resourceLine("n", name, long+name))
			longNames = append(longNames, summaryPod(long+name, "p", summaryContainer("c")))
		}
	}
	okLine := resourceLine("n", "ok", "c")
	okPod := summaryPod("n", "ok", summaryContainer("c"))

	tests := []struct {
		name, resource, summary string
		containers, skipped     int
	}{
		{"many pods", manyLines.String(), summaryOf(manyPods...), 500, n - 500},
		{"many containers of a pod", nodeLine + manyOfAPod.String(), summaryOf(summaryPod("n", "p", manyContainers...)), 0, n - 500},
		{"long names", okLine + longLines.String(), summaryOf(append(longNames, okPod)...), 1, n / 10},
		{"a name as long as all of the answer", okLine + resourceLine("n", "p", strings.Repeat(long, 1000)),
			summaryOf(okPod, summaryPod("n", "p", summaryContainer(strings.Repeat(long, 1000)))), 1, 1},
	}
	for _, tt := range tests {
		for name, ask := range askings() {
			t.Run(name+"/"+tt.name, func(t *testing.T) {
				k := newKubelet(t, nil, func(w http.ResponseWriter, r *http.Request) {
					answerBoth(w, r, []byte(tt.resource), []byte(tt.summary))
				})
				c := newTestClient(t, Config{PlainHTTP: true, Limits: limits})
				var dst usage.Scrape
				if err := ask(c, t.Context(), k.node("n7"), &dst); err != nil {
					t.Fatal(err)
				}
				if len(dst.Containers) != tt.containers || dst.Skipped[usage.OverLimit] != tt.skipped || !dst.Partial {
					t.Errorf("%d containers, skipped %v, partial %v; want %d, %d as %v, true", len(dst.Containers), dst.Skipped, dst.Partial,
						tt.containers, tt.skipped, usage.OverLimit)
				}
				if size := kept(&dst); size > 2*limits.MaxContainers*(int(unsafe.Sizeof(usage.ContainerSample{}))+3*limits.MaxLabelBytes) {
					t.Errorf("the scrape keeps %d bytes", size)
				}
				if dst.Node.Has == 0 && len(dst.Containers) == 0 {
					t.Error("nothing is left")
				}
				w := c.workspaces.Get().(*workspace)
				if cap(w.text) > maxPooledBytes {
					t.Errorf("the workspace keeps a text of %d bytes", cap(w.text))
				}
			})
		}
	}
}

// kept gives how many bytes a scrape keeps alive.
func kept(s *usage.Scrape) int {
	size := cap(s.Containers) * int(unsafe.Sizeof(usage.ContainerSample{}))
	for i := range s.Containers {
		c := &s.Containers[i]
		size += cap(c.Namespace) + cap(c.Pod) + cap(c.Name)
	}
	return size
}
