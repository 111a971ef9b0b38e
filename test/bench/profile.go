package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/google/pprof/profile"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

// measureProfile prints what owns the memory and the CPU of a server that only scrapes. It leaves the
// profiles in the current directory, for "go tool pprof".
func measureProfile(ctx context.Context, b *bench) error {
	err := os.Setenv("GODEBUG", "memprofilerate=16384") // for the server
	s, _, startErr := b.startServer(ctx, b.server, b.serverArgs...)
	if err := errors.Join(err, startErr); err != nil {
		return err
	}
	defer stopServer(s)
	if err := program.Sleep(ctx, 2*b.resolution); err != nil {
		return err
	}
	u, usageErr := s.Process.Usage()
	telemetry, err := s.Telemetry(ctx)
	if err := errors.Join(usageErr, err); err != nil {
		return err
	}
	seconds := min(3*b.resolution.Seconds(), 45) // the server ends requests after 60 s
	perScrape := 1e3 * seconds / b.resolution.Seconds() * float64(b.nodes)
	query := fmt.Sprintf("profile?seconds=%.0f", seconds)
	if _, err := printProfile(ctx, s, query, "CPU of a scrape, in µs", perScrape); err != nil {
		return err
	}
	live, err := printProfile(ctx, s, "heap?gc=1", "Live heap, in MiB", 1<<20)
	if err != nil {
		return err
	}
	mib := func(name string) float64 { return telemetry["go_memstats_"+name+"_bytes"] / (1 << 20) }
	t := newTable(fmt.Sprintf("Memory, with %.0f goroutines", telemetry["go_goroutines"]), "Part", "MiB")
	for _, part := range []struct {
		name string
		mib  float64
	}{
		{"resident pages of the program's file", mebibytes(u.Resident - u.Anonymous)},
		{"anonymous", mebibytes(u.Anonymous)},
		{"… live heap", live},
		{"… garbage, and rounding of sizes", mib("heap_inuse") - live},
		{"… free, not returned yet", mib("heap_idle") - mib("heap_released")},
		{"… stacks of goroutines", mib("stack_inuse")},
		{"… runtime", mib("mspan_inuse") + mib("gc_sys") + mib("buck_hash_sys") + mib("other_sys")},
	} {
		t.row(part.name, fmt.Sprintf("%.1f", part.mib))
	}
	t.print()
	return nil
}

// printProfile fetches a profile, writes it to a file, and prints its values by owner. It returns their
// sum.
func printProfile(
	ctx context.Context, s *cluster.Standalone, query, title string, unit float64,
) (total float64, err error) {
	content, _, err := s.Get(ctx, "/debug/pprof/"+query, "*/*")
	if err != nil {
		return 0, err
	}
	name, _, _ := strings.Cut(query, "?")
	if err := os.WriteFile("bench-"+name+".prof", content, 0o600); err != nil {
		return 0, err
	}
	p, err := profile.ParseData(content)
	if err != nil {
		return 0, err
	}
	sums := map[string]float64{}
	for _, sample := range p.Sample {
		value := float64(sample.Value[len(sample.Value)-1]) / unit
		sums[ownerOf(sample)] += value
		total += value
	}
	t := newTable(title, "Owner", fmt.Sprintf("%.1f", total))
	owners := slices.SortedFunc(maps.Keys(sums), func(a, b string) int { return cmp.Compare(sums[b], sums[a]) })
	for _, o := range owners[:min(25, len(owners))] {
		t.row(o, fmt.Sprintf("%.2f", sums[o]))
	}
	t.print()
	return total, nil
}

// classes are classes of CPU time by a part of a function's name.
var classes = map[string]string{
	"runtime.gcBgMarkWorker": "garbage collection", "runtime.gcAssistAlloc": "garbage collection",
	"runtime.bgsweep": "garbage collection", "runtime.schedule": "scheduler", "internal/runtime/syscall": "system calls",
	"client_golang/prometheus": "instruments", "crypto/internal/": "crypto",
}

// ownerOf returns the class of a sample, or else the package of kube-vitals and its own package.
func ownerOf(sample *profile.Sample) string {
	innermost := ""
	for _, location := range sample.Location { // the innermost first
		for _, line := range location.Line {
			function := line.Function.Name
			for part, class := range classes {
				if strings.Contains(function, part) {
					return class
				}
			}
			slash := strings.LastIndexByte(function, '/') + 1
			base, _, _ := strings.Cut(function[slash:], ".")
			path := strings.TrimPrefix(function[:slash]+base, "github.com/kube-vitals/kube-vitals/")
			if innermost == "" && path != "runtime" && !strings.HasPrefix(path, "internal/runtime/") {
				innermost = path
			}
			if strings.HasPrefix(path, "pkg/") {
				return strings.TrimSuffix(path+": "+innermost, ": "+path)
			}
		}
	}
	return cmp.Or(innermost, "runtime")
}
