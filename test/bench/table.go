package main

import (
	"bytes"
	"io"
	"strings"
	"unicode/utf8"
)

// table is printed in columns that line up, and is also Markdown. The first column has names, all
// others figures.
type table struct {
	title string
	rows  [][]string // the first has the columns' titles
}

func newTable(title string, columns ...string) *table {
	return &table{title: title, rows: [][]string{columns}}
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

func (t *table) print(w io.Writer) error {
	widths := make([]int, len(t.rows[0]))
	for _, row := range t.rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b bytes.Buffer
	b.WriteString("\n" + t.title + "\n\n")
	for n, row := range t.rows {
		for i, cell := range row {
			padding := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if i == 0 {
				b.WriteString("| " + cell + padding + " |")
			} else {
				b.WriteString(" " + padding + cell + " |")
			}
		}
		b.WriteString("\n")
		if n > 0 {
			continue
		}
		for i, width := range widths {
			if i == 0 {
				b.WriteString("| " + strings.Repeat("-", width) + " |")
			} else {
				b.WriteString(" " + strings.Repeat("-", width-1) + ": |")
			}
		}
		b.WriteString("\n")
	}
	_, err := b.WriteTo(w)
	return err
}
