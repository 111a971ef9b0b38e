// Package status describes the refreshes from an engine and what it has of each node, for packages
// that explain or show it. Times have monotonic readings, unless they are by the clock of a node.
package status

import (
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Engine describes the refreshes so far.
type Engine struct {
	Host   string        // host and port of the engine's URL
	Window time.Duration // range of the queries, which should have two samples

	LastSuccess time.Time // end of the last successful refresh; zero: there was none
	LastRefresh time.Time // end of the last refresh; zero: there was none
	NextRefresh time.Time // when the next one is due; in the past if it is running

	// Of the last refresh:
	Took         time.Duration
	Failures     int           // in a row, with this one; 0: it succeeded
	FailingSince time.Time     // end of the first of these failures
	Err          error         // nil: it succeeded
	Reason       reason.Reason // of Err
	FileRejected bool          // whether the configuration file cannot be used; its previous content stays in use

	// Of the last successful refresh:
	Series        map[string]int // of known nodes, by query; must not be modified
	UnknownSeries int            // of other nodes
	Skipped       int            // samples and series
	Partial       bool           // whether the engine said that it does not have all series
	Warning       string         // of the engine; empty: none
}

// Node describes what the engine has of a node.
type Node struct {
	Name      string
	CreatedAt time.Time // by the clock of the API server

	LastSeen  time.Time // end of the last successful refresh with series of the node; zero: there was none
	SeenSince time.Time // end of the first of these refreshes in a row

	// Of the last successful refresh:
	Seen       bool          // whether there were series of the node or of its containers
	SeenItself bool          // whether there were series of the node itself
	Containers int           // with series
	SampledAt  usage.Time    // of the newest sample, by the node's clock; 0: there was never one
	Interval   time.Duration // between the two newest samples of one series; 0: not known
}
