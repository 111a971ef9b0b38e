package main

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
)

// table is a Markdown table. The first row has the titles.
type table struct {
	title string
	rows  [][]string
}

func newTable(title string, columns ...string) *table {
	return &table{title: title, rows: [][]string{columns}}
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

// markdown returns the rows without alignment, as the documents have them.
func (t *table) markdown() string {
	var b strings.Builder
	for i, row := range t.rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			fmt.Fprintf(&b, "|---%s|\n", strings.Repeat("|---:", len(row)-1))
		}
	}
	return b.String()
}

// cellEnds marks the ends of cells for tabwriter, which aligns them.
var cellEnds = strings.NewReplacer(" |", "\t|", "-|", "-\t|", ":|", ":\t|")

func (t *table) print() {
	fmt.Printf("\n%s\n\n", t.title)
	aligned := tabwriter.NewWriter(os.Stdout, 0, 0, 1, ' ', 0)
	_, _ = cellEnds.WriteString(aligned, t.markdown())
	_ = aligned.Flush() // it prints to a terminal
}

func median(values []float64) float64 { return percentile(values, 50) }

// mean returns 0 for no values.
func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(max(len(values), 1))
}

// percentile returns the smallest value that at least p percent of the values do not exceed, and 0
// for no values.
func percentile(values []float64, p float64) float64 {
	if len(values) == 0 {
		return 0
	}
	rank := int(math.Ceil(p / 100 * float64(len(values))))
	return slices.Sorted(slices.Values(values))[max(rank, 1)-1]
}
