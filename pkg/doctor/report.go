package doctor

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// ErrUnreachable is returned if nothing could be examined.
var ErrUnreachable = errors.New("the API server cannot be used")

// Report is the result of an examination, also as JSON: docs/why-no-metrics.md.
type Report struct {
	SchemaVersion string         `json:"version"` // v1; fields are added without a new version
	Program       string         `json:"program"` // version of the program
	Time          time.Time      `json:"time"`
	Server        Server         `json:"server"`
	Checks        []Check        `json:"checks"`
	Summary       map[Status]int `json:"summary"`           // number of checks
	Install       *Install       `json:"install,omitempty"` // of an examination before an installation
}

// Install is how to install kube-vitals in the examined cluster.
type Install struct {
	Distribution string   `json:"distribution,omitempty"` // if it is recognized
	Presets      []string `json:"presets"`                // names of docs/distributions.md
	Command      string   `json:"command"`
}

// Server is what is examined: kube-vitals if it is installed, or else what the APIServices lead to.
type Server struct {
	Kind      Kind   `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Service   string `json:"service,omitempty"`
	Version   string `json:"version,omitempty"` // the tag of its image

	port int32 // of the Service
}

// Kind is the program that serves metrics.k8s.io.
type Kind string

// The kinds of servers.
const (
	KubeVitals    Kind = "kube-vitals"
	MetricsServer Kind = "metrics-server"
	Other         Kind = "other"
	None          Kind = "none"
)

// Status is the result of a check.
type Status string

// The statuses of checks. Only Failed means that something is broken.
const (
	OK      Status = "ok"
	Warning Status = "warning"
	Failed  Status = "failed"
	Skipped Status = "skipped"
)

// Check is the result of one check. Several checks may have the same ID.
type Check struct {
	ID      string   `json:"id"`
	Title   string   `json:"title"`
	Status  Status   `json:"status"`
	Reason  string   `json:"reason,omitempty"` // for programs; of a Problem, or of pkg/reason
	Seen    string   `json:"seen"`
	Cure    string   `json:"cure,omitempty"`
	URL     string   `json:"url,omitempty"`
	Objects []string `json:"objects,omitempty"` // names of the affected objects

	last bool // further checks make no sense
}

const docs = "https://github.com/kube-vitals/kube-vitals/blob/main/docs/why-no-metrics.md#"

// With returns a result of the check. Its URL is that of the check, unless it has one.
func (c Check) With(status Status, p Problem, format string, args ...any) []Check {
	c.Status, c.Reason, c.Cure, c.Seen = status, p.Reason, p.Cure, fmt.Sprintf(format, args...)
	if c.URL == "" && (status == Failed || status == Warning) {
		c.URL = docs + c.ID
	}
	return []Check{c}
}

// OK returns a result without a problem.
func (c Check) OK(format string, args ...any) []Check { return c.With(OK, Problem{}, format, args...) }

// Fail returns that something is broken.
func (c Check) Fail(p Problem, format string, args ...any) []Check {
	return c.With(Failed, p, format, args...)
}

// Warn returns that something may be wrong.
func (c Check) Warn(p Problem, format string, args ...any) []Check {
	return c.With(Warning, p, format, args...)
}

// Skip returns why the check was not possible.
func (c Check) Skip(p Problem, format string, args ...any) []Check {
	return c.With(Skipped, p, format, args...)
}

// Denied returns that the check was not possible because of an error, which may name a missing permission.
func (c Check) Denied(err error) []Check {
	c.Objects = nil // of the pages before the error
	if apierrors.IsForbidden(err) {
		message := strings.TrimSpace(err.Error())
		if _, permission, found := strings.Cut(message, " cannot "); found { // a proxy responds with another text
			message = "you cannot " + permission
		}
		return c.Skip(noPermission, "%s", message)
	}
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
		return c.Warn(requestFailed, "there was no response in time")
	}
	return c.Warn(requestFailed, "%v", err)
}

// Groups are checks of several objects, one for each problem.
type Groups map[string]*Check

// Add adds an object to the check of its problem. The first object of a problem describes it.
func (g Groups) Add(problem, object string, describe func() []Check) {
	if g[problem] == nil {
		g[problem] = &describe()[0]
	}
	g[problem].Objects = append(g[problem].Objects, object)
}

// Checks returns the checks, sorted by problem. What was seen begins with how many objects have it.
func (g Groups) Checks(number func(n int) string) (all []Check) {
	for _, problem := range slices.Sorted(maps.Keys(g)) {
		c := *g[problem]
		if number != nil {
			c.Seen = number(len(c.Objects)) + c.Seen
		}
		if c.Status == OK {
			c.Objects = nil // they are not affected
		}
		all = append(all, c)
	}
	return all
}
