package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/engine"
	"github.com/kube-vitals/kube-vitals/pkg/nodez"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// engineCluster returns a cluster with the nodes n1 and n2, and with a pod of a node that does not exist.
func engineCluster(t *testing.T) *cluster {
	cluster := newCluster(t)
	for _, name := range []string{"n1", "n2"} {
		cluster.add(nodeAt(name, netip.MustParseAddrPort("192.0.2.1:10250")))
	}
	cluster.add(runningPod("shop", "web", "gone"))
	return cluster
}

// TestReasonsOfFailingEngine checks that the metrics of the server, the API and the page of nodes name
// the reason why an engine cannot be read. TestFaults of pkg/engine has the other reasons of responses,
// and TestOf of pkg/reason those of connections.
func TestReasonsOfFailingEngine(t *testing.T) {
	login := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprint(w, "<html>")
	}))
	t.Cleanup(login.Close)
	for r, url := range map[reason.Reason]string{
		reason.ConnectRefused: "http://127.0.0.1:1", reason.BadFormat: login.URL,
	} {
		t.Run(string(r), func(t *testing.T) {
			c := engineCluster(t).config(t)
			c.Engine = engine.Config{URL: url}
			c.MaxSampleAge = time.Hour // a refresh takes a third of that at most
			client := start(t, c)
			client.awaitSeries(fmt.Sprintf(`kube_vitals_engine_refreshes_total{reason=%q,result="failure"} `, r))
			var page nodez.Report
			client.read(&page, http.StatusOK, "/nodez?format=json")
			d := r.DescribeEngine()
			if e := page.Engine; e == nil || e.State != nodez.Failing || e.Reason != r || e.Problem != d.Problem ||
				e.Cure != d.Cure || e.URL != reason.EngineFailing.URL() || e.Error == "" || e.Failures == 0 {
				t.Errorf("/nodez has the engine %+v", e)
			}
			if n := page.Nodes; len(n) != 2 || n[0].Reason != reason.EngineFailing {
				t.Errorf("/nodez has the nodes %+v", n)
			}
			var status metav1.Status
			client.read(&status, http.StatusNotFound, nodesPath+"/n1")
			want := "with the reason " + string(r) + ": " + d.Problem + " (" + d.Cure + "); see " + reason.EngineFailing.URL()
			if causes := causesOf(status); causes != string(reason.EngineFailing) || !strings.HasSuffix(status.Message, want) {
				t.Errorf("got %q with causes %q", status.Message, causes)
			}
		})
	}
}

// TestEngineWithoutNode checks what a server says about a node without series in a working engine,
// and about pods: nothing about scrapes of kubelets, since it does none.
func TestEngineWithoutNode(t *testing.T) {
	now := float64(time.Now().UnixMilli()) / 1000
	fake := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
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
	t.Cleanup(fake.Close)
	c := engineCluster(t).config(t)
	c.Engine = engine.Config{URL: fake.URL}
	c.MaxSampleAge = 150 * time.Second
	c.MissingMetricsWarnings = true
	h := startReady(t, c).handler

	const pods = "/apis/metrics.k8s.io/v1/namespaces/shop/pods"
	for _, test := range []struct{ path, user, want string }{
		{nodesPath + "/n2", "alice", "the engine has no current series of the node (check that"},
		{nodesPath + "/n2", "alice", string(reason.NotInEngine)},
		{pods + "/web", "tenant", `pod \"web\" is running in namespace \"shop\", but there are no current metrics of it ` +
			`in the engine that kube-vitals reads"`},
		{"/metrics", "alice", "\nkube_vitals_engine_nodes_without_series 1\n"},
		{"/metrics", "alice", "\nkube_vitals_memory_limit_bytes "},
		{"/metrics", "alice", "\nkube_vitals_engine_last_success_timestamp_seconds 1"},
	} {
		if body := get(h, test.path, test.user).Body.String(); !strings.Contains(body, test.want) {
			t.Errorf("%s as %s: got %s, want %s", test.path, test.user, body, test.want)
		}
	}
	var status metav1.Status
	w := get(h, pods+"/web", "tenant")
	if err := json.Unmarshal(w.Body.Bytes(), &status); err != nil || causesOf(status) != "" {
		t.Errorf("the tenant got the causes %q, %v", causesOf(status), err)
	}
	const warning = `[299 - "1 of 2 nodes has no metrics: 1 that cannot be read (n2: not-in-engine)"]`
	for _, test := range []struct{ path, user, want string }{
		{nodesPath, "alice", warning}, {nodesPath, "tenant", "[]"}, {pods, "tenant", "[]"},
	} {
		w := get(h, test.path, test.user)
		if got := fmt.Sprint(w.Header()["Warning"]); w.Code != http.StatusOK || got != test.want {
			t.Errorf("%s as %s: got %d with warning %s, want %s", test.path, test.user, w.Code, got, test.want)
		}
	}
	var page nodez.Report
	w = get(h, nodez.Path+"?format=json", "alice")
	if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil {
		t.Fatal(err)
	}
	if n := page.Nodes; len(n) != 2 || n[0].State != nodez.Ready || n[0].SampleIntervalSeconds == nil ||
		*n[0].SampleIntervalSeconds != 15 || n[1].Reason != reason.NotInEngine || page.Engine.State != nodez.Ready {
		t.Errorf("got %s", w.Body)
	}
}
