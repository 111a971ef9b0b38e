package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/internal/command"
	"github.com/kube-vitals/kube-vitals/pkg/internal/pages"
	"github.com/kube-vitals/kube-vitals/pkg/nodez"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// checkNodes examines the nodes: by the page of nodes, or else by the API.
func (d *doctor) checkNodes(ctx context.Context, c Check) []Check {
	if d.target.Kind != KubeVitals {
		return d.checkNodesByAPI(ctx, c)
	}
	report, skipped := d.nodez(ctx)
	if report == nil {
		return append(skipped, d.checkNodesByAPI(ctx, c)...)
	}
	return checkPage(c, report)
}

// checkPage examines a page of nodes. Cures are our own: people run the commands in them.
func checkPage(c Check, report *nodez.Report) []Check {
	t := report.Totals
	if t.Nodes == 0 {
		return c.Fail(noMetrics, "kube-vitals scrapes no node: its --node-selector may match none, or it has read none yet")
	}
	work, describe := "scraped without an error", reason.Reason.Describe
	var checks []Check
	if report.Engine != nil {
		work, describe = "read from the engine", reason.Reason.DescribeEngine
		checks = checkEngine(report)
	}
	working, failing, silent := 0, Groups{}, c
	for _, n := range report.Nodes {
		if n.State != nodez.Failing && n.State != nodez.Stale {
			if working++; n.State == nodez.Ready && n.RunningPods > 0 && n.Pods == 0 {
				silent.Objects = append(silent.Objects, n.Name)
			}
			continue
		}
		failing.Add(string(n.Reason), n.Name, func() []Check {
			c.URL = n.URL
			p := Problem{string(n.Reason), describe(n.Reason).Cure}
			seen := seenIn(&n.Diagnosis, p.Cure)
			if n.Reason == reason.TLSKeyChanged && command.IsAcceptKey(n.Command) {
				p.Cure += "; the command for the first node:\n" + n.Command
			}
			return c.Fail(p, "%s", seen)
		})
	}
	if n := len(silent.Objects); n > 0 {
		checks = append(checks, silent.Warn(podsMissing, "%d of %s %s, but no running pod of these has metrics; pods with "+
			"metrics: %d of %d", n, Count(t.Nodes, "node"), work, t.PodsWithMetrics, t.Pods)...)
	} else if len(failing) == 0 {
		checks = append(checks, c.OK("%d of %d %s; pods with metrics: %d of %d", working, t.Nodes, work, t.PodsWithMetrics,
			t.Pods)...)
	}
	checks = append(checks, failing.Checks(func(n int) string {
		return fmt.Sprintf("%d of %s: ", n, Count(t.Nodes, "node"))
	})...)
	return slices.Concat(checks, checkSlow(report), checkClocks(report), checkCapacities(report), checkDevices(report),
		checkMemory(report.Memory))
}

// seenIn returns the reason, problem and error of a diagnosis on the page, and its cure if that is another one than
// ours: only ours follow the arrow.
func seenIn(d *nodez.Diagnosis, ours string) string {
	e := d.Explanation()
	if e.Command = ""; e.Cure == ours {
		e.Cure = ""
	}
	return fmt.Sprintf("%s: %v", cmp.Or(d.Reason, "no reason"), e)
}

// checkSlow finds nodes whose kubelets respond slowly, but whose metrics are current.
func checkSlow(report *nodez.Report) []Check {
	c := Check{ID: "slow", Title: "slow nodes", URL: reason.Slow.URL()}
	for _, n := range report.Nodes {
		if n.Reason == reason.Slow {
			c.Objects = append(c.Objects, fmt.Sprintf("%s %.0fs", n.Name, n.DurationSeconds))
		}
	}
	if n := len(c.Objects); n > 0 {
		return c.Warn(Problem{string(reason.Slow), reason.Slow.Describe().Cure},
			"kubelets of %s respond slowly, but the metrics are current; the last request took:", Count(n, "node"))
	}
	return nil
}

