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

const (
	// retryAfter is the time after which a request is tried again if the API server was unavailable. No
	// other event is written meanwhile, so that an event that a node has recovered is not lost.
	retryAfter = 10 * time.Second
	// retryFor is how long a request is tried. It exceeds the outages of most upgrades. Many events
	// from before a longer one have expired when it ends.
	retryFor = 30 * time.Minute
)

// newCorrelator returns what counts repeated events in one object. By default, it drops events of one
// object above 25, and then allows one in 5 minutes: if a node flaps, the event that it has recovered
// could be lost. The limit of the Reporter drops none.
func newCorrelator() *record.EventCorrelator {
	return record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{
		LRUCacheSize: cacheSize, BurstSize: burst, QPS: perSecond,
	})
}

// event is an event to record.
type event struct {
	object          *corev1.ObjectReference
	reason, message string
}

// record writes an event, and tries it again while the API server is unavailable. The recorder of
// client-go would try it for 2 minutes only, and not if the API server responds with an error. An event
// that has waited for others has the time at which it was due.
func (r *Reporter) record(ctx context.Context, e event, due time.Time) {
	at := metav1.NewTime(due)
	name := util.GenerateEventName(e.object.Name, time.Now().UnixNano()) // two may be due at once
	namespace := cmp.Or(e.object.Namespace, metav1.NamespaceDefault)
	kind := corev1.EventTypeWarning
	if e.reason == Restored {
		kind = corev1.EventTypeNormal
	}
	counted, err := r.correlator.EventCorrelate(&corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: name},
		InvolvedObject: *e.object, Type: kind, Reason: e.reason, Message: e.message,
		FirstTimestamp: at, LastTimestamp: at, Count: 1,
		Source: corev1.EventSource{Component: component}, ReportingController: component,
	})
	if err != nil || counted.Skip {
		return
	}
	for start := time.Now(); ; {
		stored, err := r.write(ctx, counted)
		if ctx.Err() != nil {
			return
		}
		r.observe(ctx, namespace, err)
		if err == nil {
			r.correlator.UpdateState(stored)
		}
		if failureOf(err) != unavailable || time.Since(start) >= retryFor {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(retryAfter):
		}
	}
}

// write changes the count of an event, or creates the event if there is none or if it has expired.
func (r *Reporter) write(ctx context.Context, counted *record.EventCorrelateResult) (*corev1.Event, error) {
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
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return noFailure
	case !errors.As(err, &status):
		return unavailable
	case status.Status().Code >= http.StatusInternalServerError || status.Status().Code == http.StatusTooManyRequests:
		return unavailable
	}
	return rejected
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
