// Package event records Kubernetes events about nodes whose metrics are unavailable, so that
// kubectl describe node shows why.
//
// A Reporter observes the scrapes. Once in each interval it compares the nodes that fail with what
// it has reported, and records what is new:
//
//   - MetricsUnavailable (Warning) on a Node whose scrapes keep failing, with the reason and the
//     cure. It is repeated while the node fails, since the API server deletes events after an hour.
//   - MetricsRestored (Normal) on such a Node when it can be scraped again.
//   - The same two events on the Deployment of kube-vitals, instead of on the Nodes, if more than a
//     tenth of them fail for one reason: the cause is then most likely not on the nodes.
//
// With an engine instead of kubelets, there are only events on the Deployment: when the engine cannot
// be read, and when it can be read again.
//
// The message of an event depends only on the reason, so the recorder of client-go counts repeated
// events in one object. A Reporter never delays a scrape, and keeps state only for nodes that fail
// or whose recovery is not reported yet.
package event

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	appsv1client "k8s.io/client-go/kubernetes/typed/apps/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
)

// The reasons of the events, as the field of this name in the API.
const (
	Unavailable = "MetricsUnavailable"
	Restored    = "MetricsRestored"
)

const (
	// component is the source of the events.
	component = "kube-vitals"
	// minFailures is the number of failures in a row before a node is reported. It must also have
	// failed for an interval. Fast retries make 3 failures in half of an interval, and a restart of
	// a kubelet takes seconds. Metrics expire after 4 intervals, so the event is older than that.
	minFailures = 3
	// holdIntervals is the maximum number of intervals that the event of a node is held back if so
	// many nodes fail for its reason that the Deployment may have to be reported instead.
	holdIntervals = 3
	// calmIntervals is the number of intervals in which few nodes must fail before the Deployment is
	// reported as restored. Nodes recover with their next scrapes, over an interval.
	calmIntervals = 3
	// repeatAfter is the time after which an event is repeated. API servers delete events one hour
	// after their last change (--event-ttl), so a repetition may be lost.
	repeatAfter = 30 * time.Minute

	// minNodes is the smallest number of failing nodes for which the Deployment is reported.
	minNodes = 3
	// share is the divisor of the number of nodes: the Deployment is reported if more than 1/share
	// of the nodes fail, until it is at most half of that.
	share = 10

	// burst and perSecond limit the events of this process, of all objects together.
	burst     = 50
	perSecond = 1
	// cacheSize is the number of objects and messages in each of the recorder's caches, about 1 KiB
	// each. An event that is no longer cached is not counted in the earlier object.
	cacheSize = 1024
	// requestTimeout is the timeout of a request to the API server.
	requestTimeout = 10 * time.Second
)

// Config configures a Reporter. All fields are required.
type Config struct {
	Events      corev1client.EventsGetter
	Deployments appsv1client.DeploymentsGetter
	Namespace   string        // of the Deployment
	Deployment  string        // of kube-vitals itself
	Interval    time.Duration // between two scrapes of a node
	Nodes       func() int    // returns the number of nodes to scrape
}

// Reporter records events about nodes that cannot be scraped, or about an engine that cannot be read.
// It implements scrape.Observer.
type Reporter struct {
	Config
	limiter flowcontrol.PassiveRateLimiter

	// These fields belong to Run.
	widespread         map[reason.Reason]*spread // reasons for which the Deployment is reported
	deploymentReported bool                      // as Unavailable, and not as Restored since
	deploymentFailure  failure                   // of the last request for the Deployment

	mu     sync.Mutex
	nodes  map[string]*node // that fail, or whose recovery is not reported yet
	engine node             // the state of the engine, without a uid
}

var _ scrape.Observer = (*Reporter)(nil)

// node is the state of a node, or of the engine, that fails or did so when it was reported.
type node struct {
	uid      types.UID
	reason   reason.Reason // of the last scrape; empty: it succeeded
	failures int           // in a row
	repeated int           // failures in a row for this reason
	since    time.Time     // of the first failure in a row

	reported   reason.Reason // as Unavailable, and not as Restored since; empty: not reported
	reportedAt time.Time
}

// spread is the state of a reason for which many nodes fail.
type spread struct {
	reportedAt time.Time // zero: not yet
	calm       int       // number of intervals in a row in which few nodes have failed
}

// event is an event to record.
type event struct {
	object                *corev1.ObjectReference
	kind, reason, message string
}

// New returns a Reporter that records nothing until Run is called.
func New(c Config) *Reporter {
	return &Reporter{
		Config:     c,
		limiter:    flowcontrol.NewTokenBucketPassiveRateLimiter(perSecond, burst),
		widespread: map[reason.Reason]*spread{},
		nodes:      map[string]*node{},
	}
}

// Scraped implements scrape.Observer.
func (r *Reporter) Scraped(result scrape.Result) {
	if result.Reason == reason.Canceled {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.nodes[result.Node]
	switch {
	case result.Err != nil:
		if n == nil {
			n = &node{uid: result.UID}
			r.nodes[result.Node] = n
		}
		if n.reason != result.Reason {
			n.reason, n.repeated = result.Reason, 0
		}
		n.repeated++
		n.failures, n.since = result.Failures, result.FailingSince
	case n != nil && n.reported != "":
		n.reason, n.failures, n.repeated = "", 0, 0
	case n != nil:
		delete(r.nodes, result.Node)
	}
}

// Summarized implements scrape.Observer.
func (r *Reporter) Summarized(error) {}

// NodeDeleted implements scrape.Observer.
func (r *Reporter) NodeDeleted(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.nodes, name)
}

