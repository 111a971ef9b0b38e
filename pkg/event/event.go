// Package event records Kubernetes events about nodes whose metrics are unavailable, so that
// kubectl describe node shows why.
//
// Once in each interval, a Reporter compares the health of the source with what it has reported, and
// records what is new:
//
//   - MetricsUnavailable (Warning) on a Node that cannot be read for some time, with the reason and the
//     cure. It is repeated while the node fails, since the API server deletes events after an hour.
//   - MetricsRestored (Normal) on such a Node when it can be read again.
//   - CapacityTooLow (Warning) on a Node whose own counter shows more CPU usage than the capacity in its
//     status, repeated like the first one.
//   - The first two events on the Deployment of kube-vitals, instead of on the Nodes, if more than a
//     tenth of them fail for one reason, or if the source fails as a whole: the cause is then most
//     likely not on the nodes.
//
// The message of an event depends only on the reason, so the recorder of client-go counts repeated
// events in one object. It writes them: those that the API server cannot take for more than some minutes
// are lost. A Reporter never delays a scrape, and keeps state only for nodes that it has reported and whose
// recovery it has not.
package event

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	appsv1client "k8s.io/client-go/kubernetes/typed/apps/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/internal/failure"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// The reasons of the events, as the field of this name in the API.
const (
	metricsUnavailable = "MetricsUnavailable"
	metricsRestored    = "MetricsRestored"
	capacityTooLow     = "CapacityTooLow"
)

const (
	// component is the source of the events.
	component = "kube-vitals"
	// minFailures is the number of failures in a row before a node is reported. It must also have failed for an
	// interval: a restart of a kubelet takes seconds. If requests last until their timeout, the second one fails half
	// of the maximum age after the first, about when the metrics expire. Otherwise the event comes before.
	minFailures = 2
	// minRepeated is the number of failures in a row for another reason before a node is reported again.
	minRepeated = 3
	// holdIntervals is the maximum number of intervals that the event of a node is held back if so
	// many nodes fail for its reason that the Deployment may have to be reported instead.
	holdIntervals = 3
	// calmIntervals is for how many intervals few nodes must fail before the Deployment is reported as
	// restored. Nodes recover with their next scrapes, over an interval.
	calmIntervals = 3
	// repeatAfter is the time after which an event is repeated. API servers delete events one hour
	// after their last change (--event-ttl), so a repetition may be lost.
	repeatAfter = 30 * time.Minute

	// minNodes is how many nodes must fail, at least, before the Deployment is reported.
	minNodes = 3
	// share is the divisor of the number of nodes: the Deployment is reported if more than 1/share
	// of the nodes fail, until it is at most half of that.
	share = 10
)

// Config configures a Reporter. All fields are required.
type Config struct {
	Events      corev1client.EventsGetter
	Deployments appsv1client.DeploymentsGetter
	Namespace   string        // of the Deployment
	Deployment  string        // of kube-vitals itself
	Interval    time.Duration // between two scrapes of a node
	Source      health.Source
}

// Reporter records events about nodes that cannot be read, or about the source. Its fields belong to
// Run.
type Reporter struct {
	Config
	limiter  flowcontrol.PassiveRateLimiter
	recorder record.EventRecorder // of Run

	widespread         map[reason.Reason]*spread // reasons that the Deployment is reported for
	deploymentReported bool                      // as unavailable, and not as restored since
	deploymentLog      failure.Log               // of requests for the Deployment
	nodes              map[string]reported       // by name; without those that are not reported
	source             reported
}

// reported is what was reported last as unavailable, and not as restored since.
type reported struct {
	uid    types.UID     // of the node
	reason reason.Reason // empty: nothing
	at     time.Time

	capacityAt time.Time // when a node's capacity was reported last; zero: it was not, or is right since
}

// spread is the state of a reason that many nodes fail for.
type spread struct {
	reportedAt time.Time // zero: not yet
	calm       int       // for how many intervals in a row few nodes have failed
}

