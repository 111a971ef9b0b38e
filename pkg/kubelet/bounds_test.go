package kubelet

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/kube-vitals/kube-vitals/pkg/internal/untrusted"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// newHostile returns the address of a kubelet that responds to each request with head, and then repeats a
// text until the client closes the connection. It allocates nothing meanwhile.
func newHostile(t *testing.T, head, repeat string) string {
	t.Helper()
	first, rest := []byte(head), []byte(repeat)
	return listen(t, func(conn net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
			return
		}
		_, err := conn.Write(first)
		for err == nil {
			_, err = conn.Write(rest)
		}
	}).String()
}

// TestHostileResponsesUseBoundedMemory has kubelets send without end, wherever that is possible.
// The memory is proportional to the limit on a response, and the next response is not affected.
func TestHostileResponsesUseBoundedMemory(t *testing.T) {
	const limit = 256 << 10
	const bound = 4*limit + 256<<10 // a buffer that has grown to its full size, and the cost of any request
	resource, summary := realResponses(t)
	chunk := func(text string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(text), text) }
	long := strings.Repeat("a", 16<<10)

	// TYPE stands for the Content-Type header, TEXT for a valid response.
	const started = "HTTP/1.1 200 OK\r\n"
	const plain = started + "TYPE\r\n"
	const chunked = started + "TYPETransfer-Encoding: chunked\r\n\r\n"
	const gzipped = started + "TYPEContent-Encoding: gzip\r\n\r\n"
	tests := []struct {
		name, head, repeat string
		reason             reason.Reason
	}{
		{"body", plain, "TEXT", reason.BodyTooLarge},
		{"chunked body", chunked, chunk("TEXT"), reason.BodyTooLarge},
		{"large Content-Length", started + "TYPEContent-Length: 1000000000000\r\n\r\n", "TEXT", reason.BodyTooLarge},
		{"line", plain, long, reason.BodyTooLarge},
		{"blanks", plain, strings.Repeat(" ", 16<<10), reason.BodyTooLarge},
		{"nesting", plain, strings.Repeat("[", 16<<10), reason.BodyTooLarge},
		{"gzip bomb", gzipped, string(compress(make([]byte, 1<<20))), reason.BodyTooLarge},
		{"gzip of nothing", gzipped, strings.Repeat(string(compress(nil)), 100), reason.BodyTooLarge},
		{"gzip header", gzipped + "\x1f\x8b\x08\x08\x00\x00\x00\x00\x00\xff", long, reason.BadFormat}, // a name follows
		{"chunks of a byte", chunked, strings.Repeat("1;"+long[:1000]+"\r\na\r\n", 16), reason.Truncated},
		{"size of a chunk", chunked, strings.Repeat("0", 16<<10), reason.Truncated},
		{"trailers", chunked + chunk("TEXT") + "0\r\n", strings.Repeat("X: y\r\n", 1000), reason.Truncated},
		{"status line", strings.TrimSuffix(started, "\r\n"), long, reason.BadHTTP},
		{"headers", started, strings.Repeat("X: y\r\n", 1000), reason.BadHTTP},
		{"header", started + "X: ", long, reason.BadHTTP},
		{"no header", started + long[:5000] + "\r\n\r\n", long, reason.BadHTTP},
		{"informational responses", "", strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 100), reason.BadHTTP},
		{"text of an error", "HTTP/1.1 500 Internal Server Error\r\n\r\n", long, reason.ServerError},
		{"redirect", "HTTP/1.1 302 Found\r\nLocation: /" + long[:8000] + "\r\n\r\n", long, reason.BadStatus},
	}
	healthy := newKubelet(t, nil, func(w http.ResponseWriter, r *http.Request) { respondTo(w, r, resource, summary) })
	for name, fetch := range fetchFuncs() {
		contentType, text := "Content-Type: text/plain; version=0.0.4\r\n", string(resource)
		if name == "FetchSummary" {
			contentType, text = "Content-Type: application/json\r\n", string(summary)
		}
		for _, tt := range tests {
			t.Run(name+"/"+tt.name, func(t *testing.T) {
				fill := strings.NewReplacer("TYPE", contentType, chunk("TEXT"), chunk(text), "TEXT", text)
				c := newTestClient(t, Config{PlainHTTP: true, MaxBodyBytes: limit, Gzip: true})
				var dst usage.Scrape
				node := nodeAt("n7", newHostile(t, fill.Replace(tt.head), fill.Replace(tt.repeat)))
				err := error(nil)
				if got := allocated(func() { err = fetch(c, t.Context(), node, &dst) }); got > bound {
					t.Errorf("got %d bytes allocated, want at most %d", got, bound)
				}
				checkError(t, err, tt.reason, "")
				if n := len(dst.Containers); n > 0 {
					t.Errorf("got %d containers after an error", n)
				}
				if err := fetch(c, t.Context(), healthy.node("node1"), &dst); err != nil || len(dst.Containers) != 6 {
					t.Errorf("the next response: got error %v and %d containers, want 6", err, len(dst.Containers))
				}
			})
		}
	}
}

