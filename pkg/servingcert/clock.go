package servingcert

import (
	"net/http"
	"sync/atomic"
	"time"
)

// clock estimates the time of the API server. The API server verifies the certificates, so its
// clock decides whether they are valid. Replicas whose own clocks differ agree on it too.
type clock struct{ ahead atomic.Int64 } // how far the API server's clock is ahead of ours, in nanoseconds

func (c *clock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// wrap returns a transport that sets the clock from each response of the API server.
func (c *clock) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		sent := time.Now()
		response, err := next.RoundTrip(r)
		if err == nil {
			c.set(response.Header.Get("Date"), sent, time.Now())
		}
		return response, err
	})
}

// set sets the clock from the Date of a response. Differences that may be due to its whole seconds
// or to the duration of the request are ignored.
func (c *clock) set(date string, sent, received time.Time) {
	t, err := http.ParseTime(date)
	if err != nil {
		return
	}
	ahead := t.Sub(sent.Add(received.Sub(sent) / 2).Truncate(time.Second))
	if ahead.Abs() <= time.Second+received.Sub(sent) {
		ahead = 0
	}
	c.ahead.Store(int64(ahead))
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
