package kubelet

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// reloadInterval is the shortest time between two reads of a file. The files are small and cached
// by the system, and comparing their content is more reliable than comparing their modification
// times.
const reloadInterval = 5 * time.Second

// reloader is a value that is parsed from files, and parsed again when they change. get reads the
// files, so there is nothing to start or stop.
//
// client-go's transports do the same with a goroutine for each configuration, a period of 5 minutes
// and no control of how certificates are verified. The API server's dynamic certificates need a
// controller for each file.
type reloader[T any] struct {
	files  []string // none: the value is inline, and never changes
	parse  func(contents [][]byte) (T, error)
	report func(files string, err error)

	mu      sync.Mutex
	readAt  time.Time
	problem error    // why the files could not be used at the last read; nil: they could
	inUse   [][]byte // contents that value was parsed from
	value   T
	version int // number of changes of value
}

// newReloader returns the content of the files, or the inline content if a file is not set, or nil
// without either. The content must be valid. kind is what it is, for the error.
func newReloader[T any](
	c *Config, kind string, parse func([][]byte) (T, error), files []string, inline ...[]byte,
) (*reloader[T], error) {
	r := &reloader[T]{parse: parse, report: c.Reloaded, readAt: time.Now()}
	contents := inline
	var err error
	switch {
	case !slices.Contains(files, ""):
		r.files = files
		contents, err = readFiles(files)
	case len(inline[0]) > 0:
		kind += " in the kubeconfig"
	default:
		return nil, nil //nolint:nilnil // documented
	}
	if err == nil {
		if r.value, err = parse(contents); err != nil && len(r.files) > 0 {
			err = fmt.Errorf("%s: %w", strings.Join(files, ", "), err)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot use the %s for kubelets: %w", kind, err)
	}
	r.inUse = contents
	return r, nil
}

// get returns the value, and a number that changes with it. A nil reloader returns zeros.
func (r *reloader[T]) get() (value T, version int) {
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

// reload reads the files again. Contents that cannot be used change nothing. See Config.Reloaded.
func (r *reloader[T]) reload() {
	changed := false
	contents, err := readFiles(r.files)
	if err == nil && !slices.EqualFunc(contents, r.inUse, bytes.Equal) {
		var value T
		if value, err = r.parse(contents); err == nil {
			r.inUse, r.value, changed = contents, value, true
			r.version++
		}
	}
	if changed || fmt.Sprint(err) != fmt.Sprint(r.problem) {
		r.report(strings.Join(r.files, ", "), err)
	}
	r.problem = err
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