// allocated returns how many bytes are allocated while f runs.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestLargeResponsesUseBoundedMemory sends responses that are within the limit on bytes and have
// more containers or longer names than any node. The scrape is proportional to the limits on these.
func TestLargeResponsesUseBoundedMemory(t *testing.T) {
	const n = 2000
	const bound = 2 * 500 * (int(unsafe.Sizeof(usage.ContainerSample{})) + 3*253)
	long := strings.Repeat("x", 1000)
	type container struct{ pod, name string }
	var pods, containers, names []container
	for i := range n {
		name := fmt.Sprint(i)
		pods = append(pods, container{name, "c"})
		containers = append(containers, container{"p", name})
		if i < n/10 {
			names = append(names, container{long + name, "c"})
		}
	}
	ok := container{"ok", "c"}
	tests := []struct {
		name                        string
		containers                  []container
		wantContainers, wantSkipped int
	}{
		{"pods", pods, 500, n - 500},
		{"containers of a pod", containers, 0, n - 500},
		{"long names", append(names, ok), 1, n / 10},
		{"name of 1 MB", []container{ok, {"p", strings.Repeat(long, 1000)}}, 1, 1},
	}
	for _, tt := range tests {
		var resource, summary strings.Builder
		resource.WriteString("node_cpu_usage_seconds_total 1\n")
		summary.WriteString(`{"node":{"cpu":{"usageCoreNanoSeconds":1}},"pods":[`)
		for i, c := range tt.containers {
			fmt.Fprintf(&resource, "container_cpu_usage_seconds_total{container=%q,namespace=\"n\",pod=%q} 1\n", c.name, c.pod)
			if i == 0 || tt.containers[i-1].pod != c.pod {
				fmt.Fprintf(&summary, `%s{"podRef":{"namespace":"n","name":%q},"containers":[`, "]},"[:3*min(i, 1)], c.pod)
			} else {
				summary.WriteByte(',')
			}
			fmt.Fprintf(&summary, `{"name":%q,"cpu":{"usageCoreNanoSeconds":1}}`, c.name)
		}
		summary.WriteString("]}]}")
		for name, fetch := range fetchFuncs() {
			t.Run(name+"/"+tt.name, func(t *testing.T) {
				k := newKubelet(t, nil, func(w http.ResponseWriter, r *http.Request) {
					respondTo(w, r, []byte(resource.String()), []byte(summary.String()))
				})
				c := newTestClient(t, Config{PlainHTTP: true})
				c.workspaces.New = func() any { return newWorkspace(500) }
				var dst usage.Scrape
				if err := fetch(c, t.Context(), k.node("n7"), &dst); err != nil {
					t.Fatal(err)
				}
				containers, skipped := len(dst.Containers), dst.Skipped[usage.OverLimit]
				wantSkipped := tt.wantSkipped
				if name == "FetchSummary" && tt.wantContainers == 0 {
					wantSkipped = 1 // the pod
				}
				if containers != tt.wantContainers || skipped != wantSkipped || !dst.Partial || dst.Node.Has == 0 {
					t.Errorf("got %d containers, %d skipped, partial %v, want %d, %d, true", containers, skipped, dst.Partial,
						tt.wantContainers, wantSkipped)
				}
				if size := sizeOf(&dst); size > bound {
					t.Errorf("got a scrape of %d bytes, want at most %d", size, bound)
				}
				if w := c.workspaces.Get().(*workspace); cap(w.body) > maxPooledBytes {
					t.Errorf("got a pooled body of %d bytes, want at most %d", cap(w.body), maxPooledBytes)
				}
			})
		}
	}
}

// sizeOf returns how many bytes a scrape keeps alive.
func sizeOf(s *usage.Scrape) int {
	size := cap(s.Containers) * int(unsafe.Sizeof(usage.ContainerSample{}))
	for i := range s.Containers {
		c := &s.Containers[i]
		size += cap(c.Namespace) + cap(c.Pod) + cap(c.Name)
	}
	return size
}

// TestReadAll checks that the buffer does not grow beyond the limit.
func TestReadAll(t *testing.T) {
	for length, ok := range map[int]bool{0: true, 99: true, 100: true, 101: false, 1000: false} {
		response := &http.Response{Body: io.NopCloser(strings.NewReader(strings.Repeat("x", length)))}
		body, err := untrusted.Body(response, 100, nil)
		if err != nil {
			t.Fatal(err)
		}
		got, err := readAll(make([]byte, 0, 10), body, 100)
		if (err == nil) != ok || ok && len(got) != length || cap(got) > 101 {
			t.Errorf("%d bytes: got %d in a buffer of %d, error %v", length, len(got), cap(got), err)
		}
	}
}
