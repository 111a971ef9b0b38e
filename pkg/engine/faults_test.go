package engine

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/engine/decode"
	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// respond returns a handler with a response.
func respond(status int, contentType, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

const (
	jsonType = "application/json"
	success  = `{"status":"success","data":{"resultType":"matrix","result":[` // the start of a response
)

// respondJSON returns a handler that sends the headers of a response and then calls another handler.
func respondJSON(encoding string, write http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", jsonType)
		w.Header().Set("Content-Encoding", encoding)
		write(w, r)
	}
}

func compress(text string) string {
	var b strings.Builder
	z := gzip.NewWriter(&b)
	_, _ = io.WriteString(z, text)
	_ = z.Close()
	return b.String()
}

func write(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }
}

// repeat returns a handler that writes a start, and then a chunk until the client closes the connection.
func repeat(start, chunk string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		_, err := io.WriteString(w, start)
		for chunk := strings.Repeat(chunk, 1+1000/len(chunk)); err == nil; {
			_, err = io.WriteString(w, chunk)
		}
	}
}

// TestFaults makes the engine fail in every known way after a first refresh: the metrics must stand,
// and work again when the engine does.
func TestFaults(t *testing.T) {
	spaces, complete := strings.Repeat(" ", 1<<20), compress(success+`]}}`)
	for _, tc := range []struct {
		name    string
		respond http.HandlerFunc
		want    reason.Reason
		text    string // in the error
	}{
		{"500", respond(500, "text/plain", "out of memory"), reason.ServerError, `"out of memory"`},
		{"503 timeout", respond(503, jsonType, `{"status":"error","errorType":"timeout","error":"query timed out"}`),
			reason.ServerError, `"timeout": "query timed out"`},
		{"control characters", respond(422, jsonType, `{"errorType":"x\nE0101","error":"y\u001b"}`),
			reason.BadStatus, "\"x E0101\": \"y\ufffd\""},
		{"401", respond(401, "text/plain", "no org id"), reason.Unauthorized, "http.authorization"},
		{"403", respond(403, "text/plain", ""), reason.Forbidden, "permissions"},
		{"404", respond(404, "text/plain", ""), reason.NotFound, "path of --prometheus-url"},
		{"a login page", respond(200, "text/html", "<html>"), reason.BadFormat, "text/html"},
		{"another API", respond(200, jsonType, `[]`), reason.Undecodable, ""},
		{"status error", respond(200, jsonType, `{"status":"error","errorType":"x","error":"y"}`),
			reason.BadFormat, `"x": "y"`},
		{"truncated JSON", respond(200, jsonType, success+`{"metric":{"node":"n1"},"values":[[1,"2"`), reason.Truncated, ""},
		{"wrong tenant", respond(200, jsonType, success+`]}}`), reason.NoSamples, "tenant"},
		{"another cluster", respond(200, jsonType, success+`{"metric":{"node":"n9"},"values":[[1,"2"]]}]}}`),
			reason.NoSamples, "labels.node"},
		{"slow", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, reason.Timeout, "raise timeout"},
		{"connection closed", func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			reason.ConnectionLost, ""},
		{"cut body", respondJSON("", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100000")
			_, _ = io.WriteString(w, success)
		}), reason.Truncated, ""},
		{"too large", respond(200, jsonType, success+spaces), reason.BodyTooLarge, "raise maxResponseBytes"},
		{"too large when decompressed", respondJSON("gzip", write(compress(success+spaces))),
			reason.BodyTooLarge, ""},
		{"an endless error", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			repeat("", "x")(w, nil)
		}, reason.ServerError, `, "` + strings.Repeat("x", 256) + `"`},
		{"the body trickles for ever", respondJSON("", func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, " ")
				_ = http.NewResponseController(w).Flush()
				time.Sleep(time.Millisecond)
			}
		}), reason.Timeout, ""},
		{"endless series", respondJSON("", repeat(success+`{"metric":{"node":"n9"}}`,
			`,{"metric":{"node":"n9"},"values":[[1,"2"]]}`)), reason.BodyTooLarge, ""},
		{"an endless label", respondJSON("", repeat(success+`{"metric":{"node":"`, "x")), reason.BodyTooLarge, ""},
		{"endless samples of a series", respondJSON("", repeat(success+`{"metric":{"node":"n1"},"values":[[1,"2"]`,
			`,[1,"2"]`)), reason.BodyTooLarge, ""},
		{"an endless gzip bomb", respondJSON("gzip", repeat("", compress(spaces))),
			reason.BodyTooLarge, ""},
		{"gzip without its checksum", respondJSON("gzip", write(complete[:len(complete)-8])), reason.Truncated, ""},
		{"not gzip", respondJSON("gzip", write(success+`]}}`)), reason.BadFormat, "gzip"},
		{"redirect to a login page", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://login.example/?next=x", http.StatusFound)
		}, reason.BadFormat, "redirects to http://login.example"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t, "maxResponseBytes: 100000")
			f.put("app", "", -35, 100, -20, 103)
			f.mustRefresh()
			f.set(func() { f.respond = tc.respond })
			if tc.want == reason.Timeout {
				f.client.settings.Timeout = 50 * time.Millisecond
			}
			for failures := range 2 {
				f.refreshAt(time.Now())
				o := f.Overall()
				why := o.Describe(o.Reason).Explain(o.Err)
				if o.Reason != tc.want || !strings.Contains(why.Error(), tc.text) || o.Failures != failures+1 {
					t.Errorf("got %v, %v, %d failures, want %v with %q", o.Reason, why, o.Failures, tc.want, tc.text)
				}
				if why.Cure == "" || strings.Contains(why.Detail, why.Cure) {
					t.Errorf("got the error %q with the cure %q", why.Detail, why.Cure)
				}
			}
			f.wantPod("app 200 15s")
			f.client.settings.Timeout = testenv.Patience
			f.set(func() { f.respond = nil })
			f.put("app", "", -35, 100, -20, 103, -5, 109)
			f.mustRefresh()
			f.wantPod("app 400 15s")
		})
	}
}

