package api

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"reflect"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/health/healthtest"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/nodez"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
	"github.com/kube-vitals/kube-vitals/pkg/view/viewtest"
)

// TestBlocks lists several blocks of objects, some of them not served, from a real Store and
// Index. Each list, whole and in pages of several sizes, must have what a GET returns of each object.
// The page of nodes must count the same pods.
func TestBlocks(t *testing.T) {
	const batch = usage.ReadAhead
	const nodeCount, podCount = 3*batch + 5, 8*batch + 7
	random := rand.New(rand.NewPCG(1, 2))
	s := viewtest.NewStore(1000)
	scrapes := make([]usage.Scrape, nodeCount)
	sampleAt := func(at usage.NodeTime, i int) usage.Sample {
		return usage.Sample{
			At: at, StartedAt: at.Add(-time.Hour), Memory: uint64(i+1) << 20,
			CPUSeconds: float64(i+1) * (at.Sub(usage.NodeAt(now)) + time.Hour).Seconds(), Has: usage.HasCPU | usage.HasMemory,
		}
	}
	var podList, nodeList []*inventory.Object
	for i := range podCount {
		o := object(fmt.Sprint("team-", i%3), fmt.Sprintf("web-%03d", i), fmt.Sprint("app=", i%2))
		o.Node = fmt.Sprint("node-", i%nodeCount)
		node, container, since := i%nodeCount, "main", usage.NodeAt(now).Add(-time.Minute)
		switch random.IntN(10) {
		case 0: // no metrics
			node = -1
		case 1: // reported by another node only
			node = (node + 1) % nodeCount
		case 2: // bound to a node that is not known
			o.Node = "none"
		case 3: // the metrics are those of a predecessor
			since = usage.NodeAt(now)
		case 4:
			o.Phase = inventory.PodPending
		case 5: // only an init container has metrics
			container = "setup"
		}
		podList = append(podList, running(o, "main", since))
		if node >= 0 {
			scrapes[node].Containers = append(scrapes[node].Containers, usage.ContainerSample{
				Namespace: []byte(o.Namespace), Pod: []byte(o.Name), Name: []byte(container),
			})
		}
	}
	for i := range scrapes {
		nodeList = append(nodeList, object("", fmt.Sprint("node-", i), fmt.Sprint("app=", i%2)))
		if i%10 == 0 { // never scraped
			continue
		}
		for _, ago := range []time.Duration{20 * time.Second, 5 * time.Second} {
			sc := &scrapes[i]
			sc.At = usage.At(now).Add(-ago)
			sc.Node = sampleAt(usage.NodeTime(sc.At), i)
			for j := range sc.Containers {
				sc.Containers[j].Sample = sampleAt(usage.NodeTime(sc.At), i+j)
			}
			s.Put(fmt.Sprint("node-", i), sc)
		}
	}
	type items []map[string]any
	config := configOf(podList, nodeList, s)
	h := serve(t, config)
	// want returns what GETs return of the objects, in the order of a list.
	want := func(index *inventory.Index, matches func(o *inventory.Object) bool) (served items) {
		for _, o := range viewtest.Objects(index) {
			path := v1Path + "/nodes/" + o.Name
			if o.Namespace != "" {
				path = v1Path + "/namespaces/" + o.Namespace + "/pods/" + o.Name
			}
			if !matches(o) {
				continue
			}
			w := do(h, http.MethodGet, path, jsonType)
			if w.Code != http.StatusOK {
				continue
			}
			var item map[string]any
			if err := json.Unmarshal(w.Body.Bytes(), &item); err != nil {
				t.Fatal(err)
			}
			delete(item, "kind")
			delete(item, "apiVersion")
			served = append(served, item)
		}
		return served
	}
	pods, nodes := config.View.Pods, config.View.Nodes
	all := func(*inventory.Object) bool { return true }
	for _, test := range []struct {
		path, selector string
		want           items
	}{
		{"/nodes", "", want(nodes, all)},
		{"/pods", "", want(pods, all)},
		{"/pods", "app=1", want(pods, func(o *inventory.Object) bool { return o.Labels.Get("app") == "1" })},
		{"/namespaces/team-1/pods", "", want(pods, func(o *inventory.Object) bool { return o.Namespace == "team-1" })},
	} {
		if len(test.want) < batch {
			t.Fatalf("%s: only %d objects are served", test.path, len(test.want))
		}
		for _, limit := range []int{0, 7, batch - 1, batch, batch + 1, 3 * batch} {
			var got items
			query := url.Values{"limit": {fmt.Sprint(limit)}, "labelSelector": {test.selector}}
			for pages := 0; pages == 0 || query.Get("continue") != ""; pages++ {
				page := get[struct {
					Metadata struct{ Continue string }
					Items    items
				}](t, h, v1Path+test.path+"?"+query.Encode(), http.StatusOK)
				query.Set("continue", page.Metadata.Continue)
				if limit > 0 && page.Metadata.Continue != "" && len(page.Items) != limit {
					t.Errorf("%s: got a page of %d, want %d", test.path, len(page.Items), limit)
				}
				got = append(got, page.Items...)
			}
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("%s %s, limit %d: got %d items, want %d as in GETs",
					test.path, test.selector, limit, len(got), len(test.want))
			}
		}
	}

	var known []health.Node
	for _, o := range viewtest.Objects(nodes) {
		known = append(known, health.Node{Name: o.Name})
	}
	page := nodez.Config{
		Source: &healthtest.Source{List: known}, MaxSampleAge: time.Minute,
		View: config.View, Clock: config.Clock, Now: config.Now, Memory: func() *nodez.Memory { return nil },
	}
	report, served := page.Report(), len(want(pods, all))
	if report.Totals.PodsWithMetrics != served || report.Totals.Containers != served {
		t.Errorf("the page counts %d pods with %d containers, LIST has %d pods of one container",
			report.Totals.PodsWithMetrics, report.Totals.Containers, served)
	}
	for _, n := range report.Nodes {
		onNode := want(pods, func(o *inventory.Object) bool { return o.Node == n.Name })
		if n.Pods != len(onNode) {
			t.Errorf("node %s: the page counts %d pods, LIST has %d", n.Name, n.Pods, len(onNode))
		}
	}
}
