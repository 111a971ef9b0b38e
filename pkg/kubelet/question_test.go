package kubelet

import (
	"bufio"
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// asking is one of the two ways to ask a kubelet.
type asking func(c *Client, ctx context.Context, node *corev1.Node, dst *usage.Scrape) error

// askings gives both by their name.
func askings() map[string]asking {
	return map[string]asking{"Fetch": (*Client).Fetch, "FetchSummary": (*Client).FetchSummary}
}

// answerBoth answers both questions.
func answerBoth(w http.ResponseWriter, r *http.Request, resource, summary []byte) {
	if r.URL.Path == summaryPath {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(summary)
		return
	}
	answer(w, resource)
}

// TestFetchSummary asks for the summary between requests for the resource metrics. It goes the same
// way: to the same address, over the same connection, with the same credentials.
func TestFetchSummary(t *testing.T) {
	resource, summary := realSample(t), readSummary(t, shortSummary)
	ca := newAuthority(t)
	certificate := ca.leaf(t, x509.ExtKeyUsageServerAuth, "node1")
	for _, path := range []string{DefaultPath, "/metrics/elsewhere"} {
		t.Run(path, func(t *testing.T) {
			dir := t.TempDir()
			requests := make(chan *http.Request, 1)
			k := newKubelet(t, &certificate, func(w http.ResponseWriter, r *http.Request) {
				requests <- r
				answerBoth(w, r, resource, summary)
			})
			c := newTestClient(t, Config{
				CertificateAuthority: writeFile(t, dir, "ca", ca.pem()),
				BearerTokenFile:      writeFile(t, dir, "token", []byte("one")),
				UserAgent:            "kube-vitals/test",
			})
			node := k.node("node1")
			if path != DefaultPath {
				node.Annotations = map[string]string{PathAnnotation: path}
			}
			check := func(token, url, accept string) {
				t.Helper()
				r := <-requests
				if r.Method != http.MethodGet || r.RequestURI != url || r.Host != k.Listener.Addr().String() {
					t.Errorf("asked %s by %s %s, want %s", r.Host, r.Method, r.RequestURI, url)
				}
				want := http.Header{"Accept": {accept}, "Accept-Encoding": {"identity"}, "Authorization": {"Bearer " + token},
					"User-Agent": {"kube-vitals/test"}}
				if !reflect.DeepEqual(r.Header, want) {
					t.Errorf("asked with %v, want %v", r.Header, want)
				}
			}
			var got, want usage.Scrape
			for _, token := range []string{"one", "two"} {
				writeFile(t, dir, "token", []byte(token))
				stale(c.credentials.tokenFile)

				if err := c.Fetch(t.Context(), node, &got); err != nil {
					t.Fatal(err)
				}
				check(token, path, "text/plain;version=0.0.4")

				before := usage.At(time.Now())
				if err := c.FetchSummary(t.Context(), node, &got); err != nil {
					t.Fatal(err)
				}
				check(token, "/stats/summary?only_cpu_and_memory=true", "application/json")
				if after := usage.At(time.Now()); got.At < before || got.At > after {
					t.Errorf("At = %v, want it between %v and %v", got.At.Time(), before.Time(), after.Time())
				}
				if err := new(decode.Summary).Decode(&want, summary, "node1", decode.Times{Sent: got.Sent, At: got.At, Date: got.Date}); err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(got, want) {
					t.Errorf(" got %+v\nwant %+v", got, want)
				}
			}
			if n := k.opened.Load(); n != 1 {
				t.Errorf("%d connections for 4 requests", n)
			}
		})
	}
}

// TestSummariesOwnTheirNames checks that no two scrapes share memory, though the client reuses its
// buffers.
func TestSummariesOwnTheirNames(t *testing.T) {
	var asked atomic.Int64
	k := newKubelet(t, nil, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, strings.ReplaceAll(`{"pods":[{"podRef":{"namespace":"X","name":"X\u0058"},"containers":[{"name":"X"}]}]}`,
			"X", strconv.FormatInt(asked.Add(1), 10)))
	})
	c := newTestClient(t, Config{PlainHTTP: true})
	scrapes := make([]usage.Scrape, 20)
	for i := range scrapes {
		if err := c.FetchSummary(t.Context(), k.node("n7"), &scrapes[i]); err != nil {
			t.Fatal(err)
		}
	}
	for i := range scrapes {
		want := strconv.Itoa(i + 1)
		if s := scrapes[i].Containers; len(s) != 1 || string(s[0].Namespace) != want || string(s[0].Pod) != want+"X" || string(s[0].Name) != want {
			t.Errorf("scrape %d has %+v", i, s)
		}
	}
}

