package fair

import (
	"context"
	"testing"
)

// TestTurns checks that a user waits for a turn until one of the same user ends, or the context.
func TestTurns(t *testing.T) {
	turns := NewTurns(2)
	take := func(ctx context.Context, user string) func() {
		t.Helper()
		done, err := turns.Take(ctx, user)
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	first, second := take(t.Context(), "a"), take(t.Context(), "a")
	other := take(t.Context(), "b")
	if _, err := turns.Take(ended, "a"); err == nil {
		t.Error("got a third turn, want at most two at a time")
	}
	first()
	third := take(t.Context(), "a")
	for _, done := range []func(){second, third, other} {
		done()
	}
	if len(turns.users) != 0 {
		t.Errorf("%d users are remembered who do nothing, want none", len(turns.users))
	}
}
