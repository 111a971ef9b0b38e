// Package leaktest checks that the tests of a package leave no goroutines.
package leaktest

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long a goroutine may need to end, out of reach of a busy machine: goleak.VerifyTestMain waits for a
// second, and the kernel may need longer to close a file.
const patience = 10 * time.Minute

// Main runs the tests of a package, and fails if they leave goroutines, apart from those of the options. It ends the
// process, and is for TestMain.
func Main(m *testing.M, options ...goleak.Option) {
	code := m.Run()
	if code == 0 {
		err := goleak.Find(options...)
		for start := time.Now(); err != nil && time.Since(start) < patience; {
			err = goleak.Find(options...)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "Goroutines are left:", err)
			code = 1
		}
	}
	os.Exit(code)
}
