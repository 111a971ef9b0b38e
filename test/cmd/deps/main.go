// Command deps downloads what builds and tests need, so that these need no network: the modules of
// go.mod files, and, with -debian, programs that Debian's packages have.
//
//	deps [-debian FOLDER] MODULE...
//
// The network is bad somewhere: a transfer breaks, or no byte arrives any more. Each download is tried
// again while it makes progress, and five times when it makes none. What has arrived stays in Go's
// module cache, so that the next attempt, or the next call, goes on from there.
//
// It needs only the standard library, so that nothing must be downloaded to run it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

// retry describes how failed downloads are repeated.
type retry struct {
	attempts int           // in a row without progress
	pause    time.Duration // before the second attempt; it doubles until there is progress
	stall    time.Duration // ends an attempt when no byte arrives for so long
}

func main() {
	program.Main("deps", func(ctx context.Context, args []string) error {
		flags := flag.NewFlagSet("deps", flag.ContinueOnError)
		folder := flags.String("debian", "", "extract programs of Debian's packages into this `folder`")
		skipped := flags.String("skipped", "", "write into this `file` which tests are skipped, and why")
		if err := flags.Parse(args); err != nil {
			return err
		}
		r := retry{attempts: 5, pause: time.Second, stall: 30 * time.Second}
		for _, module := range flags.Args() {
			m, err := newModule(ctx, module, r, os.Stdout)
			if err != nil {
				return err
			}
			if err := m.download(ctx); err != nil {
				return err
			}
		}
		if *folder == "" {
			return nil
		}
		missing, err := debian{folder: *folder, out: os.Stdout}.fetch(ctx, programs())
		if err != nil {
			return fmt.Errorf("fetch Debian's packages: %w", err)
		}
		return writeSkipped(*skipped, missing)
	})
}
