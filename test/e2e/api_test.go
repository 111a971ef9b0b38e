package e2e

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
)

func TestTables(t *testing.T) {
	t.Parallel()
	useFixture(t)
	header, _, _ := strings.Cut(shared.kubectl(t, "get", "podmetrics", "-n", fixture), "\n")
	if got := strings.Join(strings.Fields(header), " "); !strings.EqualFold(got, "NAME CPU(cores) MEMORY(bytes) WINDOW") {
		t.Errorf("got columns %s", got)
	}
	age := regexp.MustCompile(`\b[0-9]+s  *node`)
	for args, want := range map[string]string{
		"-o wide":                          "alpha beta gamma",
		"-o wide --sort-by=.metadata.name": "alpha beta gamma",
		"-o wide --sort-by=.containers[0].usage.memory": "alpha beta gamma",
	} {
		wide := shared.kubectl(t, append([]string{"get", "podmetrics", "-n", fixture}, strings.Fields(args)...)...)
		lines := strings.Split(strings.TrimSpace(wide), "\n")
		const columns = "NAME CPU(CORES) MEMORY(BYTES) WINDOW SWAP(BYTES) AGE(METRICS) NODE"
		if got := strings.Join(strings.Fields(lines[0]), " "); got != columns {
			t.Errorf("%s: got columns %s, want %s", args, got, columns)
		}
		var names []string
		for _, line := range lines[1:] {
			name, _, _ := strings.Cut(line, " ")
			names = append(names, name)
			if !age.MatchString(line) {
				t.Errorf("%s: got row %q, want the age of the metrics and a node", args, line)
			}
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s: got pods %s, want %s", args, got, want)
		}
	}
	header, _, _ = strings.Cut(shared.kubectl(t, "get", "nodemetrics", "-l", fixtureLabel, "-o", "wide"), "\n")
	const columns = "NAME CPU(CORES) MEMORY(BYTES) WINDOW SWAP(BYTES) AGE(METRICS)"
	if got := strings.Join(strings.Fields(header), " "); got != columns {
		t.Errorf("got columns %s", got)
	}
	if nodes := shared.kubectl(t, "get", "nodemetrics", "--no-headers"); strings.Count(nodes, "\n") < sharedNodes {
		t.Errorf("got these nodes, want at least %d:\n%s", sharedNodes, nodes)
	}
}

func TestRejectedRequests(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"get podmetrics nope -n default":                     `podmetrics.metrics.k8s.io "nope" not found`,
		"get nodemetrics nope":                               `nodemetrics.metrics.k8s.io "nope" not found`,
		"delete nodemetrics node-01":                         "(MethodNotAllowed)",
		"label nodemetrics node-01 a=b":                      "(MethodNotAllowed)",
		"get --raw /apis/metrics.k8s.io/v2":                  "could not find the requested resource",
		"get podmetrics --watch -n default":                  "(MethodNotAllowed)",
		"top pod nope -n default":                            "not found",
		"get podmetrics -A -l app=a=b=c":                     "selector",
		"get podmetrics -A --field-selector spec.nodeName=x": "metadata.name",

		"get --raw /apis/metrics.k8s.io/v1/namespaces/default/pods?continue=rubbish": "continue",
	} {
		out, err := shared.Kubectl(t.Context(), strings.Fields(args)...)
		if err == nil {
			t.Errorf("kubectl %s: got %s, want an error", args, out)
			continue
		}
		_, message, _ := strings.Cut(err.Error(), ": exit status 1: ") // without the command
		if !strings.Contains(message, want) {
			t.Errorf("kubectl %s: got %s, want %s", args, message, want)
		}
	}
	if list := shared.kubectl(t, "get", "podmetrics", "-n", "no-such-namespace"); strings.TrimSpace(list) != "" {
		t.Errorf("pods of a missing namespace: %s", list)
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	eventually(t, "the descriptions", func(ctx context.Context) error {
		for _, args := range [][]string{
			{"explain", "podmetrics.containers.usage"},
			{"explain", "nodemetrics.timestamp", "--api-version=metrics.k8s.io/v1beta1"},
		} {
			out, err := shared.Kubectl(ctx, args...)
			if err != nil {
				return err
			}
			if !strings.Contains(out, "DESCRIPTION") || strings.Contains(out, "<empty>") {
				return fmt.Errorf("kubectl %v: %s", args, out)
			}
		}
		return nil
	})
}