func checkClocks(report *nodez.Report) []Check {
	c := Check{ID: "clocks", Title: "clocks"}
	known, largest := 0, 0.0
	for _, n := range report.Nodes {
		skew, age := n.ClockSkewSeconds, n.SampleAgeSeconds
		if skew != nil || age != nil {
			known++
		}
		if age != nil && *age < 0 {
			skew = new(-*age) // at least
		}
		if skew == nil {
			continue
		}
		largest = max(largest, math.Abs(*skew))
		if math.Abs(*skew) > maxClockSkew.Seconds() {
			c.Objects = append(c.Objects, fmt.Sprintf("%s %+.1fs", n.Name, *skew))
		}
	}
	if n := len(c.Objects); n > 0 {
		return c.Warn(clockSkew, "clocks of %s differ from that of kube-vitals by more than %v:", Count(n, "node"),
			maxClockSkew)
	}
	switch {
	case known == 0:
		return c.Skip(noServer, "no clock of a node is known yet")
	case report.Engine != nil:
		return c.OK("no sample of %s is from the future; an engine does not show whether a clock is behind",
			Count(known, "node"))
	}
	return c.OK("the largest difference from the clocks of %s is %.1fs", Count(known, "node"), largest)
}

// checkCapacities finds nodes whose own counters show more CPU usage than the capacity in their status.
func checkCapacities(report *nodez.Report) []Check {
	c := Check{ID: "capacity", Title: "capacity", URL: reason.AboveCapacity.URL()}
	for _, n := range report.Nodes {
		if n.UsedCores != 0 {
			c.Objects = append(c.Objects, fmt.Sprintf("%s %.4g of %.4g", n.Name, n.UsedCores, n.CapacityCores))
		}
	}
	if n := len(c.Objects); n > 0 {
		return c.Warn(Problem{string(reason.AboveCapacity), reason.AboveCapacity.Describe().Cure},
			"%s used more cores than the capacity in the status, several times in a row:", Count(n, "node"))
	}
	return nil
}

func checkDevices(report *nodez.Report) []Check {
	var checks []Check
	for i := range report.DeviceExporters {
		e, c, failing := &report.DeviceExporters[i], Check{ID: "devices", Title: "devices"}, Groups{}
		for _, p := range e.Pods {
			if p.Reason == "" {
				continue
			}
			failing.Add(string(p.Reason), p.Node, func() []Check {
				c.URL = p.URL
				cure := p.Reason.DescribeExporter().Cure
				return c.Fail(Problem{string(p.Reason), cure}, "%s", seenIn(&p.Diagnosis, cure))
			})
		}
		seen := fmt.Sprintf("exporter %s: %s", e.Name, e.Summary())
		switch {
		case len(e.Pods) == 0:
			checks = append(checks, c.Warn(exporterNoPods, "%s", seen)...)
		case len(failing) == 0 && e.LeftOut > 0:
			checks = append(checks, c.Warn(exporterManyPods, "%s", seen)...)
		case len(failing) == 0:
			checks = append(checks, c.OK("%s", seen)...)
		}
		checks = append(checks, failing.Checks(func(n int) string {
			return fmt.Sprintf("%d of %d pods of exporter %s cannot be read: ", n, len(e.Pods), e.Name)
		})...)
	}
	return checks
}

func checkMemory(m *nodez.Memory) []Check {
	c := Check{ID: "memory", Title: "memory"}
	if m == nil {
		return nil
	}
	mebibytes := func(n uint64) string { return fmt.Sprintf("%d MiB", (n+1<<19)>>20) }
	uses, limit := "uses "+mebibytes(m.ResidentBytes), mebibytes(m.LimitBytes)
	switch {
	case m.LimitBytes == 0:
		return c.OK("%s; there is no limit", uses)
	case m.ResidentBytes > m.LimitBytes/10*9:
		return c.Warn(memoryLimit, "%s, more than nine tenths of its limit of %s", uses, limit)
	}
	return c.OK("%s; its limit is %s", uses, limit)
}

