package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-vitals/kube-vitals/pkg/nodez"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

const (
	// maxClockSkew is the skew that kube-vitals reports, too.
	maxClockSkew = 5 * time.Second
	// podStart is the time in which a new pod gets metrics.
	podStart = time.Minute
	pageSize = 500
	// tokenSeconds is the shortest lifetime that the API server allows.
	tokenSeconds = 600
)

// checkNodes examines the nodes: by the page of nodes, or else by the API.
func (d *doctor) checkNodes(ctx context.Context) []Check {
	if d.target.kind != KubeVitals {
		return d.checkNodesByAPI(ctx)
	}
	report, skipped := d.nodez(ctx)
	if report == nil {
		return append([]Check{skipped}, d.checkNodesByAPI(ctx)...)
	}
	return nodezChecks(report)
}

// nodez reads the page of nodes with a short-lived token of the server's own ServiceAccount, so
// that the credentials of the user are not sent to a pod. It returns why it cannot.
func (d *doctor) nodez(ctx context.Context) (*nodez.Report, Check) {
	c := Check{ID: "nodez", Title: "page of nodes", Status: Skipped, Reason: noConnection}
	var bundle []byte
	for _, version := range versions() {
		a := d.apiServices[version]
		if a != nil && a.Spec.Service != nil && d.target.is(a.Spec.Service.Namespace, a.Spec.Service.Name) &&
			len(a.Spec.CABundle) > 0 {
			bundle = a.Spec.CABundle
			break
		}
	}
	switch {
	case d.dial == nil:
		c.Seen = "there is no running pod of kube-vitals"
		return nil, c
	case len(d.apiServices) == 0:
		c.Seen = "there is no APIService whose caBundle verifies kube-vitals, so no token is sent to it"
		return nil, c
	case bundle == nil:
		c.Reason = tlsNotVerified
		c.Seen = "no APIService has a caBundle that verifies kube-vitals, so no token is sent to it"
		return nil, c
	case d.workload.spec == nil:
		c.Reason, c.Seen = noServer, "the ServiceAccount of kube-vitals is not known"
		return nil, c
	}
	account := cmp.Or(d.workload.spec.ServiceAccountName, "default")
	request := &authenticationv1.TokenRequest{}
	request.Spec.ExpirationSeconds = new(int64(tokenSeconds))
	token, err := d.kube.CoreV1().ServiceAccounts(d.target.namespace).CreateToken(ctx, account, request,
		metav1.CreateOptions{})
	if err != nil {
		c = Denied(c, err)
		c.Status = Skipped
		return nil, c
	}
	report := &nodez.Report{}
	body, err := d.getVerified(ctx, "/nodez", token.Status.Token, bundle)
	if err == nil {
		err = json.Unmarshal(body, report)
	}
	var unverified *tls.CertificateVerificationError
	if errors.As(err, &unverified) {
		c.Seen = "the caBundle does not verify kube-vitals, so no token is sent to it: " + err.Error()
		return nil, c
	}
	if err != nil {
		c.Seen = "/nodez of kube-vitals cannot be read: " + err.Error()
		if body != nil {
			c.Reason = nodezUnavailable
		}
		return nil, c
	}
	return report, c
}

// nodezChecks returns the checks of a page of nodes.
func nodezChecks(report *nodez.Report) []Check {
	t := report.Totals
	c := Check{ID: "nodes", Title: "nodes", Status: OK}
	groups := map[reason.Reason]*Check{}
	describe := reason.Reason.Describe // cures are our own: people run the commands in them
	if report.Engine != nil {
		describe = reason.Reason.DescribeEngine
	}
	working := 0
	for _, n := range report.Nodes {
		if n.State != nodez.Failing && n.State != nodez.Stale {
			working++
			continue
		}
		group := groups[n.Reason]
		if group == nil {
			group = &Check{ID: "nodes", Title: "nodes", Status: Failed, Reason: string(n.Reason), Seen: n.Problem,
				Cure: describe(n.Reason).Cure, URL: n.URL}
			if detail := detailOf(n); detail != "" {
				group.Seen += ": " + detail
			}
			groups[n.Reason] = group
		}
		group.Objects = append(group.Objects, n.Name)
	}
	if t.Nodes == 0 {
		c.Status, c.Reason, c.Seen = Failed, noMetrics, "kube-vitals scrapes no node: its --node-selector may match none"
		return []Check{c}
	}
	work := "scraped without an error"
	var checks []Check
	if report.Engine != nil {
		work, checks = "read from the engine", engineChecks(report)
	}
	c.Seen = fmt.Sprintf("%d of %d %s; pods with metrics: %d of %d", working, t.Nodes, work, t.PodsWithMetrics, t.Pods)
	if len(groups) == 0 {
		checks = append(checks, c)
	}
	for _, r := range slices.Sorted(keys(groups)) {
		group := groups[r]
		group.Seen = fmt.Sprintf("%s: %s: %s", failing(len(group.Objects), t.Nodes), cmp.Or(string(r), "no reason"),
			group.Seen)
		checks = append(checks, *group)
	}
	checks = append(checks, clockCheck(report))
	checks = append(checks, deviceChecks(report)...)
	if m := report.Memory; m != nil {
		checks = append(checks, memoryCheck(m))
	}
	return checks
}

