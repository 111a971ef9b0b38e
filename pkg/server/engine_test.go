package server

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/nodez"
	"github.com/kube-vitals/kube-vitals/pkg/prometheus"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// TestReasonsOfFailingEngine provokes every reason why an engine cannot be read, each with a server
// of its own, and checks that the metrics of the server, the API and the page of nodes name it.
func TestReasonsOfFailingEngine(t *testing.T) {
	notProvoked := map[reason.Reason]string{
		reason.Unreachable:     "needs a network without a route",
		reason.ConnectTimeout:  "TestReasonsOfFailingNodes: both clients use the errors of package net",
		reason.TLSExpired:      "TestReasonsOfFailingNodes: both clients use the errors of package x509",
		reason.TLSName:         "TestReasonsOfFailingNodes: both clients use the errors of package x509",
		reason.Canceled:        "the server is stopping",
		reason.InternalFailure: "a bug",
	}
	engines := failingEngines(t)
	for _, r := range reason.Refreshes() {
		url, ok := engines[r]
		if _, known := notProvoked[r]; ok == known {
			t.Errorf("%s: provoked %v, want %v", r, ok, !known)
		}
		if !ok {
			continue
		}
		t.Run(string(r), func(t *testing.T) {
			t.Parallel()
			cluster := newCluster(t)
			cluster.nodes = append(cluster.nodes, nodeAt("n1", netip.MustParseAddrPort("192.0.2.1:10250")))
			c, address := cluster.config(t)
			config := "maxResponseBytes: 100000\n"
			if r != reason.Timeout {
				config += "timeout: 1m\n" // by default, it is the resolution
			}
			file := filepath.Join(t.TempDir(), "config.yaml")
			if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			c.Prometheus = &prometheus.Config{URL: url, File: file}
			c.Resolution, c.MaxSampleAge = time.Second, time.Hour // a refresh takes a third of that at most
			start(t, c)
			client := newClient(t, address)
			eventually(t, func() string { return strings.Join(wrongEngineReasons(t, client, r), "\n") })
		})
	}
}

// wrongEngineReasons returns what does not name the reason of the engine.
func wrongEngineReasons(t *testing.T, client *client, r reason.Reason) (wrong []string) {
	t.Helper()
	d := r.DescribeEngine()
	series := fmt.Sprintf(`kube_vitals_engine_refreshes_total{reason=%q,result="failure"} `, r)
	if metrics := client.await(http.StatusOK, "/metrics", "alice"); !strings.Contains(metrics, series) {
		found := grep(metrics, "engine_refreshes_total{")
		wrong = append(wrong, fmt.Sprintf("/metrics does not have %s but %s", series, found))
	}
	var page nodez.Report
	client.read(&page, http.StatusOK, "/nodez?format=json")
	if e := page.Engine; e == nil || e.State != nodez.Failing || e.Reason != r || e.Problem != d.Problem ||
		e.Cure != d.Cure || e.URL != reason.EngineFailing.URL() || e.Error == "" || e.Failures == 0 {
		wrong = append(wrong, fmt.Sprintf("/nodez has %+v", e))
	}
	failing := func(n nodez.Node) bool { return n.Name == "n1" && n.Reason == reason.EngineFailing }
	if !slices.ContainsFunc(page.Nodes, failing) {
		wrong = append(wrong, fmt.Sprintf("/nodez has the nodes %+v", page.Nodes))
	}
	var status metav1.Status
	client.read(&status, http.StatusNotFound, nodesPath+"/n1")
	want := "with the reason " + string(r) + ": " + d.Problem + " (" + d.Cure + "); see " + reason.EngineFailing.URL()
	if status.Details == nil || len(status.Details.Causes) != 1 ||
		status.Details.Causes[0].Type != metav1.CauseType(reason.EngineFailing) || !strings.HasSuffix(status.Message, want) {
		wrong = append(wrong, fmt.Sprintf("got %q with details %+v", status.Message, status.Details))
	}
	return wrong
}

