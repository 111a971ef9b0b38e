package process

import (
	"context"
	"fmt"
	"time"
)

// The pause between two calls of a function that is polled is five times the last call, or a twentieth of the whole
// wait, within these bounds: a program such as kubectl takes CPU that the system under test needs.
const minPause, maxPause = 100 * time.Millisecond, 2 * time.Second

// Poll calls try until it returns nil. It returns an error when the context ends or the timeout
// expires: what was awaited, and why the last call failed.
func Poll(ctx context.Context, timeout time.Duration, what string, try func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var last error
	for start := time.Now(); ; {
		began := time.Now()
		err := try(limited)
		if err == nil {
			return nil
		}
		// A call that the deadline cut off does not explain the failure; the call before it does.
		if last == nil || limited.Err() == nil {
			last = err
		}
		select {
		case <-time.After(min(max(minPause, 5*time.Since(began), time.Since(start)/20), maxPause)):
		case <-limited.Done():
			if ctx.Err() != nil {
				return fmt.Errorf("interrupted while waiting for %s: %w", what, last)
			}
			return fmt.Errorf("waited %s for %s: %w", timeout, what, last)
		}
	}
}

// Poll calls try until it returns nil, as the function Poll does. It gives up when the program
// ends. The error has the end of the program's log.
func (p *Process) Poll(ctx context.Context, timeout time.Duration, what string, try func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := Poll(ctx, timeout, what, func(ctx context.Context) error {
		err := try(ctx)
		if err != nil && p.Running() != nil {
			cancel()
		}
		return err
	})
	if err == nil {
		return nil
	}
	if ended := p.Running(); ended != nil {
		return fmt.Errorf("%w: %w", err, ended)
	}
	return fmt.Errorf("%w%s", err, p.Tail())
}