// checkEngine examines the engine as kube-vitals sees it, and how often it scrapes the nodes.
func checkEngine(report *nodez.Report) []Check {
	c, e := Check{ID: "engine", Title: "engine"}, report.Engine
	var checks []Check
	warn := func(p Problem, format string, args ...any) { checks = append(checks, c.Warn(p, format, args...)...) }
	if e.FileRejected {
		warn(engineFile, "the content of --prometheus-config cannot be used: its previous content stays in use")
	}
	switch e.State {
	case nodez.Failing:
		cure := e.Reason.DescribeEngine().Cure
		seen := seenIn(&e.Diagnosis, cure)
		if e.LastSuccess != nil {
			seen += fmt.Sprintf("; it was last read %s ago", report.Time.Sub(*e.LastSuccess).Round(time.Second))
		}
		c.URL = e.URL
		return append(c.Fail(Problem{string(e.Reason), cure}, "%s", seen), checks...)
	case nodez.Starting:
		return append(c.Warn(engineStarting, "kube-vitals has not read %s yet", e.Host), checks...)
	}
	series := 0
	for _, n := range e.Series {
		series += n
	}
	if e.Partial {
		warn(enginePartial, "the last response was incomplete: %s", e.Warning)
	}
	for _, query := range []string{"containerCPU", "containerMemory", "nodeCPU", "nodeMemory"} {
		if n, known := e.Series[query]; known && n == 0 {
			warn(engineSeries, "%s has no series of %s", e.Host, query)
		}
	}
	if e.UnknownSeries > series {
		warn(engineOtherNodes, "%d series are of nodes that this cluster does not have, and %d of others", e.UnknownSeries,
			series)
	}
	if len(checks) == 0 {
		checks = c.OK("%s was read in %.1fs: %d series", e.Host, e.DurationSeconds, series)
	}
	return append(checks, checkIntervals(report)...)
}

// checkIntervals finds nodes that are scraped too seldom: the range of the queries must always have two samples.
func checkIntervals(report *nodez.Report) []Check {
	c := Check{ID: "scrape-interval", Title: "scrape interval"}
	known, longest := 0, report.Engine.WindowSeconds/2
	for _, n := range report.Nodes {
		if s := n.SampleIntervalSeconds; s != nil {
			if known++; *s > longest {
				c.Objects = append(c.Objects, fmt.Sprintf("%s %.0fs", n.Name, *s))
			}
		}
	}
	if n := len(c.Objects); n > 0 {
		return c.Warn(scrapeInterval, "samples of %s are more than %.0fs apart, so metrics come late or expire:",
			Count(n, "node"), longest)
	}
	if known == 0 {
		return c.Skip(noServer, "no node has two samples yet")
	}
	return c.OK("the samples of %s are at most %.0fs apart", Count(known, "node"), longest)
}

func (d *doctor) checkMetricsAPI(ctx context.Context, c Check) []Check {
	var nodes, pods struct {
		Metadata struct{ RemainingItemCount int }
		Items    []struct{ Metadata struct{ Name string } }
	}
	start, kind, version := time.Now(), "nodes", d.version()
	err := Get(ctx, d.kube, metricsAPI+version+"/"+kind, &nodes)
	if err == nil {
		d.measured = map[string]bool{}
		for _, item := range nodes.Items {
			d.measured[item.Metadata.Name] = true
		}
		kind = "pods" // a large cluster has megabytes, and only their number is shown: those without metrics count
		err = Get(ctx, d.kube, metricsAPI+version+"/"+kind+"?limit=1", &pods)
	}
	n, isLate := len(pods.Items)+pods.Metadata.RemainingItemCount, errors.Is(err, context.DeadlineExceeded)
	switch { // the deadline is that of this machine
	case isLate || apierrors.IsTooManyRequests(err) ||
		apierrors.IsForbidden(err) && strings.Contains(err.Error(), " cannot "):
		return c.Denied(err)
	case err != nil:
		return c.Fail(serverSymptoms.of(err.Error(), apiServiceUnavailable), "GET %s: %v", kind, err)
	case len(d.measured) == 0:
		return c.Fail(Problem{noMetrics.Reason, "see nodes"}, "%s responds, but has no metrics of any node", version)
	case n == 0: // every cluster has pods
		return c.Warn(podsMissing, "%s has metrics of %s, but of no pod", version, Count(len(nodes.Items), "node"))
	}
	return c.OK("%s serves %s and up to %s, in %v", version, Count(len(nodes.Items), "node"), Count(n, "pod"),
		time.Since(start).Round(time.Millisecond))
}

