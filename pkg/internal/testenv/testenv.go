// Package testenv has what the tests of several packages need.
package testenv

import (
	"math"
	"net"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Patience is how long a test waits for what must happen, and the limit of what must not take too long
// by itself. Only a test that fails waits so long, so it is out of reach of a busy machine.
const Patience = 10 * time.Minute

// Eventually waits until a condition holds. It polls it, so it does not depend on the order of events.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timed out waiting for %s", what)
		}
	}
}

// CPUTime returns the CPU time of all threads of the process, including garbage collection. It depends
// less on other processes than elapsed time does.
func CPUTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// CheckLinear checks that the CPU time of measure is about proportional to n, from when measure calls start.
// It compares the shortest of several times, because everything else, such as other goroutines of the
// process, only adds to them.
func CheckLinear(t testing.TB, measure func(n int, start func())) {
	t.Helper()
	const few, many = 2048, 8192
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	cost := func(n int) float64 {
		var before time.Duration
		measure(n, func() { before = CPUTime(t) })
		cost := float64(CPUTime(t) - before)
		runtime.GC()
		return cost
	}
	small, large := math.Inf(1), math.Inf(1)
	for i := range 30 {
		small, large = min(small, cost(few)), min(large, cost(many))
		if i >= 2 && large < 9*small {
			return
		}
	}
	t.Errorf("four times as many took %.1f times as long", large/small)
}

// Log is the output of a log that several goroutines write.
type Log struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer.
func (l *Log) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(text)
}

// String returns what was written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Listener is a net.Listener of connections in memory, which also work in bubbles of testing/synctest.
type Listener chan net.Conn

// Dial returns the client's end of a new connection.
func (l Listener) Dial() net.Conn {
	client, server := net.Pipe()
	l <- server
	return client
}

// Accept implements net.Listener.
func (l Listener) Accept() (net.Conn, error) {
	if c, ok := <-l; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

// Close implements net.Listener. It must be called once.
func (l Listener) Close() error {
	close(l)
	return nil
}

// Addr implements net.Listener.
func (l Listener) Addr() net.Addr { return &net.TCPAddr{} }
