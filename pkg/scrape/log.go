package scrape

import (
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/health"
)

// logChange logs when the requests to a node start to fail, when the reason changes, and when they
// succeed again.
func logChange(logger klog.Logger, node string, before, now *health.Attempts) {
	switch {
	case now.Reason == before.Reason:
	case now.Failures == 0:
		logger.Info("Scraping works again", "node", node, "failures", before.Failures)
	default:
		logger.Error(now.Err, "Scraping failed; the last metrics are served until they expire", "node", node,
			"reason", now.Reason)
	}
}
