package event

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/internal/sim"
	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/reason/reasontest"
)

// Failures of requests for the API server.
var (
	refused   = &sim.Refusal{}
	forbidden = sim.Refuse(403, metav1.StatusReasonForbidden, "no RBAC")
	outages   = []*sim.Refusal{
		refused, sim.Refuse(503, metav1.StatusReasonServiceUnavailable, "etcd is down"),
		sim.Refuse(429, metav1.StatusReasonTooManyRequests, "busy"),
	}
)

// hanging is a latency of an API server that responds to no request in time.
const hanging = 100 * 365 * 24 * time.Hour

func TestNodeFailsAndRecovers(t *testing.T) {
	run(t, 20, func(c *cluster) {
		c.pass(10 * interval)
		c.fail(reason.TLSSelfSigned, 7, 7)
		c.pass(interval) // it has failed for less than an interval
		c.want()
		c.pass(2 * interval)
		c.want("n7 MetricsUnavailable tls-self-signed x1")
		e := c.recorded()[0]
		wantRef := corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "n7", UID: "uid-n7"}
		if e.InvolvedObject != wantRef || e.Namespace != "default" ||
			e.Type != "Warning" || e.Source.Component != "kube-vitals" {
			t.Errorf("got %+v", e)
		}
		const want = "kube-vitals cannot read the metrics of this node: the kubelet's certificate is self-signed " +
			"(tls-self-signed): set serverTLSBootstrap in the kubelet's configuration, then check and approve its " +
			"certificate request, " +
			"or pin its key with --kubelet-pins, which kubelet.tls=pin of the chart sets; see " +
			"https://github.com/kube-vitals/kube-vitals/blob/main/docs/troubleshooting.md#tls-self-signed"
		if e.Message != want {
			t.Errorf("got message %q", e.Message)
		}
		c.fail("", 7, 7)
		c.pass(2 * interval)
		c.want("n7 MetricsUnavailable tls-self-signed x1", "n7 MetricsRestored x1")
		if e := c.recorded()[1]; e.Type != "Normal" || e.InvolvedObject != wantRef ||
			e.Message != "kube-vitals can read the metrics of this node again" {
			t.Errorf("got %+v", e)
		}
		if n := c.tracked(); n > 0 {
			t.Errorf("the state of %d nodes is kept", n)
		}
	})
}

// TestShortFailuresAreNotReported covers a kubelet that restarts, and one that loses 3 of 10
// requests, after which its metrics never expire.
func TestShortFailuresAreNotReported(t *testing.T) {
	run(t, 20, func(c *cluster) {
		for range 50 {
			c.fail(reason.ConnectRefused, 1, 1)
			c.pass(10 * time.Second)
			c.fail("", 1, 1)
			c.pass(time.Minute)
		}
		c.want()
	})
}

func TestCanceledScrapesAreNotFailures(t *testing.T) {
	run(t, 20, func(c *cluster) {
		c.fail(reason.Canceled, 1, 1)
		c.pass(time.Hour)
		c.want()
	})
}

// TestEventIsRepeated checks that the API server, which deletes events after an hour, always has
// one of a node that fails for a day.
func TestEventIsRepeated(t *testing.T) {
	run(t, 3, func(c *cluster) {
		c.fail(reason.TLSExpired, 1, 1)
		c.pass(3 * interval)
		for range 24 {
			c.pass(time.Hour)
			if age := time.Since(c.recorded()[0].LastTimestamp.Time); age > 31*time.Minute {
				t.Fatalf("the event is %v old", age)
			}
		}
		c.want("n1 MetricsUnavailable tls-expired x49")
		if first := c.recorded()[0].FirstTimestamp; time.Since(first.Time) < 24*time.Hour {
			t.Errorf("the first time is %v", first)
		}
		// After the API server has deleted it, there is a new one.
		c.deleteEvents()
		c.pass(31 * time.Minute)
		c.want("n1 MetricsUnavailable tls-expired x50")
	})
}