// TestSeriesOverLimitsAreSkipped has a label that a tenant may write. Others keep their metrics.
func TestSeriesOverLimitsAreSkipped(t *testing.T) {
	f := newFixture(t, "")
	f.put("side", `,tenant="`+strings.Repeat("x", 100<<10)+`"`, -20, 100, -5, 103)
	f.put("app", "", -20, 100, -5, 103)
	if result := f.mustRefresh(); result.Skipped[usage.OverLimit] != 2 { // CPU and memory
		t.Errorf("skipped %v, want 2 series over the limits", result.Skipped)
	}
	f.wantPod("app 200 15s")
}

// TestWarningsAreLoggedOnce has warnings that differ from query to query, and control characters
// that would forge a line of the log.
func TestWarningsAreLoggedOnce(t *testing.T) {
	f := newFixture(t, "")
	ctx, lines := logLines(t)
	refresh := func(warnings ...string) {
		f.set(func() { f.warnings = warnings })
		f.put("app", "", -20, 100, -5, 103)
		result := f.refresh(ctx)
		f.record(ctx, &result, time.Now())
	}
	for i := range 3 {
		refresh(fmt.Sprintf("store %d\nE0101 \x1b[31m", i))
	}
	refresh()
	refresh()
	refresh("store 4")
	if got := *lines; len(got) != 3 || !strings.Contains(got[0], "store 0 E0101 \ufffd[31m") ||
		!strings.Contains(got[1], "without a warning") || !strings.Contains(got[2], "store 4") {
		t.Errorf("got %q, want lines about the first warning, the end of the warnings, and the next one", got)
	}
}

// TestLargeAnswer decodes many series of other clusters. Memory must not grow with them.
func TestLargeAnswer(t *testing.T) {
	f := newFixture(t, "")
	const size = 16 << 20
	series := strings.Repeat(`{"metric":{"__name__":"container_cpu_usage_seconds_total",`+
		`"container":"app","endpoint":"https-metrics","instance":"10.0.0.7:10250","job":"kubelet","namespace":"shop-1",`+
		`"node":"node-7","pod":"web-1-7d4b9c6f5-abcde","service":"kubelet"},"values":[[1795205737.486,"1.5"],`+
		`[1795205752.486,"1.6"],[1795205767.486,"1.7"],[1795205782.486,"1.8"]]},`, 1000)
	f.set(func() {
		f.respond = respondJSON("", func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, success)
			for range size / len(series) {
				if strings.HasPrefix(r.Form.Get("query"), "container_cpu") {
					_, _ = io.WriteString(w, series)
				}
			}
			_, _ = io.WriteString(w, `{"metric":{}}]}}`)
		})
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if result := f.refresh(context.Background()); reason.Of(result.Err) != reason.NoSamples {
		t.Fatalf("got %v, want %v", result.Err, reason.NoSamples)
	}
	runtime.ReadMemStats(&after)
	if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 8<<20 { // of engine and client
		t.Errorf("allocated %d bytes for a response of %d", allocated, size)
	}
}

