// Package poll waits for what another process is about to do: ask until it is so, or until a
// deadline has passed.
package poll

import (
	"context"
	"fmt"
	"time"
)

// interval is how long to rest between two tries: short for a human, long for two cores that do the
// work meanwhile.
const interval = 100 * time.Millisecond

// Until calls try until it returns nil, and gives up when the context ends or the time is over. The
// error then says what was waited for, and why the last try failed.
func Until(ctx context.Context, timeout time.Duration, what string, try func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	var last error
	for {
		err := try(limited)
		if err == nil {
			return nil
		}
		// A try that was cut off by the deadline says nothing about why; the one before it does.
		if last == nil || limited.Err() == nil {
			last = err
		}
		select {
		case <-ticker.C:
		case <-limited.Done():
			if ctx.Err() != nil {
				return fmt.Errorf("interrupted while waiting for %s: %w", what, last)
			}
			return fmt.Errorf("waited %s for %s: %w", timeout, what, last)
		}
	}
}
