package e2e

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
)

// TestTop compares the tables of kubectl top with the usage that the simulated kubelets report.
func TestTop(t *testing.T) {
	t.Parallel()
	useFixture(t)
	const inFixture = "--namespace=" + fixture
	tests := []struct {
		name string
		args []string
		want []string // rows in this order; numbers may deviate by 1 %
	}{
		{"pods", []string{"top", "pods", inFixture}, []string{
			"NAME CPU(cores) MEMORY(bytes)",
			"alpha 300m 192Mi", "beta 400m 256Mi", "gamma 130m 528Mi",
		}},
		{"one pod", []string{"top", "pod", "beta", inFixture}, []string{
			"NAME CPU(cores) MEMORY(bytes)",
			"beta 400m 256Mi",
		}},
		{"selected pods", []string{"top", "pods", inFixture, "--selector=tier=back"}, []string{
			"NAME CPU(cores) MEMORY(bytes)",
			"beta 400m 256Mi", "gamma 130m 528Mi",
		}},
		{"containers", []string{"top", "pods", inFixture, "--containers"}, []string{
			"POD NAME CPU(cores) MEMORY(bytes)",
			"alpha app 250m 128Mi", "alpha proxy 50m 64Mi", "beta app 400m 256Mi", "gamma app 100m 512Mi", "gamma mesh 30m 16Mi",
		}},
		{"sum", []string{"top", "pods", inFixture, "--sum"}, []string{
			"NAME CPU(cores) MEMORY(bytes)",
			"alpha 300m 192Mi", "beta 400m 256Mi", "gamma 130m 528Mi", "________ ________", "830m 976Mi",
		}},
		{"by CPU", []string{"top", "pods", inFixture, "--sort-by=cpu"}, []string{
			"NAME CPU(cores) MEMORY(bytes)",
			"beta 400m 256Mi", "alpha 300m 192Mi", "gamma 130m 528Mi",
		}},
		{"by memory", []string{"top", "pods", inFixture, "--sort-by=memory"}, []string{
			"NAME CPU(cores) MEMORY(bytes)",
			"gamma 130m 528Mi", "beta 400m 256Mi", "alpha 300m 192Mi",
		}},
		{"swap", []string{"top", "pods", inFixture, "--show-swap"}, []string{
			"NAME CPU(cores) MEMORY(bytes) SWAP(bytes)",
			"alpha 300m 192Mi 32Mi", "beta 400m 256Mi 0Mi", "gamma 130m 528Mi 8Mi",
		}},
		{"all namespaces", []string{"top", "pods", "--all-namespaces", "--selector=app=fixture", "--containers"}, []string{
			"NAMESPACE POD NAME CPU(cores) MEMORY(bytes)",
			"fixture alpha app 250m 128Mi", "fixture alpha proxy 50m 64Mi", "fixture beta app 400m 256Mi",
			"fixture gamma app 100m 512Mi", "fixture gamma mesh 30m 16Mi",
		}},
		{"nodes", []string{"top", "nodes", "--selector=" + fixtureLabel}, []string{
			"NAME CPU(cores) CPU(%) MEMORY(bytes) MEMORY(%)",
			"node-n 500m 6% 768Mi 2%", "node-s 530m 6% 1232Mi 3%",
		}},
		{"nodes by memory", []string{"top", "nodes", "--selector=" + fixtureLabel, "--sort-by=memory"}, []string{
			"NAME CPU(cores) CPU(%) MEMORY(bytes) MEMORY(%)",
			"node-s 530m 6% 1232Mi 3%", "node-n 500m 6% 768Mi 2%",
		}},
		{"one node with swap", []string{"top", "node", swapNode, "--show-swap"}, []string{
			"NAME CPU(cores) CPU(%) MEMORY(bytes) MEMORY(%) SWAP(bytes) SWAP(%)",
			"node-s 530m 6% 1232Mi 3% 40Mi 0%",
		}},
		{"one node without swap", []string{"top", "node", noSwapNode, "--show-swap"}, []string{
			"NAME CPU(cores) CPU(%) MEMORY(bytes) MEMORY(%) SWAP(bytes) SWAP(%)",
			"node-n 500m 6% 768Mi 2% <unknown> <unknown>",
		}},
	}
	versions := map[string]func(*testing.T){}
	for version, program := range map[string]string{"v1": binaries.Kubectl, "v1beta1": oldKubectl(t)} {
		versions[version] = func(t *testing.T) {
			for _, test := range tests {
				if strings.HasPrefix(os.Getenv("KUBERNETES"), "1.31") && slices.Contains(test.args, "--show-swap") {
					continue // its kubectl does not have it, and its API server drops the swap of a node's status
				}
				t.Run(test.name, func(t *testing.T) {
					eventually(t, "the table of kubectl "+strings.Join(test.args, " "), func(ctx context.Context) error {
						got, err := shared.Run(ctx, program, test.args...)
						if err == nil && !equalTables(got, test.want) {
							err = fmt.Errorf("got\n%s\nwant\n%s", got, strings.Join(test.want, "\n"))
						}
						return err
					})
				})
			}
		}
	}
	concurrently(t, versions)
}

// oldKubectl returns the path of a kubectl that reads metrics.k8s.io/v1beta1.
func oldKubectl(t *testing.T) string {
	t.Helper()
	folder, err := binaries.Build(t.Context(), binaries.OldKubectl(), os.Stdout)
	must(t, err)
	return filepath.Join(folder, binaries.Kubectl)
}

// hasRows returns a function that reports whether a table has these rows.
func hasRows(want ...string) func(string) bool {
	return func(got string) bool { return equalTables(got, want) }
}

// equalTables reports whether a table has these rows. kubectl 1.31 has CPU% in place of CPU(%).
func equalTables(got string, want []string) bool {
	got = strings.NewReplacer("CPU% ", "CPU(%) ", "MEMORY% ", "MEMORY(%) ").Replace(got)
	return slices.EqualFunc(slices.Collect(strings.Lines(got)), want, equalRows)
}

// equalRows reports whether two rows are equal. Numbers may deviate by 1 %, or by 1 because kubectl
// rounds.
func equalRows(got, want string) bool {
	return slices.EqualFunc(strings.Fields(got), strings.Fields(want), func(got, want string) bool {
		if got == want {
			return true
		}
		g, gotUnit := number(got)
		w, wantUnit := number(want)
		return gotUnit == wantUnit && math.Abs(g-w) <= max(1, w/100)
	})
}

// number splits 250m, 12% or 64Mi into value and unit. Text without a number is a unit.
func number(text string) (value float64, unit string) {
	digits := strings.IndexFunc(text, func(r rune) bool { return r < '0' || r > '9' })
	if digits < 1 {
		return 0, text
	}
	value, err := strconv.ParseFloat(text[:digits], 64)
	if err != nil {
		return 0, text
	}
	return value, text[digits:]
}
