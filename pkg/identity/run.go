package identity

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
	// recheck is after what time all is looked at again, though no watch has told of a change.
	recheck = time.Minute
	// pause is between two looks, so that a burst of changes costs few requests.
	pause = 100 * time.Millisecond
	// courtesy is how long a server that knows nothing lets others put back what was in the Secret. They hear of it at once.
	courtesy = 10 * time.Second
	// maxBackoff is the longest time from a failure to the next attempt.
	maxBackoff = time.Minute
	// requestsTimeout bounds the requests of one look together.
	requestsTimeout = 30 * time.Second
)

// Run keeps the Secret and the APIServices right until the context ends. Call it once.
func (i *Identity) Run(ctx context.Context) {
	changed := make(chan struct{}, 1)
	var watches sync.WaitGroup
	defer watches.Wait()
	watches.Go(func() { follow(ctx, i.secretName(), i.secret, i.secrets.Watch, changed) })
	for _, name := range i.apiServices {
		watches.Go(func() { follow(ctx, "APIService "+name, name, i.services.Watch, changed) })
	}

	var trouble trouble
	for ctx.Err() == nil {
		again, err := i.look(ctx)
		if err != nil {
			again = trouble.failed(ctx, err)
		} else {
			trouble.over(ctx)
		}
		sleep(ctx, pause, nil)
		sleep(ctx, min(again, jitter(recheck)), changed)
	}
}

// follow says when the object of this name changes, and each time that it begins to watch.
func follow(ctx context.Context, what, name string, begin func(context.Context, metav1.ListOptions) (watch.Interface, error), changed chan<- struct{}) {
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
			default: // it has been said, and not yet been heard
			}
		}
		events.Stop()
	}
}

// trouble is a row of failures, of which the log hears once.
type trouble struct {
	failures int
	said     string // what the log has heard
}

// quiet is how many conflicts in a row are business as usual between replicas.
const quiet = 5

// failed takes note of a failure and gives the time until the next attempt.
func (t *trouble) failed(ctx context.Context, err error) time.Duration {
	t.failures++
	text := err.Error()
	if ctx.Err() == nil && text != t.said && (!apierrors.IsConflict(err) || t.failures > quiet) {
		t.said = text
		klog.FromContext(ctx).Error(err, "Cannot look after the serving certificate; goes on with the one that is there, and tries again")
	}
	return jitter(min(pause<<min(t.failures, 16), maxBackoff))
}

// over takes note of a success.
func (t *trouble) over(ctx context.Context) {
	if t.said != "" {
		klog.FromContext(ctx).Info("The serving certificate is looked after again")
	}
	*t = trouble{}
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

// jitter gives between half of the time and all of it, so that replicas do not move in step.
func jitter(d time.Duration) time.Duration { return d/2 + rand.N(d/2+1) } //nolint:gosec // spreads retries, which needs no secrecy
