package failure

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"k8s.io/klog/v2/ktesting"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

func TestLog(t *testing.T) {
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	l := Log{Failing: "It fails", Recovered: "It works again"}
	refused, timeout := errors.New("refused"), errors.New("timeout after 3 s")
	l.NoteError(logger, nil)
	l.NoteError(logger, refused)
	l.NoteError(logger, refused)
	l.Note(logger, "timeout", timeout, "reason", "timeout")
	l.Note(logger, "timeout", errors.New("timeout after 4 s"), "reason", "timeout")
	l.NoteError(logger, nil)
	l.NoteError(logger, nil)
	l.NoteError(logger, &reason.Error{Err: refused, Cure: "start it"})
	l.NoteError(logger, nil)
	want := []string{
		`ERROR It fails err="refused"`,
		`ERROR It fails err="timeout after 3 s" reason="timeout"`,
		`INFO It works again failures=4`,
		`ERROR It fails err="refused (start it)"`,
		`INFO It works again failures=1`,
	}
	var got []string
	for line := range strings.Lines(logger.GetSink().(ktesting.Underlier).GetBuffer().String()) {
		got = append(got, strings.TrimSpace(line))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
