// Package failure logs what fails when that changes, and not each time.
package failure

import (
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// Log logs when something begins to fail, when it fails for another reason, and when it works again. It
// is not safe for concurrent use.
type Log struct {
	Failing, Recovered string // the messages

	reason   string // of the last attempt; empty: it succeeded
	failures int    // in a row
}

// IsFailing reports whether the last attempt failed. If it did not, another success need not be noted.
func (l *Log) IsFailing() bool { return l.reason != "" }

// Note notes an attempt, which succeeded if the reason is empty. The reason is what must differ for another
// line: the text of err, or less if that varies from one attempt to the next. The details are for the line
// of a failure, as keys and values.
func (l *Log) Note(logger klog.Logger, reason string, err error, details ...any) {
	before := l.reason
	l.reason = reason
	switch {
	case reason == "" && before != "":
		logger.Info(l.Recovered, "failures", l.failures)
	case reason != before:
		logger.Error(err, l.Failing, details...)
	}
	if l.failures++; reason == "" {
		l.failures = 0
	}
}

// NoteError notes an attempt whose error has the same text as long as the reason is the same. It adds the cure
// of a reason.Error that has one.
func (l *Log) NoteError(logger klog.Logger, err error) {
	if err == nil {
		l.Note(logger, "", nil)
	} else {
		l.Note(logger, err.Error(), reason.WithCure(err))
	}
}
