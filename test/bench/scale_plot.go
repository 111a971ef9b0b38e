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
	"strings"
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
	column string // title in a table
	value  func(*scaleRow) float64
	format string // in the table
}

func quantities() []quantity {
	cores := func(r *scaleRow) float64 { return r.interval() / plotResolution }
	received := func(r *scaleRow) float64 { return r.Received * r.Resolution / plotResolution / 1e6 }
	start := func(r *scaleRow) float64 { return r.Start }
	list := func(r *scaleRow) float64 { return r.List }
	return []quantity{
		{"Peak memory, MiB", "peak memory, MiB", func(r *scaleRow) float64 { return r.Peak }, "%.0f"},
		{"Memory while scraping, MiB", "memory while scraping, MiB", func(r *scaleRow) float64 { return r.RSS }, "%.0f"},
		{"CPU while scraping every 15 s, cores", "CPU while scraping, cores", cores, "%.3f"},
		{"Start to all metrics, s", "start to all metrics, s", start, "%.1f"},
		{"LIST of all pods in protobuf, ms of CPU", "LIST of all pods, ms of CPU", list, "%.0f"},
		{"From kubelets, one scrape every 15 s, MB/s", "from kubelets, MB/s", received, "%.2f"},
	}
}

// runPlot draws the rows of a CSV file, and prints them and what is computed from them as a table.
func runPlot(args []string, w io.Writer) error {
	flags := flag.NewFlagSet(plotCommand, flag.ContinueOnError)
	from := flags.String("csv", "", "the `file` with the rows")
	to := flags.String("svg", "", "the `file` to write")
	page := flags.String("page", "", "the Markdown `file` whose tables are replaced")
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
	tables := []*table{ownTable(rows), besideTable(rows), m.table()}
	for _, t := range tables {
		t.print(w)
	}
	if *page == "" {
		return nil
	}
	text, err := os.ReadFile(*page)
	if err != nil {
		return err
	}
	replaced, err := replaceTables(string(text), tables)
	if err != nil {
		return fmt.Errorf("%s: %w", *page, err)
	}
	return os.WriteFile(*page, []byte(replaced), 0o644)
}

// replaceTables replaces what is between two comments with the title of a table, for each table.
func replaceTables(text string, tables []*table) (string, error) {
	for _, t := range tables {
		begin, end := "<!-- "+t.title+", by make plot -->\n", "<!-- end -->"
		before, rest, hasBegin := strings.Cut(text, begin)
		_, after, hasEnd := strings.Cut(rest, end)
		if !hasBegin || !hasEnd {
			return "", fmt.Errorf("no %q with a following %q", begin, end)
		}
		text = before + begin + "\n" + t.markdown() + "\n" + end + after
	}
	return text, nil
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
	few := fmt.Sprintf("with %d pods per node", fewPods)
	computed := lineStyle{name: "computed", color: "ours", dashed: true}
	styles := []struct {
		server string
		pods   int
		lineStyle
	}{
		{"metrics-server", podsPerNode, lineStyle{name: "metrics-server", color: "theirs", marks: true}},
		{"prometheus-agent", podsPerNode, lineStyle{name: "Prometheus agent", color: "other", marks: true}},
		{"vmagent", podsPerNode, lineStyle{name: "vmagent", color: "third", marks: true}},
		{ownServer, podsPerNode, lineStyle{name: ownServer, color: "ours", marks: true}},
		{ownServer, fewPods, lineStyle{name: few, color: "ours", marks: true, hollow: true}},
	}
	c := chart{
		title: "Cost of kube-vitals in clusters of 1 to 100,000 nodes", xLabel: "nodes",
		note: fmt.Sprintf("On each node %d pods of %d containers, except where the legend has another number. "+
			"All axes are logarithmic.", podsPerNode, containersPerPod),
		legend: []lineStyle{styles[3].lineStyle, styles[4].lineStyle, computed},
	}
	for _, s := range styles[:3] {
		c.legend = append(c.legend, s.lineStyle)
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

// thousands formats a whole number with commas.
func thousands(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// ownTable has what was measured of kube-vitals.
func ownTable(rows []scaleRow) *table {
	titles := []string{"Nodes", "pods"}
	for _, q := range quantities() {
		titles = append(titles, q.column)
	}
	t := newTable("measured", append(titles, "LIST of an HPA, ms of CPU", "open files")...)
	for _, r := range rows {
		if r.Server != ownServer {
			continue
		}
		cells := []string{thousands(r.Nodes), thousands(r.Pods)}
		for _, q := range quantities() {
			cells = append(cells, fmt.Sprintf(q.format, q.value(&r)))
		}
		t.row(append(cells, fmt.Sprintf("%.1f", r.ListSelector), thousands(r.Descriptors))...)
	}
	return t
}

// besideTable compares the servers at each size at which others were measured, too.
func besideTable(rows []scaleRow) *table {
	t := newTable("beside", "Nodes, pods", "server", "memory while scraping, MiB", "peak memory, MiB",
		"memory per node, KiB", "CPU while scraping, cores", "CPU per node and scrape, ms", "goroutines")
	shared := map[[2]int]bool{}
	for _, r := range rows {
		if r.Server != ownServer {
			shared[[2]int{r.Nodes, r.Pods}] = true
		}
	}
	bySize := slices.Clone(rows)
	slices.SortStableFunc(bySize, func(a, b scaleRow) int { return cmp.Compare(a.Nodes, b.Nodes) })
	for _, r := range bySize {
		if shared[[2]int{r.Nodes, r.Pods}] {
			name := r.Server
			if name != ownServer && r.Version != unknownVersion { // its own version is that of the page
				name += " " + r.Version
			}
			t.row(thousands(r.Nodes)+", "+thousands(r.Pods), name, fmt.Sprintf("%.0f", r.RSS),
				fmt.Sprintf("%.0f", r.Peak), fmt.Sprintf("%.0f", r.RSS*1024/float64(r.Nodes)),
				fmt.Sprintf("%.4f", r.interval()/plotResolution), fmt.Sprintf("%.2f", r.interval()*1e3/float64(r.Nodes)),
				thousands(r.Goroutines))
		}
	}
	return t
}

// table has what is computed for sizes that are not measured.
func (m model) table() *table {
	titles, slopes := []string{"Nodes", "pods"}, []string{"each 1000 containers", ""}
	nodes, constant := []string{"each 1000 nodes", ""}, []string{"constant", ""}
	for _, q := range quantities() {
		c := m[q.title]
		titles = append(titles, q.column)
		constant = append(constant, fmt.Sprintf("%.3g", c[0]))
		nodes = append(nodes, fmt.Sprintf("%.3g", 1e3*c[1]))
		slopes = append(slopes, fmt.Sprintf("%.3g", 1e3*c[2]))
	}
	t := newTable("computed", titles...)
	if len(m) == 0 { // needs three sizes with different numbers of pods per node
		return t
	}
	for _, s := range computedSizes {
		cells := []string{thousands(s.nodes), thousands(s.nodes * s.pods)}
		for _, q := range quantities() {
			cells = append(cells, fmt.Sprintf(q.format, m.at(q, s)))
		}
		t.row(cells...)
	}
	t.row(constant...)
	t.row(nodes...)
	t.row(slopes...)
	return t
}
