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
	const pods = "NAME CPU(CORES) MEMORY(BYTES) WINDOW"
	age := regexp.MustCompile(`\b[0-9]+s  *node`)
	for args, want := range map[string]string{
		"podmetrics -n fixture":         pods,
		"podmetrics -n fixture -o wide": pods + " SWAP(BYTES) AGE(METRICS) NODE",
		"podmetrics -n fixture -o wide --sort-by=.containers[0].usage.memory": pods + " SWAP(BYTES) AGE(METRICS) NODE",
		"nodemetrics -o wide -l " + fixtureLabel:                              pods + " SWAP(BYTES) AGE(METRICS)",
	} {
		lines := strings.Split(shared.kubectl(t, append([]string{"get"}, strings.Fields(args)...)...), "\n")
		if got := strings.Join(strings.Fields(lines[0]), " "); !strings.EqualFold(got, want) {
			t.Errorf("%s: got columns %s, want %s", args, got, want)
		}
		if !strings.HasPrefix(args, "podmetrics") {
			continue
		}
		for i, name := range []string{"alpha", "beta", "gamma"} {
			if !strings.HasPrefix(lines[i+1], name+" ") || strings.Contains(args, "wide") && !age.MatchString(lines[i+1]) {
				t.Errorf("%s: got row %q, want %s with the age of the metrics and a node", args, lines[i+1], name)
			}
		}
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