func TestRequests(t *testing.T) {
	f := newFixture(t, "preset: cadvisor\nmatchers: {cluster: 'a\"b'}\nhttp: {authorization: {credentials: secret}, "+
		"http_headers: {X-Scope-OrgID: {values: [tenant]}}}")
	f.put("app", "", -20, 1, -5, 2)
	f.refresh(context.Background())
	r := f.requests[slices.IndexFunc(f.requests, func(r *http.Request) bool {
		return strings.Contains(r.Form.Get("query"), `,image!=""`)
	})]
	if r.Method != http.MethodGet || r.Header.Get("X-Scope-OrgID") != "tenant" ||
		r.Header.Get("Authorization") != "Bearer secret" || r.Header.Get("User-Agent") != "test" {
		t.Errorf("got %s, headers %v", r.Method, r.Header)
	}
	want := `container_cpu_usage_seconds_total{cluster="a\"b",container!="",container!="POD",image!=""}[412s] offset -300s`
	if got := r.Form.Get("query"); got != want || r.Form.Get("timeout") != "600000ms" {
		t.Errorf("got %s, timeout %s, want %s", got, r.Form.Get("timeout"), want)
	}
}

// TestTimeouts checks the limits that newFixture replaces.
func TestTimeouts(t *testing.T) {
	s, err := New(Config{URL: "http://engine", Interval: interval, MaxSampleAge: maxAge})
	if err != nil || s.client.settings.Timeout != defaultTimeout || s.maxDuration != maxAge/3 {
		t.Errorf("got %v, %+v", err, s)
	}
}

func TestConfigFile(t *testing.T) {
	for _, tc := range []struct{ config, want string }{
		{"", ""},
		{"preset: cadvisor", ""},
		{"queries: {containerCPU: 'cpu{a=~\"x{2}\"}', nodeSwap: '-'}\nlabels: {node: [host], pod: pod_name}", ""},
		{"http: {basic_auth: {username: u, password_file: p}, tls_config: {insecure_skip_verify: true}, " +
			"proxy_url: 'http://p:1'}", ""},
		{"preset: x", `preset is "x", but must be one of cadvisor, resource`},
		{"prest: x", "field prest not found"},
		{"http: {basic_auth: {username: u}, authorization: {credentials: c}}", "at most one of"},
		{"queries: {cpu: x}", `"cpu" is not a query`},
		{"queries: {nodeCPU: 'sum(rate(x[5m]))'}", "queries.nodeCPU"},
		{"queries: {nodeCPU: '-'}", "queries.nodeCPU is required"},
		{"queries: {nodeCPU: ''}", "not a selector"},
		{"labels: {pod: 'a-b'}", "labels.pod"},
		{"labels: {node: ['a-b']}", "labels.node"},
		{"matchers: {'a-b': c}", "matchers"},
		{"timeout: -1s", "timeout is -1s"},
		{"maxResponseBytes: 5", "maxResponseBytes is 5"},
		{"preset: x\ntimeout: 2h", "timeout is 2h"}, // and all others
	} {
		_, err := ParseFile([]byte(tc.config), "")
		if tc.want == "" && err != nil || tc.want != "" && !strings.Contains(fmt.Sprint(err), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.config, err, tc.want)
		}
	}
}

// TestErrorsKeepSecrets has mistakes in values that are or contain credentials. Errors are logged.
func TestErrorsKeepSecrets(t *testing.T) {
	for _, config := range []string{
		"http: {authorization: hunter2}",
		"http: {authorization: 'hunter2\n` into hunter2'}",
		"http: {basic_auth: 'hunter2'}",
		"http: {basic_auth: {username: u, password: [hunter2]}}",
		"http: {http_headers: {X-Token: hunter2}}",
		"http: {http_headers: {X-Token: {secrets: hunter2}}, timeout: hunter2}",
		"http: {proxy_url: 'http://user:hunter2%zz@proxy:80'}",
		"http: {proxy_url: 'http://user:hunter2#@proxy:80'}",
		"http: {proxy_url: 'user:hunter2@proxy:80'}",
		"http: {oauth2: {client_id: a, client_secret: hunter2, token_url: 'http://u:hunter2@[::1'}}",
		"http: {http_headers: {X-Token: {secrets: [\"hunter2\\nb\"]}}}",
		"http: {authorization: {credentials: \"hunter2\\nb\"}}",
		"hunter2",
	} {
		file := writeFile(t, t.TempDir(), "config.yaml", config)
		c, err := newClient(Config{URL: "http://127.0.0.1:1", File: file, Interval: interval}, time.Minute)
		if err == nil {
			_, err = c.query(t.Context(), containerCPU, func(*decode.Series) {})
		}
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want an error without the secret", config, err)
		}
	}
}

