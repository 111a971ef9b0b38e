package filter

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
)

const podsPath = "/apis/metrics.k8s.io/v1/pods"

// TestRequestLimits checks which requests reach the library, and what others get.
func TestRequestLimits(t *testing.T) {
	var passed *http.Request
	h := WithRequestLimits(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { passed = r }),
		&genericapiserver.Config{}, func() []string { return []string{"/metrics", "/livez", "/livez/ping", "/apis"} }, nil)
	long := func(n int) string { return strings.Repeat("x", n) }
	for _, test := range []struct {
		method, target, body string
		header               http.Header
		want                 int // 0: passed
	}{
		{target: "/"},
		{target: "/livez"},
		{target: "/livez/ping?verbose"},
		{method: "HEAD", target: "/metrics"},
		{method: "OPTIONS", target: podsPath},
		{target: "/apis/"},
		{target: "/apis/metrics.k8s.io/v1beta1/nodes/n1"},
		{target: "/apis/metrics.k8s.io/v1beta1/namespaces/a/pods/b"},
		{target: "/openapi/v3/apis"},
		{target: "/debug/pprof/heap"},
		{target: "/debug/pprof/profile?seconds=1"},
		{method: "PUT", target: "/debug/flags/v", body: "4"},
		{target: podsPath + "?labelSelector=" + long(maxListTarget-100)},
		{target: podsPath + "?labelSelector=a" + strings.Repeat(",a", maxElements)},
		{target: "/livez", header: http.Header{"X": {long(maxHeaders - 100)}}},
		{target: podsPath, body: "x"},
		{target: podsPath, header: http.Header{"X-Impersonate-User": {"a"}}},

		{target: podsPath, header: http.Header{"Impersonate-User": {""}}, want: 403},
		{target: "/livez", header: http.Header{"Impersonate-Extra-A%2fb": {"a"}}, want: 403},
		{target: "/livez/x", header: http.Header{"Impersonate-User": {"a"}}, want: 404},
		{target: "/livez/x", want: 404},
		{target: "/livez//", want: 404},
		{target: "/apis/apps/v1/pods", want: 404},
		{target: "/apis/metrics.k8s.io/v2/pods", want: 404},
		{target: "/apis/metrics.k8s.io/v1/other", want: 404},
		{target: "/apis/metrics.k8s.io/v1/namespaces/a/pods/b/c", want: 404},
		{target: "/openapi/v3/x", want: 404},
		{target: "/debug/pprof/x", want: 404},
		{target: "/livez%ff", want: 404},
		{target: "/apis/metrics.k8s.io/v1/nodes/%ff", want: 404},
		{method: "POST", target: podsPath, want: 405},
		{method: "DELETE", target: podsPath, body: "{}", want: 405},
		{method: "PUT", target: "/metrics", body: "4", want: 405},
		{method: "X" + long(100), target: "/livez", want: 405},
		{method: "PUT", target: "/debug/flags/v", body: long(maxBody + 1), want: 413},
		{target: "/livez?" + long(maxTarget), want: 414},
		{target: "/" + long(maxTarget), want: 414},
		{target: "/apis/metrics.k8s.io/v1/nodes/n?" + long(maxTarget), want: 414},
		{target: podsPath + "?labelSelector=" + long(maxListTarget), want: 414},
		{target: podsPath + "?labelSelector=a" + strings.Repeat(",a", maxElements+1), want: 400},
		{target: podsPath + "?labelSelector=a" + strings.Repeat("%2ca", maxElements+1), want: 400},
		{target: podsPath + "?" + strings.Repeat("&a", maxElements+1), want: 400},
		{target: podsPath, header: http.Header{"Accept": {strings.Repeat("a/b,", maxElements+1)}}, want: 400},
		{target: "/livez", header: http.Header{"X": {long(maxHeaders)}}, want: 431},
		{target: "/livez", header: http.Header{"X": strings.Split(long(maxHeaders/34+1), "")}, want: 431},
	} {
		if test.method == "" {
			test.method = http.MethodGet
		}
		r := httptest.NewRequest(test.method, test.target, strings.NewReader(test.body))
		if test.header != nil {
			r.Header = test.header
		}
		w := httptest.NewRecorder()
		passed = nil
		h.ServeHTTP(w, r)
		name := fmt.Sprintf("%s %.60s", test.method, test.target)
		if (passed != nil) != (test.want == 0) || test.want != 0 && w.Code != test.want {
			t.Errorf("%s: got status %d, passed: %t; want status %d", name, w.Code, passed != nil, test.want)
		}
		var status metav1.Status
		if err := json.Unmarshal(w.Body.Bytes(), &status); test.want != 0 &&
			(err != nil || status.Kind != "Status" || int(status.Code) != test.want || status.Message == "") {
			t.Errorf("%s: got %v, %+v", name, err, status)
		}
	}
}