// clockCheck compares the clocks of the nodes with that of kube-vitals.
func clockCheck(report *nodez.Report) Check {
	var skewed []string
	largest := 0.0
	for _, n := range report.Nodes {
		if age := n.SampleAgeSeconds; age != nil && *age < 0 {
			n.ClockSkewSeconds = new(-*age) // at least
		}
		if s := n.ClockSkewSeconds; s != nil {
			largest = max(largest, math.Abs(*s))
			if math.Abs(*s) > maxClockSkew.Seconds() {
				skewed = append(skewed, fmt.Sprintf("%s %+.1fs", n.Name, *s))
			}
		}
	}
	c := Check{ID: "clocks", Title: "clocks", Status: OK,
		Seen: fmt.Sprintf("the largest difference from a node's clock is %.1fs", largest)}
	if report.Engine != nil {
		c.Seen = "no sample is from the future; an engine does not tell whether a clock is behind"
	}
	if len(skewed) > 0 {
		c.Status, c.Reason, c.Objects = Warning, clockSkew, skewed
		c.Seen = fmt.Sprintf("clocks of %s differ from that of kube-vitals by more than %v:", count(len(skewed), "node"),
			maxClockSkew)
	}
	return c
}

// detailOf returns what the error of a node adds to its problem and cure.
func detailOf(n nodez.Node) string {
	text := strings.TrimSuffix(n.Error, " ("+n.Cure+")")
	if _, detail, found := strings.Cut(text, n.Problem+": "); found {
		return detail
	}
	if strings.HasSuffix(text, n.Problem) {
		return ""
	}
	return text
}

func keys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for key := range m {
			if !yield(key) {
				return
			}
		}
	}
}

func failing(n, all int) string {
	if n == 1 {
		return fmt.Sprintf("1 of %s fails", count(all, "node"))
	}
	return fmt.Sprintf("%d of %s fail", n, count(all, "node"))
}

func memoryCheck(m *nodez.Memory) Check {
	c := Check{ID: "memory", Title: "memory", Status: OK}
	c.Seen = "uses " + mebibytes(m.ResidentBytes)
	switch {
	case m.LimitBytes == 0:
		c.Seen += "; there is no limit"
	case m.ResidentBytes > m.LimitBytes/10*9:
		c.Status, c.Reason = Warning, memoryLimit
		c.Seen += fmt.Sprintf(", more than nine tenths of its limit of %s", mebibytes(m.LimitBytes))
	default:
		c.Seen += fmt.Sprintf("; its limit is %s", mebibytes(m.LimitBytes))
	}
	return c
}

func mebibytes(n uint64) string { return fmt.Sprintf("%d MiB", (n+1<<19)>>20) }

