package scrape

import (
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// failureLog logs when the requests to a node start to fail, when the reason changes, and when they
// succeed again.
type failureLog struct {
	failures int           // in a row
	reason   reason.Reason // that was logged last
}

// add adds a result. err is nil if the request succeeded.
func (l *failureLog) add(logger klog.Logger, node string, r reason.Reason, err error) {
	if err == nil {
		if l.failures > 0 {
			logger.Info("Scraping works again", "node", node, "failures", l.failures)
		}
		l.failures = 0
		return
	}
	if l.failures == 0 || r != l.reason {
		l.reason = r
		logger.Error(err, "Scraping failed; the last metrics are served until they expire", "node", node, "reason", r)
	}
	l.failures++
}