// failingEngines returns the URL of an engine for each reason why engines cannot be read.
func failingEngines(t *testing.T) map[reason.Reason]string {
	listen := func(h http.HandlerFunc) string {
		s := httptest.NewServer(h)
		t.Cleanup(s.Close)
		return s.URL
	}
	respond := func(status int, contentType, body string) string {
		return listen(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.WriteHeader(status)
			io.WriteString(w, body)
		})
	}
	const jsonType, success = "application/json", `{"status":"success","data":{"resultType":"matrix","result":[`
	withTLS := httptest.NewTLSServer(http.NotFoundHandler())
	t.Cleanup(withTLS.Close)
	return map[reason.Reason]string{
		reason.DNS:            "http://engine.invalid:9090",
		reason.ConnectRefused: "http://" + closedPort(t).String(),
		reason.Timeout: listen(func(_ http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body) // or else the end of the connection is not noticed
			<-r.Context().Done()
		}),
		reason.ConnectionLost: listen(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }),
		reason.BadHTTP:        "http://" + speaking(t, nil, "SSH-2.0-OpenSSH_9.2\r\n").String(),
		reason.TLSAuthority:   withTLS.URL,
		reason.TLSHandshake:   "https://" + speaking(t, nil, "SSH-2.0-OpenSSH_9.2\r\n").String(),
		reason.Unauthorized:   respond(http.StatusUnauthorized, "text/plain", ""),
		reason.Forbidden:      respond(http.StatusForbidden, "text/plain", ""),
		reason.NotFound:       respond(http.StatusNotFound, "text/plain", ""),
		reason.ServerError:    respond(http.StatusInternalServerError, "text/plain", ""),
		reason.BadStatus:      respond(http.StatusUnprocessableEntity, "text/plain", ""),
		reason.BadFormat:      respond(http.StatusOK, "text/html", "<html>"),
		reason.BodyTooLarge: listen(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", jsonType)
			io.WriteString(w, success)
			io.WriteString(w, strings.Repeat(" ", 1<<20))
		}),
		reason.Truncated:   respond(http.StatusOK, jsonType, success),
		reason.Undecodable: respond(http.StatusOK, jsonType, "[]"),
		reason.NoSamples:   respond(http.StatusOK, jsonType, success+"]}}"),
	}
}

// TestEngineWithoutNode checks what a server says about a node of which a working engine has no
// series, and about its pods.
func TestEngineWithoutNode(t *testing.T) {
	now := float64(time.Now().UnixMilli()) / 1000
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		result := ""
		switch query := r.FormValue("query"); {
		case strings.HasPrefix(query, "node_cpu"):
			result = fmt.Sprintf(`{"metric":{"node":"n1"},"values":[[%f,"1"],[%f,"2"]]}`, now-30, now-15)
		case strings.Contains(query, "node_memory"):
			result = fmt.Sprintf(`{"metric":{"node":"n1"},"value":[%f,"5"]}`, now-15)
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"status":"success","data":{"resultType":"matrix","result":[%s]}}`, result)
	}))
	t.Cleanup(engine.Close)
	cluster := newCluster(t)
	for _, name := range []string{"n1", "n2"} {
		cluster.nodes = append(cluster.nodes, nodeAt(name, netip.MustParseAddrPort("192.0.2.1:10250")))
	}
	c, _ := cluster.config(t)
	c.Prometheus = &prometheus.Config{URL: engine.URL}
	c.MaxSampleAge = 150 * time.Second
	c.MissingMetricsWarnings = true
	h := startHandler(t, c)

	body := getTable(h, nodesPath+"/n2", "alice").Body.String()
	if !strings.Contains(body, "the engine has no current series of the node (check that") ||
		!strings.Contains(body, string(reason.NotInEngine)) {
		t.Errorf("got %s", body)
	}
	const want = `[299 - "1 of 2 nodes has no metrics: 1 that cannot be read (n2: not-in-engine)"]`
	if got := fmt.Sprint(getTable(h, nodesPath, "alice").Header()["Warning"]); got != want {
		t.Errorf("got warning %s, want %s", got, want)
	}
	if got := getTable(h, nodesPath, "tenant").Header()["Warning"]; got != nil {
		t.Errorf("a user who may not get nodes got warning %s", got)
	}
	const metric = "\nkube_vitals_engine_nodes_without_series 1\n"
	if metrics := getTable(h, "/metrics", "alice").Body.String(); !strings.Contains(metrics, metric) {
		t.Errorf("got %s, want %s", grep(metrics, "without_series"), metric)
	}
	var page nodez.Report
	w := getTable(h, nodez.Path+"?format=json", "alice")
	if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil {
		t.Fatal(err)
	}
	if n := page.Nodes; len(n) != 2 || n[0].State != nodez.Ready || n[0].SampleIntervalSeconds == nil ||
		*n[0].SampleIntervalSeconds != 15 || n[1].Reason != reason.NotInEngine || page.Engine.State != nodez.Ready {
		t.Errorf("got %s", w.Body)
	}
	if got := serve(h, nodez.Path, ""); got != http.StatusUnauthorized {
		t.Errorf("%s without credentials: got %d, want %d", nodez.Path, got, http.StatusUnauthorized)
	}
}
