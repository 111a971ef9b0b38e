// Command programs builds the programs of the test cluster, which otherwise happens when the first
// cluster starts, and makes a link to their folder. It needs only the standard library, so on a new
// machine it runs within seconds and shows the progress of the longest build.
package main

import (
	"context"
	"errors"
	"os"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

func main() {
	program.Main("programs", func(ctx context.Context, args []string) error {
		if len(args) != 1 {
			return errors.New("usage: programs LINK")
		}
		folder, err := binaries.Build(ctx, binaries.ControlPlane(), os.Stdout)
		if err != nil {
			return err
		}
		if err := os.Remove(args[0]); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return os.Symlink(folder, args[0])
	})
}
