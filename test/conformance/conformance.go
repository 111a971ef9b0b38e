// Package conformance judges an implementation of the API metrics.k8s.io from outside: it needs a
// kubeconfig of an administrator and nothing of the implementation.
//
// A check has a profile. Required checks are what a client in wide use needs, or what the API's
// definition demands. Recommended checks are what the conventions of Kubernetes' APIs recommend.
// Extensions are what some implementations add; a server without them is not at fault.
//
// Run creates a namespace with pods of known usage, and deletes it at the end. Without a workload,
// it judges the metrics that exist and creates nothing.
package conformance

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Profile is the weight of a check.
type Profile string

// The profiles. A run with one of them includes those before it.
const (
	Required    Profile = "required"
	Recommended Profile = "recommended"
	Extension   Profile = "extension"
)

// profiles has all profiles, the most important one first.
var profiles = []Profile{Required, Recommended, Extension}

// includes reports whether a run with profile p has the checks of another profile.
func (p Profile) includes(other Profile) bool {
	return slices.Index(profiles, other) <= slices.Index(profiles, p)
}

// Source is where the demand of a check comes from: a KEP, a convention, or a client that needs it.
type Source struct {
	Text string `json:"text"`
	URL  string `json:"url"`
}

// Check is one demand.
type Check struct {
	ID      string  `json:"id"`
	Profile Profile `json:"profile"`
	Title   string  `json:"title"`
	Source  Source  `json:"source"`

	needs need
	run   func(context.Context, *env) error
}

// need is what a check cannot do without.
type need int

const (
	nothing  need = iota
	workload      // pods of known usage
	stopNode      // permission to stop a kubelet; and a workload
)

// Checks returns all checks in the order of their runs.
func Checks() []Check {
	return slices.Concat(discoveryChecks, formatChecks, listChecks, valueChecks, accessChecks, workloadChecks,
		clientChecks)
}

// Workload describes the pods of known usage. The zero value is none.
type Workload struct {
	// Image has sh, sleep and dd. The pods run it with a CPU limit.
	Image string
	// The annotations of simulated pods that set the usage of each of their containers.
	CPUAnnotation, MemoryAnnotation string
}

func (w Workload) simulated() bool { return w.CPUAnnotation != "" }
func (w Workload) exists() bool    { return w.Image != "" || w.simulated() }

// Config configures Run. Only REST must be set.
type Config struct {
	REST     *rest.Config   // an administrator's
	Profile  Profile        // empty: Recommended
	Only     *regexp.Regexp // of the IDs of checks; nil: all
	Workload Workload
	Timeout  time.Duration // for what takes a few scrapes; 0: 2 minutes
	MaxAge   time.Duration // of metrics; 0: 5 minutes
	Interval time.Duration // between two requests that wait for something; 0: 1 second

	Kubectl    string // a program; empty: the checks of kubectl are skipped
	Kubeconfig string // for kubectl; empty: its default

	// StopNode stops the kubelet of a node, and StartNode starts it again. Both nil: the checks that
	// need it are skipped.
	StopNode, StartNode func(ctx context.Context, node string) error
	// RestartContainer restarts a container of simulated pods; nil: those checks are skipped. Pods
	// that run an image restart by themselves.
	RestartContainer func(ctx context.Context, namespace, pod, container string) error

	Progress func(Result) // is called after each check; nil: none

	client kubernetes.Interface // nil: made from REST
}

// Status is the outcome of a check.
type Status string

// The outcomes.
const (
	Passed      Status = "passed"
	Failed      Status = "failed"
	Skipped     Status = "skipped"
	Unsupported Status = "unsupported" // an extension that the server does not have
)

// Result is the outcome of a check.
type Result struct {
	Check
	Status  Status  `json:"status"`
	Message string  `json:"message,omitempty"` // expected, got and object; or why it was skipped
	Seconds float64 `json:"seconds"`
}

// Report has the results of a run.
type Report struct {
	Kubernetes string    `json:"kubernetes"` // the version of the API server
	Versions   []string  `json:"versions"`   // of metrics.k8s.io that are served
	Profile    Profile   `json:"profile"`
	Started    time.Time `json:"started"`
	Results    []Result  `json:"results"`
}

// Conforms reports whether no check failed and at least one passed.
func (r *Report) Conforms() bool { return r.Count("", Failed) == 0 && r.Count("", Passed) > 0 }

// Count returns the number of results of a profile with a status. The profile "" is all.
func (r *Report) Count(p Profile, s Status) (n int) {
	for i := range r.Results {
		if result := &r.Results[i]; result.Status == s && (p == "" || result.Profile == p) {
			n++
		}
	}
	return n
}

// skip is the error of a check that could not judge, and why.
type skip string

func (s skip) Error() string { return string(s) }

// Run runs the checks. An error means that it could not judge: the API server is unreachable, or the
// workload does not run.
func Run(ctx context.Context, cfg Config) (_ *Report, err error) {
	cfg.setDefaults()
	e, err := newEnv(ctx, cfg)
	if err != nil {
		return nil, err
	}
	report := &Report{Kubernetes: e.kubernetes, Versions: e.versions, Profile: cfg.Profile, Started: time.Now().UTC()}
	checks := slices.DeleteFunc(Checks(), func(c Check) bool {
		return !cfg.Profile.includes(c.Profile) || cfg.Only != nil && !cfg.Only.MatchString(c.ID)
	})
	if len(checks) == 0 {
		return nil, errors.New("no check has such an ID and profile")
	}
	if e.served() && cfg.Workload.exists() && slices.ContainsFunc(checks,
		func(c Check) bool { return c.needs != nothing }) {
		defer func() { err = errors.Join(err, e.deleteWorkload(ctx)) }()
		if err := e.createWorkload(ctx); err != nil {
			return nil, fmt.Errorf("start the workload: %w", err)
		}
		// Most checks need metrics of pods. The one that demands them reports their absence.
		_, _ = e.awaitMetrics(ctx, loadPod)
	}
	for _, check := range checks {
		result := e.judge(ctx, check)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		report.Results = append(report.Results, result)
		cfg.Progress(result)
	}
	return report, nil
}

func (c *Config) setDefaults() {
	if c.Profile == "" {
		c.Profile = Recommended
	}
	if c.Timeout == 0 {
		c.Timeout = 2 * time.Minute
	}
	if c.MaxAge == 0 {
		c.MaxAge = 5 * time.Minute
	}
	if c.Interval == 0 {
		c.Interval = time.Second
	}
	if c.Progress == nil {
		c.Progress = func(Result) {}
	}
}

func (e *env) judge(ctx context.Context, check Check) Result {
	start := time.Now()
	err := e.missing(check)
	if err == nil {
		err = check.run(ctx, e)
	}
	result := Result{Check: check, Status: Passed, Seconds: time.Since(start).Seconds()}
	var reason skip
	switch {
	case err == nil:
		return result
	case errors.As(err, &reason):
		result.Status = Skipped
	case check.Profile == Extension:
		result.Status = Unsupported
	default:
		result.Status = Failed
	}
	result.Message = err.Error()
	return result
}

// missing returns why a check cannot run, or nil.
func (e *env) missing(check Check) error {
	switch {
	case !e.served() && check.ID != groupCheck:
		return skip("metrics.k8s.io is not served")
	case check.needs != nothing && !e.cfg.Workload.exists():
		return skip("needs a workload")
	case check.needs == stopNode && (e.cfg.StopNode == nil || e.cfg.StartNode == nil):
		return skip("needs permission and commands to stop and start a kubelet")
	}
	return nil
}
