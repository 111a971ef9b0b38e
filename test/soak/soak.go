package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

const (
	// housekeeping is the time between two of a kubelet's samples: shorter than real ones, so that
	// more happens in a minute.
	housekeeping = 3 * time.Second
	// warmUp is how long things happen before the server's footprint is taken: all its code has
	// run, and all its pools and all kinds of series are there.
	warmUp = time.Minute
	// reportEvery is how often there is a line of progress.
	reportEvery = 15 * time.Second
)

// soak is one run.
type soak struct {
	cfg     config
	cluster *cluster.Cluster
	server  *cluster.Standalone
	herd    *herd
	press   *press
	began   time.Time

	say sync.Mutex // held while a line is written
}

// run lets everything happen, and says what was wrong.
func run(ctx context.Context, cfg config) error {
	w, err := cluster.New(ctx, cluster.Config{Binaries: cfg.bin, Keep: cfg.keep, Progress: os.Stderr})
	if err != nil {
		return err
	}
	defer w.Stop()
	s := &soak{cfg: cfg, cluster: w, began: time.Now()}
	if cfg.keep {
		s.tell("logs and certificates are kept in %s", w.Dir)
	}
	fleet := kubelettest.NewFleet(kubelettest.FleetConfig{CA: w.CA})
	defer fleet.Close()
	if err := s.prepare(ctx, fleet); err != nil {
		return err
	}
	return s.live(ctx)
}

// tell prints a line of progress.
func (s *soak) tell(format string, args ...any) {
	s.say.Lock()
	defer s.say.Unlock()
	fmt.Fprintf(os.Stderr, "%4.0fs  %s\n", time.Since(s.began).Seconds(), fmt.Sprintf(format, args...))
}

// prepare starts everything.
func (s *soak) prepare(ctx context.Context, fleet *kubelettest.Fleet) error {
	if err := s.cluster.StartEtcd(ctx); err != nil {
		return err
	}
	if err := s.cluster.StartAPIServer(ctx); err != nil {
		return err
	}
	ledger := newLedger(newBounds(s.cfg.resolution, housekeeping))
	s.herd = &herd{
		objects:      objects.Client{Interface: s.cluster.Client},
		fleet:        fleet,
		ledger:       ledger,
		housekeeping: housekeeping,
		random:       rand.New(rand.NewPCG(s.cfg.seed, 0)),
	}
	s.tell("making %d nodes with %d pods each; the seed is %d", s.cfg.nodes, s.cfg.pods, s.cfg.seed)
	if err := s.herd.fill(ctx, s.cfg.nodes, s.cfg.pods); err != nil {
		return err
	}
	s.tell("starting %s", s.cfg.server)
	args := append([]string{"--profiling", "--max-sample-age=" + ledger.maxAge.String()}, s.cfg.serverArgs...)
	var err error
	if s.server, err = s.cluster.StartStandalone(s.cfg.server, s.cfg.resolution, args...); err != nil {
		return err
	}
	ledger.begin(time.Now())
	s.press = newPress(s.server, ledger, s.tell)
	return s.server.Process.Poll(ctx, time.Minute, "the server to be ready", func(ctx context.Context) error {
		_, _, err := s.server.Get(ctx, "/readyz", cluster.TypeJSON)
		return err
	})
}

// live lets things happen, and judges the server.
func (s *soak) live(ctx context.Context) error {
	s.tell("warming up")
	before, err := s.phase(ctx, warmUp)
	if err != nil {
		return err
	}
	s.tell("letting things happen for %g minutes", s.cfg.minutes)
	after, err := s.phase(ctx, time.Duration(s.cfg.minutes*float64(time.Minute)))
	if err != nil {
		return err
	}
	peak, err := process.PeakResident(s.server.Process.PID())
	if err != nil {
		return err
	}
	s.summarize(before, after, peak)
	return s.judge(before, after, peak)
}

// phase lets things happen for a while and then calm return, with clients asking all the time. Then
// it takes the server's footprint.
func (s *soak) phase(ctx context.Context, duration time.Duration) (footprint, error) {
	busy, stop := context.WithCancelCause(ctx)
	var work sync.WaitGroup
	work.Go(func() { s.press.read(busy) })
	work.Go(func() { s.report(busy) })
	work.Go(func() {
		select {
		case <-s.server.Process.Done():
			stop(s.server.Process.Running())
		case <-busy.Done():
		}
	})
	err := s.herd.churn(busy, s.cfg.churn, duration)
	if err == nil {
		calm := 2 * s.herd.ledger.settle
		s.tell("calm for %s", calm)
		err = sleep(busy, calm)
	}
	stop(nil)
	work.Wait()
	var f footprint
	if err == nil {
		f, err = takeFootprint(ctx, s.server)
	}
	if ended := s.server.Process.Running(); ended != nil {
		return f, ended // what else has failed follows from it
	}
	return f, err
}

