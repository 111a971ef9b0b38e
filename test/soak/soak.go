package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

const (
	// housekeeping is the interval between two samples of a kubelet. Real ones are longer; with
	// this one, more happens per minute.
	housekeeping = 3 * time.Second
	// warmUp is the churn before the first footprint: caches, pools and series fill up.
	warmUp = time.Minute
	// reportPeriod is the time between two lines of progress.
	reportPeriod = 15 * time.Second
)

// soak is one run.
type soak struct {
	config
	cluster *cluster.Cluster
	server  *cluster.Standalone
	oracle  *oracle
	churn   *churn
	readers *readers
}

func run(ctx context.Context, args []string) error {
	cfg, err := parse(args)
	if err != nil {
		return err
	}
	c, err := cluster.New(ctx, cluster.Config{Progress: os.Stderr})
	if err != nil {
		return err
	}
	defer c.Stop()
	fleet := kubelettest.NewFleet(kubelettest.FleetConfig{CA: c.CA})
	defer fleet.Close()
	o := newOracle(resolution)
	s := &soak{config: cfg, cluster: c, oracle: o, churn: newChurn(nil, fleet, o, cfg.seed)}
	if err := s.start(ctx); err != nil {
		return err
	}
	before, err := s.phase(ctx, warmUp)
	if err != nil {
		return err
	}
	after, err := s.phase(ctx, cfg.duration)
	if err != nil {
		return err
	}
	return errors.Join(checkGrowth(before, after), s.check())
}

// start fills the cluster and starts the server.
func (s *soak) start(ctx context.Context) (err error) {
	if err := s.cluster.StartEtcd(ctx); err != nil {
		return err
	}
	if err := s.cluster.StartAPIServer(ctx); err != nil {
		return err
	}
	s.churn.objects = objects.Client{Interface: s.cluster.Client}
	program.Logf("creating %d nodes with %d pods each; the seed is %d", s.nodes, s.pods, s.seed)
	if err := s.churn.fill(ctx, s.nodes, s.pods); err != nil {
		return err
	}
	program.Logf("starting %s", s.config.server)
	args := append([]string{
		"--profiling", "--max-sample-age=" + s.oracle.maxAge.String(),
		"--active-resolution=" + activeResolution.String(), "--active-budget=2",
	}, s.serverArgs...)
	if s.server, err = s.cluster.StartStandalone(s.config.server, resolution, args...); err != nil {
		return err
	}
	s.oracle.setServerStart(time.Now())
	s.readers = &readers{server: s.server, oracle: s.oracle}
	return s.server.Process.Poll(ctx, time.Minute, "the server to be ready", func(ctx context.Context) error {
		_, _, err := s.server.Get(ctx, "/readyz", cluster.TypeJSON)
		return err
	})
}

// phase runs churn and then a calm period, with readers all the time, and returns the footprint of
// the server at the end.
func (s *soak) phase(ctx context.Context, duration time.Duration) (f footprint, err error) {
	program.Logf("churn for %s", duration)
	busy, stop := context.WithCancelCause(ctx)
	var group sync.WaitGroup
	group.Go(func() { s.readers.run(busy) })
	group.Go(func() { s.report(busy) })
	go func() { // may outlive the phase: further calls of stop do nothing
		<-s.server.Process.Done()
		stop(s.server.Process.Running())
	}()
	if err = s.churn.run(busy, s.config.churn, duration); err == nil {
		program.Logf("calm for %s", 2*s.oracle.settle)
		err = program.Sleep(busy, 2*s.oracle.settle)
	}
	stop(nil)
	group.Wait()
	if err == nil {
		f, err = measureFootprint(ctx, s.server)
	}
	if ended := s.server.Process.Running(); ended != nil {
		return nil, ended // the other errors follow from it
	}
	return f, err
}

// report prints lines of progress.
func (s *soak) report(ctx context.Context) {
	for program.Sleep(ctx, reportPeriod) == nil {
		t, err := s.server.Telemetry(ctx)
		if err != nil {
			program.Logf("read /metrics: %v", err)
			continue
		}
		r := s.readers
		program.Logf("%d of %d pods served, %d of %d kubelets misbehave; %d responses, %d violations; "+
			"%.0f scrapes, %.0f active nodes; %.0f MiB RSS",
			r.pods.Load(), s.nodes*s.pods, s.churn.faulty(), s.nodes, r.responses.Load(), r.violations.Load(),
			t.Sum("kube_vitals_scrapes_total"), t.Sum("kube_vitals_active_nodes"),
			t.Sum("process_resident_memory_bytes")/mebibyte)
	}
}

// check prints what happened, and returns everything that was wrong, apart from growth.
func (s *soak) check() error {
	used, err := s.server.Process.Usage()
	errs := []error{err}
	fmt.Printf("\n%d nodes, %d pods, resolution %s, %s of churn, seed %d\n\n",
		s.nodes, s.nodes*s.pods, resolution, s.duration, s.seed)
	for _, event := range slices.Sorted(maps.Keys(s.churn.events)) {
		fmt.Printf("events:    %d %s\n", s.churn.events[event], event)
	}
	violations := s.readers.violations.Load()
	fmt.Printf("responses: %d with %d violations; the oldest sample was %.1f s old (%.1f s are allowed)\n",
		s.readers.responses.Load(), violations, s.oracle.oldest.Seconds(), (s.oracle.maxAge + dateError).Seconds())
	fmt.Printf("memory:    at most %d MiB (%d are allowed)\n", used.Peak/mebibyte, maxMemory)
	if violations > 0 {
		errs = append(errs, fmt.Errorf("%d violations in responses: the first are logged above", violations))
	}
	if used.Peak > maxMemory*mebibyte {
		errs = append(errs, fmt.Errorf("the server used %d MiB of memory, more than %d", used.Peak/mebibyte, maxMemory))
	}
	errs = append(errs, s.server.Stop())
	text, err := s.server.Process.Log()
	if _, trace, found := strings.Cut(text, "panic"); found {
		err = fmt.Errorf("panic in the log of the server: %s", trace[:min(len(trace), 2000)])
	}
	return errors.Join(append(errs, err)...)
}
