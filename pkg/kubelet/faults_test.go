package kubelet

import (
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	hasText = usage.HasCPU | usage.HasMemory | usage.HasSwap
	hasAll  = hasText | usage.HasRate
)

// afterFault is what Fetch returns for a response with a fault.
type afterFault struct {
	reason  reason.Reason      // of the error; empty if there is none
	text    string             // a part of the error
	missing usage.Has          // of the container
	skipped []usage.SkipReason // of values that are left out
	partial bool               // containers may be missing

	hasStorage bool // also if there is an error
}

// commonFaults are the faults that do not depend on the endpoint, with a part of the error.
func commonFaults() map[string]afterFault {
	return map[string]afterFault{
		"refuse":           {reason: reason.ConnectionLost, text: "the connection to the kubelet was lost: "},
		"hang":             {reason: reason.Timeout, text: "no complete response from the kubelet at 127.0.0.1:"},
		"late":             {},
		"slow":             {},
		"status 204":       {reason: reason.BadStatus, text: "204"},
		"status 401":       {reason: reason.Unauthorized, text: "webhook authentication"},
		"redirect":         {reason: reason.BadStatus, text: `302 Found, redirect to "https://127.0.0.1:1/" is not followed`},
		"html":             {reason: reason.BadFormat, text: "text/html"},
		"garbage":          {reason: reason.Undecodable},
		"half body":        {reason: reason.Truncated, text: "incomplete"},
		"endless body":     {reason: reason.BodyTooLarge, text: "131072 bytes (if the node has"},
		"endless line":     {reason: reason.BodyTooLarge, text: "131072 bytes"},
		"gzip bomb":        {reason: reason.BadFormat, text: `"gzip"`},
		"wrong encoding":   {reason: reason.BadFormat, text: `"gzip"`},
		"unknown encoding": {reason: reason.BadFormat, text: `"zstd"`},
	}
}

// TestFaults checks every known fault of /metrics/resource. The intact part of the response must be
// used, and the next response must not be affected.
func TestFaults(t *testing.T) {
	tests := commonFaults()
	maps.Copy(tests, map[string]afterFault{
		"status 403":                          {reason: reason.Forbidden, text: `"Forbidden" (grant get on nodes/metrics`},
		"status 404":                          {reason: reason.NotFound, text: PathAnnotation},
		"status 500":                          {reason: reason.ServerError, text: `"Internal Server Error"`},
		"empty":                               {reason: reason.NoSamples},
		"cut text":                            {}, // it is not defined where the text is cut
		"duplicate series":                    {skipped: []usage.SkipReason{usage.Duplicate}},
		"contradictory series":                {missing: usage.HasCPU, skipped: []usage.SkipReason{usage.Duplicate}},
		"line without labels":                 {skipped: []usage.SkipReason{usage.NoIdentity}, partial: true},
		"odd labels":                          {skipped: []usage.SkipReason{usage.Malformed}, partial: true},
		"NaN":                                 {missing: usage.HasCPU, skipped: []usage.SkipReason{usage.BadValue}},
		"infinite":                            {missing: usage.HasCPU, skipped: []usage.SkipReason{usage.BadValue}},
		"negative":                            {missing: usage.HasMemory, skipped: []usage.SkipReason{usage.BadValue}},
		"no start time":                       {},
		"no memory":                           {missing: usage.HasMemory},
		"time of tomorrow":                    {reason: reason.ClockSkew, text: "set the node's clock"},
		"time of yesterday":                   {},
		"no time":                             {},
		"no date":                             {},
		"moved start times":                   {},
		"start times that follow the samples": {},
		"CRLF":                                {},
		"no final newline":                    {skipped: []usage.SkipReason{usage.Malformed}, partial: true},
		"scrape error":                        {reason: reason.RuntimeNoStats, text: "check the container runtime"},
	})
	testFaults(t, fetchResource, kubelettest.Faults(), tests)
}

// TestSummaryFaults checks every known fault of the summary. A fault must not affect the resource
// metrics. Those of the requested values only do not affect storage.
func TestSummaryFaults(t *testing.T) {
	const without = "without the summary, metrics appear only after the second scrape"
	tests := commonFaults()
	maps.Copy(tests, map[string]afterFault{
		"status 403": {reason: reason.Forbidden,
			text: "(grant get on nodes/stats to the user that kubelets see (kube-vitals-kubelet in the chart); " +
				without + ")"},
		"status 404":         {reason: reason.NotFound, text: `status 404 Not Found, "Not Found" (` + without},
		"status 405":         {reason: reason.BadStatus, text: "status 405 Method Not Allowed"},
		"status 500":         {reason: reason.ServerError, text: "see the kubelet's log; " + without},
		"empty":              {reason: reason.Undecodable},
		"cut":                {reason: reason.Undecodable},
		"other JSON":         {reason: reason.Undecodable, text: without},
		"endless nesting":    {reason: reason.BodyTooLarge, text: "131072 bytes"},
		"endless blanks":     {reason: reason.BodyTooLarge, text: "131072 bytes"},
		"of another node":    {reason: reason.BadEndpoint, text: `"elsewhere"`},
		"placeholder rates":  {}, // the store decides whether a rate of 0 is real
		"no rates":           {missing: usage.HasRate},
		"null rates":         {missing: usage.HasRate},
		"impossible rates":   {missing: usage.HasRate, skipped: []usage.SkipReason{usage.BadValue}},
		"negative counters":  {reason: reason.Undecodable, hasStorage: true},
		"memory in words":    {reason: reason.Undecodable, hasStorage: true},
		"no start time":      {},
		"times of tomorrow":  {reason: reason.ClockSkew, text: "set the node's clock"},
		"times of yesterday": {},
		"no times":           {},
	})
	testFaults(t, fetchSummary, kubelettest.SummaryFaults(), tests)
}