func TestReasonChanges(t *testing.T) {
	run(t, 20, func(c *cluster) {
		c.fail(reason.ConnectRefused, 1, 1)
		c.pass(5 * interval)
		c.fail(reason.TLSExpired, 1, 1)
		c.pass(5 * interval)
		c.want("n1 MetricsUnavailable connect-refused x1", "n1 MetricsUnavailable tls-expired x1")
		// A reason that alternates causes no further events.
		for range 200 {
			c.fail(reason.Timeout, 1, 1)
			c.pass(interval)
			c.fail(reason.TLSExpired, 1, 1)
			c.pass(interval)
		}
		for _, e := range c.recorded() {
			if e.Count > 4 || len(c.recorded()) > 2 {
				t.Fatalf("got %q", c.lines())
			}
		}
		c.fail("", 1, 1)
		c.pass(2 * interval)
		if got := c.lines()[0]; got != "n1 MetricsRestored x1" {
			t.Errorf("got %q", c.lines())
		}
	})
}

// TestFlappingNode checks that the events of a node that flaps are counted in two objects, and that the
// latest one is never that it fails once it has recovered.
func TestFlappingNode(t *testing.T) {
	run(t, 3, func(c *cluster) {
		const rounds = 500
		for i := range rounds {
			c.fail(reason.ConnectRefused, 1, 1)
			c.pass(time.Duration(3+i%7) * interval)
			c.fail("", 1, 1)
			c.pass(time.Duration(2+i%5) * interval)
			if last := c.latest(); last.Reason != metricsRestored {
				t.Fatalf("after %d recoveries, the latest event is %s at %v", i+1, last.Reason, last.LastTimestamp)
			}
		}
		if len(c.recorded()) != 2 { // of equal messages
			t.Errorf("got events %q", c.lines())
		}
		if limit := 2 * rounds; c.sent() > limit {
			t.Errorf("got %d requests, want at most %d", c.sent(), limit)
		}
	})
}

// TestRecoveryDuringOutage checks that the recovery of a node is reported if the API server becomes
// unavailable at the same time, for less than two minutes.
func TestRecoveryDuringOutage(t *testing.T) {
	for _, refusal := range outages {
		run(t, 20, func(c *cluster) {
			c.fail(reason.ConnectRefused, 1, 1)
			c.pass(5 * interval)
			c.refuse("events", refusal)
			c.fail("", 1, 1)
			c.pass(90 * time.Second)
			c.refuse("events", nil)
			c.pass(time.Minute)
			c.want("n1 MetricsUnavailable connect-refused x1", "n1 MetricsRestored x1")
		})
	}
}

// TestTimesOfOutage has events that are written after an outage. Their times are from before it: the nodes
// may have recovered since.
func TestTimesOfOutage(t *testing.T) {
	run(t, 100, func(c *cluster) {
		c.refuse("events", refused)
		c.fail(reason.ConnectRefused, 1, 3)
		c.pass(5 * interval)
		began := time.Now()
		c.fail("", 1, 3)
		c.pass(30 * time.Second)
		c.refuse("events", nil)
		c.pass(time.Minute)
		times := map[string]int{}
		for _, e := range c.recorded() {
			times[fmt.Sprint(e.Reason, " ", e.FirstTimestamp.Time.Before(began), " ", e.LastTimestamp.Time.Before(began))]++
		}
		want := map[string]int{metricsUnavailable + " true true": 3, metricsRestored + " false false": 3}
		if !maps.Equal(times, want) {
			t.Errorf("got %v, want %v", times, want)
		}
	})
}

// TestLongOutage checks that the events of a long outage are not written when it ends, long after the nodes
// have recovered.
func TestLongOutage(t *testing.T) {
	run(t, 100, func(c *cluster) {
		c.refuse("events", sim.Refuse(500, metav1.StatusReasonInternalError, "failed calling webhook"))
		c.fail(reason.ConnectRefused, 1, 10)
		c.pass(5 * interval)
		c.fail("", 1, 10)
		c.pass(10 * time.Minute)
		c.refuse("events", nil)
		c.pass(time.Minute)
		c.want()
		c.fail(reason.ConnectRefused, 1, 1)
		c.pass(5 * interval)
		if got := c.lines(); len(got) != 1 || !strings.HasPrefix(got[0], "n1 MetricsUnavailable") {
			t.Errorf("got %q", got)
		}
	})
}

