package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes/scheme"
)

// exampleRow returns a row whose quantities are a constant, 2 per node and 0.5 per container.
func exampleRow(server string, nodes, pods int) scaleRow {
	containers := 2 * nodes * pods
	v := 10 + 2*float64(nodes) + 0.5*float64(containers)
	return scaleRow{
		Date: "2026-01-02", Version: "v1.0.0", Machine: `2 × "CPU", 4 GiB`, Server: server, Objects: "full",
		Nodes: nodes, Pods: nodes * pods, Containers: containers, Resolution: 30,
		RSS: v, PeakStart: v, Peak: v, RSSLists: v, CPU: v / 2, Start: v, StartCPU: v, List: v, ListSelector: 0.25,
		Received: v * 5e5, Descriptors: nodes + 20, Goroutines: 94,
	}
}

func TestScaleFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "scale.csv")
	want := []scaleRow{exampleRow("kube-vitals", 100, 30), exampleRow("metrics-server", 1000, 5)}
	for _, row := range want {
		if err := appendScaleRow(file, row); err != nil {
			t.Fatal(err)
		}
	}
	got, err := readScaleFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if _, err := readScaleFile(file + ".missing"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: got %v", err)
	}
}

func TestReadScaleErrors(t *testing.T) {
	var b strings.Builder
	if err := writeScale(&b, []scaleRow{exampleRow("kube-vitals", 100, 30)}); err != nil {
		t.Fatal(err)
	}
	good := b.String()
	for name, test := range map[string]struct{ old, replacement, want string }{
		"another column": {"rss_mib", "memory", "column 10 is not rss_mib"},
		"column missing": {"date,", "", "wrong number of fields"},
		"no number":      {",94\n", ",many\n", `line 2: goroutines: strconv.Atoi: parsing "many"`},
		"no nodes":       {"full,100,", "full,0,", "line 2: 0 nodes"},
		"other columns":  {"date,server", "server,date", "line 1: column 1 is not date"},
	} {
		if !strings.Contains(good, test.old) {
			t.Fatalf("%s: %q is not in\n%s", name, test.old, good)
		}
		_, err := readScale(strings.NewReader(strings.Replace(good, test.old, test.replacement, 1)))
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
	if rows, err := readScale(strings.NewReader("")); err != nil || rows != nil {
		t.Errorf("empty file: got %v and %v", rows, err)
	}
}

// TestLatest checks that a later row replaces an earlier one of the same server and size.
func TestLatest(t *testing.T) {
	old, small := exampleRow("kube-vitals", 1000, 30), exampleRow("kube-vitals", 1, 30)
	current := old
	current.RSS = 7
	few, other := exampleRow("kube-vitals", 1000, 5), exampleRow("metrics-server", 1000, 30)
	got := latest([]scaleRow{old, other, few, current, small})
	if want := []scaleRow{small, current, few, other}; !slices.Equal(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestFit(t *testing.T) {
	inputs := [][3]float64{{1, 100, 6000}, {1, 5000, 300000}, {1, 20000, 200000}, {1, 1000, 10000}}
	want := [3]float64{60, 0.05, 0.002}
	var values []float64
	for _, in := range inputs {
		values = append(values, want[0]+want[1]*in[1]+want[2]*in[2])
	}
	got, ok := fit(inputs, values)
	for i := range want {
		if !ok || math.Abs(got[i]/want[i]-1) > 1e-6 {
			t.Fatalf("got %v and %t, want %v", got, ok, want)
		}
	}
	// Errors are relative: 10 % of the smallest value weigh as much as 10 % of the largest.
	values[0], values[1] = values[0]*1.1, values[1]*1.1
	got, ok = fit(inputs, values)
	for i, in := range inputs {
		computed := got[0] + got[1]*in[1] + got[2]*in[2]
		if !ok || math.Abs(computed/values[i]-1) > 0.1 {
			t.Errorf("computed %g for %v, want %g", computed, in, values[i])
		}
	}
	for name, inputs := range map[string][][3]float64{
		"no rows":                        nil,
		"two sizes":                      {{1, 100, 6000}, {1, 1000, 10000}},
		"as many containers on any node": {{1, 100, 6000}, {1, 1000, 60000}, {1, 5000, 300000}, {1, 10000, 600000}},
	} {
		if c, ok := fit(inputs, make([]float64, 4)); ok {
			t.Errorf("%s, no values: got %v", name, c)
		}
		if c, ok := fit(inputs, []float64{100, 200, 900, 1700}); ok {
			t.Errorf("%s: got %v", name, c)
		}
	}
}

func TestModel(t *testing.T) {
	rows := []scaleRow{
		exampleRow(ownServer, 100, 30), exampleRow(ownServer, 5000, 30), exampleRow(ownServer, 20000, 5),
		exampleRow("metrics-server", 3000, 30), exampleRow(ownServer, 1, 30),
	}
	rows[3].Peak, rows[4].Peak = 1e9, 1e9 // of another server and of a small cluster, which do not count
	m := newModel(rows)
	large := exampleRow(ownServer, 100000, 30)
	for _, q := range quantities() {
		if got, want := m.at(q, size{100000, 30}), q.value(&large); math.Abs(got/want-1) > 1e-6 {
			t.Errorf("%s: computed %g, want %g", q.title, got, want)
		}
	}
	// CPU and bytes are those of an interval of 15 s, although they were measured with 30 s.
	if got := quantities()[2].value(&large); got != large.CPU*2 {
		t.Errorf("CPU: got %g, want %g", got, large.CPU*2)
	}
	var text bytes.Buffer
	m.table().print(&text)
	if !strings.Contains(text.String(), "| 100,000 ") || !strings.Contains(text.String(), " 3200010 ") {
		t.Errorf("100,000 nodes and their 3200010 are missing in\n%s", &text)
	}
	if got := newModel(rows[:2]).table().rows; len(got) != 1 {
		t.Errorf("two sizes: got %q, want only titles", got)
	}
}

func TestPrintScale(t *testing.T) {
	var text bytes.Buffer
	row := exampleRow(ownServer, 100, 30)
	row.List = 0
	printScale(&text, []scaleRow{row})
	squeezed := strings.Join(strings.Fields(text.String()), " ")
	for _, want := range []string{"| kube-vitals, 100 × 30 |", "| 30 s |", "| 3210 |", "| | 0.25 |", " 120 |", " 94 |"} {
		if !strings.Contains(squeezed, want) {
			t.Errorf("%q is missing in\n%s", want, &text)
		}
	}
}

// TestPlot draws two servers from a CSV file.
func TestPlot(t *testing.T) {
	dir := t.TempDir()
	data, image := filepath.Join(dir, "scale.csv"), filepath.Join(dir, "scale.svg")
	for _, row := range []scaleRow{
		exampleRow(ownServer, 100, 30), exampleRow(ownServer, 5000, 30), exampleRow(ownServer, 20000, 5),
		exampleRow(ownServer, 1000, 30), exampleRow("metrics-server", 1000, 30),
	} {
		if err := appendScaleRow(data, row); err != nil {
			t.Fatal(err)
		}
	}
	page := filepath.Join(dir, "page.md")
	const old = "a\n<!-- measured, by make plot -->\nold\n<!-- end -->\nb\n<!-- beside, by make plot -->\n" +
		"<!-- end -->\nc\n<!-- computed, by make plot -->\n| old |\n<!-- end -->\nd\n"
	if err := os.WriteFile(page, []byte(old), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time changes nothing
		if err := runPlot([]string{"-csv", data, "-svg", image, "-page", page}, io.Discard); err != nil {
			t.Fatal(err)
		}
	}
	markdown, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for part, want := range map[string]int{
		"a\n<!-- measured": 1, "<!-- end -->\nb\n<!-- beside": 1, "<!-- end -->\nd\n": 1, "old": 0,
		"\n| 20,000 | 100,000 | 140010 |": 1, "\n| 100,000 | 3,000,000 | 3200010 |": 1,
		"\n| 1,000, 30,000 | metrics-server v1.0.0 | 32010 |": 1, "| 1,000, 30,000 | kube-vitals | 32010 |": 1,
	} {
		if got := strings.Count(string(markdown), part); got != want {
			t.Errorf("%q is %d times in the page, want %d:\n%s", part, got, want, markdown)
		}
	}
	if err := runPlot([]string{"-csv", data, "-svg", image, "-page", data}, io.Discard); err == nil {
		t.Error("a page without comments: got no error")
	}
	text, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	circles, lines, words := readSVG(t, text)
	// 6 panels with 5 measured points each, and 5 marks in the legend.
	if want := 6*5 + 5; circles != want {
		t.Errorf("got %d marks, want %d", circles, want)
	}
	// In each panel, a line of the measured sizes and two computed ones; 6 in the legend.
	if want := 6*3 + 6; lines != want {
		t.Errorf("got %d lines, want %d", lines, want)
	}
	for _, want := range []string{"Peak memory, MiB", "computed", "Prometheus agent", "100,000", "nodes"} {
		if !strings.Contains(words, want) {
			t.Errorf("%q is missing in the text %q", want, words)
		}
	}
	if err := runPlot([]string{"-csv", data + "x", "-svg", image}, io.Discard); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: got %v", err)
	}
}

// readSVG returns the number of circles and polylines, and all text. It checks that the document is
// well-formed.
func readSVG(t *testing.T, document []byte) (circles, lines int, words string) {
	t.Helper()
	decoder := xml.NewDecoder(bytes.NewReader(document))
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return circles, lines, words
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		switch v := token.(type) {
		case xml.StartElement:
			switch v.Name.Local {
			case "circle":
				circles++
			case "polyline":
				lines++
			}
		case xml.CharData:
			words += string(v)
		}
	}
}

func TestChart(t *testing.T) {
	style := lineStyle{name: "a & b", color: "ours", marks: true}
	c := chart{title: "less < more", legend: []lineStyle{style}, panels: []panel{
		{title: "one", lines: []line{{lineStyle: style, points: []point{{0, 5}, {1, 0}, {10, 5}}}}},
		{title: "none", lines: []line{{lineStyle: style}}},
	}}
	var text bytes.Buffer
	if err := c.write(&text); err != nil {
		t.Fatal(err)
	}
	// Only one point has a place on logarithmic axes, and a line needs two; the rest is the legend.
	if circles, lines, words := readSVG(t, text.Bytes()); circles != 2 || lines != 1 || !strings.Contains(words, "a & b") {
		t.Errorf("got %d marks and %d lines in\n%s", circles, lines, &text)
	}
	if err := c.write(failingWriter{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("got %v, want the writer's error", err)
	}
}

type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

func TestAxis(t *testing.T) {
	x, y := panel{lines: []line{{points: []point{{3, 0.02}, {4000, 7}}}}}.axes()
	if x.low != 0 || x.high != 4 || y.low != -2 || y.high != 1 {
		t.Errorf("got x %+v and y %+v", x, y)
	}
	if x, _ := (panel{lines: []line{{points: []point{{100, 1}}}}}).axes(); x.low != 2 || x.high != 3 {
		t.Errorf("one value: got %+v", x)
	}
	a := axis{low: 0, high: 2, from: 100, to: 0}
	if got := []float64{a.at(1), a.at(10), a.at(100)}; !slices.Equal(got, []float64{100, 50, 0}) {
		t.Errorf("got places %v", got)
	}
	var ticks []string
	for v := range (axis{low: -2, high: 6}).decades() {
		ticks = append(ticks, tick(v))
	}
	if got := strings.Join(ticks, " "); got != "0.01 0.1 1 10 100 1,000 10,000 100,000 1 M" {
		t.Errorf("got ticks %s", got)
	}
}

// TestSmallPopulation checks that small objects have what metrics servers read.
func TestSmallPopulation(t *testing.T) {
	full := newPopulation(newShape(2, podsPerNode, 2), 10250, false)
	for i := range full.size() {
		_, object := full.object(i)
		before, err := encode(object)
		if err != nil {
			t.Fatal(err)
		}
		shrink(object)
		after, err := encode(object)
		if err != nil {
			t.Fatal(err)
		}
		if i >= len(full.namespaces) && len(after) > len(before)/2 {
			t.Errorf("object %d: %d bytes, before %d", i, len(after), len(before))
		}
		decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(after, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := encode(decoded); err != nil || !bytes.Equal(again, after) {
			t.Errorf("object %d: %v after decoding, or it differs", i, err)
		}
	}
}

func TestProgramVersion(t *testing.T) {
	name, version, err := programVersion(os.Args[0])
	if err != nil || name != "bench.test" && name != "bench" {
		t.Errorf("got %q %q and %v", name, version, err)
	}
	if _, _, err := programVersion("/dev/null"); err == nil {
		t.Error("got the version of an empty file")
	}
}
