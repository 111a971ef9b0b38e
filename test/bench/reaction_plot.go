package main

import (
	"html"
	"io"
	"math"
	"strconv"
)

// curvePlot is a diagram with curves and linear axes, in the style of chart.
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
	curveLeft, curveTop     = 70.0, 50.0
	curveRight, curveBottom = 230.0, 56.0
)

// curveColors are readable on light and on dark backgrounds. They differ in lightness too.
var curveColors = [...]string{
	"#888888", "#4477aa", "#ee6677", "#228833", "#bb8800", "#33aacc", "#aa3377",
	"#cc6633", "#7766cc", "#559988", "#996655",
}

// write writes the plot as an SVG file.
func (c curvePlot) write(w io.Writer) error {
	xEnd, yEnd := c.xLimit, c.yLimit
	for _, one := range c.curves {
		for _, at := range one.points {
			if c.xLimit == 0 {
				xEnd = max(xEnd, at[0])
			}
			if c.yLimit == 0 {
				yEnd = max(yEnd, at[1])
			}
		}
	}
	x := func(v float64) float64 { return curveLeft + curveWidth*min(v/xEnd, 1) }
	y := func(v float64) float64 { return curveTop + curveHeight*(1-min(v/yEnd, 1)) }

	p := &svgWriter{w: w}
	width, height := curveLeft+curveWidth+curveRight, curveTop+curveHeight+curveBottom
	p.printf(`<svg xmlns="http://www.w3.org/2000/svg" width="%[1]g" height="%[2]g" viewBox="0 0 %[1]g %[2]g" `+
		`role="img" aria-label="%[3]s">`+"\n", width, height, html.EscapeString(c.title))
	p.printf("%s", chartStyle)
	p.printf(`  <rect class="card" x="0.5" y="0.5" width="%g" height="%g" rx="9"/>`+"\n", width-1, height-1)
	p.text(20, 28, "title", "", c.title)
	for _, v := range ticks(xEnd) {
		p.printf(`  <path class="grid" d="M%.1f %.1fV%.1f"/>`+"\n", x(v), curveTop, curveTop+curveHeight)
		p.text(x(v), curveTop+curveHeight+18, "note", "middle", strconv.FormatFloat(v, 'g', 6, 64))
	}
	for _, v := range ticks(yEnd) {
		p.printf(`  <path class="grid" d="M%.1f %.1fH%.1f"/>`+"\n", curveLeft, y(v), curveLeft+curveWidth)
		p.text(curveLeft-8, y(v)+4, "note", "end", strconv.FormatFloat(v, 'g', 6, 64))
	}
	p.text(curveLeft+curveWidth/2, curveTop+curveHeight+40, "note", "middle", c.x)
	p.printf(`  <text class="note" transform="translate(24 %.1f) rotate(-90)" text-anchor="middle">%s</text>`+"\n",
		curveTop+curveHeight/2, html.EscapeString(c.y))
	for i, one := range c.curves {
		class := "line"
		if one.dashed {
			class = "line dashed"
		}
		draw := func(points [][2]float64) {
			p.printf(`  <polyline class="%s" stroke="%s" points="`, class, curveColors[i%len(curveColors)])
			for j, at := range points {
				if j > 0 {
					p.printf(" ")
				}
				p.printf("%.1f,%.1f", at[0], at[1])
			}
			p.printf(`"/>` + "\n")
		}
		var points [][2]float64
		for _, at := range one.points {
			points = append(points, [2]float64{x(at[0]), y(at[1])})
		}
		draw(points)
		left, top := curveLeft+curveWidth+16, curveTop+18+20*float64(i)
		draw([][2]float64{{left, top - 4}, {left + 24, top - 4}})
		p.text(left+32, top, "", "", one.name)
	}
	p.printf("</svg>\n")
	return p.err
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
