package doctor

import (
	"errors"
	"time"
)

// ErrUnreachable is returned if nothing could be examined.
var ErrUnreachable = errors.New("the API server cannot be used")

// SchemaVersion is the version of the JSON. Fields are added without a new version.
const SchemaVersion = "v1"

// Report is the result of an examination, also as JSON: docs/why-no-metrics.md.
type Report struct {
	SchemaVersion string    `json:"version"`
	Program       string    `json:"program"` // version of the program
	Time          time.Time `json:"time"`
	Server        Server    `json:"server"`
	Checks        []Check   `json:"checks"`
	Summary       Summary   `json:"summary"`
	Install       *Install  `json:"install,omitempty"` // of an examination before an installation
}

// Install is how to install kube-vitals in the examined cluster.
type Install struct {
	Distribution string   `json:"distribution,omitempty"` // if it is recognized
	Presets      []string `json:"presets"`                // names of docs/distributions.md
	Command      string   `json:"command"`
}

// Server is what the APIServices lead to.
type Server struct {
	Kind      Kind   `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Service   string `json:"service,omitempty"`
	Version   string `json:"version,omitempty"` // the tag of its image
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

// Summary counts the checks by status.
type Summary struct {
	OK      int `json:"ok"`
	Warning int `json:"warning"`
	Failed  int `json:"failed"`
	Skipped int `json:"skipped"`
}

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
	Reason  string   `json:"reason,omitempty"` // for programs; a name in the table of cures or of pkg/reason
	Seen    string   `json:"seen"`
	Cure    string   `json:"cure,omitempty"`
	URL     string   `json:"url,omitempty"`
	Objects []string `json:"objects,omitempty"` // names of the affected objects

	last bool // further checks make no sense
}

const docs = "https://github.com/kube-vitals/kube-vitals/blob/main/docs/why-no-metrics.md#"

// complete sets the default of the cure and the URL.
func (c *Check) complete() {
	if c.Status == OK {
		return
	}
	if c.Cure == "" {
		c.Cure = cures()[c.Reason]
	}
	if c.URL == "" && c.Status != Skipped {
		c.URL = docs + c.ID
	}
}

func (r *Report) finish(t target) {
	r.Server = Server{Kind: t.kind, Namespace: t.namespace, Service: t.name, Version: t.version}
	if t.kind == "" {
		r.Server.Kind = None
	}
	for _, c := range r.Checks {
		switch c.Status {
		case OK:
			r.Summary.OK++
		case Warning:
			r.Summary.Warning++
		case Failed:
			r.Summary.Failed++
		case Skipped:
			r.Summary.Skipped++
		}
	}
}
