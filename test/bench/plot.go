package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
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

const (
	plotResolution = 15 // seconds; of CPU and bytes in the plot, whatever they were measured with
	ownServer      = "kube-vitals"
)

// quantity is a panel of the plot and a column of the table.
type quantity struct {
	title, format string
	value         func(scaleRow) float64
}

func column(name string) func(scaleRow) float64 {
	return func(r scaleRow) float64 { return r.number(name) }
}

// perInterval returns what a column would be with a scrape every 15 s.
func perInterval(name string, factor float64) func(scaleRow) float64 {
	return func(r scaleRow) float64 {
		return factor * r.number(name) * r.number("resolution_seconds") / plotResolution
	}
}

// The first six quantities are drawn.
var quantities = []quantity{
	{"peak memory, MiB", "%.0f", column("peak_mib")},
	{"memory while scraping, MiB", "%.0f", column("rss_mib")},
	{"CPU while scraping, cores", "%.3f", perInterval("cpu_cores", 1)},
	{"start to all metrics, s", "%.1f", column("start_seconds")},
	{"LIST of all pods, ms of CPU", "%.0f", column("list_pods_protobuf_cpu_ms")},
	{"from kubelets, MB/s", "%.2f", perInterval("received_bytes_per_second", 1e-6)},
	{"LIST of an HPA, ms of CPU", "%.1f", column("list_selector_cpu_ms")},
	{"open files", "%.0f", column("file_descriptors")},
	{"goroutines", "%.0f", column("goroutines")},
}

// runPlot draws the rows of a CSV file, and replaces the table of a page.
func runPlot(args []string) error {
	flags := flag.NewFlagSet(plotCommand, flag.ContinueOnError)
	from := flags.String("csv", "", "the `file` with the rows")
	to := flags.String("svg", "", "the `file` to write")
	page := flags.String("page", "", "the Markdown `file` whose table is replaced")
	if err := flags.Parse(args); err != nil {
		return err
	}
	rows, err := readScaleRows(*from)
	if err != nil {
		return err
	}
	rows = latest(rows)
	if err := drawScale(rows, *to); err != nil {
		return err
	}
	text, err := os.ReadFile(*page)
	if err != nil {
		return err
	}
	replaced, err := replaceTable(string(text), scaleTable(rows))
	if err != nil {
		return fmt.Errorf("%s: %w", *page, err)
	}
	return os.WriteFile(*page, []byte(replaced), 0o644)
}

// latest returns the last row of each server and size, in the order of servers and sizes.
func latest(rows []scaleRow) (last []scaleRow) {
	seen := map[string]bool{}
	for _, r := range slices.Backward(rows) {
		key := fmt.Sprint(r["server"], r["nodes"], r["pods"])
		if !seen[key] {
			seen[key] = true
			last = append(last, r)
		}
	}
	slices.SortFunc(last, func(a, b scaleRow) int {
		return cmp.Or(cmp.Compare(a["server"], b["server"]), cmp.Compare(b.podsPerNode(), a.podsPerNode()),
			cmp.Compare(a.number("nodes"), b.number("nodes")))
	})
	return last
}

// scaleTable returns all rows, in the order of sizes and servers.
func scaleTable(rows []scaleRow) *table {
	t := newTable("", "Nodes", "pods", "server")
	for _, q := range quantities {
		t.rows[0] = append(t.rows[0], q.title)
	}
	bySize := slices.Clone(rows)
	slices.SortStableFunc(bySize, func(a, b scaleRow) int { return cmp.Compare(a.number("nodes"), b.number("nodes")) })
	for _, r := range bySize {
		row := []string{thousands(r.number("nodes")), thousands(r.number("pods")), r["server"]}
		for _, q := range quantities {
			row = append(row, fmt.Sprintf(q.format, q.value(r)))
		}
		t.row(row...)
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

// replaceTable replaces what is between two comments.
func replaceTable(text string, t *table) (string, error) {
	const begin, end = "<!-- measured, by make plot -->\n", "<!-- end -->"
	before, rest, hasBegin := strings.Cut(text, begin)
	_, after, hasEnd := strings.Cut(rest, end)
	if !hasBegin || !hasEnd {
		return "", fmt.Errorf("no %q with a following %q", begin, end)
	}
	return before + begin + "\n" + t.markdown() + "\n" + end + after, nil
}

// drawScale draws the first six quantities by the number of nodes, on logarithmic axes.
func drawScale(rows []scaleRow, file string) error {
	const panels, columns = 6, 3
	grid := make([][]*plot.Plot, panels/columns)
	for i, q := range quantities[:panels] {
		p := newPlot(q.title, "nodes", "")
		p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
		p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
		p.Legend.Left = true
		p.X.Min, p.X.Max = 1, 1
		lines := map[string]plotter.XYs{}
		var names []string
		for _, r := range rows {
			name := fmt.Sprintf("%s, %d pods per node", r["server"], r.podsPerNode())
			if v := q.value(r); v > 0 {
				if lines[name] == nil {
					names = append(names, name)
				}
				lines[name] = append(lines[name], plotter.XY{X: r.number("nodes"), Y: v})
			}
		}
		for j, name := range names {
			if err := addLine(p, j, name, lines[name]); err != nil {
				return err
			}
		}
		if len(names) == 0 {
			p.Y.Min, p.Y.Max = 1, 1
		}
		p.X.Max, p.Y.Min, p.Y.Max = 1.5*p.X.Max, p.Y.Min/1.5, 1.5*p.Y.Max
		if i > 0 {
			p.Legend = plot.NewLegend()
		}
		grid[i/columns] = append(grid[i/columns], p)
	}
	canvas := vgsvg.New(12*vg.Inch, 7*vg.Inch)
	tiles := draw.Tiles{Rows: panels / columns, Cols: columns, PadX: 20, PadY: 20, PadTop: 10, PadLeft: 10, PadRight: 10}
	for i, row := range plot.Align(grid, tiles, draw.New(canvas)) {
		for j, c := range row {
			grid[i][j].Draw(c)
		}
	}
	return writeTo(file, canvas)
}

func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	return p
}

// addLine adds line i of a plot. Lines differ in their color and in the shape of their points.
func addLine(p *plot.Plot, i int, name string, points plotter.XYs) error {
	line, marks, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	line.Color, marks.Color, marks.Shape = plotutil.Color(i), plotutil.Color(i), plotutil.Shape(i)
	p.Add(line, marks)
	p.Legend.Add(name, line, marks)
	return nil
}

func writeTo(file string, w io.WriterTo) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = w.WriteTo(f)
	return errors.Join(err, f.Close())
}
