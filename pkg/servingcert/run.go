package servingcert

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"
)

const (
	// resyncPeriod is the time after which everything is read again, though no watch has reported a
	// change.
	resyncPeriod = time.Minute
	// forbiddenPeriod is the time after which a Monitor tries again to read what it was not allowed
	// to.
	forbiddenPeriod = 10 * time.Minute
	// pause is the time between two reconciliations, so that a burst of changes costs few requests.
	pause = 100 * time.Millisecond
	// peerGrace is how long a server that remembers nothing waits for other replicas to restore the
	// Secret. Their watches report the loss at once.
	peerGrace = 10 * time.Second
	// maxBackoff is the longest time from a failure to the next attempt.
	maxBackoff = time.Minute
	// requestsTimeout bounds the requests of one reconciliation together.
	requestsTimeout = 30 * time.Second
)

// Run keeps the Secret and the APIServices right until the context ends. Call it once.
func (m *Manager) Run(ctx context.Context) {
	changed := make(chan struct{}, 1)
	var watches sync.WaitGroup
	defer watches.Wait()
	watches.Go(func() { watchObject(ctx, m.secretName(), m.secret, m.secrets.Watch, changed) })
	for _, name := range m.apiServices {
		watches.Go(func() { watchObject(ctx, "APIService "+name, name, m.monitor.client.Watch, changed) })
	}

	failures := failureLog{
		failing:   "Cannot look after the serving certificate; goes on with the one that is there, and tries again",
		recovered: "The serving certificate is looked after again",
	}
	for ctx.Err() == nil {
		delay, err := m.reconcile(ctx)
		if err != nil {
			delay = failures.add(ctx, err)
		} else {
			failures.end(ctx)
		}
		sleep(ctx, pause, nil)
		sleep(ctx, min(delay, jitter(resyncPeriod)), changed)
	}
}

// watchObject sends to changed when the object of this name changes, and each time that a watch of
// it begins.
func watchObject(ctx context.Context, what, name string, begin func(context.Context, metav1.ListOptions) (watch.Interface, error), changed chan<- struct{}) {
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}
	said := ""
	for delay := time.Second; ctx.Err() == nil; sleep(ctx, jitter(delay), nil) {
		events, err := begin(ctx, options)
		if err != nil {
			delay = min(2*delay, maxBackoff)
			if text := err.Error(); ctx.Err() == nil && text != said {
				said = text
				klog.FromContext(ctx).Error(err, "Cannot watch what the serving certificate depends on; looks at it from time to time instead", "what", what)
			}
			continue
		}
		delay, said = time.Second, ""
		for range events.ResultChan() {
			select {
			case changed <- struct{}{}:
			default: // an earlier change has not been handled yet
			}
		}
		events.Stop()
	}
}

// failureLog logs a series of failures once for each error message.
type failureLog struct {
	failing, recovered string // the messages
	failures           int
	logged             string // the last error
}

// quiet is how many conflicts in a row are normal between replicas.
const quiet = 5

// add counts a failure and returns the time until the next attempt.
func (f *failureLog) add(ctx context.Context, err error) time.Duration {
	f.failures++
	text := err.Error()
	if ctx.Err() == nil && text != f.logged && (!apierrors.IsConflict(err) || f.failures > quiet) {
		f.logged = text
		klog.FromContext(ctx).Error(err, f.failing)
	}
	return jitter(min(pause<<min(f.failures, 16), maxBackoff))
}

// end ends the series after a success.
func (f *failureLog) end(ctx context.Context) {
	if f.logged != "" {
		klog.FromContext(ctx).Info(f.recovered)
	}
	f.failures, f.logged = 0, ""
}

// sleep waits for the time to pass, for a wake-up or for the context to end.
func sleep(ctx context.Context, d time.Duration, wake <-chan struct{}) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-wake:
	case <-timer.C:
	}
}

// jitter returns between half of the time and all of it, so that replicas do not move in step.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) } //nolint:gosec // spreads retries, which needs no secrecy