func testFaults(t *testing.T, fetch fetchFunc, faults []kubelettest.NamedFault, tests map[string]afterFault) {
	ca := kubelettest.NewCA()
	certificate := forServerAuth(ca, "n7")
	_, isSummary := tests["no rates"]
	has, prefix := hasText, ""
	if isSummary {
		has, prefix = hasAll, "summary: "
	}
	for _, fault := range faults {
		want, ok := tests[fault.Name]
		delete(tests, fault.Name)
		t.Run(fault.Name, func(t *testing.T) {
			if !ok {
				t.Fatal("the test has no expectation for this fault")
			}
			k := newStorageKubelet()
			node := nodeAt("n7", k.Start(t, certificate).String())
			c := newTestClient(t, Config{TLS: rest.TLSClientConfig{CAData: ca.PEM()}, MaxBodyBytes: 128 << 10})
			if want.reason == reason.Timeout {
				const short = 50 * time.Millisecond
				alwaysConnects(c).config.Timeout = short
			}
			k.SetFaults(fault.Fault)
			var got usage.Scrape
			switch err := fetch(c, t.Context(), node, &got); {
			case want.reason != "":
				checkError(t, err, want.reason, want.text)
				if !strings.HasPrefix(err.Error(), prefix) {
					t.Errorf("got error %v, want prefix %s", err, prefix)
				}
			case err != nil:
				t.Error(err)
			case fault.Name != "cut text":
				checkApp(t, &got, has&^want.missing, want.skipped, want.partial)
			}
			if isSummary {
				storage := want.reason
				if want.hasStorage {
					storage = ""
				}
				checkStorage(t, c, node, storage)
			}

			if want.reason == reason.Timeout {
				return // the short timeout may not suffice on a busy machine
			}
			if isSummary {
				if err := fetchError(t, c, node); err != nil {
					t.Errorf("the resource metrics are affected: %v", err)
				}
			}
			k.SetFaults()
			if err := fetch(c, t.Context(), node, &got); err != nil {
				t.Fatalf("the next response is affected: %v", err)
			}
			checkApp(t, &got, has, nil, false)
			checkStorage(t, c, node, "")
		})
	}
	for name := range tests {
		t.Errorf("kubelettest has no fault %q", name)
	}
}

// checkApp checks what a scrape has of the container app.
func checkApp(t *testing.T, got *usage.Scrape, has usage.Has, skipped []usage.SkipReason, partial bool) {
	t.Helper()
	i := slices.IndexFunc(got.Containers, func(s usage.ContainerSample) bool { return string(s.Name) == "app" })
	if i < 0 || got.Containers[i].Has != has || got.Node.Has == 0 || len(got.Storage) > 0 || got.Partial != partial {
		t.Errorf("got %+v, want a container with %b, partial %v", got, has, partial)
	}
	for reason, n := range got.Skipped {
		if (n > 0) != slices.Contains(skipped, usage.SkipReason(reason)) {
			t.Errorf("got %d values skipped as %v, want %v only", n, usage.SkipReason(reason), skipped)
		}
	}
}

// TestResponseWithoutEnd fetches responses without a length and chunks. A cut at the end of a line could not be
// noticed, so they count as partial.
func TestResponseWithoutEnd(t *testing.T) {
	const text = "node_cpu_usage_seconds_total 1\n"
	for headers, want := range map[string]bool{
		"HTTP/1.0 200 OK": true, "HTTP/1.1 200 OK\r\nConnection: close": true,
		fmt.Sprint("HTTP/1.1 200 OK\r\nContent-Length: ", len(text)): false,
	} {
		k := newKubelet(t, nil, func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			fmt.Fprintf(conn, "%s\r\nContent-Type: %s\r\n\r\n%s", headers, textType, text)
		})
		var got usage.Scrape
		err := fetchResource(newTestClient(t, Config{PlainHTTP: true}), t.Context(), k.node("n1"), &got)
		if err != nil || got.Partial != want || got.Node.CPUSeconds != 1 {
			t.Errorf("%q: got %v, partial %t and %v core-seconds, want partial %t and 1", headers, err, got.Partial,
				got.Node.CPUSeconds, want)
		}
	}
}

func TestContentTypes(t *testing.T) {
	for _, tt := range []struct {
		text, json bool
		types      []string
	}{
		{true, false, []string{
			textType, "text/plain", "text/plain; charset=utf-8", "text/plain;version=0.0.4", "",
			"text/plain; version=0.0.4; charset", // not a valid parameter
		}},
		{false, true, []string{"application/json", "application/json; charset=utf-8", "Application/JSON"}},
		{false, false, []string{
			"text/plain; version=1.0.0", "text/html; charset=utf-8", "application/openmetrics-text; version=1.0.0",
			"application/vnd.kubernetes.protobuf", "application/jsonp", ";",
		}},
	} {
		for _, contentType := range tt.types {
			if text, json := isText(contentType), isJSON(contentType); text != tt.text || json != tt.json {
				t.Errorf("%q: got text %v, JSON %v", contentType, text, json)
			}
		}
	}
}

// TestFileLimit checks that too many open files are not reported as a fault of the network.
func TestFileLimit(t *testing.T) {
	for _, number := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE} {
		err := resourceQuery.newError(&net.OpError{Op: "dial", Net: "tcp", Err: os.NewSyscallError("socket", number)})
		if text := explained(err); reason.Of(err) != reason.InternalFailure ||
			!strings.HasPrefix(text, "kube-vitals itself failed: dial tcp: ") ||
			!strings.Contains(text, "(raise the limit of open files") || strings.Contains(text, "report this bug") {
			t.Errorf("%v: got the reason %q, and %q", number, reason.Of(err), text)
		}
	}
}