// TestManyNodes lets all nodes fail at once, as if kube-vitals itself had lost the network, fast or
// until the timeout of each request.
func TestManyNodes(t *testing.T) {
	for _, slow := range []bool{false, true} {
		for _, phase := range []time.Duration{0, interval / 2} {
			t.Run(fmt.Sprintf("slow=%t,phase=%v", slow, phase), func(t *testing.T) {
				run(t, 100, func(c *cluster) {
					c.setSlow(reason.ConnectTimeout, slow)
					c.pass(2*interval + phase)
					c.fail(reason.ConnectTimeout, 1, 100)
					c.pass(5 * interval)
					c.want("kube-vitals MetricsUnavailable connect-timeout x1")
					e := c.recorded()[0]
					if e.InvolvedObject != theDeployment || e.Namespace != "kube-system" || e.Type != "Warning" {
						t.Errorf("got %+v", e)
					}
					const want = "of 100 nodes: the kubelet cannot be connected to in time (connect-timeout): "
					if !strings.Contains(e.Message, want) {
						t.Errorf("got message %q", e.Message)
					}
					c.pass(40 * time.Minute)
					if n := len(c.recorded()); n > 2 { // the number of nodes in the first one may differ
						t.Errorf("got events %q", c.lines())
					}
					c.fail("", 1, 100)
					c.deleteEvents()
					c.pass(6 * interval)
					c.want("kube-vitals MetricsRestored x1")
					if got := c.recorded()[0].Message; got != "kube-vitals can read the metrics of 100 of 100 nodes again" {
						t.Errorf("got message %q", got)
					}
					if n := c.tracked(); n > 0 {
						t.Errorf("the state of %d nodes is kept", n)
					}
				})
			})
		}
	}
}

// TestFewNodes checks that up to a tenth of the nodes, and up to 2 in small clusters, are reported
// one by one.
func TestFewNodes(t *testing.T) {
	for _, tt := range []struct {
		nodes, failing int
		isMany         bool
	}{
		{1, 1, false}, {3, 1, false}, {3, 2, false}, {20, 2, false}, {100, 10, false}, {300, 30, false},
		{3, 3, true}, {20, 3, true}, {100, 11, true}, {300, 31, true},
	} {
		run(t, tt.nodes, func(c *cluster) {
			c.fail(reason.TLSAuthority, 1, tt.failing)
			c.pass(4 * interval)
			want := []string{"kube-vitals MetricsUnavailable tls-unknown-authority x1"}
			if !tt.isMany {
				want = nil
				for i := range tt.failing {
					want = append(want, fmt.Sprintf("n%d MetricsUnavailable tls-unknown-authority x1", i+1))
				}
			}
			c.want(want...)
		})
	}
}

// TestManyNodesAfterFew checks that reported nodes stay reported while many others fail, and that
// those that still fail afterwards are reported.
func TestManyNodesAfterFew(t *testing.T) {
	run(t, 100, func(c *cluster) {
		c.fail(reason.TLSExpired, 1, 1)
		c.pass(4 * interval)
		c.fail(reason.TLSExpired, 2, 40)
		c.pass(4 * interval)
		c.want("n1 MetricsUnavailable tls-expired x1", "kube-vitals MetricsUnavailable tls-expired x1")
		c.fail("", 1, 30) // 10 of 100 nodes still fail, which is more than half of the limit
		c.pass(4 * interval)
		c.want("n1 MetricsUnavailable tls-expired x1", "kube-vitals MetricsUnavailable tls-expired x1",
			"n1 MetricsRestored x1")
		c.fail("", 31, 38)
		c.pass(6 * interval)
		c.want("n1 MetricsUnavailable tls-expired x1", "kube-vitals MetricsUnavailable tls-expired x1",
			"n1 MetricsRestored x1", "kube-vitals MetricsRestored x1",
			"n39 MetricsUnavailable tls-expired x1", "n40 MetricsUnavailable tls-expired x1")
		c.fail("", 39, 40)
		c.pass(4 * interval)
		if n := c.tracked(); n > 0 || len(c.recorded()) != 8 {
			t.Errorf("the state of %d nodes is kept, events %q", n, c.lines())
		}
	})
}

