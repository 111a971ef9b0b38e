package main

import (
	"fmt"
	"html"
	"io"
	"math"
	"strconv"
)

// chart is several panels with the same legend, two in each row, as an SVG for light and
// dark backgrounds. All axes are logarithmic.
type chart struct {
	title, note string
	legend      []lineStyle
	xLabel      string
	panels      []panel
}

// panel is a diagram of several lines.
type panel struct {
	title string
	lines []line
}

// line is the points of a line in the order of x. Points at which an axis has no place, because x or
// y is not positive, are left out.
type line struct {
	lineStyle
	points []point
}

type point struct{ x, y float64 }

// lineStyle is how a line looks: one of the colors of the style sheet, with or without marks.
type lineStyle struct {
	name   string
	color  string // ours, theirs, other, third
	dashed bool
	hollow bool // marks
	marks  bool
}

// Sizes in pixels.
const (
	chartWidth  = 860
	panelWidth  = 420
	panelHeight = 268
	headHeight  = 92
	plotLeft    = 62 // within a panel
	plotRight   = 14
	plotTop     = 34
	plotBottom  = 44
)

const chartStyle = `  <style>
    text { fill: #1f2328; font: 13px -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", Helvetica, sans-serif; }
    .title { font-weight: 600; font-size: 15px; }
    .name { font-weight: 600; }
    .note { font-size: 12px; fill: #59636e; }
    .card { fill: #ffffff; stroke: #d1d9e0; }
    .grid { stroke: #d1d9e0; stroke-width: 1; }
    .line { fill: none; stroke-width: 2; }
    .dashed { stroke-dasharray: 4 5; }
    .ours { stroke: #326ce5; fill: #326ce5; }
    .theirs { stroke: #8c959f; fill: #8c959f; }
    .other { stroke: #c4660a; fill: #c4660a; }
    .third { stroke: #8250df; fill: #8250df; }
    .line.ours, .line.theirs, .line.other, .line.third { fill: none; }
    .hollow { fill: #ffffff; stroke-width: 2; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .note { fill: #9198a1; }
      .card { fill: #171d26; stroke: #2c3645; }
      .grid { stroke: #2c3645; }
      .ours { stroke: #6ea0ff; fill: #6ea0ff; }
      .theirs { stroke: #8b949e; fill: #8b949e; }
      .other { stroke: #f0883e; fill: #f0883e; }
      .third { stroke: #bc8cff; fill: #bc8cff; }
      .line.ours, .line.theirs, .line.other, .line.third { fill: none; }
      .hollow { fill: #171d26; }
    }
  </style>
`

// write writes the SVG.
func (c chart) write(w io.Writer) error {
	height := headHeight + (len(c.panels)+1)/2*panelHeight + 6
	p := &svgWriter{w: w}
	p.printf(`<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" `+
		`role="img" aria-label="%[3]s">`+"\n", chartWidth, height, html.EscapeString(c.title))
	p.printf("%s", chartStyle)
	p.printf(`  <rect class="card" x="0.5" y="0.5" width="%d" height="%d" rx="9"/>`+"\n", chartWidth-1, height-1)
	p.text(20, 28, "title", "", c.title)
	p.text(20, 48, "note", "", c.note)
	x := 20.0
	for _, s := range c.legend {
		p.line(s, []point{{x, 70}, {x + 22, 70}})
		p.mark(s, x+11, 70)
		p.text(x+28, 74, "", "", s.name)
		x += 42 + 7.4*float64(len([]rune(s.name))) // about the width of the text
	}
	for i, panel := range c.panels {
		p.panel(panel, c.xLabel, float64(i%2*panelWidth+5), float64(headHeight+i/2*panelHeight))
	}
	p.printf("</svg>\n")
	return p.err
}

// svgWriter keeps the first error.
type svgWriter struct {
	w   io.Writer
	err error
}

func (p *svgWriter) printf(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format, args...)
	}
}

func (p *svgWriter) text(x, y float64, class, anchor, text string) {
	attributes := ""
	if class != "" {
		attributes += fmt.Sprintf(` class="%s"`, class)
	}
	if anchor != "" {
		attributes += fmt.Sprintf(` text-anchor="%s"`, anchor)
	}
	p.printf(`  <text x="%.1f" y="%.1f"%s>%s</text>`+"\n", x, y, attributes, html.EscapeString(text))
}

