// Package feed turns the metrics that are served of one kind of object into watch events.
//
// Nothing publishes changes. While there are watchers, a Feed reads once a second what a LIST would
// return, and compares it with what it read before: see scope. Watchers read the changes from a log
// that they share, each at its own pace, so that none can hold up another one, or anything else. A
// watcher that is so slow that the log has dropped what it has not read ends. Without watchers, a
// Feed does nothing, except that it remembers for some seconds what LISTs have returned: a watch
// that begins at the version of a LIST begins with the differences from that LIST.
//
// Versions (of objects, lists and events) are numbers that increase with time, and of which each
// process issues its own. A watch can begin only at a version that this process has issued, and of
// which it knows all later changes.
package feed

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/api/encode"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const (
	// interval is the time between two comparisons.
	interval = time.Second
	// linger is how long a scope is kept without watchers: a client whose watch has ended usually
	// returns at once.
	linger = 30 * time.Second
	// rememberFor is how long LISTs are remembered, and maxRemembered the number of LISTs and items.
	// Clients begin a watch as soon as they have read the list.
	rememberFor   = 10 * time.Second
	maxRemembered = 1 << 16
	// MaxWatchers is the maximum number of watchers of a Feed. A user may have half of them.
	MaxWatchers = 2000
)

// The bits of a version: the time in microseconds, then which process issued it. The last bit is 1
// in versions at which a watch can begin, and 0 in those of objects in lists, which only show
// whether an object has changed.
const (
	processBits = 12
	issued      = 1
)

// Config configures a Feed.
type Config struct {
	// Snapshot returns what a LIST of a namespace (of all if it is "") returns, sorted by namespace
	// and name. The slice belongs to the caller.
	Snapshot func(namespace string) []encode.Item
	// NewBookmark returns an object without content that has this version.
	NewBookmark func(version string) runtime.Object
	Now         func() usage.Time // by our clock
}

// Feed is the source of the watch events of one kind of object. It is safe for concurrent use.
type Feed struct {
	config  Config
	process uint64 // the bits that distinguish the versions of this process from those of others

	// reading serializes the calls of Snapshot. It is locked before mu.
	reading sync.Mutex

	mu         sync.Mutex
	last       uint64            // the time of the last version, in microseconds
	scopes     map[string]*scope // by namespace
	watchers   map[string]int    // their number, by user
	total      int               // number of watchers
	remembered []*remembered     // the oldest first
	kept       int               // the size of remembered
	cleanup    *time.Timer       // of remembered
	stop       context.CancelFunc
	closed     bool
}

// remembered is what a client has seen in a LIST. The state of a scope cannot stand in for it: a LIST
// may have seen what came and went between two comparisons.
type remembered struct {
	version   uint64
	at        usage.Time // when its last page had been read
	selection Selection
	items     []encode.Item
}

// size returns what counts for maxRemembered.
func (r *remembered) size() int { return 1 + len(r.items) }

// Selection is what a client selects.
type Selection struct {
	User      string
	Namespace string   // "": all
	Selectors [32]byte // a hash of the selectors, which may be long
}

// New returns a Feed without watchers.
func New(c Config) *Feed {
	process := rand.Uint64() //nolint:gosec // it is not a secret
	return &Feed{
		config: c, process: process&(1<<processBits-1) | issued,
		scopes: map[string]*scope{}, watchers: map[string]int{},
	}
}

// Close ends all watches.
func (f *Feed) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.end()
	f.remembered, f.kept = nil, 0
	if f.cleanup != nil {
		f.cleanup.Stop()
	}
}

// end ends all watches. The caller holds mu.
func (f *Feed) end() {
	for _, s := range f.scopes {
		s.end()
	}
	clear(f.scopes)
	if f.stop != nil {
		f.stop()
		f.stop = nil
	}
}

// next returns a new version. The caller holds mu.
func (f *Feed) next() uint64 {
	f.last = max(f.last+1, micros(f.config.Now()))
	return f.last<<processBits | f.process
}

func micros(t usage.Time) uint64 { return uint64(t) / 1000 }

// VersionOf returns the version of an object in a list: that of its sample.
func (f *Feed) VersionOf(u encode.Usage) uint64 {
	return micros(u.SampledAt())<<processBits | f.process&^issued
}

