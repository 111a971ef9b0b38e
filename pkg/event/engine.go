package event

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// Refreshed notifies the Reporter of a refresh from the engine that is read instead of the kubelets.
// The cause is empty if it succeeded.
func (r *Reporter) Refreshed(cause reason.Reason) {
	if cause == reason.Canceled {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e := &r.engine
	if cause == "" {
		e.reason, e.failures, e.repeated = "", 0, 0
		return
	}
	if e.failures == 0 {
		e.since = time.Now()
	}
	if e.reason != cause {
		e.reason, e.repeated = cause, 0
	}
	e.failures++
	e.repeated++
}

// reportEngine records the event about the engine that is due, on the Deployment.
func (r *Reporter) reportEngine(ctx context.Context, out *sink, now time.Time) {
	r.mu.Lock()
	e := r.engine
	r.mu.Unlock()
	due := event{nil, corev1.EventTypeWarning, Unavailable, engineMessage(e.reason)}
	switch {
	case e.reason == "" && e.reported != "":
		due.kind, due.reason, due.message = corev1.EventTypeNormal, Restored, engineRestored
	case e.reason == "" || !r.isDue(&e, now, false):
		return
	}
	if !r.limiter.TryAccept() {
		return
	}
	deployment := r.deployment(ctx)
	if deployment == nil {
		return // it is tried again with the next interval
	}
	out.Event(deployment, due.kind, due.reason, due.message)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.engine.reported, r.engine.reportedAt = e.reason, now
}
