package binaries

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestProgress checks what a build reports while it runs: at most every 15 seconds.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got strings.Builder
		log := &buildLog{name: "controlplane", progress: &got}
		fmt.Fprintln(log, "go: downloading k8s.io/api v0.37.2")
		log.start(400)
		for range 4 { // 300 packages in a minute
			fmt.Fprint(log, strings.Repeat("k8s.io/api/core/v1\n", 50))
			time.Sleep(15 * time.Second)
			fmt.Fprint(log, strings.Repeat("k8s.io/api/apps/v1\n", 25))
		}
		time.Sleep(15 * time.Second)
		fmt.Fprint(log, strings.Repeat("k8s.io/api/batch/v1\n", 100))
		const want = `  controlplane: downloading modules
  controlplane:  18%, about 1m0s left
  controlplane:  37%, about 45s left
  controlplane:  56%, about 30s left
  controlplane:  75%, about 15s left
  controlplane:  99%, about 0s left
`
		if got.String() != want {
			t.Errorf("got\n%s\nwant\n%s", got.String(), want)
		}
	})
}
