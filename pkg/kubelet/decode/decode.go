// Package decode turns the responses of a kubelet into a usage.Scrape: Text decodes the text
// exposition format of /metrics/resource, Summary the JSON of /stats/summary.
//
// A decoder skips and counts what it cannot read, and returns an error only if nothing in the
// response can be used. A pod is decoded as a whole or not at all: if one of its containers is
// skipped, the others are dropped and usage.Scrape.Partial is set. MaxContainers bounds what is kept
// of a response, whatever it contains.
//
// The caller sets the times of a usage.Scrape: At, Sent and Date. The names in it may alias the decoded
// text, which must not be reused while the Scrape is read. Text writes to the text: it unescapes names in
// place.
package decode

import (
	"errors"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// MinContainerBytes is less than a container takes in any response: in the text, it has a line for
// its CPU and one for its memory, of more than 80 bytes each. If MaxContainers is the maximum size
// of a response divided by MinContainerBytes, no valid response exceeds it.
const MinContainerBytes = 128

const (
	// maxAheadOfNode is how far a sample may be ahead of its kubelet's own clock. Virtual kubelets
	// pass on the timestamps of others.
	maxAheadOfNode = time.Minute
	// maxAhead is how far it may be ahead of our clock if the node's is not known. The offset
	// between both can be large.
	maxAhead = time.Hour
)

// latestTime returns the latest valid time of a sample in the response. If later ones were accepted,
// the valid ones after them would look old.
func latestTime(dst *usage.Scrape) usage.NodeTime {
	if dst.Date != 0 {
		return dst.Date.Add(time.Second + maxAheadOfNode)
	}
	return dst.At.ByClock(maxAhead)
}

// The errors of Decode, each with its reason, apart from that of badTimes.
var (
	errContainersUnread = reason.Errorf(reason.RuntimeNoStats, "resource_scrape_error is not 0")
	errNoSamples        = reason.Errorf(reason.NoSamples, "there is no sample of the node or of a container")
	errUndecodable      = reason.Errorf(reason.Undecodable, "nothing in it can be decoded")
)

// What is wrong with a summary. It is wrapped, or only its pod or container is dropped.
var (
	errNotSummary = errors.New("it is not a summary in JSON")
	errNoObject   = errors.New("a value is not an object")
	errNoArray    = errors.New("a value is not an array")
	errTooMany    = errors.New("an array is too long")
)

// badTimes returns the error of a response whose samples were all rejected for their times. future is
// one that is too late; 0: no time is valid. date is the response's Date header; 0: not known.
func badTimes(future, date usage.NodeTime) error {
	sample := future.Time().Format(time.RFC3339)
	switch {
	case future == 0:
		return reason.Errorf(reason.ClockSkew, "its timestamps are not valid")
	case date == 0:
		return reason.Errorf(reason.ClockSkew,
			"a sample is from %s, which is in the future, and the response has no Date header", sample)
	}
	return reason.Errorf(reason.ClockSkew, "a sample is from %s, and the node's clock shows %s", sample,
		date.Time().Format(time.RFC3339))
}
