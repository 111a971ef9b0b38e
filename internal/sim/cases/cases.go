// Package cases plays cases of the rules of the numbers: files that say what a kubelet and the API server report, step
// by step, and what must be served then. docs/dev/change-a-rule.md describes the format.
package cases

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// NodeName is the name of the node of each case.
const NodeName = "node"

// Target is what cases are played against: it has the node of a case and the pods of one namespace.
type Target interface {
	// Start is called before the first step.
	Start(s Setup)
	// Advance lets time pass until the next step, which is of a kind such as "scrape", or "" if nothing happens then.
	Advance(now usage.Time, step string)
	// SetCapacity is called when the CPU capacity in the status of the node has changed.
	SetCapacity(nanocores uint64)
	// SetState is called when the state of a pod or of one of its containers in the API server has changed.
	SetState(pod string)
	// Put lets a response arrive.
	Put(r *Response) error
	// Delete deletes a pod in the API server. Another one of its name exists at once, unless a line sets its state later.
	Delete(pod string, exists bool)
	// Served returns what is served of a pod, or of the node if the name is NodeName, in each way to read it. The
	// amount of the node is that of a container without a name.
	Served(object string) []Served
	// Lost returns why the last sample of a container of a pod, or of the node, cannot be used. It reports false if
	// that is not known now.
	Lost(object string) (loss usage.Loss, container string, ok bool)
	// Err returns what is wrong apart from what is served.
	Err() error
}

// Setup is what is known before the first step.
type Setup struct {
	Now                      usage.Time // of the first step
	Capacity                 uint64     // CPU capacity in the status of the node in nanocores; 0: unknown
	Namespace                string
	RateWindow, MaxSampleAge time.Duration
	Pods                     map[string][]string                              // containers by pod, also of later ones
	State                    func(pod, container string) usage.ContainerState // now, as the API server shows it
}

// Response is a response of the kubelet.
type Response struct {
	*usage.Scrape
	IsSummary bool
	Text      string // further lines of /metrics/resource
}

// Served is what one way of reading returns.
type Served struct {
	By       string
	Pod      *usage.Pod
	InSecond bool // the time is rounded down to a second
}

// Run calls play, which must call Play, for each file in a folder, except for cases that have the name of the target
// in a line not-in.
func Run(t *testing.T, folder, target string, play func(t *testing.T, file, text string)) {
	files, err := filepath.Glob(filepath.Join(folder, "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatalf("got no files, %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if why := regexp.MustCompile(`(?m)^not-in +` + target + ` +(.*)`).FindSubmatch(text); why != nil {
				t.Logf("not played: %s", why[1])
				return
			}
			play(t, file, string(text))
		})
	}
}
