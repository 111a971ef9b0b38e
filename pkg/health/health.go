// Package health is the vocabulary that sources of usage share to report what they know of themselves and
// of each node: the kubelets that are scraped, the engine that is read instead of them, and the
// exporters of devices. Metrics, events, the page of nodes and explanations read it, so that they need
// not know which source there is. Each time.Time has a monotonic reading.
package health

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Source is a source of usage. Its methods are safe for concurrent use.
type Source interface {
	// Overall returns what is known of the source as a whole.
	Overall() Overall
	// Node returns what is known of a node, and whether the source has that node.
	Node(name string) (Node, bool)
	// Nodes returns what is known of every node, sorted by name. The slice belongs to the caller.
	Nodes() []Node
}

// Attempts describes the attempts so far to read something, one after the other.
type Attempts struct {
	Last        time.Time // end of the last one; zero: there was none
	LastSuccess time.Time // end of the last one that succeeded; zero: there was none
	Next        time.Time // when the next one is due; zero or in the past: it is running

	// SucceedingSince is the end of the first of the last successes in a row. It is zero if the last
	// attempt failed.
	SucceedingSince time.Time

	// Of the last attempt:
	Took         time.Duration // until the response was decoded or the error
	Failures     int           // in a row, with this one; 0: it succeeded
	Repeated     int           // of these, the last ones in a row with the same reason
	FailingSince time.Time     // end of the first of these failures
	Err          error         // nil: it succeeded, or there is no error with details
	Reason       reason.Reason // of the failure
}

// Add adds an attempt, which succeeded if the reason is empty. The error of one that failed is optional.
func (a *Attempts) Add(now time.Time, took time.Duration, r reason.Reason, err error) {
	if r == "" {
		since := a.SucceedingSince
		if since.IsZero() {
			since = now
		}
		*a = Attempts{Last: now, LastSuccess: now, Next: a.Next, SucceedingSince: since, Took: took}
		return
	}
	if a.Failures == 0 {
		a.FailingSince = now
	}
	if a.Reason != r {
		a.Repeated = 0
	}
	a.Failures++
	a.Repeated++
	a.Last, a.SucceedingSince, a.Took, a.Reason, a.Err = now, time.Time{}, took, r, err
}

// Overall is what is known of a source as a whole.
type Overall struct {
	// Attempts are those to read the source as a whole. Kubelets are read one by one: they have none.
	Attempts
	// Startup is the age of a container or node when its metrics are expected.
	Startup time.Duration
	// Window is the longest time between two samples that give a rate; 0: the maximum age of a sample.
	Window time.Duration
	Engine *Engine // details for the page of nodes; nil: the kubelets are scraped
}

// Engine describes what an engine had in the last successful refresh. It must not be modified.
type Engine struct {
	Host          string         // host and port of its URL
	FileRejected  bool           // whether the configuration file cannot be used; its previous content stays in use
	Series        map[string]int // of known nodes, by query
	UnknownSeries int            // of other nodes
	Skipped       int            // samples and series
	Warning       string         // of an engine that does not have all series; empty: none
}

// Describe returns the description of a reason for this source.
func (o *Overall) Describe(r reason.Reason) reason.Description {
	if o.Engine != nil {
		return r.DescribeEngine()
	}
	return r.Describe()
}

// Reporter refers to what reports the usage of the objects on a node, such as `the kubelet of node "n1"`.
func (o *Overall) Reporter(node string) string {
	if o.Engine != nil {
		return "the engine"
	}
	return fmt.Sprintf("the kubelet of node %q", node)
}

// SourceName names what reports usage: "kubelet" or "engine".
func (o *Overall) SourceName() string {
	if o.Engine != nil {
		return "engine"
	}
	return "kubelet"
}

// Node is what is known of a node.
type Node struct {
	Name    string
	UID     types.UID
	Address string // host and port of the kubelet; empty if it is not known
	Active  bool   // whether the node is read more often, because its metrics were read recently

	// Attempts are the scrapes of the node. With an engine, they are the refreshes: one that finds no
	// series of the node has failed.
	Attempts
	Slow bool // whether the last one took so long that the next one may take longer; false with an engine

	// Of the last success:
	Containers  int           // in the response
	Skipped     int           // lines of the response
	ClockOffset time.Duration // how far the node's clock is ahead of ours; below 0: behind
	ClockKnown  bool          // whether the offset is known
	Capacity    uint64        // CPU capacity in nanocores in the node's status; 0: not known
	// Exceeded is the CPU usage in nanocores that the node's own counter has shown, above Capacity. The
	// status is wrong then. 0: it is not.
	Exceeded uint64
	// Only an engine knows these. Samples of kubelets are as old as the last success.
	Newest   usage.NodeTime // of the newest sample; 0: not known
	Interval time.Duration  // between the two newest samples of one series; 0: not known
}

// CapacityOf returns the CPU capacity in the status of a node in nanocores; 0: it is not known.
func CapacityOf(node *corev1.Node) uint64 {
	return uint64(max(0, node.Status.Capacity.Cpu().ScaledValue(resource.Nano)))
}

// ReasonOf returns the reason of a sample that cannot be used. It is empty for usage.NotLost.
func ReasonOf(l usage.Loss) reason.Reason {
	return [...]reason.Reason{
		usage.LostZero: reason.UsageUnknown, usage.LostTime: reason.BadTime, usage.LostValue: reason.BadValue,
		usage.LostFall: reason.CounterFell, usage.LostExcess: reason.AboveCapacity, usage.LostOwner: reason.OtherPod,
	}[l]
}

// Exporter is what is known of an exporter of devices. Its pods are in no order.
type Exporter struct {
	Name, Namespace, PodSelector string // as configured

	Pods       []ExporterPod  // that are scraped
	LeftOut    int            // number of further pods, which are not scraped: a node has enough others
	LeftOutPod string         // one of them: its node and name
	Oldest     time.Duration  // age of the oldest values that are served; 0: there are none
	Containers map[string]int // number of containers with a value that is served, by resource
}

// ExporterPod is what is known of one pod of an exporter.
type ExporterPod struct {
	Namespace, Name, Node string
	Attempts              // to scrape it

	// Devices is the number of devices in the last successful response: the largest number of series of
	// one resource. A device that containers share may have a series for each of them.
	Devices int
}

// Failing returns the number of pods whose last scrape failed.
func (e *Exporter) Failing() int {
	failing := 0
	for i := range e.Pods {
		if e.Pods[i].Failures > 0 {
			failing++
		}
	}
	return failing
}
