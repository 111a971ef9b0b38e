package main

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
)

// plotCommand is a command of this program, which draws the rows of -only=scale.
const plotCommand = "plot"

const (
	plotResolution = 15 // seconds; of CPU and bytes in the plot, whatever they were measured with
	fewPods        = 5  // on each node, of the second size of pods
)

// computedSizes are clusters that are too large to be measured.
var computedSizes = []size{
	{20000, podsPerNode}, {40000, fewPods}, {65000, fewPods}, {65000, podsPerNode}, {100000, fewPods},
	{100000, podsPerNode},
}

// quantity is a panel of the plot.
type quantity struct {
	title  string
	value  func(*scaleRow) float64
	format string // in the table
}

func quantities() []quantity {
	perInterval := func(seconds float64) float64 { return seconds / plotResolution }
	return []quantity{
		{"Peak memory, MiB", func(r *scaleRow) float64 { return r.Peak }, "%.0f"},
		{"Memory while scraping, MiB", func(r *scaleRow) float64 { return r.RSS }, "%.0f"},
		{"CPU while scraping every 15 s, cores", func(r *scaleRow) float64 { return perInterval(r.interval()) }, "%.3f"},
		{"Start to all metrics, s", func(r *scaleRow) float64 { return r.Start }, "%.1f"},
		{"LIST of all pods in protobuf, ms of CPU", func(r *scaleRow) float64 { return r.List }, "%.0f"},
		{"From kubelets, one scrape every 15 s, MB/s", func(r *scaleRow) float64 {
			return perInterval(r.Received*r.Resolution) / 1e6
		}, "%.2f"},
	}
}

// runPlot draws the rows of a CSV file, and prints them and what is computed from them as a table.
func runPlot(args []string, w io.Writer) error {
	flags := flag.NewFlagSet(plotCommand, flag.ContinueOnError)
	from := flags.String("csv", "", "the `file` with the rows")
	to := flags.String("svg", "", "the `file` to write")
	if err := flags.Parse(args); err != nil {
		return err
	}
	rows, err := readScaleFile(*from)
	if err != nil {
		return err
	}
	rows = latest(rows)
	m := newModel(rows)
	var image bytes.Buffer
	if err := plotScale(rows, m).write(&image); err != nil {
		return err
	}
	if err := os.WriteFile(*to, image.Bytes(), 0o644); err != nil {
		return err
	}
	printScale(w, rows)
	m.print(w)
	return nil
}

// latest returns the last row of each server and size, in the order of servers and sizes.
func latest(rows []scaleRow) (last []scaleRow) {
	type key struct {
		server      string
		nodes, pods int
	}
	seen := map[key]bool{}
	for _, r := range slices.Backward(rows) {
		k := key{r.Server, r.Nodes, r.Pods}
		if !seen[k] {
			seen[k] = true
			last = append(last, r)
		}
	}
	slices.SortFunc(last, func(a, b scaleRow) int {
		return cmp.Or(cmp.Compare(a.Server, b.Server), cmp.Compare(b.podsPerNode(), a.podsPerNode()),
			cmp.Compare(a.Nodes, b.Nodes))
	})
	return last
}

// ownServer is the server that is drawn in front and of which larger sizes are computed.
const ownServer = "kube-vitals"

// model computes a quantity of kube-vitals as a constant plus a part for each node and each
// container. It has no quantities if the rows are too few.
type model map[string][3]float64 // by the title of the quantity

// minFitted is the smallest number of nodes from which slopes are computed: in small clusters, the
// constant part hides them.
const minFitted = 100

func newModel(rows []scaleRow) model {
	m := model{}
	for _, q := range quantities() {
		var inputs [][3]float64
		var values []float64
		for _, r := range rows {
			if v := q.value(&r); r.Server == ownServer && r.Nodes >= minFitted && v > 0 {
				inputs = append(inputs, [3]float64{1, float64(r.Nodes), float64(r.Containers)})
				values = append(values, v)
			}
		}
		if c, ok := fit(inputs, values); ok {
			m[q.title] = c
		}
	}
	return m
}

// at computes a quantity for a size of the cluster, whose pods have the usual number of containers.
func (m model) at(q quantity, s size) float64 {
	c := m[q.title]
	return c[0] + c[1]*float64(s.nodes) + c[2]*float64(s.nodes*s.pods*containersPerPod)
}

// fit returns the coefficients with the smallest sum of squared relative errors. ok is false if the
// inputs do not determine them.
func fit(inputs [][3]float64, values []float64) (coefficients [3]float64, ok bool) {
	var a [3][4]float64 // normal equations
	for i, input := range inputs {
		weight := 1 / (values[i] * values[i])
		for j := range 3 {
			for k := range 3 {
				a[j][k] += weight * input[j] * input[k]
			}
			a[j][3] += weight * input[j] * values[i]
		}
	}
	var scale [3]float64 // makes the diagonal 1, so that one limit tells small pivots from rounding errors
	for j := range 3 {
		scale[j] = math.Sqrt(a[j][j])
	}
	for j := range 3 {
		for k := range 3 {
			a[j][k] /= scale[j] * scale[k]
		}
		a[j][3] /= scale[j]
	}
	for pivot := range 3 { // the matrix is positive definite: rows need not be exchanged
		if !(a[pivot][pivot] > 1e-9) { // also NaN
			return coefficients, false
		}
		for row := range 3 {
			if row == pivot {
				continue
			}
			factor := a[row][pivot] / a[pivot][pivot]
			for k := pivot; k < 4; k++ {
				a[row][k] -= factor * a[pivot][k]
			}
		}
	}
	for j := range 3 {
		coefficients[j] = a[j][3] / a[j][j] / scale[j]
	}
	return coefficients, true
}

