package main

import (
	"context"
	"fmt"
	"net/url"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

const (
	// autoscalers is the number of readers with constant periods.
	autoscalers = 24
	// watchedFor is how long a node is watched after its last read at most, with the time until its
	// next scrape.
	watchedFor = 3 * time.Minute
	// resourcePath is the path of the scrapes.
	resourcePath = "/metrics/resource"
)

// autoscalerPeriods are the times between two reads of an autoscaler.
var autoscalerPeriods = []time.Duration{
	15 * time.Second, 7 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
}

// autoscale reads at a constant period, so that scrapes can follow, until the context ends. Every
// third autoscaler reads one pod by name, the others read pods by label selector.
func (r *readers) autoscale(ctx context.Context, i int) {
	period := autoscalerPeriods[i%len(autoscalerPeriods)]
	if sleep(ctx, period*time.Duration(i)/autoscalers) != nil { // their phases differ
		return
	}
	// The random readers use another selector, which makes them other readers to the server.
	selector := fmt.Sprintf("app.kubernetes.io/name in (%s)", appName(i/len(namespaces)))
	list := cluster.V1 + "/namespaces/" + namespaces[i%len(namespaces)] + "/pods?labelSelector=" +
		url.QueryEscape(selector)
	pod := ""
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for {
		if i%3 > 0 {
			r.listPods(ctx, list, cluster.TypeProtobuf, false)
		} else if pod = r.oracle.samePod(pod); pod != "" {
			r.getPod(ctx, pod, cluster.V1, cluster.TypeProtobuf)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// samePod returns the name of a pod that must be served: the same again if possible, or "" if there
// is none.
func (o *oracle) samePod(name string) string {
	expected := o.expectedPods(time.Now())
	if expected[name] == nil {
		name = ""
		for name = range expected { // in random order
			break
		}
	}
	return name
}

// scrapeLimits returns how many times as often as without watched nodes all nodes together must be
// scraped at least, and may be scraped at most.
func (s *soak) scrapeLimits() (least, most float64) {
	if s.watched == 0 {
		return 1, 1
	}
	return min(1.2, s.budget), s.budget
}

// scrapeCount is how often the nodes were scraped, of which some scrapes were early.
type scrapeCount struct{ all, early float64 }

func (s *soak) countScrapes(ctx context.Context) (scrapeCount, error) {
	t, err := readTelemetry(ctx, s.server)
	return scrapeCount{float64(s.churn.requests(resourcePath)), t.sum("kube_vitals_early_scrapes_total")}, err
}

// checkBudget checks for some time without churn that all nodes together are scraped at most as many
// times as often as without watched nodes, and at least so many times. The kubelets count.
func (s *soak) checkBudget(ctx context.Context, duration time.Duration, least, most float64) error {
	start := time.Now()
	before, err := s.countScrapes(ctx)
	if err != nil {
		return err
	}
	if err := sleep(ctx, duration); err != nil {
		return err
	}
	after, err := s.countScrapes(ctx)
	if err != nil {
		return err
	}
	plain := float64(s.nodes) * time.Since(start).Seconds() / s.resolution.Seconds()
	scrapes := after.all - before.all - (after.early - before.early)
	logf("%.0f scrapes that were not early, %.2f times as many as without watched nodes", scrapes, scrapes/plain)
	return checkScrapes(scrapes, plain, float64(s.nodes), least, most)
}

// checkScrapes returns an error if there were too few or too many scrapes. Without watched nodes,
// there would have been as many as plain.
func checkScrapes(scrapes, plain, nodes, least, most float64) error {
	const variation = 0.5 // scrapes of each node, by which their times in an interval vary
	if scrapes < least*plain-variation*nodes || scrapes > most*plain+variation*nodes {
		return fmt.Errorf("the kubelets counted %.0f scrapes, want %g to %g times %.0f", scrapes, least, most, plain)
	}
	return nil
}

// checkUnwatched waits until no node is watched any more, because there are no readers, and checks
// that nodes are scraped as without watched nodes then.
func (s *soak) checkUnwatched(ctx context.Context) error {
	logf("waiting until no node is watched")
	for start := time.Now(); ; {
		t, err := readTelemetry(ctx, s.server)
		if err != nil {
			return err
		}
		watched := t.sum("kube_vitals_watched_nodes")
		if watched == 0 {
			return s.checkBudget(ctx, 2*s.resolution, 1, 1)
		}
		if without := time.Since(start); without > watchedFor {
			return fmt.Errorf("%.0f nodes are still watched after %s without readers", watched, without.Round(time.Second))
		}
		if err := sleep(ctx, time.Second); err != nil {
			return err
		}
	}
}
