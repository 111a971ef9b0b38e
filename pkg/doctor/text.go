package doctor

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/kube-vitals/kube-vitals/internal/terminal"
)

const (
	maxObjects = 10 // names of objects in the text, unless all are wanted

	maxText = 1000 // bytes of one text; a node or tenant can choose a long one

	titleWidth = 18
	textWidth  = 100 - titleWidth - 3

	// detail indents further lines of what was seen, which kubelets can choose: neither the arrow of a cure nor its
	// command is at this column.
	detail = "    "
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
	symbol := map[Status]string{OK: "✓", Warning: "!", Failed: "✗", Skipped: "-"}[c.Status]
	if p.Color {
		color := map[Status]string{OK: "32", Warning: "33", Failed: "31", Skipped: "2"}[c.Status]
		symbol = "\x1b[" + color + "m" + symbol + "\x1b[0m"
	}
	fmt.Fprintf(p.Out, "%s %-*s %s\n", symbol, titleWidth, c.Title,
		strings.Join(p.lines(c), "\n"+strings.Repeat(" ", titleWidth+3)))
}

// lines returns the lines of a check that are beside its title.
func (p *Printer) lines(c Check) []string {
	seen := c.Seen
	if len(seen) > maxText {
		seen = strings.ToValidUTF8(seen[:maxText], "") + "…"
	}
	all := wrap("", detail, seen)
	if n := len(c.Objects); n > 0 {
		shown, more := c.Objects, ""
		if !p.All && n > maxObjects {
			shown, more = shown[:maxObjects], fmt.Sprintf(", and %d more (-v shows all)", n-maxObjects)
		}
		var names []string
		for _, name := range shown {
			names = append(names, terminal.Name(name))
		}
		all = append(all, wrap(detail, detail, strings.Join(names, ", ")+more)...)
	}
	arrow := "→ "
	for line := range strings.Lines(c.Cure) {
		if strings.HasPrefix(line, "kubectl ") || strings.HasPrefix(line, "helm ") {
			all = append(all, arrow+terminal.Printable(strings.TrimSuffix(line, "\n"))) // can be pasted
		} else {
			all = append(all, wrap(arrow, "  ", line)...)
		}
		arrow = "  "
	}
	if c.Status != OK && c.URL != "" {
		all = append(all, "  "+terminal.Printable(c.URL))
	}
	return all
}

// Finish prints the summary.
func (p *Printer) Finish(r *Report) {
	s := r.Summary
	fmt.Fprintf(p.Out, "\n%d ok, %d failed, %d with a warning, %d skipped\n", s[OK], s[Failed], s[Warning], s[Skipped])
}

// wrap splits text into lines, which begin with the prefixes.
func wrap(first, others, text string) (lines []string) {
	line, space := first, ""
	for _, word := range strings.Fields(terminal.Printable(text)) {
		if space != "" && utf8.RuneCountInString(line+space+word) > textWidth {
			lines = append(lines, line)
			line, space = others, ""
		}
		line += space + word
		space = " "
	}
	return append(lines, line)
}
