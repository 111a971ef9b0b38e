package event

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/internal/failure"
)

const (
	// burst and perSecond limit the events of this process, of all objects together.
	burst     = 50
	perSecond = 1
	// cacheSize is the number of objects and messages in each of the recorder's caches, about 1 KiB
	// each. An event that is no longer cached is not counted in the earlier object.
	cacheSize = 1024
	// requestTimeout is the timeout of a request to the API server.
	requestTimeout = 10 * time.Second
	// maxAge limits the age of an event that waits for the API server. After a long outage, an older one
	// would report a node that has recovered since, and hundreds of others would follow.
	maxAge = 5 * time.Minute
)

// newRecorder returns a recorder of events until ctx is done. It counts equal events in one object, queues at
// most some 2000, and writes one after the other. It tries to write an event 12 times, which takes almost two
// minutes while the API server refuses connections.
//
// The package tools/events does not fit: its series have one message for all reasons, and it has a goroutine
// for each event that it tries to write.
func newRecorder(ctx context.Context, client corev1client.EventsGetter) record.EventRecorder {
	quiet := klog.NewContext(ctx, logr.Discard()) // it logs each failure with the event; the sink logs changes
	broadcaster := record.NewBroadcaster(record.WithContext(quiet), record.WithCorrelatorOptions(record.CorrelatorOptions{
		// By default, it drops events of one object above 25, and then allows one in 5 minutes: if a node
		// flaps, the event that it has recovered could be lost. The limiter of the Reporter drops none.
		LRUCacheSize: cacheSize, BurstSize: burst, QPS: perSecond,
	}))
	broadcaster.StartRecordingToSink(&sink{ctx: ctx, client: client, logs: map[string]*failure.Log{}})
	return broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component})
}

// sink writes events to the API server. Its methods are not safe for concurrent use.
type sink struct {
	ctx    context.Context //nolint:containedctx // record.EventSink has no contexts
	client corev1client.EventsGetter
	logs   map[string]*failure.Log // by namespace
}

// Create implements record.EventSink.
func (s *sink) Create(e *corev1.Event) (*corev1.Event, error) {
	stored, err := s.write(e, func(ctx context.Context, events corev1client.EventInterface) (*corev1.Event, error) {
		return events.Create(ctx, e, metav1.CreateOptions{})
	})
	if apierrors.IsNotFound(err) { // there is no such namespace
		s.log(e.Namespace, err)
	}
	return stored, err
}

// Patch implements record.EventSink.
func (s *sink) Patch(e *corev1.Event, patch []byte) (*corev1.Event, error) {
	return s.write(e, func(ctx context.Context, events corev1client.EventInterface) (*corev1.Event, error) {
		return events.Patch(ctx, e.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
	})
}

// Update implements record.EventSink. The recorder does not call it.
func (s *sink) Update(*corev1.Event) (*corev1.Event, error) { return nil, errors.ErrUnsupported }

func (s *sink) write(
	e *corev1.Event, request func(context.Context, corev1client.EventInterface) (*corev1.Event, error),
) (*corev1.Event, error) {
	if time.Since(e.LastTimestamp.Time) > maxAge {
		return e, nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, requestTimeout)
	defer cancel()
	stored, err := request(ctx, s.client.Events(e.Namespace))
	if s.ctx.Err() != nil || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) {
		return stored, err // the recorder creates an event that is not found
	}
	s.log(e.Namespace, err)
	if kindOf(err) == unavailable {
		err = fmt.Errorf("the API server is unavailable: %w", err) // the recorder does not retry if there is a status
	}
	return stored, err
}

// log logs the first failure of a kind in a namespace, and the first success after it.
func (s *sink) log(namespace string, err error) {
	l := s.logs[namespace]
	if l == nil {
		l = &failure.Log{Recovered: "Events can be written again"}
		s.logs[namespace] = l
	}
	l.Failing = "Cannot write events"
	if apierrors.IsForbidden(err) {
		l.Failing += "; grant kube-vitals create and patch on events in this namespace, or do not set --deployment " +
			"(events.enabled=false in the chart)"
	}
	l.Note(klog.FromContext(s.ctx).WithValues("namespace", namespace), kindOf(err), err)
}

// The kinds of failures of a request.
const (
	unavailable = "unavailable" // the API server does not respond, or is overloaded
	rejected    = "rejected"
)

// kindOf returns the kind of failure of a request's error, or "".
func kindOf(err error) string {
	status, responded := errors.AsType[*apierrors.StatusError](err)
	switch {
	case err == nil:
		return ""
	case responded && status.ErrStatus.Code < http.StatusInternalServerError && !apierrors.IsTooManyRequests(err):
		return rejected
	}
	return unavailable
}