func TestParseURL(t *testing.T) {
	for address, valid := range map[string]bool{
		"http://prometheus:9090": true, "https://mimir/prometheus/": true, "prometheus:9090": false, "ftp://x": false,
		"http://": false, "http://u:secret@x": false, "http://x?a=b": false, "http://x\x00secret": false,
	} {
		_, err := ParseURL(address)
		if (err == nil) != valid || strings.Contains(fmt.Sprint(err), "secret") {
			t.Errorf("%s: got %v, want valid: %v", address, err, valid)
		}
	}
}

func TestReload(t *testing.T) {
	f := newFixture(t, "http: {authorization: {credentials: one}}")
	var reports []error
	f.client.Reloaded = func(_ string, err error) { reports = append(reports, err) }
	for i, step := range []struct {
		content, want string
		reports       int
	}{
		{"http: {authorization: {credentials: one}}", "Bearer one", 0},
		{"http: {authorization: {credentials: two}}", "Bearer two", 1},
		{"nonsense: true", "Bearer two", 2},
		{"nonsense: true", "Bearer two", 2},
		{"http: {authorization: {credentials: three}}", "Bearer three", 3},
		{"", "Bearer three", 4}, // no file
	} {
		writeFile(t, filepath.Dir(f.client.File), "config.yaml", step.content)
		if step.content == "" {
			_ = os.Remove(f.client.File)
		}
		f.refreshAt(time.Now())
		if got := f.authorization(); got != step.want || len(reports) != step.reports {
			t.Errorf("%d: got %q and %d reports, want %q and %d", i, got, len(reports), step.want, step.reports)
		}
		isRejected := len(reports) > 0 && reports[len(reports)-1] != nil
		if got := f.Overall().Engine.FileRejected; got != isRejected {
			t.Errorf("%d: got rejected %v, want %v", i, got, isRejected)
		}
	}
}

// TestPartialResponse has a response without some series, with a warning or the flag of
// VictoriaMetrics: no container that runs according to the API server is removed. Debug containers are.
func TestPartialResponse(t *testing.T) {
	for name, set := range map[string]func(*engine){
		"Prometheus":      func(e *engine) { e.warnings = []string{"store 3 is unavailable"} },
		"VictoriaMetrics": func(e *engine) { e.isPartial, e.contentType = true, "application/stream+json; charset=utf-8" },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "")
			f.ended["debug"] = true // the API server has no status of it
			f.store = store.New(store.Config{MaxSampleAge: maxAge, MaxContainers: 100,
				State: func(_, _, _, container string) usage.ContainerState {
					return usage.ContainerState{Running: !f.ended[container]}
				}})
			f.Sink = f.store
			f.put("app", "", -35, 100, -20, 103)
			f.put("side", "", -35, 100, -20, 103)
			f.put("debug", "", -34, 100, -19, 103)
			f.mustRefresh()
			f.wantPod("app 200 15s, debug 200 15s, side 200 15s")
			f.set(func() {
				clear(f.series)
				set(f.engine)
			})
			f.put("app", "", -20, 103, -5, 109)
			if result := f.mustRefresh(); result.Engine.Warning == "" {
				t.Error("not reported as partial")
			}
			f.wantPod("app 400 15s, side 200 15s")
		})
	}
}

// TestDebugContainer has a container without a status in the API server. It counts as ended once its last sample is
// older than that of the others, until it has another one.
func TestDebugContainer(t *testing.T) {
	f := newFixture(t, "")
	f.ended["debug"] = true
	for i, want := range []string{"app 200 15s, debug 200 15s", "app 200 15s", "app 200 15s, debug 200 30s"} {
		f.put("app", "", -35, 100, -20, 103)
		f.put("debug", "", -35, 100, -20, 103)
		if i > 0 {
			f.put("app", "", -35, 100, -20, 103, -5, 106)
		}
		if i > 1 {
			f.put("debug", "", -35, 100, -5, 106)
		}
		f.mustRefresh()
		f.wantPod(want)
	}
}

// TestFailedQuery has one query fail while the other responses have no series: nothing is removed.
func TestFailedQuery(t *testing.T) {
	f := newFixture(t, "")
	f.put("app", "", -20, 100, -5, 103)
	f.mustRefresh()
	f.ended["app"] = true
	failing := f.client.settings.query(containerMemory, f.client.window)
	f.set(func() {
		clear(f.series)
		f.respond = func(w http.ResponseWriter, r *http.Request) {
			if r.Form.Get("query") == failing {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			respond(200, jsonType, success+"]}}")(w, r)
		}
	})
	if result := f.refresh(context.Background()); reason.Of(result.Err) != reason.ServerError {
		t.Errorf("got %v, want %v", result.Err, reason.ServerError)
	}
	f.wantPod("app 200 15s")
}