// TestSummaryFaults goes through every way in which a fake kubelet can misbehave in its summary.
// Each costs what is broken in it, and neither the next request for the resource metrics nor the
// next summary.
func TestSummaryFaults(t *testing.T) {
	const cpu, memory, swap, rate = usage.HasCPU, usage.HasMemory, usage.HasSwap, usage.HasRate
	const all = cpu | memory | swap | rate
	type want struct {
		reason  string         // of the error; empty: there is none
		text    string         // a part of the error
		has     usage.Has      // of the node and of the one container; meaningful without an error
		skipped []usage.Reason // for which values are left out
		partial bool           // whether containers may be missing
	}
	const without = "kube-vitals goes on without it"
	intact := want{has: all}
	tests := map[string]want{
		"refuse":             {reason: reasonConnection, text: "asking for its summary"},
		"hang":               {reason: reasonTimeout, text: without},
		"late":               intact,
		"slow":               intact,
		"status 401":         {reason: reasonUnauthorized, text: "webhook authentication"},
		"status 403":         {reason: reasonForbidden, text: "(grant the verb get on nodes/stats to the user that kube-vitals runs as; until then, " + without},
		"status 404":         {reason: reasonNotFound, text: `its kubelet has nothing there: status 404 Not Found, "Not Found" (` + without},
		"status 405":         {reason: reasonStatus, text: "status 405 Method Not Allowed"},
		"status 500":         {reason: reasonServer, text: "see the kubelet's log; " + without},
		"redirect":           {reason: reasonStatus, text: "which is not followed"},
		"html":               {reason: reasonContentType, text: "text/html"},
		"garbage":            {reason: reasonMalformed, text: "it is not JSON"},
		"empty":              {reason: reasonMalformed, text: "it is not JSON"},
		"half body":          {reason: reasonTruncated, text: "cut off"},
		"cut":                {reason: reasonMalformed, text: "it is not JSON"},
		"other JSON":         {reason: reasonNoSamples, text: without},
		"endless body":       {reason: reasonTooLarge, text: "131072 bytes"},
		"endless line":       {reason: reasonTooLarge, text: "131072 bytes"},
		"endless nesting":    {reason: reasonTooLarge, text: "131072 bytes"},
		"endless blanks":     {reason: reasonTooLarge, text: "131072 bytes"},
		"gzip bomb":          {reason: reasonContentEncoding, text: `"gzip"`},
		"wrong encoding":     {reason: reasonContentEncoding, text: `"gzip"`},
		"unknown encoding":   {reason: reasonContentEncoding, text: `"zstd"`},
		"of another node":    {reason: reasonEndpoint, text: `its summary is that of "elsewhere"`},
		"placeholder rates":  intact, // what a rate of 0 is worth is not said here
		"no rates":           {has: cpu | memory | swap},
		"null rates":         {has: cpu | memory | swap},
		"impossible rates":   {has: cpu | memory | swap, skipped: []usage.Reason{usage.BadValue}},
		"negative counters":  {has: memory | swap | rate, skipped: []usage.Reason{usage.BadValue}},
		"memory in words":    {has: cpu | swap | rate, skipped: []usage.Reason{usage.Malformed}, partial: true},
		"no start time":      intact,
		"times of tomorrow":  {reason: reasonBadTime, text: "set the node's clock"},
		"times of yesterday": intact,
		"no times":           intact,
	}
	ca := kubelettest.NewCA()
	authorityFile := writeFile(t, t.TempDir(), "ca", ca.PEM())
	certificate := ca.Issue([]string{"n7"}, []net.IP{net.IPv4(127, 0, 0, 1)})
	for _, fault := range kubelettest.SummaryFaults() {
		want, known := tests[fault.Name]
		delete(tests, fault.Name)
		t.Run(fault.Name, func(t *testing.T) {
			if !known {
				t.Fatal("nothing says what is to come of this fault")
			}
			k := kubelettest.New("n7", kubelettest.Config{})
			k.SetNode(kubelettest.Usage{CPU: 1, Memory: 1 << 30})
			k.Run("default", "web-0", "app", kubelettest.Usage{CPU: 0.5, Memory: 1 << 20}, time.Now().Add(-time.Minute))
			node := nodeAt("n7", k.Start(t, &certificate).String())
			c := newTestClient(t, Config{CertificateAuthority: authorityFile, MaxBodyBytes: 128 << 10})
			if want.reason == reasonTimeout {
				c.summary.timeout = 50 * time.Millisecond
			}

			k.SetFaults(fault.Fault)
			var got usage.Scrape
			err := c.FetchSummary(t.Context(), node, &got)
			switch {
			case want.reason != "":
				checkError(t, err, want.reason, want.text)
				if !strings.Contains(err.Error(), `node "n7": asking for its summary`) {
					t.Errorf("the error does not say what was asked for: %v", err)
				}
			case err != nil:
				t.Errorf("the summary is refused: %v", err)
			case len(got.Containers) != 1 || got.Containers[0].Has != want.has || got.Node.Has != want.has || got.Partial != want.partial:
				t.Errorf("got %+v, want a node and a container with %b, partial %v", got, want.has, want.partial)
			}
			for reason, n := range got.Skipped {
				if err == nil && (n > 0) != slices.Contains(want.skipped, usage.Reason(reason)) {
					t.Errorf("%d values skipped as %v, want such for %v only", n, usage.Reason(reason), want.skipped)
				}
			}

			if err := c.Fetch(t.Context(), node, &got); err != nil {
				t.Errorf("the resource metrics cannot be had after it: %v", err)
			}
			k.SetFaults()
			if want.reason == reasonTimeout {
				return // what is left of the time may not suffice on a busy machine
			}
			if err := c.FetchSummary(t.Context(), node, &got); err != nil {
				t.Fatalf("the next summary is refused: %v", err)
			}
			if len(got.Containers) != 1 || got.Containers[0].Has != all || got.Node.Has != all || got.Skipped != [usage.NumReasons]int{} {
				t.Errorf("the next summary is read as %+v", got)
			}
		})
	}
	for name := range tests {
		t.Errorf("there is no fault %q", name)
	}
}

