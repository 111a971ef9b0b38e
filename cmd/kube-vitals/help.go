package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"
	cliflag "k8s.io/component-base/cli/flag"
)

// Widths of --help, in columns.
const (
	defaultHelpWidth = 100 // if the output is not a terminal
	minHelpWidth     = 70  // the longest word: the library does not break the names of cipher suites
)

// printHelp writes the flags by section, without trailing blanks.
func (o *options) printHelp(out io.Writer, width int) {
	var text bytes.Buffer
	fmt.Fprint(&text, "kube-vitals serves the current CPU and memory usage of nodes and\n"+
		"pods as the Kubernetes API metrics.k8s.io.\n\nUsage:\n  kube-vitals [flags]\n\n"+
		"Environment variables that set flags, if the command line neither sets\nnor excludes them:\n"+environmentHelp())
	cliflag.PrintSections(&text, o.Flags, width)
	for line := range strings.Lines(text.String()) {
		fmt.Fprintln(out, strings.TrimRight(line, " \n"))
	}
}

// helpWidth returns the width of the terminal, or the default if out is not one.
func helpWidth(out io.Writer) int {
	file, ok := out.(*os.File)
	if !ok {
		return defaultHelpWidth
	}
	width, _, err := term.GetSize(int(file.Fd()))
	if err != nil || width == 0 {
		return defaultHelpWidth
	}
	return max(minHelpWidth, width)
}