// Begin returns a version for a LIST that is about to begin.
func (f *Feed) Begin() (version uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.next()
}

// Remember keeps what a LIST has returned, for a watch that begins at its version. It keeps items.
func (f *Feed) Remember(version uint64, selection Selection, items []encode.Item) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	r := &remembered{version, f.config.Now(), selection, slices.Clip(items)}
	f.remembered = append(f.remembered, r)
	f.kept += r.size()
	f.forget()
	if f.cleanup == nil {
		f.cleanup = time.AfterFunc(rememberFor, f.forgetLater)
	}
}

// RememberPage adds a further page of a LIST to what is remembered of the pages before.
func (f *Feed) RememberPage(version uint64, selection Selection, items []encode.Item) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r := f.find(version, selection)
	if r == nil || len(items) == 0 {
		return
	}
	if n := len(r.items); n > 0 && compare(&r.items[n-1], &items[0]) >= 0 {
		// Not the next page: what the client has seen is not known.
		f.kept -= r.size()
		f.remembered = slices.DeleteFunc(f.remembered, func(other *remembered) bool { return other == r })
		return
	}
	r.items, r.at = append(r.items, items...), f.config.Now()
	f.kept += len(items)
	f.forget()
}

// find returns the remembered LIST of that version, or nil. The caller holds mu.
func (f *Feed) find(version uint64, selection Selection) *remembered {
	for _, r := range f.remembered {
		if r.version == version && r.selection == selection {
			return r
		}
	}
	return nil
}

// forget drops remembered LISTs that are too old or too many. The caller holds mu.
func (f *Feed) forget() {
	now, n := f.config.Now(), 0
	for ; n < len(f.remembered); n++ {
		r := f.remembered[n]
		tooMany := f.kept > maxRemembered && n < len(f.remembered)-1
		if now.Sub(r.at) < rememberFor && !tooMany {
			break
		}
		f.kept -= r.size()
	}
	clear(f.remembered[:n])
	f.remembered = f.remembered[n:] // there may be many: they are not moved
}

// forgetLater drops remembered LISTs when they are too old.
func (f *Feed) forgetLater() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget()
	if len(f.remembered) == 0 {
		f.cleanup = nil
		return
	}
	f.cleanup.Reset(rememberFor)
}

// Options are the parameters of a watch.
type Options struct {
	Selection
	// Matches reports whether the selectors match an object.
	Matches func(*inventory.Object) bool
	// Version is the resourceVersion after which the watch begins; "" and "0": now.
	Version string
	// InitialEvents is whether there is first an ADDED event for each object; nil: if there is no
	// Version.
	InitialEvents *bool
	Bookmarks     bool
}

// Watch begins a watch, which ends when the context ends. Its errors are API errors.
func (f *Feed) Watch(ctx context.Context, o Options) (watch.Interface, error) {
	version := uint64(0)
	if o.Version != "" {
		var err error
		if version, err = strconv.ParseUint(o.Version, 10, 64); err != nil {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("the resourceVersion %q is not a number: "+
				"use that of a list, or none", o.Version))
		}
	}
	w := &watcher{feed: f, options: o, result: make(chan watch.Event, resultBuffer), stopped: make(chan struct{})}
	initial := version == 0
	if o.InitialEvents != nil {
		// With initial events, the state is that of now, which is not older than any version.
		initial = *o.InitialEvents
		w.endOfInitial = initial && o.Bookmarks
	}
	if err := f.addWatcher(w, initial, version); err != nil {
		return nil, err
	}
	go w.run(ctx)
	return w, nil
}

