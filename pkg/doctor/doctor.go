// Package doctor examines from outside why a cluster has no metrics: it follows the chain from the
// API server over the APIServices, the Service and the pods to the kubelets, and on to the
// HorizontalPodAutoscalers. Each link is a Check with what was seen and what to do.
//
// It only reads, apart from access reviews and one token that expires after 10 minutes. It needs no
// permission: a check that its user may not do is skipped, and names the missing permission.
package doctor

import (
	"context"
	"fmt"
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

	// Steps returns the steps that follow those of the API server. By default, they follow the chain of
	// an installed server.
	Steps func(kubernetes.Interface) []Step

	// Start is called before each step with its title, and Done with each result. Both may be nil.
	Start func(title string)
	Done  func(Check)
}

// doctor is the state of an examination. Later checks use what earlier ones have found.
type doctor struct {
	Config
	kube kubernetes.Interface

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

// Examine runs all checks. It returns an error if the configuration is invalid, and ErrUnreachable
// with the report if the API server cannot be used.
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
	d := &doctor{Config: c, kube: kube, apiServices: map[string]*APIService{}, target: &report.Server}
	if !d.run(ctx, report, Step{"api-server", "API server", d.checkAPIServer}) {
		return report, ErrUnreachable
	}
	d.run(ctx, report, Step{"aggregation", "aggregation", d.checkAggregation})
	var steps []Step
	if c.Steps != nil {
		steps = c.Steps(kube)
	} else if d.run(ctx, report, Step{"apiservice", "APIServices", d.checkAPIServices}) {
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
		d.run(ctx, report, s)
	}
	return report, ctx.Err()
}

// run runs a step and reports whether the next ones make sense.
func (d *doctor) run(ctx context.Context, report *Report, s Step) bool {
	if d.Start != nil {
		d.Start(s.Title)
	}
	proceed := true
	for _, c := range s.Run(ctx, Check{ID: s.ID, Title: s.Title}) {
		report.Checks = append(report.Checks, c)
		report.Summary[c.Status]++
		if d.Done != nil {
			d.Done(c)
		}
		proceed = proceed && !c.last
	}
	return proceed
}
