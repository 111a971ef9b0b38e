package event

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
)

const (
	// downFor is how long the API server is considered unavailable after a request has failed.
	downFor = 30 * time.Second
	// retryAfter is the time after which such a request is tried again. No other event is sent
	// meanwhile, so that an event that a node has recovered is not lost.
	retryAfter = 10 * time.Second
	// retryFor is how long a request is tried. It exceeds the outages of most upgrades. Many events
	// from before a longer one have expired when it ends.
	retryFor = 30 * time.Minute
)

// sink writes the events of a recorder to the API server. It implements record.EventSink.
//
// The recorder logs each event that it cannot write, with all its fields. That log is discarded;
// the sink logs the first failure in a namespace and the first success after it.
type sink struct {
	record.EventRecorder
	events corev1client.EventsGetter
	ctx    context.Context // of the requests

	mu          sync.Mutex
	failures    map[string]failure // of the last request, by namespace
	unavailable time.Time          // when the API server was last unavailable; zero: it responds
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

// newSink returns a sink with a recorder that writes to it until ctx is done.
func newSink(ctx context.Context, events corev1client.EventsGetter) *sink {
	s := &sink{events: events, ctx: ctx, failures: map[string]failure{}}
	broadcaster := record.NewBroadcaster(
		record.WithContext(klog.NewContext(ctx, klog.Logger{})),
		// By default, the recorder drops events of one object above 25, and then allows one in 5
		// minutes. If a node flaps, the event that it has recovered could be lost. The Reporter's
		// limit does not drop events.
		record.WithCorrelatorOptions(record.CorrelatorOptions{
			LRUCacheSize: cacheSize, BurstSize: burst, QPS: perSecond,
		}),
	)
	broadcaster.StartRecordingToSink(s)
	s.EventRecorder = broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component}).
		WithLogger(klog.Logger{})
	return s
}

// isDown reports whether the API server has been unavailable lately.
func (s *sink) isDown(now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.unavailable.IsZero() && now.Sub(s.unavailable) < downFor
}

// Create implements record.EventSink.
func (s *sink) Create(event *corev1.Event) (*corev1.Event, error) {
	return s.send(event, func(ctx context.Context) (*corev1.Event, error) {
		return s.events.Events(event.Namespace).Create(ctx, event, metav1.CreateOptions{})
	})
}

// Update implements record.EventSink. The recorder does not call it.
func (s *sink) Update(event *corev1.Event) (*corev1.Event, error) {
	return s.send(event, func(ctx context.Context) (*corev1.Event, error) {
		return s.events.Events(event.Namespace).Update(ctx, event, metav1.UpdateOptions{})
	})
}

// Patch implements record.EventSink.
func (s *sink) Patch(event *corev1.Event, data []byte) (*corev1.Event, error) {
	return s.send(event, func(ctx context.Context) (*corev1.Event, error) {
		return s.events.Events(event.Namespace).Patch(ctx, event.Name, types.StrategicMergePatchType, data,
			metav1.PatchOptions{})
	})
}

// send sends a request, and tries it again while the API server is unavailable. The recorder would
// try it for 2 minutes only.
func (s *sink) send(event *corev1.Event, request func(context.Context) (*corev1.Event, error)) (*corev1.Event, error) {
	for start := time.Now(); ; {
		result, err := s.try(event, request)
		switch {
		case s.ctx.Err() != nil, failureOf(err) != unavailable:
			return result, err
		case time.Since(start) >= retryFor:
			return nil, apierrors.NewTimeoutError(err.Error(), 0) // the recorder does not retry a StatusError
		}
		select {
		case <-s.ctx.Done():
			return nil, s.ctx.Err()
		case <-time.After(retryAfter):
		}
	}
}

// try sends a request once and observes its error.
func (s *sink) try(event *corev1.Event, request func(context.Context) (*corev1.Event, error)) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(s.ctx, requestTimeout)
	defer cancel()
	result, err := request(ctx)
	// After a 404 to a patch, the event has expired: the recorder creates another one.
	if s.ctx.Err() == nil && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) {
		s.observe(event.Namespace, err)
	}
	return result, err
}

// observe logs the first failure of a kind in a namespace, and the first success after it.
func (s *sink) observe(namespace string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	kind := failureOf(err)
	s.unavailable = time.Time{}
	if kind == unavailable {
		s.unavailable = time.Now()
	}
	before := s.failures[namespace]
	s.failures[namespace] = kind
	logger := klog.FromContext(s.ctx)
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
