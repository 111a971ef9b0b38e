// Package nodez serves /nodez, the page of nodes: what each kubelet last returned, and why metrics
// are missing.
package nodez

import (
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// Report is the page as JSON. Times are in UTC. Fields are added, but never renamed or removed.
type Report struct {
	Time                    time.Time `json:"time"` // of this report
	Version                 string    `json:"version"`
	MetricResolutionSeconds float64   `json:"metricResolutionSeconds"`
	MaxSampleAgeSeconds     float64   `json:"maxSampleAgeSeconds"`
	Totals                  Totals    `json:"totals"`
	Memory                  *Memory   `json:"memory,omitempty"`
	Nodes                   []Node    `json:"nodes"` // sorted by name
}

// Totals are sums over all nodes.
type Totals struct {
	Nodes            int                   `json:"nodes"`             // that are scraped
	FailingNodes     int                   `json:"failingNodes"`      // whose last scrape failed
	NodesWithMetrics int                   `json:"nodesWithMetrics"`  // that can be served now
	Pods             int                   `json:"pods"`              // that run according to the API server
	PodsWithMetrics  int                   `json:"podsWithMetrics"`   // that can be served now
	Containers       int                   `json:"containers"`        // with metrics
	Reasons          map[reason.Reason]int `json:"reasons,omitempty"` // number of nodes with each reason
	States           map[State]int         `json:"states"`            // number of nodes in each state
}

// Memory compares the memory of this process with its limit.
type Memory struct {
	ResidentBytes uint64 `json:"residentBytes"`        // now
	ForecastBytes uint64 `json:"forecastBytes"`        // peak for the present number of nodes, pods and containers
	LimitBytes    uint64 `json:"limitBytes,omitempty"` // of the container; 0: none
}

// State summarizes a node.
type State string

// The states of a node.
const (
	Ready    State = "ready"    // the last scrape succeeded, and the node has metrics
	Starting State = "starting" // there are no metrics yet, and the last scrape has not failed
	Failing  State = "failing"  // the last scrape failed; metrics may not have expired yet
	Stale    State = "stale"    // scrapes have succeeded for longer than the maximum sample age, without metrics
)

// Node describes the scrapes of a node.
type Node struct {
	Name    string `json:"name"`
	Address string `json:"address,omitempty"` // host and port of the kubelet; empty if it is not valid
	State   State  `json:"state"`

	// Reason, Problem, Cure and URL explain the states Failing and Stale. Error is the text of the
	// last scrape's error, at most a kilobyte of it, without control characters.
	Reason  reason.Reason `json:"reason,omitempty"`
	Problem string        `json:"problem,omitempty"`
	Cure    string        `json:"cure,omitempty"`
	URL     string        `json:"url,omitempty"`
	Error   string        `json:"error,omitempty"`

	LastSuccess  *time.Time `json:"lastSuccess,omitempty"`  // nil: none yet
	LastScrape   *time.Time `json:"lastScrape,omitempty"`   // nil: none yet
	NextScrape   *time.Time `json:"nextScrape,omitempty"`   // nil: it is running
	FailingSince *time.Time `json:"failingSince,omitempty"` // nil: the last scrape succeeded
	Failures     int        `json:"failures"`               // in a row

	DurationSeconds   float64  `json:"durationSeconds"`             // of the last scrape
	MetricsAgeSeconds *float64 `json:"metricsAgeSeconds,omitempty"` // of the node's metrics; nil: there are none
	ClockSkewSeconds  *float64 `json:"clockSkewSeconds,omitempty"`  // above 0: the node's clock is ahead; nil: not known

	Samples     int `json:"samples"`     // containers in the last response
	Skipped     int `json:"skipped"`     // lines of the last response that could not be used
	Pods        int `json:"pods"`        // with metrics
	RunningPods int `json:"runningPods"` // according to the API server
}