// report prints a line from time to time.
func (s *soak) report(ctx context.Context) {
	for sleep(ctx, reportEvery) == nil {
		t, err := readTelemetry(ctx, s.server)
		if err != nil {
			s.tell("/metrics cannot be read: %v", err)
			continue
		}
		p, f := s.press.state(), t.footprint()
		s.tell("%d of %d pods served, by %d nodes of which %d misbehave; %d answers, %d mistakes; %.0f scrapes, %.0f failed; "+
			"%.0f goroutines, %.0f MiB heap, %.0f MiB RSS",
			p.pods, s.cfg.nodes*s.cfg.pods, s.cfg.nodes, s.herd.ill(), p.answers, p.mistakes,
			t.sum("kube_vitals_scrapes_total"), t.sum("kube_vitals_scrapes_total", `result="failure"`),
			f.goroutines, f.heap, t.sum("process_resident_memory_bytes")/mebibyte)
	}
}

// summarize prints what has happened, and how the server has grown.
func (s *soak) summarize(before, after footprint, peak uint64) {
	p, c := s.press.state(), s.herd.counts
	fmt.Printf("\n%s: %d nodes, %d pods, resolution %s, %g minutes of churn, seed %d\n\n",
		filepath.Base(s.cfg.server), s.cfg.nodes, s.cfg.nodes*s.cfg.pods, s.cfg.resolution, s.cfg.minutes, s.cfg.seed)
	fmt.Printf("happened: %d nodes and %d pods replaced, %d containers restarted, %d times a kubelet misbehaved\n",
		c.nodesReplaced, c.podsReplaced, c.restarts, c.ailments)
	fmt.Printf("          %d times a node's clock was set, %d of them back; on %d nodes the start times of containers moved, on %d of them always\n",
		c.steps, c.stepsBack, c.startsMoved+c.startsMove, c.startsMove)
	fmt.Printf("          %d times a node was away and had another load when it was back\n", c.absences)
	fmt.Printf("answers:  %d, with %d mistakes; the oldest sample was %.1f s old by the true time (%g s may be, and 1 or 2 s for the units of times)\n",
		p.answers, p.mistakes, s.herd.ledger.oldestServed().Seconds(), s.herd.ledger.maxAge.Seconds())
	fmt.Printf("memory:   %d MiB at most, at any time (%d may be)\n\n", peak/mebibyte, s.cfg.memory)
	fmt.Printf("| %-19s | %7s | %7s | %7s |\n| %s | ------: | ------: | ------: |\n", "Held at rest", "before", "after", "allowed", "-------------------")
	for _, m := range measures {
		fmt.Printf("| %-19s | %7.1f | %7.1f | %7.1f |\n", m.name, m.of(before), m.of(after), allowed(m.of(before), s.cfg.margin, m.slack))
	}
}

// judge says all that was wrong.
func (s *soak) judge(before, after footprint, peak uint64) error {
	var errs []error
	if n := s.press.state().mistakes; n > 0 {
		errs = append(errs, fmt.Errorf("%d mistakes in answers; the first ones are told above", n))
	}
	errs = append(errs, judgeGrowth(before, after, s.cfg.margin))
	if peak > s.cfg.memory*mebibyte {
		errs = append(errs, fmt.Errorf("the server held %d MiB of memory at one time, and %d are allowed", peak/mebibyte, s.cfg.memory))
	}
	if err := s.server.Stop(); err != nil {
		errs = append(errs, fmt.Errorf("the server did not end with exit status 0: %w", err))
	}
	log, err := os.ReadFile(s.cluster.File(filepath.Base(s.cfg.server) + ".log"))
	if err != nil {
		errs = append(errs, fmt.Errorf("the server's log cannot be read: %w", err))
	}
	if i := bytes.Index(log, []byte("panic")); i >= 0 {
		errs = append(errs, fmt.Errorf("the server's log tells of a panic:\n%s", log[i:min(len(log), i+2000)]))
	}
	return errors.Join(errs...)
}
