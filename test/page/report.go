// Package page tests the page of nodes, /nodez, in a headless Chromium.
package page

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/nodez"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// problem is a failure of some nodes.
type problem struct {
	reason reason.Reason
	err    string // with the node's name and address
	share  int    // of 1000 nodes
}

func problems() []problem {
	return []problem{
		{reason.TLSSelfSigned, `node "%s": the kubelet's certificate is self-signed: tls: failed to verify certificate: ` +
			`x509: certificate signed by unknown authority (set serverTLSBootstrap in the kubelet's configuration, then ` +
			`check and approve its certificate request, or pin its key with --kubelet-pins, which kubelet.tls=pin of ` +
			`the chart sets)`, 6},
		{reason.ConnectRefused, `node "%s": the kubelet's port refuses connections: dial tcp %s: connect: ` +
			`connection refused (check that the kubelet runs, and check --kubelet-port and ` +
			`--kubelet-use-node-status-port)`, 3},
		{reason.ConnectTimeout, `node "%s": connecting to %s took longer than 10s (check the routes, firewalls and ` +
			`NetworkPolicies between kube-vitals and the node, and whether the node is up)`, 2},
		{reason.ClockSkew, `node "%s": no sample of the kubelet has a valid time: the sample of the node is dated ` +
			`1h0m2s ahead (set the node's clock, for example by NTP)`, 1},
	}
}

// newReport returns a report of n nodes: most are ready, and at least one fails if there are
// several.
func newReport(n int, at time.Time) *nodez.Report {
	random := rand.New(rand.NewPCG(1, uint64(n)))
	at = at.UTC().Truncate(time.Millisecond)
	r := &nodez.Report{
		Time: at, Version: "v0.4.0", MetricResolutionSeconds: 15, MaxSampleAgeSeconds: 60,
		Totals: nodez.Totals{
			Nodes: n, Reasons: map[reason.Reason]int{},
			States: map[nodez.State]int{nodez.Ready: 0, nodez.Failing: 0, nodez.Stale: 0, nodez.Starting: 0},
		},
		Memory: &nodez.Memory{
			ResidentBytes: 40<<20 + uint64(n)*250<<10,
			LimitBytes:    200<<20 + uint64(n)*400<<10,
		},
	}
	for i := range n {
		node := newNode(i, n, at, random)
		count(r, &node)
		r.Nodes = append(r.Nodes, node)
	}
	return r
}

func newNode(i, n int, at time.Time, random *rand.Rand) nodez.Node {
	ago := func(seconds float64) *time.Time {
		t := at.Add(-time.Duration(seconds * float64(time.Second))).Truncate(time.Millisecond)
		return &t
	}
	last, running := 15*random.Float64(), 25+random.IntN(10)
	age, skew := last+10*random.Float64(), 0.02*random.NormFloat64()
	node := nodez.Node{
		Name:       fmt.Sprintf("ip-10-%d-%d-%d.eu-central-1.compute.internal", i>>14&255, i>>6&255, 10+i&63),
		Address:    fmt.Sprintf("10.%d.%d.%d:10250", i>>14&255, i>>6&255, 10+i&63),
		State:      nodez.Ready,
		LastScrape: ago(last), LastSuccess: ago(last), NextScrape: ago(last - 15),
		DurationSeconds:   0.004 + 0.012*random.ExpFloat64(),
		MetricsAgeSeconds: &age, ClockSkewSeconds: &skew,
		Samples: 2*running + 1, Pods: running, RunningPods: running,
	}
	chosen := i * 1000 / n
	if n < 100 && i == n-1 {
		chosen = 0
	}
	if n < 100 && i != n-1 {
		return node
	}
	for _, p := range problems() {
		if chosen < p.share {
			fail(&node, p, i, ago, random)
			return node
		}
		chosen -= 200
		if chosen < 0 {
			return node
		}
	}
	switch {
	case chosen == 0:
		node.State, node.MetricsAgeSeconds, node.Pods = nodez.Stale, nil, 0
		describe(&node, reason.StaleSamples)
	case chosen == 2:
		node.State, node.MetricsAgeSeconds = nodez.Starting, nil
		node.LastScrape, node.LastSuccess, node.NextScrape = nil, nil, nil
		node.DurationSeconds, node.Samples, node.Pods, node.ClockSkewSeconds = 0, 0, 0, nil
	case chosen%40 == 7:
		node.Pods--
	}
	return node
}

// fail sets the fields of a node whose last scrape failed. Every third one still has metrics.
func fail(node *nodez.Node, p problem, i int, ago func(float64) *time.Time, random *rand.Rand) {
	since := 20 + 3000*random.Float64()
	node.State, node.FailingSince, node.LastSuccess = nodez.Failing, ago(since), ago(since+15)
	node.Failures = 1 + int(since/15)
	node.MetricsAgeSeconds, node.Pods = nil, 0
	if i%3 == 0 {
		age := 48.5
		node.MetricsAgeSeconds, node.Pods, node.Failures = &age, node.RunningPods, 2
		node.FailingSince, node.LastSuccess = ago(30), ago(45)
	}
	if p.reason == reason.ClockSkew {
		skew := 3602.4
		node.ClockSkewSeconds = &skew
	}
	node.Error = fmt.Sprintf(p.err+"%.0[2]s", node.Name, node.Address)
	describe(node, p.reason)
}

func describe(node *nodez.Node, r reason.Reason) {
	d := r.Describe()
	node.Reason, node.Problem, node.Cure, node.URL = r, d.Problem, d.Cure, r.URL()
}

// count adds a node to the totals.
func count(r *nodez.Report, node *nodez.Node) {
	t := &r.Totals
	t.States[node.State]++
	if node.State == nodez.Failing {
		t.FailingNodes++
	}
	if node.MetricsAgeSeconds != nil {
		t.NodesWithMetrics++
	}
	if node.Reason != "" {
		t.Reasons[node.Reason]++
	}
	t.Pods += node.RunningPods
	t.PodsWithMetrics += node.Pods
	t.Containers += 2 * node.Pods
}
