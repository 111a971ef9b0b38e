// Package status describes the scrapes of device exporters, for packages that show them.
package status

import (
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// Exporter is the state of one exporter of the configuration.
type Exporter struct {
	Name, Namespace, PodSelector string // as configured

	Pods       []Pod          // that are scraped, in no order
	LeftOut    int            // number of further pods, which are not scraped: a node has enough others
	LeftOutPod string         // one of them: its node and name
	Oldest     time.Duration  // age of the oldest values that are served; 0: there are none
	Containers map[string]int // number of containers with a value that is served, by resource
}

// Failing returns the number of pods whose last scrape failed.
func (e *Exporter) Failing() int {
	failing := 0
	for i := range e.Pods {
		if e.Pods[i].Reason != "" {
			failing++
		}
	}
	return failing
}

// Pod describes the scrapes of one pod of an exporter. Times have monotonic readings.
type Pod struct {
	Namespace, Name, Node string

	LastScrape  time.Time     // end of the last scrape; zero: there was none
	LastSuccess time.Time     // end of the last successful scrape; zero: there was none
	Err         error         // of the last scrape; nil: it succeeded
	Reason      reason.Reason // of Err

	// Devices is the number of devices in the last successful response: the largest number of series of
	// one resource. A device that containers share may have a series for each of them.
	Devices int
}
