package doctor

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// logLines of metrics-server are examined: some scrapes of each of 1000 nodes.
const (
	logLines = 2000
	maxLog   = 4 << 20
)

var logNode = regexp.MustCompile(`node="([^"]+)"`)

// logReasons maps texts in the log of metrics-server to reasons. The first match counts.
func logReasons() []struct {
	text   string
	reason reason.Reason
} {
	return []struct {
		text   string
		reason reason.Reason
	}{
		{"certificate signed by unknown authority", reason.TLSAuthority},
		{"doesn't contain any IP SANs", reason.TLSName},
		{"certificate is valid for", reason.TLSName},
		{"certificate is not valid for any names", reason.TLSName},
		{"certificate has expired", reason.TLSExpired},
		{"tls: ", reason.TLSHandshake},
		{"401 Unauthorized", reason.Unauthorized},
		{"403 Forbidden", reason.Forbidden},
		{"404 Not Found", reason.NotFound},
		{"500 Internal Server Error", reason.ServerError},
		{"no such host", reason.DNS},
		{"server misbehaving", reason.DNS},
		{"connection refused", reason.ConnectRefused},
		{"no route to host", reason.Unreachable},
		{"network is unreachable", reason.Unreachable},
		{"i/o timeout", reason.ConnectTimeout},
		{"context deadline exceeded", reason.Timeout},
		{"Client.Timeout exceeded", reason.Timeout},
		{"connection reset by peer", reason.ConnectionLost},
		{"No preferred addresses found", reason.NoAddress},
		{"unable to fetch metrics from node", reason.InternalFailure},
	}
}

// checkLogs looks for known errors in the log of metrics-server. It shows reasons and names of
// nodes, and no text of the log.
func (d *doctor) checkLogs(ctx context.Context) []Check {
	c := Check{ID: "logs", Title: "logs"}
	if len(d.workload.pods) == 0 {
		c.Status, c.Reason, c.Seen = Skipped, noPods, "there are no pods"
		return []Check{c}
	}
	found := map[reason.Reason]map[string]bool{}
	for _, pod := range d.workload.pods {
		log, err := d.kube.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
			TailLines: new(int64(logLines)), LimitBytes: new(int64(maxLog)), SinceSeconds: new(int64(300)),
			Container: d.workload.container().Name,
		}).DoRaw(ctx)
		if err != nil {
			return []Check{Denied(c, err)}
		}
		scanLog(log, found)
	}
	if len(found) == 0 {
		c.Status, c.Seen = OK, "the last 5 minutes have no known errors of scrapes"
		return []Check{c}
	}
	var checks []Check
	for _, r := range slices.Sorted(keys(found)) {
		description := r.Describe()
		one := c
		one.Status, one.Reason, one.Cure, one.URL = Failed, string(r), description.Cure, r.URL()
		one.Objects = sortedKeys(found[r])
		one.Seen = fmt.Sprintf("scrapes of %s failed in the last 5 minutes: %s: %s",
			count(len(one.Objects), "node"), r, description.Problem)
		if r == reason.InternalFailure {
			one.Cure = "see the log of metrics-server"
			one.Seen = fmt.Sprintf("scrapes of %s failed in the last 5 minutes", count(len(one.Objects), "node"))
		}
		checks = append(checks, one)
	}
	return checks
}

// scanLog adds the nodes by the reason of their errors.
func scanLog(log []byte, found map[reason.Reason]map[string]bool) {
	scanner := bufio.NewScanner(bytes.NewReader(log))
	scanner.Buffer(nil, maxLog)
	for scanner.Scan() {
		line := scanner.Text()
		node := logNode.FindStringSubmatch(line)
		if node == nil || !strings.HasPrefix(line, "E") {
			continue
		}
		for _, known := range logReasons() {
			if strings.Contains(line, known.text) {
				if found[known.reason] == nil {
					found[known.reason] = map[string]bool{}
				}
				found[known.reason][node[1]] = true
				break
			}
		}
	}
}
