package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// TestMemoryLimit checks that the memory limit is that of the chart.
func TestMemoryLimit(t *testing.T) {
	text, err := os.ReadFile("../../charts/kube-vitals/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values struct {
		Resources struct {
			Limits struct{ Memory resource.Quantity }
		}
	}
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	if want := values.Resources.Limits.Memory.Value(); memoryLimit != want {
		t.Errorf("got a limit of %d bytes, want that of the chart, %d", memoryLimit, want)
	}
}

// TestScalingPage checks that the table of docs/scaling.md and the numbers of the comparison in the
// README are those of the last rows of scaling.csv: run make plot, and edit comparison.svg.
func TestScalingPage(t *testing.T) {
	const docs, table = "../../docs/", "../../docs/images/scaling.csv"
	read := func(file string) string {
		t.Helper()
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	copied := filepath.Join(t.TempDir(), "copy")
	rows, err := readRows(table)
	if err != nil {
		t.Fatal(err)
	}
	older := row{rows[0].server, map[string]float64{"nodes": rows[0].values["nodes"], "pods": rows[0].values["pods"]}}
	if err := writeRows(copied, latest(append([]row{older}, rows...))); err != nil || read(copied) != read(table) {
		t.Errorf("%s is written as (error %v)\n%s", table, err, read(copied))
	}
	page := read(docs + "scaling.md")
	if err := os.WriteFile(copied, []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := runPlot([]string{"-csv", table, "-svg", copied + ".svg", "-page", copied}); err != nil {
		t.Fatal(err)
	}
	if got := read(copied); got != page {
		t.Errorf("the table is not that of scaling.csv:\n%s", got)
	}
	image, compared := read(docs+"images/comparison.svg"), 0
	for line := range strings.Lines(page) {
		if cells := strings.Split(line, " | "); strings.HasPrefix(line, "| 1,000 |") {
			compared++
			for i, unit := range map[int]string{4: " MiB", 5: " cores", 6: " s", 7: " ms CPU"} {
				if !strings.Contains(image, ">"+cells[i]+unit+"<") {
					t.Errorf("comparison.svg does not have %s%s of %s", cells[i], unit, cells[2])
				}
			}
		}
	}
	if compared != 2 {
		t.Errorf("there are %d rows with 1000 nodes, want 2", compared)
	}
}