// TestBodiesAreIgnored checks that requests with a body get what those without one get, also after it on the same
// connection, as from other API servers. Proxies send empty bodies of unknown length.
func TestBodiesAreIgnored(t *testing.T) {
	config, ca := proxyConfig(t)
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	address, _ := serveTLSWith(t, config, ok)
	conn := dialTLS(t, address, ca.Issue(nil, nil, kubelettest.Subject(pkix.Name{CommonName: "front-proxy"})))
	reader := bufio.NewReader(conn)
	for _, test := range []struct {
		request string
		close   bool
	}{
		{request: "GET /livez HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
		{request: "GET /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}"},
		{request: "GET /livez HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"},
		{request: "GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"},
		{"GET /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n", true},
	} {
		if _, err := io.WriteString(conn, test.request); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			t.Fatalf("%q: %v", test.request, err)
		}
		body, err := io.ReadAll(response.Body)
		if string(body) != "ok" || err != nil || response.Close != test.close {
			t.Errorf("%q: got %q, %v, close: %t", test.request, body, err, response.Close)
		}
		response.Body.Close()
	}
	client := http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}}
	for _, body := range []string{"", "{}", strings.Repeat("x", 100<<10)} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/livez",
			io.MultiReader(strings.NewReader(body))) // of unknown length
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			t.Errorf("a body of %d bytes: got %s, %s", len(body), response.Proto, response.Status)
		}
	}
}

// TestTimeoutIsIgnored checks that the API has no parameter timeout.
func TestTimeoutIsIgnored(t *testing.T) {
	for query, want := range map[string]string{
		"":                             "",
		"limit=5":                      "limit=5",
		"timeout=1ns":                  "",
		"limit=5&%74imeout=x&timeout":  "limit=5",
		"timeoutSeconds=3":             "timeoutSeconds=3",
		"labelSelector=a%3Db&timeout=": "labelSelector=a%3Db",
	} {
		r := httptest.NewRequest(http.MethodGet, podsPath+"?"+query, nil)
		if removeTimeout(r); r.URL.RawQuery != want {
			t.Errorf("%s: got %q, want %q", query, r.URL.RawQuery, want)
		}
	}
}

// allocated returns how many bytes f allocates.
func allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// TestRequestMemory checks what the longest requests take that are parsed before authentication.
func TestRequestMemory(t *testing.T) {
	resolver := withoutSelectors{&request.RequestInfoFactory{
		APIPrefixes: sets.NewString("apis"), GrouplessAPIPrefixes: sets.NewString("api"),
	}}
	fill := func(unit string) string {
		s := strings.Repeat(unit, maxElements-1)
		return s + strings.Repeat("v", max(0, maxListTarget-len(s)-200))
	}
	var headers strings.Builder
	trailers := "Transfer-Encoding: chunked\r\nTrailer: a"
	for i := range 1000 {
		fmt.Fprintf(&headers, "X-%d: yyyyyyyyyy\r\n", i)
		trailers += fmt.Sprintf(",x-%d", i)
	}
	for name, test := range map[string]struct{ target, header string }{
		"headers":      {podsPath, headers.String()},
		"trailers":     {podsPath, trailers + "\r\n"},
		"requirements": {podsPath + "?labelSelector=" + fill("a,"), ""},
		"different":    {podsPath + "?labelSelector=a" + fill("!a,"), ""},
		"values":       {podsPath + "?labelSelector=a+in+(" + fill("v,") + ")", ""},
		"fields":       {podsPath + "?fieldSelector=metadata.name=" + fill(",a=b"), ""},
		"parameters":   {podsPath + "?" + fill("a&"), ""},
	} {
		text := []byte("GET " + test.target + " HTTP/1.1\r\nHost: localhost\r\n" + test.header + "\r\n")
		var r *http.Request
		took := allocated(func() {
			var err error
			if r, err = http.ReadRequest(bufio.NewReader(bytes.NewReader(text))); err != nil {
				t.Fatal(err)
			}
			if _, err := resolver.NewRequestInfo(r); err != nil {
				t.Fatal(err)
			}
		})
		if elements(r) > maxElements || len(r.RequestURI) > maxListTarget || headerSize(r) > maxHeaders {
			t.Errorf("%s: the request would be rejected", name)
		}
		if most := requestMemory + headerMemory*int64(len(r.RequestURI)+headerSize(r)); took > most {
			t.Errorf("%s: the request takes %d bytes, counted are %d", name, took, most)
		}
	}
}