// checkNodesByAPI compares the nodes and pods with those that have metrics.
func (d *doctor) checkNodesByAPI(ctx context.Context) []Check {
	c := Check{ID: "nodes", Title: "nodes"}
	if d.api.nodes == nil || d.api.pods == nil {
		c.Status, c.Reason, c.Seen = Skipped, noConnection, "the metrics API does not respond"
		return []Check{c}
	}
	selector := labels.Everything()
	if text, set := d.workload.flag("--node-selector", "-l"); set {
		if s, err := labels.Parse(text); err == nil {
			selector = s
		}
	}
	var missing, notReady []string
	all := 0
	err := Pages(func(o metav1.ListOptions) (string, error) {
		o.LabelSelector = selector.String()
		list, err := d.kube.CoreV1().Nodes().List(ctx, o)
		if err != nil {
			return "", err
		}
		for _, n := range list.Items {
			all++
			switch {
			case d.api.nodes[n.Name]:
			case nodeReady(&n):
				missing = append(missing, n.Name)
			default:
				notReady = append(notReady, n.Name)
			}
		}
		return list.Continue, nil
	})
	if err != nil {
		return []Check{Denied(c, err)}
	}
	var checks []Check
	if len(missing)+len(notReady) == 0 {
		c.Status, c.Seen = OK, fmt.Sprintf("%d of %d have metrics", all, all)
		checks = append(checks, c)
	}
	if len(missing) > 0 {
		c.Status, c.Objects = Failed, missing
		c.Seen = fmt.Sprintf("%d of %d have no metrics", len(missing), all)
		checks = append(checks, d.explain(ctx, c, "nodes/"+missing[0]))
	}
	if len(notReady) > 0 {
		c.Status, c.Reason, c.Objects = Warning, nodeNotReady, notReady
		c.Seen = fmt.Sprintf("%d of %d have no metrics and are not Ready", len(notReady), all)
		checks = append(checks, c)
	}
	return append(checks, d.checkPodsByAPI(ctx)...)
}

// checkPodsByAPI finds pods without metrics.
func (d *doctor) checkPodsByAPI(ctx context.Context) []Check {
	c := Check{ID: "pod-metrics", Title: "pod metrics", Status: OK}
	var missing []string
	all := 0
	err := Pages(func(o metav1.ListOptions) (string, error) {
		o.FieldSelector = "status.phase=" + string(corev1.PodRunning)
		list, err := d.kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, o)
		if err != nil {
			return "", err
		}
		for _, p := range list.Items {
			all++
			started := p.Status.StartTime
			if !d.api.pods[p.Namespace+"/"+p.Name] && started != nil && time.Since(started.Time) > podStart {
				missing = append(missing, p.Namespace+"/"+p.Name)
			}
		}
		return list.Continue, nil
	})
	if err != nil {
		return []Check{Denied(c, err)}
	}
	if len(missing) == 0 {
		c.Seen = fmt.Sprintf("all running pods have metrics or have just started: %d", all)
		return []Check{c}
	}
	c.Status, c.Objects = Warning, missing
	c.Seen = fmt.Sprintf("%d of %d running pods have no metrics", len(missing), all)
	namespace, name, _ := strings.Cut(missing[0], "/")
	return []Check{d.explain(ctx, c, "namespaces/"+namespace+"/pods/"+name)}
}

// explain adds why the first object of a check has no metrics: kube-vitals says so in its 404.
func (d *doctor) explain(ctx context.Context, c Check, path string) Check {
	c.Reason = noMetrics
	if d.target.kind != KubeVitals {
		return c
	}
	message, r := d.notFound(ctx, path)
	if message != "" {
		c.Seen += "; of the first one: " + message
	}
	description := r.Describe()
	if d.workload.usesEngine() {
		description = r.DescribeEngine()
	}
	if description.Problem != "" {
		c.Reason, c.Cure, c.URL = string(r), description.Cure, r.URL()
	}
	return c
}

// notFound returns the message of the API about an object without metrics, and the reason in it.
func (d *doctor) notFound(ctx context.Context, path string) (message string, r reason.Reason) {
	_, err := d.raw(ctx, "/apis/metrics.k8s.io/"+d.version()+"/"+path)
	var status interface{ Status() metav1.Status }
	if !errors.As(err, &status) {
		return "", ""
	}
	s := status.Status()
	if s.Details != nil {
		for _, cause := range s.Details.Causes {
			if known := reason.Reason(cause.Type); known.Describe().Problem != "" {
				r = known
			}
		}
	}
	return s.Message, r
}

// version returns the version of metrics.k8s.io to read.
func (d *doctor) version() string {
	for _, version := range versions() {
		if d.apiServices[version] != nil {
			return version
		}
	}
	return versions()[0]
}

func nodeReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// Pages calls list for each page of a LIST. It returns the token of the next one.
func Pages(list func(metav1.ListOptions) (string, error)) error {
	o := metav1.ListOptions{Limit: pageSize}
	for {
		next, err := list(o)
		if err != nil || next == "" {
			return err
		}
		o.Continue = next
	}
}
