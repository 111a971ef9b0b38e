// Package reload reads files again when they change.
//
// client-go's transports do the same with a goroutine for each configuration, a period of 5 minutes and no
// control of how certificates are verified. The API server's dynamic certificates need a controller for each
// file.
package reload

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// interval is the shortest time between two reads by Get. Files are small and cached by the system, and
// comparing their content is more reliable than comparing their modification times.
const interval = 5 * time.Second

// Value is a value that is parsed from files, and parsed again when they change. Its methods read the files,
// so there is nothing to start or stop. They are safe for concurrent use.
type Value[T any] struct {
	files  []string // none: the value never changes
	parse  func(contents [][]byte) (T, error)
	report func(files string, err error)

	mu      sync.Mutex
	readAt  time.Time
	problem error    // why the files could not be used at the last read; nil: they could
	inUse   [][]byte // contents that value was parsed from
	value   T
	version int // number of changes of value
}

// Fixed returns a Value that never changes.
func Fixed[T any](value T) *Value[T] { return &Value[T]{value: value} }

// New returns the value of files, whose content must be valid. report is called when a file has changed: with
// nil when the new content is in use, or with the error that keeps the old content in use. An error that
// stays the same is reported once. The methods wait for report, so it must not call them.
func New[T any](
	files []string, parse func(contents [][]byte) (T, error), report func(files string, err error),
) (*Value[T], error) {
	v := &Value[T]{files: files, parse: parse, report: report, readAt: time.Now()}
	var err error
	if v.inUse, err = readFiles(files); err != nil {
		return nil, err
	}
	if v.value, err = parse(v.inUse); err != nil {
		return nil, fmt.Errorf("%s: %w", strings.Join(files, ", "), err)
	}
	return v, nil
}

// Get returns the value, and a number that changes with it. A nil Value returns zeros.
func (v *Value[T]) Get() (value T, version int) {
	if v == nil {
		return value, 0
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Since(v.readAt) >= interval {
		_ = v.reload() // it has reported the error
	}
	return v.value, v.version
}

// Reload reads the files now. It returns why their content cannot be used; the old one then stays in use.
func (v *Value[T]) Reload() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.reload()
}

func (v *Value[T]) reload() error {
	v.readAt = time.Now()
	changed := false
	contents, err := readFiles(v.files)
	if err == nil && !slices.EqualFunc(contents, v.inUse, bytes.Equal) {
		var value T
		if value, err = v.parse(contents); err == nil {
			v.inUse, v.value, changed = contents, value, true
			v.version++
		}
	}
	if changed || fmt.Sprint(err) != fmt.Sprint(v.problem) {
		v.report(strings.Join(v.files, ", "), err)
	}
	v.problem = err
	return err
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
