package servingcert

import (
	"net/http"
	"sync/atomic"
	"time"
)

// clock tells the time as the API server has it. The API server verifies what is made here, so what
// is valid is a question of its clock; and replicas whose own clocks are wrong agree with the
// others by it.
type clock struct{ ahead atomic.Int64 } // by how many nanoseconds the API server's clock is ahead of this one

func (c *clock) now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// wrap makes a transport to the API server set the clock.
func (c *clock) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		asked := time.Now()
		response, err := next.RoundTrip(r)
		if err == nil {
			c.set(response.Header.Get("Date"), asked, time.Now())
		}
		return response, err
	})
}

// set sets the clock by the Date of an answer, which has whole seconds. Clocks that differ by no
// more than that and the time of a request are taken to be in step.
func (c *clock) set(date string, asked, answered time.Time) {
	t, err := http.ParseTime(date)
	if err != nil {
		return
	}
	ahead := t.Sub(asked.Add(answered.Sub(asked) / 2).Truncate(time.Second))
	if ahead.Abs() <= time.Second+answered.Sub(asked) {
		ahead = 0
	}
	c.ahead.Store(int64(ahead))
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