// TestReasonOfManyChanges checks that the Deployment is not reported as restored while its nodes
// fail for another reason.
func TestReasonOfManyChanges(t *testing.T) {
	run(t, 100, func(c *cluster) {
		c.fail(reason.Timeout, 1, 100)
		c.pass(4 * interval)
		c.fail(reason.ConnectTimeout, 1, 100)
		c.pass(4 * interval)
		c.want("kube-vitals MetricsUnavailable timeout x1", "kube-vitals MetricsUnavailable connect-timeout x1")
		c.fail("", 1, 100)
		c.pass(6 * interval)
		c.want("kube-vitals MetricsUnavailable timeout x1", "kube-vitals MetricsUnavailable connect-timeout x1",
			"kube-vitals MetricsRestored x1")
	})
}

func TestNodeIsDeleted(t *testing.T) {
	run(t, 20, func(c *cluster) {
		c.fail(reason.DNS, 1, 2)
		c.pass(4 * interval)
		want := []string{"n1 MetricsUnavailable dns x1", "n2 MetricsUnavailable dns x1"}
		c.want(want...)
		c.scraper.Delete("n1")
		replaced := newNode("n2")
		replaced.UID = "another"
		c.scraper.Set(replaced)
		c.fail("", 1, 2)
		c.pass(4 * interval)
		c.want(want...) // nothing is restored: one is gone, and the other is a new node
		if n := c.tracked(); n > 0 {
			t.Errorf("the state of %d nodes is kept", n)
		}
		c.fail(reason.DNS, 2, 2)
		c.pass(4 * interval)
		c.want("n1 MetricsUnavailable dns x1", "n2 MetricsUnavailable dns x1", "n2 MetricsUnavailable dns x1")
		if got := c.recorded()[2].InvolvedObject.UID; got != "another" {
			t.Errorf("got UID %q", got)
		}
	})
}

// TestRestart checks that a new process does not report nodes as restored that it has not reported.
func TestRestart(t *testing.T) {
	run(t, 20, func(c *cluster) {
		c.fail(reason.DNS, 1, 1)
		c.pass(4 * interval)
		c.stop()
		c.start(c.Context())
		for i := range 20 {
			c.scraper.Set(newNode(fmt.Sprint("n", i+1)))
		}
		c.pass(interval / 2)
		c.fail("", 1, 1)
		c.pass(10 * interval)
		c.want("n1 MetricsUnavailable dns x1")
	})
}

// TestAPIServerUnavailable checks that scrapes go on, that few requests and log lines are written,
// and that the events follow once the API server is back.
func TestAPIServerUnavailable(t *testing.T) {
	for _, refusal := range outages {
		t.Run(fmt.Sprint("status ", refusal.Code), func(t *testing.T) {
			run(t, 100, func(c *cluster) {
				c.refuse("events", refusal)
				c.fail(reason.Unauthorized, 1, 5)
				c.fail(reason.DNS, 6, 10)
				c.pass(time.Hour)
				c.want()
				if limit := int(time.Hour/(10*time.Second)) + 30; c.sent() > limit {
					t.Errorf("got %d requests, want at most %d", c.sent(), limit)
				}
				if got := len(c.log()); got != 1 || !strings.Contains(c.lastLog(), "Cannot write events") {
					t.Errorf("got log %q", c.log())
				}
				c.refuse("events", nil)
				c.pass(35 * time.Minute)
				for i := range 10 {
					name := fmt.Sprint("n", i+1)
					if !slices.ContainsFunc(c.recorded(), func(e *corev1.Event) bool { return e.InvolvedObject.Name == name }) {
						t.Errorf("no event of %s: %q", name, c.lines())
					}
				}
				if got := len(c.log()); got != 2 || !strings.Contains(c.lastLog(), "Events can be written again") {
					t.Errorf("got log %q", c.log())
				}
			})
		})
	}
}

