package doctor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

// Names of objects in the text, unless all are wanted.
const maxObjects = 10

// Bounds of one name and of one text. A node or tenant can choose long ones.
const (
	maxName = 253 + 63 + len("/")
	maxText = 1000
)

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
	p.wrap("", shorten(c.Seen))
	if n := len(c.Objects); n > 0 {
		shown := make([]string, n)
		for i, name := range c.Objects {
			shown[i] = quoteName(name)
		}
		if !p.All && n > maxObjects {
			shown = append(shown[:maxObjects], fmt.Sprintf("and %d more (-v shows all)", n-maxObjects))
		}
		p.indent()
		p.wrap("  ", strings.Join(shown, ", "))
	}
	arrow := "→ "
	for line := range strings.Lines(c.Cure) {
		p.indent()
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "kubectl ") || strings.HasPrefix(line, "helm ") {
			fmt.Fprintf(p.Out, "%s%s\n", arrow, printable(line))
		} else {
			p.wrap(arrow, line)
		}
		arrow = "  "
	}
	if c.Status != OK && c.URL != "" {
		p.indent()
		fmt.Fprintf(p.Out, "  %s\n", printable(c.URL))
	}
}

// Finish prints the summary.
func (p *Printer) Finish(r *Report) {
	s := r.Summary
	fmt.Fprintf(p.Out, "\n%d ok, %d failed, %d with a warning, %d skipped\n", s.OK, s.Failed, s.Warning, s.Skipped)
}

// PrintJSON prints the report as JSON. Characters that could control a terminal are escaped.
func PrintJSON(out io.Writer, r *Report) error {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(r); err != nil {
		return err
	}
	var escaped bytes.Buffer
	for _, char := range text.String() {
		if char == '\n' || unicode.IsPrint(char) {
			escaped.WriteRune(char)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, char) {
			fmt.Fprintf(&escaped, `\u%04x`, unit)
		}
	}
	_, err := out.Write(escaped.Bytes())
	return err
}

func (p *Printer) indent() { fmt.Fprint(p.Out, strings.Repeat(" ", titleWidth+3)) }

// wrap prints text with the lines after the first one indented.
func (p *Printer) wrap(prefix, text string) {
	text = printable(text)
	fmt.Fprint(p.Out, prefix)
	room := textWidth - titleWidth - 3 - utf8.RuneCountInString(prefix)
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

// shorten cuts a text that would hide the rest of the output.
func shorten(text string) string {
	if len(text) > maxText {
		return strings.ToValidUTF8(text[:maxText], "") + "…"
	}
	return text
}

// quoteName quotes a name that is not as most names of objects are, and shortens it.
func quoteName(name string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-+./:_ "
	if len(name) <= maxName && strings.Trim(name, plain) == "" && strings.TrimSpace(name) == name && name != "" {
		return name
	}
	return fmt.Sprintf("%+.100q", name)
}
