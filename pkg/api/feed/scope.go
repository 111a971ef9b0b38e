package feed

import (
	"slices"
	"sort"

	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-vitals/kube-vitals/pkg/api/encode"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// The log has the changes of about two resolutions, in which each object changes once per
// resolution. minLog is for small namespaces.
const (
	logPerItem = 2
	minLog     = 20
	// encodedFor is the number of comparisons for which the encoded forms of an event are kept.
	encodedFor = 3
)

// scope has the state and the recent changes of one namespace, or of all. The mu of its Feed guards
// it.
type scope struct {
	feed     *Feed
	readAt   usage.Time    // when reading the state began; guarded by reading
	items    []encode.Item // the state, sorted; not changed, since watchers read it
	base     uint64        // the version before the first change in the log
	log      []*change     // the oldest first
	changed  chan struct{} // closed when the log grows or the scope ends
	ended    bool
	watchers int

	unusedSince usage.Time         // if there are no watchers
	encoded     [encodedFor]uint64 // versions of the last comparisons: later changes keep encoded forms
	released    uint64             // the version up to which changes keep no encoded forms
}

// change is a change of one object.
type change struct {
	version uint64
	kind    watch.EventType
	event   *encode.Event // the state after the change; of a deleted object, the last one
	// before is the state before the change, if a selector may have matched that but not the state
	// after it, or the other way around; else nil.
	before *encode.Event
}

// newScope returns a scope with a state, which it owns, and which was read from that time on.
func newScope(f *Feed, readAt usage.Time, items []encode.Item) *scope {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := &scope{feed: f, readAt: readAt, items: items, changed: make(chan struct{})}
	for i := range items {
		items[i].Version = f.VersionOf(items[i].Usage)
	}
	s.base = f.next()
	s.released = s.base
	for i := range s.encoded {
		s.encoded[i] = s.base
	}
	return s
}

// version returns the version of the state.
func (s *scope) version() uint64 {
	if n := len(s.log); n > 0 {
		return s.log[n-1].version
	}
	return s.base
}

// index returns where the changes after a version begin in the log, and whether the scope knows all
// of them.
func (s *scope) index(version uint64) (int, bool) {
	i := sort.Search(len(s.log), func(i int) bool { return s.log[i].version > version })
	return i, version == s.base || i > 0 && s.log[i-1].version == version
}

func (s *scope) knows(version uint64) bool {
	_, ok := s.index(version)
	return ok
}

// after returns changes after a version, or none if there are none yet: then changed is closed when
// there are. ok is false if the log does not have all changes after the version.
func (s *scope) after(version uint64, limit int) (changes []*change, changed <-chan struct{}, ok bool) {
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	i, ok := s.index(version)
	if s.ended || !ok {
		return nil, nil, false
	}
	return slices.Clone(s.log[i:min(len(s.log), i+limit)]), s.changed, true
}

// update replaces the state and logs the differences. The parameters are those of newScope. The
// caller holds the reading of the Feed.
func (s *scope) update(readAt usage.Time, items []encode.Item) {
	s.readAt = readAt
	s.feed.mu.Lock()
	defer s.feed.mu.Unlock()
	if s.ended {
		return
	}
	old, size := s.items, len(s.log)
	shared := s.watchers > 1
	diff(old, items, func(before, after *encode.Item) {
		c := &change{version: s.feed.next()}
		switch {
		case before == nil:
			c.kind, after.Version = watch.Added, c.version
			c.event = encode.NewEvent(*after, shared)
		case after == nil:
			gone := *before
			gone.Version = c.version
			c.kind, c.event = watch.Deleted, encode.NewEvent(gone, shared)
		default:
			c.kind, after.Version = watch.Modified, c.version
			c.event = encode.NewEvent(*after, shared)
			if !before.HasEqualLabels(after) {
				gone := *before
				gone.Version = c.version
				c.before = encode.NewEvent(gone, shared)
			}
		}
		s.log = append(s.log, c)
	})
	s.items = items
	s.release()
	if len(s.log) == size {
		return
	}
	// If many objects have ended at once, their events are kept until the next comparison at least.
	if excess := len(s.log) - max(minLog, logPerItem*max(len(old), len(items))); excess > 0 {
		s.base = s.log[excess-1].version
		s.log = slices.Delete(s.log, 0, excess)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// release drops the encoded forms of changes that most watchers have read.
func (s *scope) release() {
	upTo := s.encoded[0]
	copy(s.encoded[:], s.encoded[1:])
	s.encoded[encodedFor-1] = s.version()
	from, _ := s.index(s.released)
	to, _ := s.index(upTo)
	for _, c := range s.log[from:max(from, to)] {
		c.event.Release()
		if c.before != nil {
			c.before.Release()
		}
	}
	s.released = max(s.released, upTo)
}

// end ends the watches of the scope.
func (s *scope) end() {
	s.ended = true
	close(s.changed)
	s.changed = make(chan struct{})
}

// diff calls differs for each object that differs between two sorted lists; before or after is nil
// if the object is in one of them only. Objects of the same name that are not the same are removed
// and added. Items of newer that have not changed get the version of older.
func diff(older, newer []encode.Item, differs func(before, after *encode.Item)) {
	i, j := 0, 0
	for i < len(older) || j < len(newer) {
		var order int
		switch {
		case i == len(older):
			order = 1
		case j == len(newer):
			order = -1
		default:
			order = compare(&older[i], &newer[j])
		}
		switch {
		case order < 0:
			differs(&older[i], nil)
			i++
		case order > 0:
			differs(nil, &newer[j])
			j++
		default:
			before, after := &older[i], &newer[j]
			switch {
			case !before.IsSame(after):
				differs(before, nil)
				differs(nil, after)
			case before.IsEqual(after):
				after.Refresh(before)
			default:
				differs(before, after)
			}
			i++
			j++
		}
	}
}

// difference returns the changes from what a LIST has returned to a state, which it owns. No watch
// can begin at their versions: a client that has seen only some of them must list again.
func difference(list, state []encode.Item, version func(encode.Usage) uint64) []watch.Event {
	var events []watch.Event
	add := func(kind watch.EventType, item encode.Item) {
		item.Version = version(item.Usage)
		events = append(events, watch.Event{Type: kind, Object: encode.NewEvent(item, false)})
	}
	diff(list, state, func(before, after *encode.Item) {
		switch {
		case before == nil:
			add(watch.Added, *after)
		case after == nil:
			add(watch.Deleted, *before)
		default:
			add(watch.Modified, *after)
		}
	})
	return events
}
