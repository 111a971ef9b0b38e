// Package decode turns the responses of a kubelet into a usage.Scrape: Text decodes the text
// exposition format of /metrics/resource, Summary the JSON of /stats/summary.
//
// Both decode one response in time and memory that Limits bound, whatever it contains. They skip
// and count what cannot be read, and return an error only if nothing of the response can be used.
package decode

import (
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Limits bound what one response can make us keep. A field that is 0 stands for its default.
type Limits struct {
	// MaxContainers is the number of containers of one node that are kept; by default
	// DefaultMaxContainers.
	MaxContainers int
	// MaxLabelBytes is the length of the longest name of a namespace, pod or container; by default
	// DefaultMaxLabelBytes.
	MaxLabelBytes int
}

// The defaults of Limits.
const (
	DefaultMaxContainers = 4 << 20 / MinContainerBytes
	DefaultMaxLabelBytes = 253 // the longest name that Kubernetes allows
)

// MinContainerBytes is less than a container takes in any response: it has a line for its CPU and
// one for its memory, of more than 80 bytes each. A limit on the containers that is the limit on
// the bytes divided by MinContainerBytes is therefore never reached by a valid response.
const MinContainerBytes = 128

func (l *Limits) maxContainers() int { return orDefault(l.MaxContainers, DefaultMaxContainers) }

// admit reports whether a name can be kept, and otherwise why not.
func (l *Limits) admit(name []byte) (reason usage.Reason, ok bool) {
	switch {
	case len(name) == 0:
		return usage.NoIdentity, false
	case len(name) > orDefault(l.MaxLabelBytes, DefaultMaxLabelBytes):
		return usage.OverLimit, false
	case !utf8.Valid(name):
		return usage.Malformed, false
	}
	return 0, true
}

// admitAll reports whether a container with these names can be kept, and otherwise why not.
func (l *Limits) admitAll(id *identity) (reason usage.Reason, ok bool) {
	for _, name := range [...][]byte{id.namespace, id.pod, id.container} {
		if reason, ok = l.admit(name); !ok {
			return reason, false
		}
	}
	return 0, true
}

// Times are the moments of a request and its response, as usage.Scrape has them.
type Times struct {
	Sent usage.Time // when the request was sent, by our Clock; 0: not known
	At   usage.Time // when the headers of the response arrived, by our Clock
	Date usage.Time // the response's Date header, by the node's clock, in whole seconds; 0: not known
}

// latest returns the last time that a sample of the response can have. All that follow a later one
// would look old.
func (t Times) latest() usage.Time {
	if t.Date != 0 {
		return t.Date.Add(time.Second + maxAheadOfNode)
	}
	return t.At.Add(maxAhead)
}

const (
	// maxAheadOfNode is the tolerance for samples that are later than their kubelet's own clock.
	// Virtual kubelets pass on the timestamps of others.
	maxAheadOfNode = time.Minute
	// maxAhead is the same by our clock, where the node's is not known. The offset between both can
	// be large.
	maxAhead = time.Hour
	// oldestStart is the first start time, in seconds since the epoch, that is taken for a date:
	// the year 2000. Simulated kubelets (kwok) give the seconds since the pod's start instead,
	// which say nothing about when.
	oldestStart = 946684800
)

// What decoding an answer can fail with.
var (
	ErrOtherNode        = errors.New("what answers at its address is not its kubelet")
	ErrNoSamples        = errors.New("there is no sample of the node or of a container")
	ErrContainersUnread = errors.New("resource_scrape_error is not 0")
)

// BadTimeError reports that all samples of a response were rejected for their times.
type BadTimeError struct {
	sample usage.Time // one of the times, if it is too late; 0: none is a valid time
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

// checkSamples returns an error if the response has nothing of use. A future of 0 means that no
// time was too late.
func checkSamples(s *usage.Scrape, future usage.Time) error {
	badTimes := s.Skipped[usage.BadTime] > 0
	if s.Node.Has != 0 || len(s.Containers) > 0 && !badTimes {
		return nil
	}
	for i := range s.Containers {
		if s.Containers[i].Has != 0 {
			return nil
		}
	}
	if badTimes {
		return &BadTimeError{future, s.Date}
	}
	return ErrNoSamples
}

// ValidTime reports whether t can be converted to a usage.Time, to which some hours can be added. It
// is false for years before 1970 and after 2200.
func ValidTime(t time.Time) bool {
	const year2200 = 7258118400
	return t.Unix() > 0 && t.Unix() < year2200
}

func orDefault(limit, byDefault int) int {
	if limit > 0 {
		return limit
	}
	return byDefault
}
