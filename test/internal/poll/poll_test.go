package poll

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var errNotYet = errors.New("not yet")

func TestUntilTriesUntilItIsSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		err := Until(t.Context(), time.Minute, "three tries", func(context.Context) error {
			if tries++; tries < 3 {
				return errNotYet
			}
			return nil
		})
		if err != nil || tries != 3 {
			t.Errorf("Until() = %v after %d tries, want nil after 3", err, tries)
		}
	})
}

func TestUntilSaysWhatItWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		started := time.Now()
		err := Until(t.Context(), time.Minute, "the moon", func(ctx context.Context) error {
			if ctx.Err() != nil {
				return ctx.Err() // says less than the try before
			}
			return errNotYet
		})
		if !errors.Is(err, errNotYet) || !strings.Contains(err.Error(), "waited 1m0s for the moon") {
			t.Errorf("Until() = %v, want what was waited for and why the last try failed", err)
		}
		if waited := time.Since(started); waited != time.Minute {
			t.Errorf("it waited %s, want 1m0s", waited)
		}
	})
}

func TestUntilEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := Until(ctx, time.Minute, "the moon", func(context.Context) error { return errNotYet })
		if err == nil || !strings.Contains(err.Error(), "interrupted while waiting for the moon") {
			t.Errorf("Until() = %v, want that it was interrupted", err)
		}
	})
}
