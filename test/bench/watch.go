package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// manyWatchers is the number of watchers in the largest measurements.
const manyWatchers = 1000

// watchCost is what a server costs while there are watchers.
type watchCost struct {
	name     string
	cores    float64
	rss      float64 // MiB
	bytes    float64 // per second, to all watchers
	watchers int
}

// measureWatch measures CPU and memory of the server without and with watchers, none of which reads
// slowly.
func measureWatch(ctx context.Context, b *bench) error {
	var costs []watchCost
	add := func(args []string, measurements ...func(*cluster.Standalone) (watchCost, error)) error {
		s, _, err := b.startServer(ctx, b.server, args...)
		if err != nil {
			return err
		}
		defer stopServer(s)
		logf("waiting for a steady state")
		if err := sleep(ctx, 3*b.resolution); err != nil {
			return err
		}
		for _, measure := range measurements {
			cost, err := measure(s)
			if err != nil {
				return errors.Join(err, s.Process.Running())
			}
			costs = append(costs, cost)
		}
		return nil
	}
	watchers := func(name string, n int, path func(i int) string) func(*cluster.Standalone) (watchCost, error) {
		return func(s *cluster.Standalone) (watchCost, error) { return b.watchFor(ctx, s, name, n, path) }
	}
	teams := b.namespaces()[2:] // without the two large ones
	shop := func(int) string { return namespacePods(shopNamespace) }
	if err := add(b.serverArgs, watchers("watch disabled", 0, nil)); err != nil {
		return err
	}
	enabled := append([]string{"--enable-watch"}, b.serverArgs...)
	if err := add(enabled,
		watchers("no watcher", 0, nil),
		watchers(fmt.Sprintf("1 watcher of a namespace with %d pods", b.shop), 1, shop),
		watchers(fmt.Sprintf("1 watcher of all %d pods", b.pods()), 1, func(int) string { return allPods }),
		watchers(fmt.Sprintf("%d watchers of %d namespaces", manyWatchers, len(teams)), manyWatchers,
			func(i int) string { return namespacePods(teams[i%len(teams)]) }),
		watchers(fmt.Sprintf("%d watchers of one pod each, by name, in a namespace with %d pods", manyWatchers, b.shop),
			manyWatchers, func(i int) string {
				return namespacePods(shopNamespace) + "?fieldSelector=metadata.name%3D" + b.pod(b.huge+i%b.shop).Name
			}),
		watchers("no watcher again", 0, nil),
	); err != nil {
		return err
	}
	t := newTable(fmt.Sprintf("Watches: %d nodes, %d pods", b.nodes, b.pods()),
		"", "CPU", "RSS", "to all watchers", "CPU per watcher", "memory per watcher")
	base := costs[1]
	for _, c := range costs {
		row := []string{c.name, fmt.Sprintf("%.4f cores", c.cores), fmt.Sprintf("%.0f MiB", c.rss), "–", "–", "–"}
		if c.watchers > 0 {
			n := float64(c.watchers)
			row[3] = fmt.Sprintf("%.0f kB/s", c.bytes/1e3)
			row[4] = fmt.Sprintf("%.3f millicores", 1e3*(c.cores-base.cores)/n)
			row[5] = fmt.Sprintf("%.0f KiB", 1024*(c.rss-base.rss)/n)
		}
		t.row(row...)
	}
	t.print(os.Stdout)
	return nil
}

// watchFor measures some intervals with n watchers.
func (b *bench) watchFor(
	ctx context.Context, s *cluster.Standalone, name string, n int, path func(i int) string,
) (c watchCost, err error) {
	logf("measuring %d intervals with %s", b.rounds, name)
	c = watchCost{name: name, watchers: n}
	ctx, cancel := context.WithCancelCause(ctx)
	var group sync.WaitGroup
	defer func() {
		cancel(nil)
		group.Wait()
	}()
	var received atomic.Int64
	client := &http.Client{Transport: s.Direct.Transport} // without a timeout
	for i := range n {
		group.Go(func() {
			if err := watchPods(ctx, client, s.URL+path(i), &received); err != nil && ctx.Err() == nil {
				cancel(err)
			}
		})
	}
	// The initial events, and a scope without watchers, do not count.
	if err := sleep(ctx, max(b.resolution, 40*time.Second)); err != nil {
		return c, err
	}
	before := received.Load()
	cpu, elapsed, err := cpuTime(s.Process, func() error { return sleep(ctx, time.Duration(b.rounds)*b.resolution) })
	if err != nil {
		return c, err
	}
	rss, err := process.Resident(s.Process.PID())
	c.cores, c.rss = cpu.Seconds()/elapsed.Seconds(), float64(rss)/(1<<20)
	c.bytes = float64(received.Load()-before) / elapsed.Seconds()
	return c, err
}

// watchPods reads the events of a watch until the context ends. It returns an error if the watch ends
// before.
func watchPods(ctx context.Context, client *http.Client, url string, received *atomic.Int64) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	query := request.URL.Query()
	query.Set("watch", "true")
	request.URL.RawQuery = query.Encode()
	request.Header.Set("Accept", cluster.TypeProtobuf)
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("watch %s: status %s", url, response.Status)
	}
	buffer := make([]byte, 16<<10)
	for {
		n, err := response.Body.Read(buffer)
		received.Add(int64(n))
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("watch %s: ended by the server", url)
		} else if err != nil {
			return err
		}
	}
}
