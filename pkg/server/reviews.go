package server

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/klog/v2"
)

const (
	// grace is how old an answer may be that lets a client in while the API server cannot be asked. Readers of figures are
	// to survive its restart, its upgrade, and an outage that somebody has to be called for.
	grace = 15 * time.Minute
	// patience is how long a question takes, at the most, when there is an old answer to fall back on or the one before
	// failed: while the API server hangs, requests must not pile up.
	patience = 2 * time.Second
	// maxReviews is how many answers of a kind are remembered: some MiB.
	maxReviews = 8192
	// sayAgain is how often the log repeats what goes on.
	sayAgain = time.Minute
)

var (
	// errUnasked is what comes of a question while the cluster's API server cannot be asked and no answer is known.
	errUnasked = errors.New("the cluster's API server cannot be asked")
	// errRejected is what comes of a question that the API server rejects: no client can make that an outage.
	errRejected = errors.New("the cluster's API server rejects the question whether this is allowed")
)

// reviews puts questions of one kind to the cluster's API server and remembers the answers, those of the type A. The
// library's own clients do that too, but write a line in the log for each question that has no answer, and know nobody
// any more as soon as an answer has expired.
type reviews[A any] struct {
	fresh   func(A) time.Duration // for how long an answer counts
	admits  func(A) bool          // whether it lets a client in, and so counts for longer while there is no other
	timeout time.Duration         // of a question, with all tries
	backoff wait.Backoff          // between its tries
	outage  *outage

	answers *cache.LRUExpireCache // of remembered[A], by question
}

type remembered[A any] struct {
	answer A
	at     time.Time
}

func newReviews[A any](timeout time.Duration, backoff wait.Backoff, outage *outage, fresh func(A) time.Duration, admits func(A) bool) *reviews[A] {
	return &reviews[A]{
		fresh:   fresh,
		admits:  admits,
		timeout: timeout,
		backoff: backoff,
		outage:  outage,
		answers: cache.NewLRUExpireCache(maxReviews),
	}
}

// answer gives the answer to a question, which ask puts to the API server if need be. The only errors are errUnasked,
// errRejected, and that of a context which ended.
func (r *reviews[A]) answer(ctx context.Context, question string, ask func(context.Context) (A, error)) (A, error) {
	old, known := r.recall(question)
	if known && time.Since(old.at) < r.fresh(old.answer) {
		return old.answer, nil
	}
	usable := known && r.admits(old.answer)
	lasts, justFailed := r.outage.state()
	if usable && justFailed {
		return old.answer, nil
	}
	timeout := r.timeout
	if usable || lasts {
		timeout = min(timeout, patience)
	}
	answer, err := r.ask(ctx, timeout, ask)
	switch {
	case err == nil:
		r.answers.Add(question, remembered[A]{answer, time.Now()}, max(grace, r.fresh(answer)))
		return answer, nil
	case ctx.Err() != nil: // the client did not wait
		return answer, ctx.Err()
	case rejected(err):
		return answer, errRejected
	case usable:
		return old.answer, nil
	default:
		return answer, errUnasked
	}
}

func (r *reviews[A]) recall(question string) (old remembered[A], known bool) {
	if entry, ok := r.answers.Get(question); ok {
		return entry.(remembered[A]), true
	}
	return old, false
}

// ask puts a question to the API server, and notes whether that could be done.
func (r *reviews[A]) ask(parent context.Context, timeout time.Duration, ask func(context.Context) (A, error)) (answer A, err error) {
	ctx, cancel := context.WithTimeout(parent, timeout)
	defer cancel()
	err = webhook.WithExponentialBackoff(ctx, r.backoff, func() (err error) {
		answer, err = ask(ctx)
		return err
	}, webhook.DefaultShouldRetry)
	switch {
	case err == nil || rejected(err):
		r.outage.over(parent)
	case parent.Err() == nil:
		r.outage.goesOn(parent, err)
	}
	return answer, err
}

// rejected says whether the API server answered that a question is wrong in itself, so not that it is busy or that this
// server may not ask.
func rejected(err error) bool {
	status := apierrors.APIStatus(nil)
	if !errors.As(err, &status) {
		return false
	}
	switch code := status.Status().Code; code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	default:
		return code >= 400 && code < 500
	}
}

// outage is a time in which the API server cannot be asked. The log tells when it begins, once in a while that it goes
// on, and when it is over.
type outage struct {
	mu         sync.Mutex
	began      time.Time // zero: there is none
	last       time.Time // when a question failed
	unanswered int       // since it began
	saying     seldom
	told       bool // that it began
}

// goesOn notes that a question failed.
func (o *outage) goesOn(ctx context.Context, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if o.began.IsZero() || now.Sub(o.last) > sayAgain { // nobody has asked since, so that one may have ended
		o.began, o.unanswered, o.told = now, 0, false
	}
	o.last = now
	o.unanswered++
	if _, ok := o.saying.due(now); ok {
		o.told = true
		klog.FromContext(ctx).Error(err, "The API server cannot be asked who clients are and what they may do; "+
			"those whom it has let in lately are served, others are refused",
			"for", now.Sub(o.began).Round(time.Second), "unanswered", o.unanswered, "lately", grace)
	}
}

// over notes that a question has been answered.
func (o *outage) over(ctx context.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.began.IsZero() {
		return
	}
	if o.told {
		klog.FromContext(ctx).Info("The API server can be asked again who clients are and what they may do",
			"after", time.Since(o.began).Round(time.Second), "unanswered", o.unanswered)
	}
	o.began = time.Time{}
}

// state says whether there is an outage, and whether a question failed so lately that the next one would, too.
func (o *outage) state() (lasts, justFailed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	lasts = !o.began.IsZero()
	return lasts, lasts && time.Since(o.last) < patience
}

// seldom keeps something from being said more often than every sayAgain.
type seldom struct {
	said   time.Time // zero: never
	unsaid int       // how often it was left unsaid since
}

// due says whether it is to be said now, and how often it was not since the last time.
func (s *seldom) due(now time.Time) (unsaid int, ok bool) {
	if !s.said.IsZero() && now.Sub(s.said) < sayAgain {
		s.unsaid++
		return 0, false
	}
	unsaid = s.unsaid
	s.said, s.unsaid = now, 0
	return unsaid, true
}
