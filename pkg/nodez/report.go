// Package nodez serves /nodez, the page of nodes: what each kubelet last returned, or what an engine
// has of each node, and why metrics are missing.
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
	Engine                  *Engine   `json:"engine,omitempty"` // nil: the kubelets are scraped
	Nodes                   []Node    `json:"nodes"`            // sorted by name

	DeviceExporters []DeviceExporter `json:"deviceExporters,omitempty"` // in the order of the configuration
}

// Totals are sums over all nodes.
type Totals struct {
	Nodes            int                   `json:"nodes"`             // that are scraped or read from the engine
	FailingNodes     int                   `json:"failingNodes"`      // in the state Failing
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
	LimitBytes    uint64 `json:"limitBytes,omitempty"` // of the container; 0: none
}

// Engine describes the refreshes from the engine that is read instead of the kubelets.
type Engine struct {
	Host  string `json:"host"`  // host and port of --prometheus-url
	State State  `json:"state"` // Ready, Starting or Failing
	Diagnosis

	LastSuccess  *time.Time `json:"lastSuccess,omitempty"`  // nil: none yet
	LastRefresh  *time.Time `json:"lastRefresh,omitempty"`  // nil: none yet
	NextRefresh  *time.Time `json:"nextRefresh,omitempty"`  // nil: it is running
	FailingSince *time.Time `json:"failingSince,omitempty"` // nil: the last refresh succeeded
	Failures     int        `json:"failures"`               // in a row

	DurationSeconds float64 `json:"durationSeconds"`        // of the last refresh
	WindowSeconds   float64 `json:"windowSeconds"`          // range of the queries, which should have two samples
	FileRejected    bool    `json:"fileRejected,omitempty"` // the content of --prometheus-config cannot be used

	// Of the last successful refresh:
	Series        map[string]int `json:"series,omitempty"` // of known nodes, by query
	UnknownSeries int            `json:"unknownSeries"`    // of other nodes
	Skipped       int            `json:"skipped"`          // samples and series that could not be used
	Partial       bool           `json:"partial"`          // the engine said that it does not have all series
	Warning       string         `json:"warning,omitempty"`
}

// Diagnosis explains the states Failing and Stale. In others, it is empty, unless the node is slow, or the
// CPU capacity in its status is too low.
type Diagnosis struct {
	Reason  reason.Reason `json:"reason,omitempty"`
	Problem string        `json:"problem,omitempty"`
	Cure    string        `json:"cure,omitempty"`
	Command string        `json:"command,omitempty"` // a part of the cure that can be pasted
	URL     string        `json:"url,omitempty"`     // of the documentation
	Error   string        `json:"error,omitempty"`   // text of the last error, without control characters
}

// Explanation returns what the diagnosis says for people.
func (d *Diagnosis) Explanation() reason.Explanation {
	return reason.Explanation{Problem: d.Problem, Detail: d.Error, Cure: d.Cure, Command: d.Command}
}

// State summarizes a node, an engine or a pod of an exporter.
type State string

// The states of a node. If an engine is read, a node is Failing if the engine has no series of it,
// or if it has no metrics because the engine fails.
const (
	Ready    State = "ready"    // the node has metrics, and the last scrape succeeded or is slow
	Starting State = "starting" // there are no metrics yet, and the last scrape has not failed
	Failing  State = "failing"  // the last scrape failed; metrics may not have expired yet
	Stale    State = "stale"    // scrapes have succeeded for longer than the maximum sample age, without metrics
)

// Node describes the scrapes of a node, or what the engine has of it. With an engine, LastSuccess is
// the last successful refresh with series of the node, and what is only known of a scrape is omitted
// or 0.
type Node struct {
	Name    string `json:"name"`
	Address string `json:"address,omitempty"` // host and port of the kubelet; empty if it is not valid
	State   State  `json:"state"`
	Diagnosis

	LastSuccess  *time.Time `json:"lastSuccess,omitempty"`  // nil: none yet
	LastScrape   *time.Time `json:"lastScrape,omitempty"`   // nil: none yet
	NextScrape   *time.Time `json:"nextScrape,omitempty"`   // nil: it is running
	Active       bool       `json:"active,omitempty"`       // scraped more often, because its metrics are read
	FailingSince *time.Time `json:"failingSince,omitempty"` // nil: the last scrape succeeded
	Failures     int        `json:"failures"`               // in a row

	DurationSeconds   float64  `json:"durationSeconds"`             // of the last scrape
	MetricsAgeSeconds *float64 `json:"metricsAgeSeconds,omitempty"` // of the node's metrics; nil: there are none
	ClockSkewSeconds  *float64 `json:"clockSkewSeconds,omitempty"`  // above 0: the node's clock is ahead; nil: not known

	Samples     int `json:"samples"`     // containers in the last successful response
	Skipped     int `json:"skipped"`     // lines of the last response that could not be used
	Pods        int `json:"pods"`        // with metrics
	RunningPods int `json:"runningPods"` // according to the API server

	// If the node's own counter has shown more CPU usage than the capacity in its status, several times in a
	// row: both. The status is wrong then.
	CapacityCores float64 `json:"capacityCores,omitempty"`
	UsedCores     float64 `json:"usedCores,omitempty"`

	// With an engine only: the age of its newest sample of the node or its containers, below 0 if the
	// node's clock is ahead, and the time between its two newest samples. They are nil if not known.
	SampleAgeSeconds      *float64 `json:"sampleAgeSeconds,omitempty"`
	SampleIntervalSeconds *float64 `json:"sampleIntervalSeconds,omitempty"`
}

// DeviceExporter describes an exporter of the usage of devices.
type DeviceExporter struct {
	Name        string      `json:"name"`
	Namespace   string      `json:"namespace"` // of its pods
	PodSelector string      `json:"podSelector"`
	Pods        []DevicePod `json:"pods"` // that are scraped, sorted by node

	// LeftOut is the number of further pods, which are not scraped because their nodes have two others.
	// LeftOutPod is the node and the name of one of them.
	LeftOut    int    `json:"leftOut,omitempty"`
	LeftOutPod string `json:"leftOutPod,omitempty"`
}

// DevicePod describes the scrapes of a pod of an exporter.
type DevicePod struct {
	Node  string `json:"node"`
	Name  string `json:"name"`
	State State  `json:"state"` // Ready, Starting or Failing
	Diagnosis

	LastSuccess *time.Time `json:"lastSuccess,omitempty"` // nil: none yet
	LastScrape  *time.Time `json:"lastScrape,omitempty"`  // nil: none yet
	Devices     int        `json:"devices"`               // in the last successful response
}
