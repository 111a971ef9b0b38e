package top

import (
	"slices"
	"strings"
)

const (
	maxBar     = 8 // cells of a bar
	kubectlGap = 3 // cells between columns, outside of terminals
)

// layout is how a table fits into a terminal.
type layout struct {
	columns  []column
	gap, bar int // cells between columns, and of bars; no bars: outside of terminals
}

// table returns the lines of a report. In a terminal they are as wide as it is, and otherwise like those of kubectl.
func (c *Config) table(r *report) (lines []string) {
	l, rows := layout{columns: c.columns(r), gap: kubectlGap}, r.Items
	if !c.NoHeaders {
		rows = append(slices.Clip(rows), &r.Total)
	}
	for i := range l.columns {
		col := &l.columns[i]
		col.width = len(col.name)
		for _, row := range rows {
			isCut := col.name == columnWhy && row == &r.Total && c.Screen.Size != nil // in terminals, for the others
			if !isCut {
				col.width = max(col.width, len(col.cell(row)))
			}
		}
	}
	if c.Screen.Size != nil {
		l.gap, l.bar = 2, maxBar
		if width, _ := c.Screen.Size(); c.Output != "wide" {
			l.fit(width)
		}
	}
	if !c.NoHeaders {
		lines = append(lines, l.line(nil, false))
	}
	for _, row := range rows {
		lines = append(lines, l.line(row, c.Screen.Color))
	}
	return lines
}

// fit drops and shortens columns until they fit into a terminal. The room that is left is for the narrowest of the
// shortened ones, and then for bars.
func (l *layout) fit(width int) {
	if l.bar = 1; width >= 120 {
		l.bar = maxBar / 2
	}
	need := func() int {
		n := -l.gap
		for _, c := range l.columns {
			if n += l.gap + c.width; c.least > 0 {
				n -= max(0, c.width-c.least)
			}
			if c.bar != nil {
				n += l.bar + 1
			}
		}
		return n
	}
	for drop := 1; need() > width && drop <= lastDrop; drop++ {
		if drop > lastWideDrop {
			l.gap = 1
		}
		if need() > width {
			l.columns = slices.DeleteFunc(l.columns, func(c column) bool { return c.drop == drop })
		}
	}
	room, natural, short := width-need(), map[*column]int{}, []*column{}
	for i := range l.columns {
		if c := &l.columns[i]; c.least > 0 && c.width > c.least {
			natural[c], c.width, short = c.width, c.least, append(short, c)
		}
	}
	for ; room > 0 && len(short) > 0; room-- {
		c := slices.MinFunc(short, func(a, b *column) int { return a.width - b.width })
		if c.width++; c.width == natural[c] {
			short = slices.DeleteFunc(short, func(s *column) bool { return s == c })
		}
	}
	grow := min(maxBar-l.bar, max(0, room)/2)
	l.bar += grow
	if last := &l.columns[len(l.columns)-1]; last.text { // the total's may be longer
		last.width += max(0, room-2*grow)
	}
}

// line returns the line of a row, or the header.
func (l *layout) line(r *row, color bool) string {
	var b strings.Builder
	for i := range l.columns {
		c := &l.columns[i]
		text := c.name
		if r != nil {
			text = c.cell(r)
		}
		if over := len(text) - c.width; over > 0 { // many names begin or end alike
			head := c.width / 2
			if c.name == columnWhy {
				head = c.width - 1
			}
			text = text[:head] + "…" + text[head+1+over:]
		}
		pad := strings.Repeat(" ", c.width-len([]rune(text)))
		if c.bar != nil && l.bar > 0 && r != nil {
			b.WriteString(c.bar(r).draw(l.bar, color) + " ")
		} else if c.bar != nil && l.bar > 0 {
			b.WriteString(strings.Repeat(" ", l.bar+1))
		}
		if !c.text && l.bar > 0 {
			text, pad = pad, text
		}
		b.WriteString(text + pad + strings.Repeat(" ", l.gap))
	}
	return strings.TrimRight(b.String(), " ")
}

// draw returns a bar of so many cells, filled in eighths. It is yellow above the request or three quarters of a node,
// and red where something uses nine tenths of its limit, or of a node.
func (a *amount) draw(cells int, color bool) string {
	eighths := int(min(a[percent].n(), 100)) * cells * 8 / 100
	if eighths == 0 && a[percent].n() > 0 {
		eighths = 1
	}
	text := strings.Repeat("█", eighths/8) + strings.TrimSpace(string([]rune(" ▏▎▍▌▋▊▉")[eighths%8]))
	pad := strings.Repeat(" ", cells-len([]rune(text)))
	if !color || text == "" {
		return text + pad
	}
	code, isNode := "32", a[allocatable].known()
	switch {
	case a[near].n() > 0, isNode && a[percent].n() >= 90:
		code = "31"
	case a[percent].n() > 100, isNode && a[percent].n() >= 75:
		code = "33"
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m" + pad
}