// New returns a Reporter that records nothing until Run is called.
func New(c Config) *Reporter {
	return &Reporter{
		Config:  c,
		limiter: flowcontrol.NewTokenBucketPassiveRateLimiter(perSecond, burst),
		deploymentLog: failure.Log{
			Failing: "Cannot read the Deployment of kube-vitals, so no event reports that many nodes or the source fail; " +
				"check --deployment and the permission to get it",
			Recovered: "The Deployment of kube-vitals can be read again",
		},
		widespread: map[reason.Reason]*spread{},
		nodes:      map[string]reported{},
	}
}

// Run records events until ctx is done.
func (r *Reporter) Run(ctx context.Context) {
	r.recorder = newRecorder(ctx, r.Events)
	wait.NonSlidingUntilWithContext(ctx, func(ctx context.Context) { r.report(ctx, time.Now()) }, r.Interval)
}

// report records the events that are due. reportDeployment must be first: it decides whether the Deployment
// is reported instead of the nodes.
func (r *Reporter) report(ctx context.Context, now time.Time) {
	nodes := r.Source.Nodes()
	all := r.reportDeployment(ctx, nodes, now)
	r.reportSource(ctx, now)
	r.reportNodes(nodes, all, now)
}

// record records an event.
func (r *Reporter) record(object *corev1.ObjectReference, kind, message string) {
	eventType := corev1.EventTypeWarning
	if kind == metricsRestored {
		eventType = corev1.EventTypeNormal
	}
	r.recorder.Event(object, eventType, kind, message)
}

// failing returns the number of nodes that fail, by reason: all of them, and only those that have
// failed for long enough to be reported.
func (r *Reporter) failing(nodes []health.Node, now time.Time) (all, confirmed map[reason.Reason]int) {
	all, confirmed = map[reason.Reason]int{}, map[reason.Reason]int{}
	for i := range nodes {
		n := &nodes[i]
		if n.Failures == 0 {
			continue
		}
		all[n.Reason]++
		if r.isConfirmed(&n.Attempts, now) {
			confirmed[n.Reason]++
		}
	}
	return all, confirmed
}

// isConfirmed reports whether a node or the source fails, and has failed for long enough to be reported.
func (r *Reporter) isConfirmed(a *health.Attempts, now time.Time) bool {
	return a.Failures >= minFailures && now.Sub(a.FailingSince) >= r.Interval && a.Reason != reason.Canceled
}

// isMany reports whether so many nodes fail for a reason that the Deployment is reported.
func isMany(failing, nodes int) bool { return failing >= minNodes && failing*share > nodes }

// isStillMany reports whether the Deployment stays reported.
func isStillMany(failing, nodes int) bool { return isMany(2*failing, nodes) && failing > 1 }

// reportDeployment records the events of the Deployment about many nodes that are due. It returns the
// number of nodes that fail, by reason.
func (r *Reporter) reportDeployment(ctx context.Context, nodes []health.Node, now time.Time) map[reason.Reason]int {
	all, confirmed := r.failing(nodes, now)
	for cause, w := range r.widespread {
		if isStillMany(all[cause], len(nodes)) {
			w.calm = 0
		} else if w.calm++; w.calm >= calmIntervals {
			delete(r.widespread, cause)
		}
	}
	for cause, n := range confirmed {
		if r.widespread[cause] == nil && isMany(n, len(nodes)) {
			r.widespread[cause] = &spread{}
		}
	}

	for cause, w := range r.widespread {
		isDue := w.calm == 0 && (w.reportedAt.IsZero() || now.Sub(w.reportedAt) >= repeatAfter)
		if isDue && r.recordOnDeployment(ctx, metricsUnavailable, deploymentMessage(cause, all[cause], len(nodes))) {
			w.reportedAt, r.deploymentReported = now, true
		}
	}
	if len(r.widespread) == 0 && r.deploymentReported {
		failing := 0
		for _, n := range all {
			failing += n
		}
		r.deploymentReported = !r.recordOnDeployment(ctx, metricsRestored, deploymentRestored(failing, len(nodes)))
	}
	return all
}

