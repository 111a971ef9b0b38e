package servingcert

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/internal/backoff"
	"github.com/kube-vitals/kube-vitals/pkg/internal/failure"
)

const (
	// resyncPeriod is how long nothing is read again without a change, and the longest time
	// between a failure and the next attempt.
	resyncPeriod = time.Minute
	// forbiddenPeriod is how long a Monitor waits before it retries a request that was forbidden.
	forbiddenPeriod = 10 * time.Minute
	// minDelay is the least time between two reconciliations, so that many changes at once cause
	// few requests.
	minDelay = 100 * time.Millisecond
	// peerGrace is how long after its first read of the Secret a new replica waits for other replicas to
	// restore it, if an APIService has a caBundle: they may still serve its certificate. Their watches report
	// the loss at once.
	peerGrace = 10 * time.Second
	// reconcileTimeout limits the requests of one reconciliation together.
	reconcileTimeout = 30 * time.Second
)

// Run reconciles the Secret, the APIServices and the ConfigMap until the context ends. It must be
// called once.
func (m *Manager) Run(ctx context.Context) {
	changed := make(chan struct{}, 1)
	var watches sync.WaitGroup
	defer watches.Wait()
	watches.Go(func() { watchObject(ctx, m.secretName(), m.Secret, m.secrets.Watch, changed) })
	for _, name := range m.APIServices {
		watches.Go(func() { watchObject(ctx, "APIService "+name, name, m.monitor.client.Watch, changed) })
	}

	reconciling := attempts{log: failure.Log{
		Failing:   "Cannot reconcile the serving certificate; serving the current one and retrying",
		Recovered: "Reconciling the serving certificate succeeds again",
	}}
	for ctx.Err() == nil {
		delay := reconciling.add(ctx, m.reconcile(ctx))
		backoff.Sleep(ctx, minDelay, nil)
		// So both steps of a renewal, with Settle between them, end before the certificate expires.
		backoff.Sleep(ctx, min(delay, m.Settle/4), changed)
	}
}

type watchFunc func(context.Context, metav1.ListOptions) (watch.Interface, error)

// watchObject sends to changed whenever the object of this name changes, and when a watch begins.
func watchObject(ctx context.Context, object, name string, start watchFunc, changed chan<- struct{}) {
	options := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()}
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("object", object))
	watching := attempts{log: failure.Log{
		Failing:   "Cannot watch an object of the serving certificate; reading it every minute instead",
		Recovered: "Watching an object of the serving certificate works again",
	}}
	for ctx.Err() == nil {
		events, err := start(ctx, options)
		delay := watching.add(ctx, err)
		if err != nil {
			backoff.Sleep(ctx, delay, nil)
			continue
		}
		for range events.ResultChan() {
			select {
			case changed <- struct{}{}:
			default: // an earlier change has not been handled yet
			}
		}
		events.Stop()
		backoff.Sleep(ctx, jitter(time.Second), nil)
	}
}

// attempts are the attempts at something that is repeated. Errors are logged once.
type attempts struct {
	log      failure.Log
	failures int // in a row
	backoff  *wait.Backoff
}

// maxConflicts is how many conflicts in a row are normal between replicas.
const maxConflicts = 5

// add adds a result, and returns the time until the next attempt.
func (a *attempts) add(ctx context.Context, err error) time.Duration {
	if a.failures++; err == nil {
		a.failures = 0
	} else if a.failures == 1 {
		a.backoff = backoff.New(minDelay, resyncPeriod*2/3)
	}
	if ctx.Err() == nil && (!apierrors.IsConflict(err) || a.failures > maxConflicts) {
		a.log.NoteError(klog.FromContext(ctx), err)
	}
	if err == nil {
		return jitter(resyncPeriod)
	}
	return a.backoff.Step()
}

// jitter returns a random time between d/2 and d, so that replicas do not act at the same time.
func jitter(d time.Duration) time.Duration { return wait.Jitter(d/2, 1) }
