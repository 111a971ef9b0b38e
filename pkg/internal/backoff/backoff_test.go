package backoff

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

func TestNew(t *testing.T) {
	b := New(time.Second, 10*time.Second)
	for i, seconds := range []int{1, 2, 4, 8, 10, 10, 10} {
		least := time.Duration(seconds) * time.Second
		if got := b.Step(); got < least || got > least*3/2 {
			t.Errorf("wait %d: got %v, want %v to %v", i, got, least, least*3/2)
		}
	}
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		wake := make(chan struct{}, 1)
		begin := time.Now()
		if !Sleep(ctx, time.Second, wake) || time.Since(begin) != time.Second {
			t.Errorf("got %v, want a second", time.Since(begin))
		}
		wake <- struct{}{}
		if !Sleep(ctx, time.Hour, wake) || time.Since(begin) != time.Second {
			t.Error("it has not been woken up")
		}
		time.AfterFunc(time.Second, cancel)
		if Sleep(ctx, time.Hour, wake) || time.Since(begin) != 2*time.Second {
			t.Error("it has not returned at the end of the context")
		}
	})
}
