// Package decode turns the responses of a kubelet into a usage.Scrape: Text decodes the text
// exposition format of /metrics/resource, Summary the JSON of /stats/summary.
//
// A decoder skips and counts what it cannot read, and returns an error only if nothing in the
// response can be used. A pod is decoded as a whole or not at all: if one of its containers is
// skipped, the others are dropped and usage.Scrape.Partial is set. Limits bound what is kept of a
// response, whatever it contains.
//
// The names in a usage.Scrape alias the decoded text, which must not be reused while the Scrape is
// read. Decoders write to the text: they unescape names in place.
package decode

import (
	"cmp"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Limits bound what is kept of one response. A field that is 0 stands for its default.
type Limits struct {
	// MaxContainers is the maximum number of containers of a node; by default defaultMaxContainers.
	MaxContainers int
	// MaxLabelBytes is the maximum length of the name of a namespace, pod or container; by default
	// defaultMaxLabelBytes.
	MaxLabelBytes int
}

// The defaults of Limits.
const (
	defaultMaxContainers = 4 << 20 / MinContainerBytes
	defaultMaxLabelBytes = 253 // the longest name that Kubernetes allows
)

// MinContainerBytes is less than a container takes in any response: in the text, it has a line for
// its CPU and one for its memory, of more than 80 bytes each. If MaxContainers is the maximum size
// of a response divided by MinContainerBytes, no valid response exceeds it.
const MinContainerBytes = 128

func (l *Limits) maxContainers() int { return cmp.Or(l.MaxContainers, defaultMaxContainers) }

// check reports whether all names can be kept, and the reason if one cannot.
func (l *Limits) check(names ...[]byte) (reason usage.SkipReason, ok bool) {
	for _, name := range names {
		switch {
		case len(name) == 0:
			return usage.NoIdentity, false
		case len(name) > cmp.Or(l.MaxLabelBytes, defaultMaxLabelBytes):
			return usage.OverLimit, false
		case !utf8.Valid(name):
			return usage.Malformed, false
		}
	}
	return 0, true
}

// Times are the times of a request and its response, as in usage.Scrape.
type Times struct {
	Sent usage.Time // when the request was sent, by our clock; 0: not known
	At   usage.Time // when the headers of the response arrived, by our clock
	Date usage.Time // the response's Date header, by the node's clock, in whole seconds; 0: not known
}

const (
	// maxAheadOfNode is how far a sample may be ahead of its kubelet's own clock. Virtual kubelets
	// pass on the timestamps of others.
	maxAheadOfNode = time.Minute
	// maxAhead is how far it may be ahead of our clock if the node's is not known. The offset
	// between both can be large.
	maxAhead = time.Hour
	// oldestStart is the earliest start time, in seconds since the epoch, that counts as a date:
	// the year 2000. Simulated kubelets (kwok) report the seconds since the pod's start instead.
	oldestStart = 946684800
)

// latest returns the latest valid time of a sample in the response. If later ones were accepted,
// the valid ones after them would look old.
func (t Times) latest() usage.Time {
	if t.Date != 0 {
		return t.Date.Add(time.Second + maxAheadOfNode)
	}
	return t.At.Add(maxAhead)
}

// ValidTime reports whether t can be converted to a usage.Time, with hours to spare: it is after
// 1970 and before 2200.
func ValidTime(t time.Time) bool {
	const year2200 = 7258118400
	return t.Unix() > 0 && t.Unix() < year2200
}

// The errors of Decode, apart from BadTimeError.
var (
	ErrContainersUnread = errors.New("resource_scrape_error is not 0")
	ErrNoSamples        = errors.New("there is no sample of the node or of a container")
	ErrUndecodable      = errors.New("nothing in it can be decoded")
	ErrNotJSON          = errors.New("it is not JSON")
	errMoreJSON         = errors.New("there is more text after the value")
	ErrOtherNode        = errors.New("the response is from another node")
)

// BadTimeError reports that all samples of a response were rejected for their times.
type BadTimeError struct {
	sample usage.Time // a time that is too late; 0: no time is valid
	date   usage.Time // the Date header of the response; 0: not known
}

func (e *BadTimeError) Error() string {
	switch {
	case e.sample == 0:
		return "its timestamps are not valid"
	case e.date == 0:
		return fmt.Sprintf("a sample is from %s, which is in the future, and the response has no Date header",
			e.sample.Time().Format(time.RFC3339))
	}
	return fmt.Sprintf("a sample is from %s, and the node's clock shows %s", e.sample.Time().Format(time.RFC3339),
		e.date.Time().Format(time.RFC3339))
}