func (d *doctor) checkNodesByAPI(ctx context.Context, c Check) []Check {
	version := d.version()
	switch a := d.apiServices[version]; {
	case d.measured == nil:
		return d.skip(c, noConnection, "the metrics API does not respond", "metrics-api")
	case d.target.Kind == KubeVitals && a != nil && !d.target.serves(a):
		return c.Skip(noConnection, "%s of the metrics API leads to another server than %s", version, d.target)
	}
	all := 0
	err := pages.Each(ctx, d.kube.CoreV1().Nodes().List,
		metav1.ListOptions{LabelSelector: d.workload.flag("--node-selector", "-l")}, func(n *corev1.Node) {
			if all++; !d.measured[n.Name] {
				c.Objects = append(c.Objects, n.Name)
			}
		})
	if err != nil {
		return c.Denied(err)
	}
	if len(c.Objects) == 0 {
		return c.OK("%d of %d have metrics", all, all)
	}
	seen, problem := fmt.Sprintf("%d of %d have no metrics", len(c.Objects), all), noMetrics
	var status apierrors.APIStatus // kube-vitals explains in its 404 why a node has none
	err = Get(ctx, d.kube, metricsAPI+version+"/nodes/"+c.Objects[0], &struct{}{})
	if errors.As(err, &status) && status.Status().Details != nil {
		for _, cause := range status.Status().Details.Causes {
			r := reason.Reason(cause.Type)
			description := r.Describe()
			if d.workload.usesEngine() {
				description = r.DescribeEngine()
			}
			if description.Problem != "" {
				seen += "; of the first one: " + status.Status().Message
				problem, c.URL = Problem{string(r), description.Cure}, r.URL()
			}
		}
	}
	return c.Fail(problem, "%s", seen)
}

// checkAutoscalers finds HorizontalPodAutoscalers that get no usage of CPU or memory, and why.
func (d *doctor) checkAutoscalers(ctx context.Context, c Check) []Check {
	all, unread, failing := 0, 0, Groups{}
	err := pages.Each(ctx, d.kube.AutoscalingV2().HorizontalPodAutoscalers(metav1.NamespaceAll).List, metav1.ListOptions{},
		func(h *autoscalingv2.HorizontalPodAutoscaler) {
			all++
			i := slices.IndexFunc(h.Status.Conditions, func(c autoscalingv2.HorizontalPodAutoscalerCondition) bool {
				return c.Type == autoscalingv2.ScalingActive && c.Status == corev1.ConditionFalse &&
					(c.Reason == "FailedGetResourceMetric" || c.Reason == "FailedGetContainerResourceMetric")
			})
			message, problem := "", hpaOther
			if i >= 0 {
				message = h.Status.Conditions[i].Message
				problem = autoscalerSymptoms.of(message, hpaOther)
			} else if len(h.Status.CurrentMetrics) == 0 {
				unread++
				return
			} else if message = missingMetric(h); message == "" {
				return
			}
			failing.Add(problem.Reason, h.Namespace+"/"+h.Name, func() []Check { return c.Fail(problem, "%s", message) })
		})
	switch {
	case err != nil:
		return c.Denied(err)
	case len(failing) > 0:
		return failing.Checks(nil)
	case all == 0:
		return c.OK("there is no HorizontalPodAutoscaler")
	}
	seen := Count(all, "HorizontalPodAutoscaler") + " without an error of CPU or memory metrics"
	if unread > 0 {
		seen += fmt.Sprintf("; the controller has not read the metrics of %d", unread)
	}
	return c.OK("%s", seen)
}

// missingMetric returns which metric of CPU or memory the controller could not read, or "": it has no current value.
// The condition names only the first metric that could not be read, or none while another one decides.
func missingMetric(h *autoscalingv2.HorizontalPodAutoscaler) string {
	seen := map[string]bool{}
	for _, m := range h.Status.CurrentMetrics {
		if m.Resource != nil {
			seen[m.Resource.Name.String()] = true
		} else if c := m.ContainerResource; c != nil {
			seen[c.Name.String()+" of container "+c.Container] = true
		}
	}
	for _, m := range h.Spec.Metrics {
		var name string
		if m.Resource != nil {
			name = m.Resource.Name.String()
		} else if c := m.ContainerResource; c != nil {
			name = c.Name.String() + " of container " + c.Container
		}
		if name != "" && !seen[name] {
			return "there is no current value of " + name
		}
	}
	return ""
}