// TestForbidden checks that missing permissions are logged once in each namespace.
func TestForbidden(t *testing.T) {
	run(t, 100, func(c *cluster) {
		c.refuse("events", forbidden)
		for i := range 10 {
			c.fail(reason.Unauthorized, i+1, i+1)
			c.pass(5 * interval)
		}
		if got := len(c.log()); got != 1 || !strings.Contains(c.lastLog(), "grant kube-vitals create and patch on events") {
			t.Errorf("got log %q", c.log())
		}
		c.fail(reason.Unauthorized, 1, 50)
		c.pass(5 * interval)
		if got := len(c.log()); got != 2 || !strings.Contains(c.lastLog(), `namespace="kube-system"`) {
			t.Errorf("got log %q", c.log())
		}
		c.want()
		c.refuse("events", nil)
		c.pass(31 * time.Minute)
		c.want("kube-vitals MetricsUnavailable unauthorized x2") // the recorder counts the one that was rejected
	})
}

// TestDeploymentCannotBeRead checks that the event follows once it can.
func TestDeploymentCannotBeRead(t *testing.T) {
	run(t, 20, func(c *cluster) {
		deployment := c.api.Get(deploymentPath)
		c.api.Put(deploymentPath, nil)
		c.fail(reason.Unauthorized, 1, 20)
		c.pass(20 * interval)
		c.want()
		if got := len(c.log()); got != 1 || !strings.Contains(c.lastLog(), "check --deployment") {
			t.Errorf("got log %q", c.log())
		}
		c.api.Put(deploymentPath, deployment)
		c.pass(interval)
		c.want("kube-vitals MetricsUnavailable unauthorized x1")
	})
}

// TestHangingAPIServer checks that requests without a response delay no scrape.
func TestHangingAPIServer(t *testing.T) {
	run(t, 100, func(c *cluster) {
		c.api.Latency = hanging
		c.fail(reason.Unauthorized, 1, 10)
		c.pass(10 * interval)
		before := c.countScrapes()
		c.pass(100 * interval)
		if got := c.countScrapes() - before; got != 100*100 {
			t.Errorf("got %d scrapes in 100 intervals of 100 nodes", got)
		}
		c.want()
	})
}

const floodNodes = 5000

// flood lets many nodes fail for many reasons, in turns, for rounds of four intervals.
func (c *cluster) flood(rounds int, afterRound func()) {
	causes := reasontest.Scrapes()
	made := make([]health.Node, floodNodes)
	for round := range rounds {
		for minute := range 4 {
			c.mu.Lock()
			for i := range made {
				made[i] = health.Node{Name: fmt.Sprint("n", i), Attempts: health.Attempts{
					Failures: 3, FailingSince: time.Now().Add(-interval), Reason: causes[i%len(causes)],
				}}
				if minute == 3 && (i+round)%3 == 0 {
					made[i].Attempts = health.Attempts{}
				}
			}
			c.made = made
			c.mu.Unlock()
			c.pass(interval)
		}
		afterRound()
	}
}

// TestFlood checks the rate of events for an hour.
func TestFlood(t *testing.T) {
	run(t, 0, func(c *cluster) {
		start := time.Now()
		uptime := func() int { return int(time.Since(start).Seconds()) }
		c.flood(60, func() {
			if limit := burst + perSecond*uptime(); c.sent() > limit {
				t.Fatalf("got %d requests in %d seconds, want at most %d", c.sent(), uptime(), limit)
			}
		})
		if c.sent() < perSecond*uptime()/2 {
			t.Errorf("got only %d requests", c.sent())
		}
		c.stop()
		if n := c.tracked(); n > floodNodes {
			t.Errorf("got state of %d nodes", n)
		}
	})
}

// TestFloodDuringOutage checks that only the events of the last minutes follow when the API server is back.
func TestFloodDuringOutage(t *testing.T) {
	run(t, 0, func(c *cluster) {
		c.refuse("events", refused)
		c.flood(15, func() {})
		c.refuse("events", nil)
		before := c.sent()
		c.flood(1, func() {})
		limit := 2 * perSecond * int((maxAge + time.Minute).Seconds()) // one to change an event, one to create it instead
		if got := c.sent() - before; got > limit {
			t.Errorf("got %d requests after the outage, want at most %d", got, limit)
		}
		for _, e := range c.recorded() {
			if time.Since(e.LastTimestamp.Time) > maxAge+2*time.Minute {
				t.Errorf("got an event of %v", e.LastTimestamp)
			}
		}
	})
}

