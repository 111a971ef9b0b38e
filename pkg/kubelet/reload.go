package kubelet

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"
)

// reloadInterval is how often files are read again, at the most. The files are small and cached by
// the system; comparing their content is cheaper than to be wrong about their times.
const reloadInterval = 5 * time.Second

// reloaded is a value made of files, which follows them when they change. They are looked at when
// the value is asked for, so that there is nothing to start or stop.
//
// client-go's transports do the same for one configuration each, with a goroutine, a look every 5
// minutes and no say in how a certificate is verified; the API server's dynamic certificates need a
// controller for each file.
type reloaded[T any] struct {
	files  []string // none: the value is fixed
	parse  func(contents [][]byte) (T, error)
	report func(files string, err error)

	mu       sync.Mutex
	readAt   time.Time
	contents [][]byte // as they were read last
	problem  string   // why they could not be read since
	inUse    [][]byte // the contents that value was made of
	value    T
	version  int // how often value has changed
}

// newReloaded reads the files for the first time. They must be there and fit for use.
func newReloaded[T any](parse func([][]byte) (T, error), report func(string, error), files ...string) (*reloaded[T], error) {
	contents, err := readFiles(files)
	if err != nil {
		return nil, err
	}
	value, err := parse(contents)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(files, ", "), err)
	}
	return &reloaded[T]{files: files, parse: parse, report: report, readAt: time.Now(),
		contents: contents, inUse: contents, value: value}, nil
}

// newFixed makes the value of contents that are at hand. It never changes.
func newFixed[T any](parse func([][]byte) (T, error), contents ...[]byte) (*reloaded[T], error) {
	value, err := parse(contents)
	if err != nil {
		return nil, err
	}
	return &reloaded[T]{value: value}, nil
}

// get gives the value, and a number that changes with it. A nil r has none.
func (r *reloaded[T]) get() (value T, version int) {
	if r == nil {
		return value, 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); len(r.files) > 0 && now.Sub(r.readAt) >= reloadInterval {
		r.readAt = now
		r.reload()
	}
	return r.value, r.version
}

// reload reads the files again. Contents that cannot be used change nothing, and are reported once.
func (r *reloaded[T]) reload() {
	contents, err := readFiles(r.files)
	if err != nil {
		if r.problem != err.Error() {
			r.problem = err.Error()
			r.report(strings.Join(r.files, ", "), err)
		}
		return
	}
	if r.problem == "" && equalContents(contents, r.contents) {
		return
	}
	r.contents, r.problem = contents, ""
	value, err := r.parse(contents)
	if err == nil && !equalContents(contents, r.inUse) {
		r.inUse, r.value = contents, value
		r.version++
	}
	r.report(strings.Join(r.files, ", "), err)
}

func readFiles(files []string) (contents [][]byte, err error) {
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		contents = append(contents, content)
	}
	return contents, nil
}

func equalContents(a, b [][]byte) bool {
	for i := range a {
		if !bytes.Equal(a[i], b[i]) {
			return false
		}
	}
	return true
}