// Run records events until ctx is done.
func (r *Reporter) Run(ctx context.Context) {
	out := newSink(ctx, r.Events)
	tick := time.NewTicker(r.Interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			r.report(ctx, out, time.Now())
		}
	}
}

// report records the events that are due.
func (r *Reporter) report(ctx context.Context, out *sink, now time.Time) {
	if out.isDown(now) { // the events would only wait in the recorder's queue
		return
	}
	r.reportDeployment(ctx, out, now)
	r.reportEngine(ctx, out, now)
	for _, e := range r.nodeEvents(now) {
		out.Event(e.object, e.kind, e.reason, e.message)
	}
}

// failing returns the number of nodes that fail, by reason: all of them, and only those that have
// failed for long enough to be reported.
func (r *Reporter) failing(now time.Time) (all, confirmed map[reason.Reason]int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all, confirmed = map[reason.Reason]int{}, map[reason.Reason]int{}
	for _, n := range r.nodes {
		if n.reason == "" {
			continue
		}
		all[n.reason]++
		if r.isConfirmed(n, now) {
			confirmed[n.reason]++
		}
	}
	return all, confirmed
}

// isConfirmed reports whether a node fails, and has failed for long enough to be reported.
func (r *Reporter) isConfirmed(n *node, now time.Time) bool {
	return n.failures >= minFailures && now.Sub(n.since) >= r.Interval
}

// isMany reports whether so many nodes fail for a reason that the Deployment is reported.
func isMany(failing, nodes int) bool { return failing >= minNodes && failing*share > nodes }

// isStillMany reports whether the Deployment stays reported.
func isStillMany(failing, nodes int) bool { return isMany(2*failing, nodes) && failing > 1 }

// reportDeployment records the events of the Deployment that are due.
func (r *Reporter) reportDeployment(ctx context.Context, out *sink, now time.Time) {
	all, confirmed := r.failing(now)
	nodes := r.Nodes()
	for cause, w := range r.widespread {
		if isStillMany(all[cause], nodes) {
			w.calm = 0
		} else if w.calm++; w.calm >= calmIntervals {
			delete(r.widespread, cause)
		}
	}
	for cause, n := range confirmed {
		if r.widespread[cause] == nil && isMany(n, nodes) {
			r.widespread[cause] = &spread{}
		}
	}

	var due []event
	var reported []*spread
	for cause, w := range r.widespread {
		if w.calm == 0 && (w.reportedAt.IsZero() || now.Sub(w.reportedAt) >= repeatAfter) {
			due = append(due, event{nil, corev1.EventTypeWarning, Unavailable, deploymentMessage(cause, all[cause], nodes)})
			reported = append(reported, w)
		}
	}
	isOver := len(r.widespread) == 0 && r.deploymentReported
	if isOver {
		failing := 0
		for _, n := range all {
			failing += n
		}
		due = append(due, event{nil, corev1.EventTypeNormal, Restored, deploymentRestored(failing, nodes)})
	}
	if len(due) == 0 || !r.limiter.TryAccept() {
		return
	}
	deployment := r.deployment(ctx)
	if deployment == nil {
		return // it is tried again with the next interval
	}
	for _, e := range due {
		out.Event(deployment, e.kind, e.reason, e.message)
	}
	for _, w := range reported {
		w.reportedAt = now
	}
	r.deploymentReported = !isOver
}

// deployment returns a reference to the Deployment of kube-vitals, or nil if it cannot be read.
// kubectl describe finds events by the UID.
func (r *Reporter) deployment(ctx context.Context) runtime.Object {
	requestCtx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	d, err := r.Deployments.Deployments(r.Namespace).Get(requestCtx, r.Deployment, metav1.GetOptions{})
	before := r.deploymentFailure
	r.deploymentFailure = failureOf(err)
	if err != nil {
		if r.deploymentFailure != before && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot read the Deployment of kube-vitals, so no event reports that many "+
				"nodes or the engine fail; check --deployment and the permission to get it",
				"namespace", r.Namespace, "deployment", r.Deployment)
		}
		return nil
	}
	return &corev1.ObjectReference{
		APIVersion: "apps/v1", Kind: "Deployment", Namespace: r.Namespace, Name: r.Deployment, UID: d.UID,
	}
}

// nodeEvents returns the events of Nodes that are due, as many as the limiter allows. The others
// remain due.
func (r *Reporter) nodeEvents(now time.Time) []event {
	all, _ := r.failing(now)
	nodes := r.Nodes()
	r.mu.Lock()
	defer r.mu.Unlock()
	var due []event
	for name, n := range r.nodes {
		isRestored := n.reason == "" && n.reported != ""
		if !isRestored && !r.isDue(n, now, isMany(all[n.reason], nodes)) {
			continue
		}
		if !r.limiter.TryAccept() {
			break
		}
		e := event{&corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: name, UID: n.uid},
			corev1.EventTypeWarning, Unavailable, nodeMessage(n.reason)}
		if isRestored {
			e.kind, e.reason, e.message = corev1.EventTypeNormal, Restored, nodeRestored
			delete(r.nodes, name)
		}
		n.reported, n.reportedAt = n.reason, now
		due = append(due, e)
	}
	return due
}

// isDue reports whether a failing node is due to be reported as Unavailable. many is whether many
// nodes fail for its reason at this moment.
func (r *Reporter) isDue(n *node, now time.Time, many bool) bool {
	if r.widespread[n.reason] != nil || !r.isConfirmed(n, now) {
		return false
	}
	switch n.reported {
	case "":
		return !many || now.Sub(n.since) >= holdIntervals*r.Interval
	case n.reason:
		return now.Sub(n.reportedAt) >= repeatAfter
	}
	return n.repeated >= minFailures && !many
}
