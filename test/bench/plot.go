package main

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// plotCommand is a command of this program, which draws the rows of -only=scale.
const plotCommand = "plot"

// runPlot draws the rows of a CSV file, and replaces the table of a page.
func runPlot(args []string) error {
	flags := flag.NewFlagSet(plotCommand, flag.ContinueOnError)
	from := flags.String("csv", "", "the `file` with the rows")
	to := flags.String("svg", "", "the `file` to write")
	page := flags.String("page", "", "the Markdown `file` whose table is replaced")
	if err := flags.Parse(args); err != nil {
		return err
	}
	rows, err := readRows(*from)
	if err != nil {
		return err
	}
	if err := drawScale(rows, *to); err != nil {
		return err
	}
	text, err := os.ReadFile(*page)
	if err != nil {
		return err
	}
	const begin, end = "<!-- measured, by make plot -->\n", "<!-- end -->"
	before, rest, hasBegin := strings.Cut(string(text), begin)
	_, after, hasEnd := strings.Cut(rest, end)
	if !hasBegin || !hasEnd {
		return fmt.Errorf("%s: no %q with a following %q", *page, begin, end)
	}
	replaced := before + begin + "\n" + scaleTable(rows).markdown() + "\n" + end + after
	return os.WriteFile(*page, []byte(replaced), 0o644)
}

// scaleTable returns all rows, in the order of sizes and servers.
func scaleTable(rows []row) *table {
	t := newTable("", "Nodes", "pods", "server")
	for _, q := range quantities[:inDocs] {
		t.rows[0] = append(t.rows[0], q.title)
	}
	bySize := slices.Clone(rows)
	slices.SortStableFunc(bySize, func(a, b row) int { return cmp.Compare(a.values["nodes"], b.values["nodes"]) })
	for _, r := range bySize {
		cells := []string{thousands(r.values["nodes"]), thousands(r.values["pods"]), r.server}
		for _, q := range quantities[:inDocs] {
			cells = append(cells, fmt.Sprintf(q.format, r.published(q)))
		}
		t.row(cells...)
	}
	return t
}

// thousands formats a whole number with commas.
func thousands(v float64) string {
	if v < 1000 {
		return strconv.Itoa(int(v))
	}
	return fmt.Sprintf("%s,%03d", thousands(math.Floor(v/1000)), int(v)%1000)
}

// drawScale draws the first quantities by the number of nodes, on logarithmic axes.
func drawScale(rows []row, file string) error {
	const columns = 3
	grid := make([][]*plot.Plot, drawn/columns)
	for i, q := range quantities[:drawn] {
		p, err := drawQuantity(rows, q)
		if err != nil {
			return err
		}
		if i > 0 {
			p.Legend = plot.NewLegend()
		}
		grid[i/columns] = append(grid[i/columns], p)
	}
	canvas := vgsvg.New(12*vg.Inch, 7*vg.Inch)
	tiles := draw.Tiles{Rows: len(grid), Cols: columns, PadX: 20, PadY: 20, PadTop: 10, PadLeft: 10, PadRight: 10}
	for i, row := range plot.Align(grid, tiles, draw.New(canvas)) {
		for j, c := range row {
			grid[i][j].Draw(c)
		}
	}
	var image strings.Builder
	if _, err := canvas.WriteTo(&image); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(image.String()), 0o644)
}

// drawQuantity draws one quantity, with a line for each server and number of pods on a node.
func drawQuantity(rows []row, q quantity) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.X.Label.Text = q.title, "nodes"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	p.X.Min, p.X.Max = 1, 1
	lines := map[string]plotter.XYs{}
	var names []string
	for _, r := range rows {
		v := r.published(q)
		if v == 0 {
			continue // it was not measured, and has no logarithm
		}
		name := fmt.Sprintf("%s, %d pods per node", r.server, r.podsPerNode())
		if lines[name] == nil {
			names = append(names, name)
		}
		lines[name] = append(lines[name], plotter.XY{X: r.values["nodes"], Y: v})
	}
	var named []any
	for _, name := range names {
		named = append(named, name, lines[name])
	}
	err := plotutil.AddLinePoints(p, named...)
	p.X.Max, p.Y.Min, p.Y.Max = 1.5*p.X.Max, p.Y.Min/1.5, 1.5*p.Y.Max
	return p, err
}
