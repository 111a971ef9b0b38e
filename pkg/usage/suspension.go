package usage

import (
	"sync/atomic"
	"time"
)

const (
	// minSuspension is the shortest time that is counted as a suspension. It is far above the error of
	// timeSuspended, so a Clock advances steadily while the machine runs.
	minSuspension = time.Second
	// readInterval is the time for which a reading is used again. A request needs several.
	readInterval = time.Millisecond
)

// suspensions is the time for which this machine has been suspended. Go's monotonic time does not
// contain it.
type suspensions struct {
	read    func() time.Duration // returns the sum since the machine was started
	before  time.Duration        // the sum when the Clock was created
	counted atomic.Int64         // the sum that the Clock has counted so far, with before
	readAt  atomic.Int64         // when the sum was last read, by monotonic time
}

func newSuspensions(read func() time.Duration) *suspensions {
	s := &suspensions{read: read, before: read()}
	s.counted.Store(int64(s.before))
	s.readAt.Store(-int64(readInterval))
	return s
}

// sinceStart returns for how long the machine has been suspended since the Clock was created. It
// never decreases. elapsed is the monotonic time since then.
func (s *suspensions) sinceStart(elapsed time.Duration) time.Duration {
	if int64(elapsed) >= s.readAt.Load()+int64(readInterval) {
		s.readAt.Store(int64(elapsed))
		counted := s.counted.Load()
		if now := int64(s.read()); now-counted >= int64(minSuspension) {
			s.counted.CompareAndSwap(counted, now)
		}
	}
	return time.Duration(s.counted.Load()) - s.before
}
