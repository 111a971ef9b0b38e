package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

const (
	scaleMeasurement = "scale"
	scaleLists       = 10   // half of them in JSON
	maxBeside        = 5000 // nodes up to which other servers are measured
)

// measureScale measures one size of the cluster, and appends a row for each server to the CSV file.
func measureScale(ctx context.Context, b *bench) error {
	ctx, stop := b.guardMemory(ctx)
	defer stop()
	type subject struct {
		executable string
		args       []string
		measure    func(context.Context, *bench, string, []string, *scaleRow) error
	}
	subjects := []subject{{b.server, b.serverArgs, measureScaleServer}}
	if b.nodes <= maxBeside {
		if b.beside != "" {
			subjects = append(subjects, subject{b.beside, nil, measureScaleServer})
		}
		for _, agent := range b.agents {
			subjects = append(subjects, subject{agent, nil, measureScaleAgent})
		}
	}
	var rows []scaleRow
	for _, s := range subjects {
		row, err := b.newScaleRow(s.executable)
		if err != nil {
			return err
		}
		if err := s.measure(ctx, b, s.executable, s.args, &row); err != nil {
			return fmt.Errorf("%s: %w", row.Server, errors.Join(err, context.Cause(ctx)))
		}
		if b.file != "" {
			if err := appendScaleRow(b.file, row); err != nil {
				return err
			}
		}
		rows = append(rows, row)
	}
	printScale(os.Stdout, rows)
	return nil
}

func (b *bench) newScaleRow(executable string) (row scaleRow, err error) {
	row = scaleRow{
		Date: time.Now().UTC().Format(time.DateOnly), Nodes: b.nodes, Pods: b.pods(), Containers: b.pods() * b.perPod,
		Resolution: b.resolution.Seconds(), Objects: "full",
	}
	if b.smallObjects {
		row.Objects = "small"
	}
	if row.Server, row.Version, err = programVersion(executable); err != nil {
		return row, err
	}
	row.Machine, err = machine()
	return row, err
}

// measureScaleServer measures a metrics server.
func measureScaleServer(ctx context.Context, b *bench, executable string, args []string, row *scaleRow) (err error) {
	c := &cost{bench: b, name: filepath.Base(executable)}
	if c.server, c.start, err = c.startServer(ctx, executable, args...); err != nil {
		return err
	}
	defer stopServer(c.server)
	pid := c.server.Process.PID()
	cpu, err := process.CPUTime(pid)
	if err != nil {
		return err
	}
	row.Start, row.StartCPU = c.start.all(), cpu.Seconds()
	if row.PeakStart, err = c.peakMemory(); err != nil {
		return err
	}
	logf("waiting for a steady state")
	if err := sleep(ctx, 2*c.resolution); err != nil {
		return err
	}
	row.Received, err = receivedPerSecond(pid, func() error { return c.measureScraping(ctx) })
	if err != nil {
		return errors.Join(err, c.server.Process.Running())
	}
	row.RSS, row.CPU = c.rss, c.cores
	if row.Descriptors, err = process.Descriptors(pid); err != nil {
		return err
	}
	goroutines, err := c.readMetric(ctx, "go_goroutines")
	if err != nil {
		return err
	}
	row.Goroutines = int(goroutines)
	for _, one := range []struct {
		request request
		cpu     *float64
	}{
		{b.listPods(cluster.TypeProtobuf), &row.List},
		{b.hpaRequest(), &row.ListSelector},
	} {
		logf("measuring %s", one.request.name)
		measured, err := c.measureRequest(ctx, one.request)
		if err != nil {
			return errors.Join(err, c.server.Process.Running())
		}
		if measured.items != one.request.want { // it has less to do, so its cost does not count
			logf("warning: %s: got %d items, want %d", one.request.name, measured.items, one.request.want)
			continue
		}
		*one.cpu = measured.cpu
	}
	logf("listing all pods %d times", scaleLists)
	for i := range scaleLists {
		if _, err := b.listPods([]string{cluster.TypeJSON, cluster.TypeProtobuf}[i%2]).discard(ctx, c.server); err != nil {
			return errors.Join(err, c.server.Process.Running())
		}
	}
	if row.RSSLists, _, err = c.memory(); err != nil {
		return err
	}
	row.Peak, err = c.peakMemory()
	return err
}

func (b *bench) listPods(accept string) request {
	return request{name: "LIST all pods", path: allPods, accept: accept, want: b.pods()}
}

// guardMemory returns a context that ends when the machine has too little free memory: the kernel
// would kill any of its processes.
func (b *bench) guardMemory(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			free, err := memoryInfo("MemAvailable:")
			if err == nil && free < uint64(b.minFree)<<30 {
				err = fmt.Errorf("this machine has %d MiB of free memory, less than -min-free=%d", free>>20, b.minFree)
			}
			if err != nil {
				cancel(err)
				return
			}
			select {
			case <-ticker.C:
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

// receivedPerSecond returns how many bytes a process reads per second while f runs, from sockets and
// files.
func receivedPerSecond(pid int, f func() error) (float64, error) {
	before, err := process.ReadBytes(pid)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := f(); err != nil {
		return 0, err
	}
	elapsed := time.Since(start)
	after, err := process.ReadBytes(pid)
	return float64(after-before) / elapsed.Seconds(), err
}
