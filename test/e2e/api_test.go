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
		eventually(t, "the table of "+args, func(ctx context.Context) error {
			out, err := shared.Kubectl(ctx, append([]string{"get"}, strings.Fields(args)...)...)
			if err != nil {
				return err
			}
			lines := strings.Split(strings.TrimSuffix(out, "\n"), "\n")
			if got := strings.Join(strings.Fields(lines[0]), " "); !strings.EqualFold(got, want) {
				return fmt.Errorf("got columns %s, want %s", got, want)
			}
			if !strings.HasPrefix(args, "podmetrics") {
				return nil
			}
			rows, names := lines[1:], []string{"alpha", "beta", "gamma"}
			if len(rows) != len(names) {
				return fmt.Errorf("got rows %q, want %q", rows, names)
			}
			for i, name := range names {
				if !strings.HasPrefix(rows[i], name+" ") || strings.Contains(args, "wide") && !age.MatchString(rows[i]) {
					return fmt.Errorf("got row %q, want %s with the age of the metrics and a node", rows[i], name)
				}
			}
			return nil
		})
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
