package event

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/record/util"
	"k8s.io/klog/v2"
)

// retryFor is how long after an event was due its request is tried again in each interval, if the API
// server was unavailable. It exceeds the outages of most upgrades. Many events from before a longer one
// have expired when it ends.
const retryFor = 30 * time.Minute

// record adds an event to those to write. An event that waits for the API server keeps the time at which
// it was due.
func (r *Reporter) record(object *corev1.ObjectReference, kind, message string, due time.Time) {
	at := metav1.NewTime(due)
	name := util.GenerateEventName(object.Name, time.Now().UnixNano()) // two may be due at once
	eventType := corev1.EventTypeWarning
	if kind == metricsRestored {
		eventType = corev1.EventTypeNormal
	}
	counted, err := r.correlator.EventCorrelate(&corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: cmp.Or(object.Namespace, metav1.NamespaceDefault), Name: name},
		InvolvedObject: *object, Type: eventType, Reason: kind, Message: message,
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
		Source: corev1.EventSource{Component: component}, ReportingController: component,
	})
	if err == nil && !counted.Skip {
		r.queue = append(r.queue, counted)
	}
}

// write writes the events until the API server is unavailable. The rest waits for the next interval, and
// nothing else is recorded meanwhile, so that an event that a node has recovered is not lost. The recorder
// of client-go would try for 2 minutes only, and not if the API server responds with an error.
func (r *Reporter) write(ctx context.Context) {
	for ; len(r.queue) > 0; r.queue = r.queue[1:] {
		e := r.queue[0].Event
		stored, err := r.store(ctx, r.queue[0])
		if ctx.Err() != nil {
			return
		}
		r.observe(ctx, e.Namespace, err)
		switch {
		case err == nil:
			r.correlator.UpdateState(stored)
		case failureOf(err) == unavailable && time.Since(e.LastTimestamp.Time) < retryFor:
			return
		}
	}
}

// store changes the count of an event, or creates the event if there is none or if it has expired.
func (r *Reporter) store(ctx context.Context, counted *record.EventCorrelateResult) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	e := counted.Event
	client := r.Events.Events(e.Namespace)
	if e.Count > 1 {
		stored, err := client.Patch(ctx, e.Name, types.StrategicMergePatchType, counted.Patch, metav1.PatchOptions{})
		if !apierrors.IsNotFound(err) {
			return stored, err
		}
	}
	e.ResourceVersion = ""
	stored, err := client.Create(ctx, e, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // an earlier request succeeded, of which the response was lost
		return e, nil
	}
	return stored, err
}

// failure is the kind of failure of a request.
type failure int

const (
	noFailure   failure = iota
	unavailable         // the API server does not respond, or is overloaded
	rejected
)

// failureOf returns the kind of failure of a request's error.
func failureOf(err error) failure {
	status, responded := errors.AsType[*apierrors.StatusError](err)
	switch {
	case err == nil:
		return noFailure
	case responded && status.ErrStatus.Code < http.StatusInternalServerError && !apierrors.IsTooManyRequests(err):
		return rejected
	}
	return unavailable
}

// observe logs the first failure of a kind in a namespace, and the first success after it.
func (r *Reporter) observe(ctx context.Context, namespace string, err error) {
	kind := failureOf(err)
	before := r.failures[namespace]
	r.failures[namespace] = kind
	logger := klog.FromContext(ctx)
	switch {
	case kind == before:
	case kind == noFailure:
		logger.Info("Events can be written again", "namespace", namespace)
	case apierrors.IsForbidden(err):
		logger.Error(err, "Cannot write events; grant kube-vitals create and patch on events in this namespace, or do "+
			"not set --node-events", "namespace", namespace)
	default:
		logger.Error(err, "Cannot write events", "namespace", namespace)
	}
}
