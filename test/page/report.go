// Package page tests the page of nodes, /nodez, in a headless Chromium.
package page

import (
	"fmt"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/nodez"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// newReport returns a report of n nodes. Some fail, for several reasons, and some are stale.
func newReport(n int) *nodez.Report {
	now := time.Now().UTC().Truncate(time.Millisecond)
	ago := func(seconds int) *time.Time { return new(now.Add(-time.Duration(seconds) * time.Second)) }
	r := &nodez.Report{Time: now, Version: "v0.4.0", MetricResolutionSeconds: 15, MaxSampleAgeSeconds: 60}
	r.Memory = &nodez.Memory{ResidentBytes: 40<<20 + uint64(n)*250<<10, LimitBytes: 1 << 30}
	t := &r.Totals
	t.Nodes, t.States, t.Reasons = n, map[nodez.State]int{}, map[reason.Reason]int{}
	problems := map[int]reason.Reason{
		0: reason.TLSSelfSigned, 50: reason.ConnectRefused, 100: reason.ClockSkew, 150: reason.StaleSamples,
	}
	for i := range n {
		last, pods := i*7%15, 25+i*3%10
		node := nodez.Node{
			Name:       fmt.Sprintf("ip-10-0-%d-%d.eu-central-1.compute.internal", i>>7, 10+i&127),
			Address:    fmt.Sprintf("10.0.%d.%d:10250", i>>7, 10+i&127),
			State:      nodez.Ready,
			LastScrape: ago(last), LastSuccess: ago(last), NextScrape: ago(last - 15),
			DurationSeconds: float64(4+i*11%37) / 1000, MetricsAgeSeconds: new(float64(last + i%10)),
			ClockSkewSeconds: new(float64(i*13%41-20) / 1000), Samples: 2*pods + 1, Pods: pods, RunningPods: pods,
		}
		if why := problems[i%250]; why != "" {
			d := why.Describe()
			node.Diagnosis = nodez.Diagnosis{Reason: why, Problem: d.Problem, Cure: d.Cure, URL: why.URL(),
				Error: fmt.Sprintf("the request to %s failed", node.Address)}
			node.State, node.MetricsAgeSeconds, node.Pods = nodez.Stale, nil, 0
			if why != reason.StaleSamples {
				node.State, node.FailingSince, node.LastSuccess, node.Failures = nodez.Failing, ago(i+45), nil, 3
				t.FailingNodes++
			}
			t.Reasons[why]++
		} else {
			t.NodesWithMetrics++
		}
		t.States[node.State]++
		t.Pods, t.PodsWithMetrics, t.Containers = t.Pods+pods, t.PodsWithMetrics+node.Pods, t.Containers+2*node.Pods
		r.Nodes = append(r.Nodes, node)
	}
	return r
}
