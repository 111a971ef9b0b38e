package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Names of objects in the text, unless all are wanted.
const maxObjects = 10

const (
	titleWidth = 18
	textWidth  = 100
)

// Printer prints checks as text as they are done. On a terminal it also shows what runs.
type Printer struct {
	Out      io.Writer
	Terminal bool // control characters are understood
	Color    bool
	All      bool // print all names of objects
}

// Start shows on a terminal that a step runs.
func (p *Printer) Start(title string) {
	if p.Terminal {
		fmt.Fprintf(p.Out, "… %s", title)
	}
}

// Done prints a check.
func (p *Printer) Done(c Check) {
	if p.Terminal {
		fmt.Fprint(p.Out, "\r\x1b[K")
	}
	symbol, color := "✓", "32"
	switch c.Status {
	case Warning:
		symbol, color = "!", "33"
	case Failed:
		symbol, color = "✗", "31"
	case Skipped:
		symbol, color = "-", "2"
	case OK:
	}
	if p.Color {
		symbol = "\x1b[" + color + "m" + symbol + "\x1b[0m"
	}
	fmt.Fprintf(p.Out, "%s %-*s ", symbol, titleWidth, c.Title)
	p.block("", c.Seen)
	if n := len(c.Objects); n > 0 {
		shown := c.Objects
		if !p.All && n > maxObjects {
			shown = append(append([]string(nil), c.Objects[:maxObjects]...), fmt.Sprintf("and %d more (-v shows all)",
				n-maxObjects))
		}
		p.indent()
		p.block("  ", strings.Join(shown, ", "))
	}
	arrow := "→ "
	for line := range strings.Lines(c.Cure) {
		p.indent()
		p.block(arrow, strings.TrimRight(line, "\n"))
		arrow = "  "
	}
	if c.Status != OK && c.URL != "" {
		p.indent()
		fmt.Fprintf(p.Out, "  %s\n", c.URL)
	}
}

// Finish prints the summary.
func (p *Printer) Finish(r *Report) {
	s := r.Summary
	fmt.Fprintf(p.Out, "\n%d ok, %d failed, %d with a warning, %d skipped\n", s.OK, s.Failed, s.Warning, s.Skipped)
}

// PrintJSON prints the report as JSON.
func PrintJSON(out io.Writer, r *Report) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(r)
}

func (p *Printer) indent() { fmt.Fprint(p.Out, strings.Repeat(" ", titleWidth+3)) }

// block prints text with the lines after the first one indented. Commands are not wrapped.
func (p *Printer) block(prefix, text string) {
	text = printable(text)
	fmt.Fprint(p.Out, prefix)
	room := textWidth - titleWidth - 3 - utf8.RuneCountInString(prefix)
	if strings.HasPrefix(text, "kubectl ") || strings.HasPrefix(text, "helm ") {
		fmt.Fprintln(p.Out, text)
		return
	}
	column := 0
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+n > room:
			fmt.Fprintln(p.Out)
			p.indent()
			fmt.Fprint(p.Out, strings.Repeat(" ", utf8.RuneCountInString(prefix)))
			column = 0
		default:
			fmt.Fprint(p.Out, " ")
			column++
		}
		fmt.Fprint(p.Out, word)
		column += n
	}
	fmt.Fprintln(p.Out)
}

// printable replaces control characters: messages of the cluster may contain any.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, text)
}