// TestSecondTimeout checks that a kubelet that hangs is reported after the second failure. The third one comes half a
// minute later.
func TestSecondTimeout(t *testing.T) {
	run(t, 0, func(c *cluster) {
		c.mu.Lock()
		c.made = []health.Node{{Name: "n1", UID: "uid-n1", Attempts: health.Attempts{
			Reason: reason.Timeout, Failures: 2, FailingSince: time.Now().Add(-2 * interval),
		}}}
		c.mu.Unlock()
		c.pass(interval)
		c.want("n1 MetricsUnavailable timeout x1")
	})
}

// TestCapacityTooLow has a node whose own counter exceeds the capacity in its status, also while it fails.
func TestCapacityTooLow(t *testing.T) {
	run(t, 3, func(c *cluster) {
		set := func(exceeded uint64, failures int) {
			n := health.Node{Name: "n1", UID: "uid-n1", Exceeded: exceeded}
			if failures > 0 {
				n.Attempts = health.Attempts{
					Reason: reason.DNS, Failures: failures, FailingSince: time.Now().Add(-time.Minute),
				}
			}
			c.mu.Lock()
			c.made = []health.Node{n}
			c.mu.Unlock()
		}
		set(0, 0)
		c.pass(3 * interval)
		c.want()
		set(6e9, 0)
		c.pass(20 * time.Minute)
		c.want("n1 CapacityTooLow above-capacity x1")
		const want = "the CPU usage is above the capacity in the node's status (above-capacity): " +
			"if the node has more CPUs, restart its kubelet, or correct the capacity of the virtual node; see " +
			"https://github.com/kube-vitals/kube-vitals/blob/main/docs/troubleshooting.md#above-capacity"
		e := c.recorded()[0]
		if e.Type != "Warning" || e.InvolvedObject.Kind != "Node" || e.InvolvedObject.UID != "uid-n1" || e.Message != want {
			t.Errorf("got %+v", e)
		}
		c.pass(20 * time.Minute)
		c.want("n1 CapacityTooLow above-capacity x2")
		set(6e9, 3)
		c.pass(2 * interval)
		set(6e9, 0)
		c.pass(2 * interval)
		c.want("n1 CapacityTooLow above-capacity x2", "n1 MetricsUnavailable dns x1", "n1 MetricsRestored x1")
		set(0, 0)
		c.pass(2 * interval)
		if n := c.tracked(); n > 0 {
			t.Errorf("the state of %d nodes is kept", n)
		}
		set(6e9, 0)
		c.pass(2 * interval)
		c.want("n1 CapacityTooLow above-capacity x3", "n1 MetricsUnavailable dns x1", "n1 MetricsRestored x1")
	})
}

// TestShutdown ends a Reporter while it waits for the API server.
func TestShutdown(t *testing.T) {
	run(t, 1, func(c *cluster) {
		c.api.Latency = hanging
		c.fail(reason.DNS, 1, 1)
		for c.api.Requested("/api/v1/namespaces/default/events") == 0 {
			c.pass(time.Second)
		}
		began := time.Now()
		c.stop()
		if took := time.Since(began); took > 0 {
			t.Errorf("it ended after %v", took)
		}
	})
}

func TestMessages(t *testing.T) {
	for _, cause := range reasontest.Scrapes() {
		for _, text := range []string{nodeMessage(cause), deploymentMessage(cause, 4999, 5000)} {
			if len(text) > 1024 || strings.Contains(text, ": ;") || strings.Contains(text, "  ") {
				t.Errorf("%s: got %d bytes: %s", cause, len(text), text)
			}
			if !strings.Contains(text, cause.Describe().Problem) ||
				!strings.Contains(text, cause.Describe().Cure) || !strings.HasSuffix(text, "; see "+cause.URL()) {
				t.Errorf("%s: got %s", cause, text)
			}
		}
	}
}