// addWatcher adds a watcher and sets where it begins.
func (f *Feed) addWatcher(w *watcher, initial bool, version uint64) error {
	f.reading.Lock() // keeps others from creating the scope
	defer f.reading.Unlock()
	exact := !initial && version != 0
	if err := f.admit(w, exact, version); err != nil {
		return err
	}
	namespace := w.options.Namespace
	s, list, stale := f.lookup(namespace, version, w.options.Selection)
	var created *scope
	switch {
	case s == nil:
		created = newScope(f, f.config.Now(), f.config.Snapshot(namespace))
	case exact && stale:
		s.update(f.config.Now(), f.config.Snapshot(namespace))
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return closed()
	}
	if created != nil {
		s = created
		f.scopes[namespace] = s
		f.start()
	}
	w.scope, w.position = s, s.version()
	switch {
	case initial:
		w.initial = s.items
	case exact && list != nil:
		w.initial, w.seen, w.hasSeen = s.items, list.items, true
	case exact:
		w.position = version
	}
	s.watchers++
	f.watchers[w.options.User]++
	f.total++
	return nil
}

// lookup returns the scope of a namespace, the remembered LIST at which a watch begins (each may be
// nil), and whether the state of the scope may be older than the list.
func (f *Feed) lookup(namespace string, version uint64, selection Selection) (s *scope, list *remembered, stale bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, list = f.scopes[namespace], f.find(version, selection)
	return s, list, s != nil && list != nil && s.readAt <= list.at
}

// admit returns an error if there are too many watchers, or if no watch can begin at the version.
func (f *Feed) admit(w *watcher, exact bool, version uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.scopes[w.options.Namespace]
	switch {
	case f.closed:
		return closed()
	case f.total >= MaxWatchers || f.watchers[w.options.User] >= MaxWatchers/2:
		return apierrors.NewTooManyRequests(fmt.Sprintf("there are too many watches: this replica serves at most %d "+
			"of a resource, and %d of one user; end some, or poll with lists", MaxWatchers, MaxWatchers/2), 10)
	case exact && f.find(version, w.options.Selection) == nil && (s == nil || !s.knows(version)):
		return expired()
	}
	return nil
}

// removeWatcher removes a watcher.
func (f *Feed) removeWatcher(w *watcher) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watchers[w.options.User]--; f.watchers[w.options.User] == 0 {
		delete(f.watchers, w.options.User)
	}
	f.total--
	if w.scope.watchers--; w.scope.watchers == 0 {
		w.scope.unusedSince = f.config.Now()
	}
}

// start starts to compare, unless that is running. The caller holds mu.
func (f *Feed) start() {
	if f.stop != nil {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	f.stop = stop
	go f.run(ctx)
}

// run compares once per interval until there is no scope left. A panic ends the watches, but not the
// process, which must go on serving metrics.
func (f *Feed) run(ctx context.Context) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	defer func() {
		if r := recover(); r != nil {
			klog.Background().Error(fmt.Errorf("panic: %v", r), "Cannot compare metrics; ended all watches",
				"stack", string(debug.Stack()))
			f.mu.Lock()
			defer f.mu.Unlock()
			f.end()
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if !f.sweep() {
			return
		}
	}
}

// sweep reads what is served and adds what has changed to the logs. It reports whether there is a
// scope left.
func (f *Feed) sweep() bool {
	f.reading.Lock()
	defer f.reading.Unlock()
	type target struct {
		namespace string
		scope     *scope
	}
	var targets []target
	f.mu.Lock()
	for namespace, s := range f.scopes {
		if s.watchers == 0 && f.config.Now().Sub(s.unusedSince) >= linger {
			delete(f.scopes, namespace)
			continue
		}
		targets = append(targets, target{namespace, s})
	}
	if len(f.scopes) == 0 && f.stop != nil {
		f.stop()
		f.stop = nil
	}
	f.mu.Unlock()
	for _, t := range targets {
		t.scope.update(f.config.Now(), f.config.Snapshot(t.namespace))
	}
	return len(targets) > 0
}

func closed() error { return apierrors.NewServiceUnavailable("this replica is shutting down: retry") }

// expired returns the error for a version at which no watch can begin.
func expired() *apierrors.StatusError {
	return apierrors.NewResourceExpired("the resourceVersion is too old, or another replica issued it: " +
		"list again and watch from the resourceVersion of that list")
}

// compare compares Items by namespace, then by name.
func compare(a, b *encode.Item) int {
	if a.Object == b.Object {
		return 0
	}
	if c := strings.Compare(a.Object.Namespace, b.Object.Namespace); c != 0 {
		return c
	}
	return strings.Compare(a.Object.Name, b.Object.Name)
}
