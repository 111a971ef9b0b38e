package server

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
)

// TestFileLimit starts itself with lower limits of open files, since a process cannot raise its hard
// limit again.
func TestFileLimit(t *testing.T) {
	const nodes = 100
	if os.Getenv("KUBE_VITALS_FILE_LIMIT") != "" {
		var log bytes.Buffer
		config := textlogger.NewConfig(textlogger.Output(&log))
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), textlogger.NewLogger(config)))
		polls := 0
		warnOfFileLimit(ctx, func() int {
			if polls++; polls == 1 {
				cancel() // if the limit suffices for this number
			}
			return nodes
		})
		fmt.Printf("limit %d\n%s", fileLimit(), log.String())
		return
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		ulimit, limit string
		low           bool
	}{
		{"ulimit -n 299", "299", true},
		{"ulimit -n 300", "300", false},
		{"ulimit -Sn 64 && ulimit -Hn 400", "399", false}, // Go raises the soft limit at the start
	} {
		t.Run(test.ulimit, func(t *testing.T) {
			command := exec.CommandContext(t.Context(), "sh", "-c",
				test.ulimit+` && exec "$0" -test.run='^TestFileLimit$'`, self)
			command.Env = append(os.Environ(), "KUBE_VITALS_FILE_LIMIT=1")
			out, err := command.CombinedOutput()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if !strings.Contains(string(out), "limit "+test.limit+"\n") {
				t.Errorf("the process has another limit than %s: %s", test.limit, out)
			}
			warning := regexp.MustCompile(`The limit of open files is too low .* limit=299 needed=300 nodes=100`)
			if found := warning.FindAll(out, -1); len(found) > 1 || (len(found) == 1) != test.low {
				t.Errorf("got %d warnings, want one only if the limit is too low: %s", len(found), out)
			}
		})
	}
}
