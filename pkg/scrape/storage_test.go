package scrape

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// storageSink records what is stored of ephemeral storage.
type storageSink struct{ *cluster }

func (s storageSink) Put(node string, _ *usage.Scrape) {
	s.set(func() { s.storagePut = append(s.storagePut, node) })
}

// withStorage returns a Config with requests for storage every minute.
func withStorage(ready func() bool) Config {
	return Config{Storage: Storage{Interval: time.Minute, Ready: ready}}
}

func always() bool { return true }

// TestStorageFollowsScrapes checks that storage is requested after the first scrape of a node, and then
// with every fourth one, and that it causes no scrape.
func TestStorageFollowsScrapes(t *testing.T) {
	for name, active := range map[string]Active{"all nodes": {}, "active": activeNodes} {
		t.Run(name, func(t *testing.T) {
			config := withStorage(always)
			config.Active = active
			run(t, config, nil, func(t *testing.T, c *cluster, s *Scraper) {
				setNodes(s, 1)
				for range 10 * 4 {
					s.NoteRead(slices.Values([]string{"n0"}))
					pass(interval)
				}
				if n := len(c.requests()); n < 10 || n > 12 || len(c.storagePut) != n || len(c.storageReasons) != n {
					t.Errorf("got %d requests in 10 minutes, %d stored, %d observed", n, len(c.storagePut), len(c.storageReasons))
				}
				for i, gap := range gaps(c.requests()) {
					if gap < 50*time.Second || gap > time.Minute+interval/2 {
						t.Errorf("got %v before request %d", gap, i+2)
					}
				}
				for _, at := range c.requests() {
					if !slices.Contains(c.times("n0"), at) {
						t.Errorf("got a request after %v, which follows no scrape", at)
					}
				}
				if n := len(c.times("n0")); name == "all nodes" && n > 41 {
					t.Errorf("got %d scrapes", n)
				}
			})
		})
	}
}

// TestStorageStartsLate checks that no storage is requested before it can be stored and every node has
// its first metrics, that a fleet is spread then, and that new nodes stop nothing.
func TestStorageStartsLate(t *testing.T) {
	var ready atomic.Bool
	run(t, withStorage(ready.Load), nil, func(t *testing.T, c *cluster, s *Scraper) {
		setNodes(s, 200)
		pass(time.Hour)
		if len(c.requests()) != 0 {
			t.Errorf("got %d requests before the pods were known", len(c.requests()))
		}
		ready.Store(true)
		pass(interval)
		if len(c.requests()) < 200 || len(c.requests()) > 210 {
			t.Errorf("got %d requests in the first interval, want one for each node", len(c.requests()))
		}
		together := map[time.Duration]int{}
		for _, at := range c.requests() {
			together[at]++
			if together[at] > 20 {
				t.Fatalf("got more than 20 requests at %v", at)
			}
		}
		before := len(c.requests())
		c.set(func() {
			c.fetch = func(ctx context.Context, node string) error {
				if node == "new" {
					<-ctx.Done()
				}
				return ctx.Err()
			}
		})
		s.Set(node("new"))
		pass(time.Minute)
		if n := len(c.requests()) - before; n < 200 {
			t.Errorf("got %d requests while a new node is scraped, want 200", n)
		}
	})
}

// TestStorageWithoutWarmUp checks that nodes that report another new container each time hold up the storage of
// all nodes for half a minute only. That ends with the next scrape of each node, and the requests follow the next
// regular scrape after that: both take an interval at most.
func TestStorageWithoutWarmUp(t *testing.T) {
	run(t, withStorage(always), nil, func(t *testing.T, c *cluster, s *Scraper) {
		c.set(func() { c.missing, c.stillMissing = rates, rates })
		setNodes(s, 3)
		pass(giveUpAfter - time.Second)
		if n := len(c.requests()); n != 0 || s.WarmedUp() {
			t.Errorf("got %d requests, warmed up: %t", n, s.WarmedUp())
		}
		pass(2*interval + 2*time.Second)
		if n := len(c.requests()); n != 3 {
			t.Errorf("got %d requests, want one for each node", n)
		}
	})
}

// TestStorageThatFails checks that a failed request is repeated a few times, and logged once.
func TestStorageThatFails(t *testing.T) {
	run(t, withStorage(always), nil, func(t *testing.T, c *cluster, s *Scraper) {
		c.set(func() { c.fetchStorage = func(context.Context, string) error { return errors.New("no") } })
		setNodes(s, 1)
		pass(8*interval - 1)
		if n := len(c.requests()); n != 8 && n != 9 {
			t.Errorf("got %d requests in 2 minutes, want one with each scrape", n)
		}
		pass(time.Hour)
		if n := len(c.requests()); n > 60+2*fastRetries {
			t.Errorf("got %d requests in an hour, want one a minute", n)
		}
		if len(c.storagePut) != 0 || c.storageReasons[0] != "no" || len(c.results) < 240 || c.results[200].Err != nil {
			t.Errorf("got %d stored, reasons %v, %d scrapes", len(c.storagePut), c.storageReasons[0], len(c.results))
		}
		c.set(func() { c.fetchStorage = nil })
		pass(2 * time.Minute)
		lines := c.lines()
		if len(lines) != 2 || !strings.Contains(lines[0], `resource="ephemeral-storage"`) ||
			!strings.Contains(lines[1], "Scraping works again") || len(c.storagePut) == 0 {
			t.Errorf("got %d stored, log %q", len(c.storagePut), lines)
		}
	})
}

// TestStorageThatHangs checks that a request that hangs delays no scrape, that there is one at a time,
// that it ends with its node, and that nothing of a deleted node is stored.
func TestStorageThatHangs(t *testing.T) {
	run(t, withStorage(always), nil, func(t *testing.T, c *cluster, s *Scraper) {
		c.set(func() { c.fetchStorage = func(ctx context.Context, _ string) error { <-ctx.Done(); return nil } })
		setNodes(s, 1)
		pass(10 * interval)
		if len(c.requests()) != 1 || len(c.times("n0")) < 10 {
			t.Errorf("got %d requests and %d scrapes, want 1 and at least 10", len(c.requests()), len(c.times("n0")))
		}
		s.Delete("n0")
		pass(time.Second)
		if len(c.storagePut) != 0 {
			t.Errorf("stored %v", c.storagePut)
		}
	})
}

func TestEarlyScrapesHaveNoStorage(t *testing.T) {
	run(t, withStorage(always), nil, func(t *testing.T, c *cluster, s *Scraper) {
		c.set(func() { c.missing = soon })
		setNodes(s, 1)
		pass(10 * time.Second)
		c.set(func() { c.missing = nil })
		pass(time.Minute)
		if len(c.requests()) != 2 {
			t.Errorf("got %d requests, want 2", len(c.requests()))
		}
	})
}

// requests returns when storage was requested, since the start.
func (c *cluster) requests() (times []time.Duration) {
	c.set(func() { times = slices.Clone(c.storage) })
	return times
}
