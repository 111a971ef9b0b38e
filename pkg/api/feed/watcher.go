package feed

import (
	"context"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/kube-vitals/kube-vitals/pkg/api/encode"
)

const (
	// resultBuffer is the number of events that may wait: the library flushes the response when none
	// does.
	resultBuffer = 32
	// readSize is the number of changes that a watcher reads at once.
	readSize = 64
	// initialTimeout limits the time for the initial events: until they are sent, they keep a whole
	// state in memory.
	initialTimeout = time.Minute
	// bookmarkInterval is the time between two bookmarks. The log of a busy scope lasts about two
	// resolutions, and a client whose watch ends continues after the last bookmark.
	bookmarkInterval = 10 * time.Second
	// lastBookmark is how long before the end of a watch there is a bookmark.
	lastBookmark = time.Second
)

// watcher is one watch. It implements watch.Interface.
type watcher struct {
	feed    *Feed
	options Options
	result  chan watch.Event
	stopped chan struct{}
	once    sync.Once

	scope        *scope
	position     uint64        // the version of the last change that it has read
	initial      []encode.Item // the state of the scope at that version, if it must be sent
	seen         []encode.Item // what the client has seen of that state in a LIST
	hasSeen      bool
	endOfInitial bool // the initial events end with a bookmark
}

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.result }

// Stop implements watch.Interface.
func (w *watcher) Stop() { w.once.Do(func() { close(w.stopped) }) }

// run sends events until the context ends, the watcher is stopped or too slow, or the Feed is
// closed.
func (w *watcher) run(ctx context.Context) {
	defer close(w.result)
	defer w.feed.removeWatcher(w)
	if w.sendInitial(ctx) {
		w.follow(ctx)
	}
}

// selected returns the items that match the selectors. No lock is held: a selector may be slow.
func (w *watcher) selected(items []encode.Item) []encode.Item {
	var selected []encode.Item
	for i := range items {
		if w.options.Matches(items[i].Object) {
			selected = append(selected, items[i])
		}
	}
	return selected
}

// sendInitial sends what precedes the changes. It reports whether the watch goes on.
func (w *watcher) sendInitial(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, initialTimeout)
	defer cancel()
	if w.hasSeen {
		for _, event := range difference(w.seen, w.selected(w.initial), w.feed.VersionOf) {
			if !w.send(ctx, event) {
				return false
			}
		}
		w.initial = nil
	}
	for i := range w.initial {
		if item := w.initial[i]; w.options.Matches(item.Object) &&
			!w.send(ctx, watch.Event{Type: watch.Added, Object: encode.NewEvent(item, false)}) {
			return false
		}
	}
	w.initial, w.seen = nil, nil
	// The first bookmark is a version at which the client can continue: that of a LIST is soon
	// forgotten, and those of initial events are none.
	return !w.options.Bookmarks || w.sendBookmark(ctx, w.endOfInitial)
}

// follow sends changes.
func (w *watcher) follow(ctx context.Context) {
	var bookmark <-chan time.Time
	var timer *time.Timer
	if w.options.Bookmarks {
		timer = time.NewTimer(nextBookmark(ctx))
		defer timer.Stop()
		bookmark = timer.C
	}
	for {
		changes, changed, ok := w.scope.after(w.position, readSize)
		if !ok {
			status := expired().Status()
			w.send(ctx, watch.Event{Type: watch.Error, Object: &status})
			return
		}
		for _, c := range changes {
			if event, ok := w.event(c); ok && !w.send(ctx, event) {
				return
			}
			w.position = c.version
		}
		if len(changes) > 0 {
			continue
		}
		select {
		case <-changed:
		case <-bookmark:
			if !w.sendBookmark(ctx, false) {
				return
			}
			timer.Reset(nextBookmark(ctx))
		case <-ctx.Done():
			return
		case <-w.stopped:
			return
		}
	}
}

// event returns the event for a change, and whether there is one. An object that no longer matches
// the selectors is deleted for this watcher, with its last content that did.
func (w *watcher) event(c *change) (watch.Event, bool) {
	matches := w.options.Matches(c.event.Object)
	matched := matches
	if c.before != nil {
		matched = w.options.Matches(c.before.Object)
	}
	switch {
	case matches && !matched:
		return watch.Event{Type: watch.Added, Object: c.event}, true
	case !matches && matched:
		return watch.Event{Type: watch.Deleted, Object: c.before}, true
	}
	return watch.Event{Type: c.kind, Object: c.event}, matches
}

// nextBookmark returns the time until the next bookmark.
func nextBookmark(ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		if last := time.Until(end) - lastBookmark; last > 0 {
			return min(bookmarkInterval, last)
		}
	}
	return bookmarkInterval
}

// sendBookmark sends the version up to which the client has seen all changes.
func (w *watcher) sendBookmark(ctx context.Context, endOfInitial bool) bool {
	object := w.feed.config.NewBookmark(strconv.FormatUint(w.position, 10))
	if endOfInitial {
		if err := storage.AnnotateInitialEventsEndBookmark(object); err != nil {
			status := apierrors.NewInternalError(err).Status()
			w.send(ctx, watch.Event{Type: watch.Error, Object: &status})
			return false
		}
	}
	return w.send(ctx, watch.Event{Type: watch.Bookmark, Object: object})
}

// send sends an event and reports whether the watch goes on.
func (w *watcher) send(ctx context.Context, event watch.Event) bool {
	select {
	case w.result <- event:
		return true
	case <-ctx.Done():
	case <-w.stopped:
	}
	return false
}
