package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

const (
	attackTime = 10 * time.Second
	// maxGrowth is how much memory a server may need under attack beyond that of an idle one, in bytes.
	maxGrowth = 200 << 20
	// maxLogLines is how many lines a second a server may log under attack.
	maxLogLines = 10
	// probeTimeout is that of the chart's probes.
	probeTimeout = 5 * time.Second
	// mark is in every text that attackers choose.
	mark = "attacker"
)

// victim is a server under attack, and what its other clients see.
type victim struct {
	*limited
	server   *cluster.Standalone
	probes   http.Client
	idle     uint64 // resident memory before the attack
	peak     uint64 // during it
	lines    int    // of the log before it
	probe    [2]int // those that succeeded, and failed
	scaler   [2]int // lists of an autoscaler, likewise
	requests atomic.Int64
}

// measureAttacks runs each attack against a new server with the memory limit of the chart.
func measureAttacks(ctx context.Context, b *bench) (err error) {
	l := &limited{bench: b}
	if l.cgroup, err = newCgroup(memoryLimit); err != nil {
		return fmt.Errorf("create a memory cgroup, which needs root and a writable cgroup filesystem: %w", err)
	}
	defer func() { err = errors.Join(err, os.Remove(l.cgroup.dir)) }() // its processes have ended
	if l.script, err = l.cgroup.launcher(b.server, b.cluster.Dir); err != nil {
		return err
	}
	title := fmt.Sprintf("Attacks of %.0f s with a memory limit of %d MiB", attackTime.Seconds(), memoryLimit>>20)
	table := newTable(title,
		"", "requests", "memory, MiB", "most above that", "probes", "failed", "autoscaler", "failed", "log lines/s", "marks")
	defer table.print()
	for _, a := range attacks() {
		if !strings.Contains(a.name, b.match) {
			continue
		}
		program.Logf("%s", a.name)
		err = errors.Join(err, l.attack(ctx, a, table))
	}
	return err
}

// attack adds a row. It returns an error for each limit that is exceeded.
func (l *limited) attack(ctx context.Context, a attack, t *table) error {
	if err := l.start(ctx); err != nil {
		return err
	}
	v := &victim{limited: l, server: l.server.Load()}
	defer stopServer(v.server)
	v.probes.Transport = &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // as kubelets do
		DisableKeepAlives: true,
	}
	v.probes.Timeout = probeTimeout
	if err := program.Sleep(ctx, 2*time.Second); err != nil {
		return err
	}
	log, _ := v.server.Process.Log()
	usage, err := v.server.Process.Usage()
	if err != nil {
		return err
	}
	v.idle, v.lines = usage.Resident, strings.Count(log, "\n")
	v.endure(ctx, a)
	if err := v.server.Process.Running(); err != nil {
		return fmt.Errorf("%s: %w", a.name, err)
	}
	return v.judge(ctx, a.name, t)
}

// endure runs the attack, and the other clients beside it.
func (v *victim) endure(outer context.Context, a attack) {
	ctx, cancel := context.WithTimeout(outer, attackTime)
	defer cancel()
	var clients sync.WaitGroup
	for i := range a.connections {
		clients.Go(func() { a.connect(ctx, v, i) })
	}
	every := func(pause time.Duration, f func()) {
		clients.Go(func() {
			for program.Sleep(ctx, pause) == nil && v.server.Process.Running() == nil {
				f()
			}
		})
	}
	every(20*time.Millisecond, func() {
		if usage, err := v.server.Process.Usage(); err == nil {
			v.peak = max(v.peak, usage.Resident)
		}
	})
	every(200*time.Millisecond, func() { count(&v.probe, get(ctx, &v.probes, v.server.URL+"/livez")) })
	every(time.Second, func() {
		list, cancel := context.WithTimeout(outer, autoscalerTimeout)
		defer cancel()
		_, _, err := v.hpaRequest().count(list, v.server)
		count(&v.scaler, err)
	})
	clients.Wait()
}

func get(ctx context.Context, client *http.Client, url string) error {
	_, _, err := cluster.Get(context.WithoutCancel(ctx), client, url, "")
	return err
}

func count(of *[2]int, err error) {
	if err == nil {
		of[0]++
	} else if of[1]++; of[1] == 1 {
		program.Logf("the first failure: %v", err)
	}
}

func (v *victim) judge(ctx context.Context, name string, t *table) error {
	log, _ := v.server.Process.Log()
	perSecond := float64(strings.Count(log, "\n")-v.lines) / attackTime.Seconds()
	metrics, _, err := v.server.Get(ctx, "/metrics", "")
	marks := strings.Count(string(metrics), mark)
	_, kills, peakErr := v.cgroup.peak()
	growth := int64(v.peak) - int64(v.idle)
	t.row(name, fmt.Sprint(v.requests.Load()), fmt.Sprint(v.idle>>20), fmt.Sprint(growth>>20), fmt.Sprint(v.probe[0]),
		fmt.Sprint(v.probe[1]), fmt.Sprint(v.scaler[0]), fmt.Sprint(v.scaler[1]), fmt.Sprintf("%.1f", perSecond),
		fmt.Sprint(marks))
	if growth > maxGrowth || v.probe[1]+v.scaler[1]+marks > 0 || perSecond > maxLogLines || kills > 0 {
		err = errors.Join(err, fmt.Errorf("%s: memory grew by %d MiB, %d probes and %d lists failed, "+
			"%.1f log lines a second, %d texts of the attacker in /metrics, killed %d times",
			name, growth>>20, v.probe[1], v.scaler[1], perSecond, marks, kills))
	}
	return errors.Join(err, peakErr)
}

// connect keeps connection i of an attack open until the context ends. The attackers' addresses differ from that of
// the other clients.
func (a attack) connect(ctx context.Context, v *victim, i int) {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, byte(1+i%a.addresses))}}
	address := strings.TrimPrefix(v.server.URL, "https://")
	for ctx.Err() == nil && v.server.Process.Running() == nil {
		if conn, err := dialer.DialContext(ctx, "tcp", address); err == nil {
			stop := context.AfterFunc(ctx, func() { conn.Close() }) //nolint:errcheck // it ends the attack
			a.attackOver(ctx, v, conn)
			stop()
			conn.Close() //nolint:errcheck // the server may have closed it
		}
		_ = program.Sleep(ctx, 10*time.Millisecond)
	}
}

// attackOver returns when the connection has ended.
func (a attack) attackOver(ctx context.Context, v *victim, conn net.Conn) {
	if a.raw != "" {
		_, _ = io.WriteString(conn, a.raw)
		_, _ = io.Copy(io.Discard, conn)
		return
	}
	secure := tls.Client(conn, &tls.Config{InsecureSkipVerify: true})
	if secure.HandshakeContext(ctx) != nil {
		return
	}
	r := requester{token: a.token, sent: &v.requests}
	if a.administrator {
		r.token = v.server.Token
	}
	r.pipeline(ctx, secure, a.request)
}
