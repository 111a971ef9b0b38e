package main

import (
	"fmt"
	"html"
	"io"
	"math"
	"strings"
)

// curvePlot is a diagram with curves. Its colors are readable on light and on dark pages.
type curvePlot struct {
	title  string
	x, y   string // what the axes show, with the unit
	curves []curve
	xLimit float64 // where the x axis ends; 0: at the largest value
	yLimit float64
}

// curve is one line of a plot, and its entry in the legend. A point is x and y.
type curve struct {
	name   string
	points [][2]float64
	dashed bool
}

// The plot in pixels. The legend is on the right.
const (
	curveWidth, curveHeight = 560.0, 320.0
	curveLeft, curveTop     = 64.0, 44.0
	curveRight, curveBottom = 220.0, 52.0
	legendLine, legendStart = 20.0, 18.0
)

// palette has the colors of curves. They differ in lightness too.
var palette = [...]string{"#4477aa", "#ee6677", "#228833", "#bb8800", "#33aacc", "#aa3377", "#888888", "#cc6633"}

// write writes the plot as an SVG file.
func (p curvePlot) write(w io.Writer) error {
	xEnd, yEnd := p.xLimit, p.yLimit
	for _, l := range p.curves {
		for _, at := range l.points {
			if p.xLimit == 0 {
				xEnd = max(xEnd, at[0])
			}
			if p.yLimit == 0 {
				yEnd = max(yEnd, at[1])
			}
		}
	}
	x := func(v float64) float64 { return curveLeft + curveWidth*min(v/xEnd, 1) }
	y := func(v float64) float64 { return curveTop + curveHeight*(1-min(v/yEnd, 1)) }

	var b strings.Builder
	width, height := curveLeft+curveWidth+curveRight, curveTop+curveHeight+curveBottom
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" width="%[1]g" height="%[2]g"`,
		width, height)
	fmt.Fprintf(&b, " role=\"img\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#808080\">\n<title>%s</title>\n",
		html.EscapeString(p.title))
	text := func(x, y float64, anchor, format string, args ...any) {
		fmt.Fprintf(&b, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor,
			html.EscapeString(fmt.Sprintf(format, args...)))
	}
	rule := func(x1, y1, x2, y2 float64, style string) {
		fmt.Fprintf(&b, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" %s/>\n", x1, y1, x2, y2, style)
	}
	text(curveLeft, curveTop-20, "start", "%s", p.title)
	for _, v := range ticks(xEnd) {
		rule(x(v), curveTop, x(v), curveTop+curveHeight, `stroke="#808080" stroke-opacity="0.25"`)
		text(x(v), curveTop+curveHeight+18, "middle", "%g", v)
	}
	for _, v := range ticks(yEnd) {
		rule(curveLeft, y(v), curveLeft+curveWidth, y(v), `stroke="#808080" stroke-opacity="0.25"`)
		text(curveLeft-8, y(v)+4, "end", "%g", v)
	}
	text(curveLeft+curveWidth/2, curveTop+curveHeight+40, "middle", "%s", p.x)
	fmt.Fprintf(&b, "<text transform=\"translate(18 %.1f) rotate(-90)\" text-anchor=\"middle\">%s</text>\n",
		curveTop+curveHeight/2, html.EscapeString(p.y))
	for i, l := range p.curves {
		style := fmt.Sprintf(`stroke="%s" stroke-width="2"`, palette[i%len(palette)])
		if l.dashed {
			style += ` stroke-dasharray="6 4"`
		}
		fmt.Fprintf(&b, "<polyline fill=\"none\" %s points=\"", style)
		for j, at := range l.points {
			if j > 0 {
				b.WriteByte(' ')
			}
			fmt.Fprintf(&b, "%.1f,%.1f", x(at[0]), y(at[1]))
		}
		b.WriteString("\"/>\n")
		at := curveTop + legendStart + float64(i)*legendLine
		rule(curveLeft+curveWidth+16, at-4, curveLeft+curveWidth+40, at-4, style)
		text(curveLeft+curveWidth+46, at, "start", "%s", l.name)
	}
	b.WriteString("</svg>\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// ticks returns 0 and the other round values up to the end of an axis, four to ten of them.
func ticks(end float64) []float64 {
	if !(end > 0) || math.IsInf(end, 1) {
		return []float64{0}
	}
	unit := math.Pow(10, math.Floor(math.Log10(end)))
	step := unit
	switch {
	case end/unit < 2:
		step = unit / 5
	case end/unit < 4:
		step = unit / 2
	}
	var values []float64
	for i := 0; float64(i)*step <= end*(1+1e-9); i++ {
		values = append(values, float64(i)*step)
	}
	return values
}

// distribution returns the curve of the share of all values, in percent, that do not exceed x. It
// ends at the limit.
func distribution(name string, sorted []float64, limit float64) curve {
	l := curve{name: name, points: [][2]float64{{0, 0}}}
	share := 0.0
	for i, v := range sorted {
		if v > limit {
			break
		}
		l.points = append(l.points, [2]float64{v, share})
		share = 100 * float64(i+1) / float64(len(sorted))
		l.points = append(l.points, [2]float64{v, share})
	}
	l.points = append(l.points, [2]float64{limit, share})
	return l
}
