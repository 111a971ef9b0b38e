package fair

import (
	"context"
	"sync"
)

// Turns lets each user do only so many things at a time. Unlike those of a Pool, users share nothing, and one that
// exceeds the limit waits.
type Turns struct {
	limit int

	mu    sync.Mutex
	users map[string]*turns
}

// turns are those of one user.
type turns struct {
	taken  chan struct{}
	things int // in progress or waiting; never 0
}

// NewTurns returns Turns of at most a number for each user.
func NewTurns(limit int) *Turns { return &Turns{limit: limit, users: map[string]*turns{}} }

// Take waits until the user may do another thing. Done must be called after that. Take returns the error of the
// context if that ends before.
func (t *Turns) Take(ctx context.Context, user string) (done func(), err error) {
	t.mu.Lock()
	of := t.users[user]
	if of == nil {
		of = &turns{taken: make(chan struct{}, t.limit)}
		t.users[user] = of
	}
	of.things++
	t.mu.Unlock()
	select {
	case of.taken <- struct{}{}:
		return func() {
			<-of.taken
			t.leave(user)
		}, nil
	case <-ctx.Done():
		t.leave(user)
		return nil, ctx.Err()
	}
}

func (t *Turns) leave(user string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := t.users[user]
	if of.things--; of.things == 0 {
		delete(t.users, user)
	}
}
