// Package doctor examines from outside why a cluster has no metrics: it follows the chain from the
// API server over the APIServices, the Service and the pods to the kubelets, and on to the
// HorizontalPodAutoscalers. Each link is a Check with what was seen and what to do.
// It only reads, apart from access reviews and one token that expires after 10 minutes. It needs no
// permission: a check that its user may not do is skipped, and names the missing permission.
package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Config configures an examination.
type Config struct {
	Client    *rest.Config
	Namespace string        // of kube-vitals; empty: found by the APIServices
	Timeout   time.Duration // of one request
	Version   string        // of this program

	// KubectlFlags and HelmFlags choose the cluster, such as " --context=staging". Empty: the default one.
	KubectlFlags, HelmFlags string

	// Steps returns the steps that follow those of the API server. By default, they are those of an installed server.
	Steps func(kubernetes.Interface) []Step

	// Start is called before each step with its title, and Done with each result. Both may be nil.
	Start func(title string)
	Done  func(Check)
}

// doctor is the state of an examination. Later checks use what earlier ones have found.
type doctor struct {
	Config
	kube   kubernetes.Interface
	report *Report

	apiServices map[string]*APIService // by version; without those that do not exist or were not read
	target      *Server                // of the report
	beside      bool                   // kube-vitals has no APIService, so it may run beside another server
	workload    workload
	measured    map[string]bool // nodes that have metrics; nil: the metrics API could not be read
	bundle      []byte          // PEM; the first caBundle that has verified the server, or its CA; empty: none
	address     string          // of the server, as this machine reaches it; empty: it cannot
}

// A Step is one link of the chain. Run returns the results of its check, and may add others.
type Step struct {
	ID, Title string
	Run       func(context.Context, Check) []Check
}

// Examine runs all checks. If the API server cannot be used, it returns the report with ErrUnreachable.
func Examine(ctx context.Context, c Config) (*Report, error) {
	client := rest.CopyConfig(c.Client)
	client.Timeout, client.QPS, client.Burst = c.Timeout, 50, 100
	client.UserAgent = "kube-vitals-doctor/" + c.Version
	client.WarningHandler = rest.NoWarnings{} // the checks report what is wrong
	kube, err := kubernetes.NewForConfig(client)
	if err != nil {
		return nil, fmt.Errorf("cannot create a client: %w", err)
	}
	c.Client = client
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute) // only LISTs in large clusters need many requests
	defer cancel()
	report := &Report{SchemaVersion: "v1", Program: c.Version, Time: time.Now().UTC().Truncate(time.Second),
		Server: Server{Kind: None}, Summary: map[Status]int{OK: 0, Warning: 0, Failed: 0, Skipped: 0}}
	d := &doctor{Config: c, kube: kube, report: report, apiServices: map[string]*APIService{}, target: &report.Server}
	if !d.run(ctx, Step{"api-server", "API server", d.checkAPIServer}) {
		return report, ErrUnreachable
	}
	d.run(ctx, Step{"aggregation", "aggregation", d.checkAggregation})
	var steps []Step
	if c.Steps != nil {
		steps = c.Steps(kube)
	} else if d.run(ctx, Step{"apiservice", "APIServices", d.checkAPIServices}) {
		steps = []Step{
			{"service", "Service", d.checkService},
			{"deployment", "Deployment", d.checkDeployment},
			{"pods", "pods", d.checkPods},
			{"certificate", "certificate", d.checkCertificate},
			{"metrics-api", "metrics API", d.checkMetricsAPI},
			{"permissions", "permissions", d.checkPermissions},
			{"nodes", "nodes", d.checkNodes},
			{"autoscalers", "autoscalers", d.checkAutoscalers},
		}
	}
	for _, s := range steps {
		d.run(ctx, s)
	}
	return report, ctx.Err()
}

// Aim adds the flags that choose the examined cluster to the commands among the lines of a text: those that begin with
// kubectl or helm.
func (c *Config) Aim(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "kubectl ") {
			lines[i] += c.KubectlFlags
		} else if strings.HasPrefix(line, "helm ") {
			lines[i] += c.HelmFlags
		}
	}
	return strings.Join(lines, "\n")
}

// host returns the address of the API server as it can be shown: without a password.
func (d *doctor) host() string {
	if u, _, err := rest.DefaultServerUrlFor(d.Client); err == nil && u.User != nil {
		return u.Redacted()
	}
	return d.Client.Host
}

// run runs a step and reports whether the next ones make sense.
func (d *doctor) run(ctx context.Context, s Step) bool {
	if d.Start != nil {
		d.Start(s.Title)
	}
	proceed := true
	for _, c := range s.Run(ctx, Check{ID: s.ID, Title: s.Title}) {
		c.Cure = d.Aim(c.Cure)
		d.report.Checks = append(d.report.Checks, c)
		d.report.Summary[c.Status]++
		if d.Done != nil {
			d.Done(c)
		}
		proceed = proceed && !c.last
	}
	return proceed
}

// skip returns why there is nothing to examine: what was seen, unless the user may not do the earlier checks.
func (d *doctor) skip(c Check, p Problem, seen, earlier string) []Check {
	for _, e := range d.report.Checks {
		if e.Reason == noPermission.Reason && strings.Contains(earlier, e.ID) {
			return c.Skip(noPermission, "not examined: %s", e.Seen)
		}
	}
	return c.Skip(p, "%s", seen)
}