func plotScale(rows []scaleRow, m model) chart {
	usual := fmt.Sprintf("%d pods per node", podsPerNode)
	few := fmt.Sprintf("%d pods per node", fewPods)
	computed := lineStyle{name: "computed", color: "ours", dashed: true}
	styles := []struct {
		server string
		pods   int
		lineStyle
	}{
		{"metrics-server", podsPerNode, lineStyle{name: "metrics-server", color: "theirs", marks: true}},
		{"prometheus-agent", podsPerNode, lineStyle{name: "Prometheus agent", color: "other", marks: true}},
		{ownServer, podsPerNode, lineStyle{name: "kube-vitals, " + usual, color: "ours", marks: true}},
		{ownServer, fewPods, lineStyle{name: few, color: "ours", marks: true, hollow: true}},
	}
	c := chart{
		title: "Cost of kube-vitals in clusters of 1 to 100,000 nodes", xLabel: "nodes",
		note:   "Both axes are logarithmic. Two containers in each pod. Others: " + usual + ".",
		legend: []lineStyle{styles[2].lineStyle, styles[3].lineStyle, computed, styles[0].lineStyle, styles[1].lineStyle},
	}
	for _, q := range quantities() {
		p := panel{title: q.title}
		for _, s := range styles {
			l := line{lineStyle: s.lineStyle}
			for _, r := range rows {
				if r.Server == s.server && r.podsPerNode() == s.pods {
					l.points = append(l.points, point{float64(r.Nodes), q.value(&r)})
				}
			}
			if _, known := m[q.title]; known && s.server == ownServer && len(l.points) > 0 {
				beyond := line{lineStyle: computed}
				for nodes := int(l.points[len(l.points)-1].x); nodes < 100000; nodes *= 2 {
					beyond.points = append(beyond.points, point{float64(nodes), m.at(q, size{nodes, s.pods})})
				}
				beyond.points = append(beyond.points, point{100000, m.at(q, size{100000, s.pods})})
				p.lines = append(p.lines, beyond)
			}
			p.lines = append(p.lines, l)
		}
		c.panels = append(c.panels, p)
	}
	return c
}

// printScale prints rows as a table, with all quantities as measured.
func printScale(w io.Writer, rows []scaleRow) {
	t := newTable("Cost by size; RSS in MiB, CPU of requests in ms", "Server, nodes × pods", "resolution", "RSS",
		"RSS after lists", "peak at start", "peak", "KiB per node", "cores", "CPU per scrape", "start", "CPU of start",
		"LIST", "HPA's LIST", "MB/s", "files", "goroutines")
	for _, r := range rows {
		f := func(format string, v float64) string {
			if v == 0 { // not measured
				return ""
			}
			return fmt.Sprintf(format, v)
		}
		t.row(fmt.Sprintf("%s, %d × %d", r.Server, r.Nodes, r.podsPerNode()), f("%.0f s", r.Resolution), f("%.0f", r.RSS),
			f("%.0f", r.RSSLists), f("%.0f", r.PeakStart), f("%.0f", r.Peak), f("%.0f", r.RSS*1024/float64(r.Nodes)),
			f("%.4f", r.CPU), ms(r.interval()*1e3/float64(r.Nodes)), f("%.1f s", r.Start), f("%.1f s", r.StartCPU),
			f("%.1f", r.List), f("%.2f", r.ListSelector), f("%.2f", r.Received/1e6),
			strconv.Itoa(r.Descriptors), strconv.Itoa(r.Goroutines))
	}
	t.print(w)
}

// print prints what is computed for sizes that are not measured.
func (m model) print(w io.Writer) {
	if len(m) == 0 {
		fmt.Fprintf(w, "\nNothing is computed: this needs three sizes of %s, from %d nodes, "+
			"with different numbers of pods per node.\n", ownServer, minFitted)
		return
	}
	titles := []string{"Nodes × pods"}
	slopes := []string{"constant; each 1000 nodes; each 1000 containers"}
	for _, q := range quantities() {
		titles = append(titles, q.title)
		c := m[q.title]
		slopes = append(slopes, fmt.Sprintf("%.3g; %.3g; %.3g", c[0], 1e3*c[1], 1e3*c[2]))
	}
	t := newTable("Computed from the slopes", titles...)
	t.row(slopes...)
	for _, s := range computedSizes {
		cells := []string{fmt.Sprintf("%d × %d", s.nodes, s.pods)}
		for _, q := range quantities() {
			cells = append(cells, fmt.Sprintf(q.format, m.at(q, s)))
		}
		t.row(cells...)
	}
	t.print(w)
}
