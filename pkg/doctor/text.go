package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"
)

const (
	maxObjects = 10 // names of objects in the text, unless all are wanted

	// Bounds of one name and of one text. A node or tenant can choose long ones.
	maxName = 253 + 63 + len("/")
	maxText = 1000

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
			names = append(names, quoteName(name))
		}
		all = append(all, wrap(detail, detail, strings.Join(names, ", ")+more)...)
	}
	arrow := "→ "
	for line := range strings.Lines(c.Cure) {
		if strings.HasPrefix(line, "kubectl ") || strings.HasPrefix(line, "helm ") {
			all = append(all, arrow+printable(strings.TrimSuffix(line, "\n"))) // can be pasted
		} else {
			all = append(all, wrap(arrow, "  ", line)...)
		}
		arrow = "  "
	}
	if c.Status != OK && c.URL != "" {
		all = append(all, "  "+printable(c.URL))
	}
	return all
}

// Finish prints the summary.
func (p *Printer) Finish(r *Report) {
	s := r.Summary
	fmt.Fprintf(p.Out, "\n%d ok, %d failed, %d with a warning, %d skipped\n", s[OK], s[Failed], s[Warning], s[Skipped])
}

// PrintJSON prints the report as JSON. Characters that could control a terminal are escaped.
func PrintJSON(out io.Writer, r *Report) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	var escaped strings.Builder
	for _, char := range string(text) + "\n" {
		if char == '\n' || unicode.IsPrint(char) {
			escaped.WriteRune(char)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, char) {
			fmt.Fprintf(&escaped, `\u%04x`, unit)
		}
	}
	_, err = io.WriteString(out, escaped.String())
	return err
}

// wrap splits text into lines, which begin with the prefixes.
func wrap(first, others, text string) (lines []string) {
	line, space := first, ""
	for _, word := range strings.Fields(printable(text)) {
		if space != "" && utf8.RuneCountInString(line+space+word) > textWidth {
			lines = append(lines, line)
			line, space = others, ""
		}
		line += space + word
		space = " "
	}
	return append(lines, line)
}

// printable replaces control characters, symbols and invisible letters: messages of the cluster may contain any.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case !unicode.IsPrint(r):
			return ' '
		case r > unicode.MaxASCII && (unicode.IsSymbol(r) || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r)):
			return '?'
		}
		return r
	}, text)
}

// quoteName quotes a name that is not as most names of objects are, and shortens it.
func quoteName(name string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-+./:_ "
	if len(name) <= maxName && strings.Trim(name, plain) == "" && strings.TrimSpace(name) == name && name != "" {
		return name
	}
	return fmt.Sprintf("%+.100q", name)
}