// reportSource records the event about the source as a whole that is due, on the Deployment.
func (r *Reporter) reportSource(ctx context.Context, now time.Time) {
	o := r.Source.Overall()
	kind, message := metricsUnavailable, engineMessage(o.Reason)
	switch {
	case o.Failures == 0 && r.source.reason != "":
		kind, message = metricsRestored, engineRestored
	case !r.isDue(&o.Attempts, r.source, now, false):
		return
	}
	if r.recordOnDeployment(ctx, kind, message) {
		r.source = reported{reason: o.Reason, at: now}
	}
}

// recordOnDeployment records an event on the Deployment of kube-vitals. If that is not possible now, it
// returns false, and is tried again with the next interval. The Deployment is read because kubectl
// describe finds events by the UID.
func (r *Reporter) recordOnDeployment(ctx context.Context, kind, message string) bool {
	if !r.limiter.TryAccept() {
		return false
	}
	requestCtx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	d, err := r.Deployments.Deployments(r.Namespace).Get(requestCtx, r.Deployment, metav1.GetOptions{})
	if ctx.Err() == nil {
		r.deploymentLog.Note(klog.FromContext(ctx).WithValues("namespace", r.Namespace, "deployment", r.Deployment),
			kindOf(err), err)
	}
	if err != nil {
		return false
	}
	r.record(&corev1.ObjectReference{
		APIVersion: "apps/v1", Kind: "Deployment", Namespace: r.Namespace, Name: r.Deployment, UID: d.UID,
	}, kind, message)
	return true
}

// reportNodes records the events of Nodes that are due, as many as the limiter allows. The others
// remain due. The number of nodes that fail for each reason is given.
func (r *Reporter) reportNodes(nodes []health.Node, failing map[reason.Reason]int, now time.Time) {
	kept := map[string]reported{} // of nodes that still exist
	for i := range nodes {
		n := &nodes[i]
		last := r.nodes[n.Name]
		if last.uid != n.UID {
			last = reported{uid: n.UID}
		}
		isRestored := n.Failures == 0 && last.reason != ""
		isDue := isRestored || r.isDue(&n.Attempts, last, now, isMany(failing[n.Reason], len(nodes)))
		if isDue && r.limiter.TryAccept() {
			kind, message := metricsRestored, nodeRestored
			if !isRestored {
				kind, message = metricsUnavailable, nodeMessage(n.Reason)
			}
			r.record(referenceTo(n), kind, message)
			last.reason, last.at = n.Reason, now
		}
		r.reportCapacity(n, &last, now)
		if last.reason != "" || !last.capacityAt.IsZero() {
			kept[n.Name] = last
		}
	}
	r.nodes = kept
}

// reportCapacity records the event about the capacity in a node's status that is due.
func (r *Reporter) reportCapacity(n *health.Node, last *reported, now time.Time) {
	switch {
	case n.Exceeded == 0:
		last.capacityAt = time.Time{}
	case now.Sub(last.capacityAt) >= repeatAfter && r.limiter.TryAccept():
		r.record(referenceTo(n), capacityTooLow, describeNodes(reason.AboveCapacity))
		last.capacityAt = now
	}
}

func referenceTo(n *health.Node) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}
}

// isDue reports whether a node or the source is due to be reported as unavailable. last is what was
// reported of it last, and many is whether many nodes fail for its reason at this moment.
func (r *Reporter) isDue(a *health.Attempts, last reported, now time.Time, many bool) bool {
	if r.widespread[a.Reason] != nil || !r.isConfirmed(a, now) {
		return false
	}
	switch last.reason {
	case "":
		return !many || now.Sub(a.FailingSince) >= holdIntervals*r.Interval
	case a.Reason:
		return now.Sub(last.at) >= repeatAfter
	}
	return a.Repeated >= minRepeated && !many
}