func TestSummaryContentType(t *testing.T) {
	summary := readSummary(t, shortSummary)
	for content, taken := range map[string]bool{
		"application/json":                    true,
		"application/json; charset=utf-8":     true,
		"Application/JSON":                    true,
		"":                                    false, // net/http does not leave it out, it would guess text/plain
		"text/plain; charset=utf-8":           false,
		"text/plain; version=0.0.4":           false,
		"application/vnd.kubernetes.protobuf": false,
		"application/jsonp":                   false,
		";":                                   false,
	} {
		k := newKubelet(t, nil, func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = []string{content}
			_, _ = w.Write(summary)
		})
		c := newTestClient(t, Config{PlainHTTP: true})
		err := c.FetchSummary(t.Context(), k.node("node1"), &usage.Scrape{})
		if taken != (err == nil) || !taken && Reason(err) != reasonContentType {
			t.Errorf("content type %q: error %v, want it taken: %v", content, err, taken)
		}
	}
}

// TestPatience checks how long each question is waited for at the most, whatever goes on meanwhile.
// The time is not real.
func TestPatience(t *testing.T) {
	// What a kubelet does with a connection until it is closed. Reading ends when it is.
	behaviours := map[string]func(conn net.Conn){
		"says nothing": func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) },
		"never ends": func(conn net.Conn) {
			_, _ = http.ReadRequest(bufio.NewReader(conn))
			_, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n")
			for err == nil {
				time.Sleep(300 * time.Millisecond)
				_, err = io.WriteString(conn, " ")
			}
		},
		"never ends its header": func(conn net.Conn) {
			_, _ = http.ReadRequest(bufio.NewReader(conn))
			_, err := io.WriteString(conn, "HTTP/1.1 200 OK\r\nX: ")
			for err == nil {
				time.Sleep(300 * time.Millisecond)
				_, err = io.WriteString(conn, "x")
			}
		},
	}
	tests := []struct {
		asking  string
		timeout time.Duration // configured
		want    time.Duration
	}{
		{"Fetch", 0, DefaultTimeout},
		{"FetchSummary", 0, 2 * time.Second},
		{"FetchSummary", time.Minute, 2 * time.Second},
		{"FetchSummary", time.Second, time.Second},
	}
	for name, behave := range behaviours {
		for _, tt := range tests {
			if name == "never ends" && tt.asking == "Fetch" {
				continue // it speaks of JSON
			}
			t.Run(fmt.Sprintf("%s/%s/%v", name, tt.asking, tt.timeout), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newTestClient(t, Config{PlainHTTP: true, Timeout: tt.timeout})
					node := nodeAt("n7", "127.0.0.1:1")
					target, err := c.target(node)
					if err != nil {
						t.Fatal(err)
					}
					closed := make(chan struct{})
					target.transport.dial = func(context.Context, string, string) (net.Conn, error) {
						near, far := net.Pipe()
						go func() {
							defer close(closed)
							behave(far)
						}()
						return near, nil
					}
					began := time.Now()
					err = askings()[tt.asking](c, t.Context(), node, &usage.Scrape{})
					checkError(t, err, reasonTimeout, fmt.Sprintf("no complete answer from the kubelet at 127.0.0.1:1 within %v", tt.want))
					if took := time.Since(began); took != tt.want {
						t.Errorf("it took %v, want %v", took, tt.want)
					}
					<-closed
				})
			})
		}
	}
}