func (p *svgWriter) line(s lineStyle, points []point) {
	class := "line " + s.color
	if s.dashed {
		class += " dashed"
	}
	p.printf(`  <polyline class="%s" points="`, class)
	for i, at := range points {
		if i > 0 {
			p.printf(" ")
		}
		p.printf("%.1f,%.1f", at.x, at.y)
	}
	p.printf(`"/>` + "\n")
}

func (p *svgWriter) mark(s lineStyle, x, y float64) {
	if !s.marks {
		return
	}
	class := s.color
	if s.hollow {
		class += " hollow"
	}
	p.printf(`  <circle class="%s" cx="%.1f" cy="%.1f" r="3.5"/>`+"\n", class, x, y)
}

// panel writes a panel at a place of the chart.
func (p *svgWriter) panel(d panel, xLabel string, left, top float64) {
	x, y := d.axes()
	x.from, x.to = left+plotLeft, left+panelWidth-plotRight
	y.from, y.to = top+panelHeight-plotBottom, top+plotTop
	p.text(x.from, top+20, "name", "", d.title)
	for v := range x.decades() {
		p.printf(`  <path class="grid" d="M%.1f %.1fV%.1f"/>`+"\n", x.at(v), y.from, y.to)
		p.text(x.at(v), y.from+17, "note", "middle", tick(v))
	}
	for v := range y.decades() {
		p.printf(`  <path class="grid" d="M%.1f %.1fH%.1f"/>`+"\n", x.from, y.at(v), x.to)
		p.text(x.from-8, y.at(v)+4, "note", "end", tick(v))
	}
	p.text((x.from+x.to)/2, y.from+34, "note", "middle", xLabel)
	for _, l := range d.lines {
		var drawn []point
		for _, at := range l.points {
			if at.positive() {
				drawn = append(drawn, point{x.at(at.x), y.at(at.y)})
			}
		}
		if len(drawn) > 1 {
			p.line(l.lineStyle, drawn)
		}
		for _, at := range drawn {
			p.mark(l.lineStyle, at.x, at.y)
		}
	}
}

func (p point) positive() bool { return p.x > 0 && p.y > 0 }

// axes returns axes on which all points of the panel have a place, from one power of ten to another.
func (d panel) axes() (x, y axis) {
	x, y = newAxis(), newAxis()
	for _, l := range d.lines {
		for _, at := range l.points {
			if at.positive() {
				x.include(at.x)
				y.include(at.y)
			}
		}
	}
	x.spread()
	y.spread()
	return x, y
}

// axis is a logarithmic axis between two powers of ten.
type axis struct {
	low, high int     // exponents
	from, to  float64 // pixels
}

func newAxis() axis { return axis{low: math.MaxInt, high: math.MinInt} }

func (a *axis) include(v float64) {
	exponent := math.Log10(v)
	a.low, a.high = min(a.low, int(math.Floor(exponent))), max(a.high, int(math.Ceil(exponent)))
}

// spread makes an axis without values, or with a single one, a decade long.
func (a *axis) spread() {
	if a.low > a.high {
		a.low, a.high = 0, 0
	}
	a.high = max(a.high, a.low+1)
}

// at returns the place of a value.
func (a axis) at(v float64) float64 {
	return a.from + (a.to-a.from)*(math.Log10(v)-float64(a.low))/float64(a.high-a.low)
}

// decades yields the powers of ten.
func (a axis) decades() func(func(float64) bool) {
	return func(yield func(float64) bool) {
		for e := a.low; e <= a.high; e++ {
			if !yield(math.Pow10(e)) {
				return
			}
		}
	}
}

// tick formats a power of ten.
func tick(v float64) string {
	switch {
	case v >= 1e6:
		return strconv.FormatFloat(v/1e6, 'f', 0, 64) + " M"
	case v >= 1e3:
		return strconv.FormatFloat(v/1e3, 'f', 0, 64) + ",000"
	default:
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
}
