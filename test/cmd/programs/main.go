// Command programs builds the programs of the test cluster, which otherwise happens when the first
// cluster starts. It needs only the standard library, so on a new machine it runs within seconds
// and shows the progress of the longest build.
package main

import (
	"context"
	"os"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

func main() {
	program.Main("programs", func(ctx context.Context, _ []string) error {
		_, err := binaries.Build(ctx, binaries.ControlPlane(), os.Stdout)
		return err
	})
}
