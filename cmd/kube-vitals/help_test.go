package main

import (
	"bytes"
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

func TestHelp(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"--help"}, &out); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, section := range []string{
		"Kube-vitals flags:", "Kubelet client flags:", "Apiserver secure serving flags:", "Logging flags:",
	} {
		if !strings.Contains(text, section) {
			t.Errorf("got no section %q", section)
		}
	}
	newOptions().all.VisitAll(func(f *pflag.Flag) {
		shown := regexp.MustCompile(`(?m)^ {2}( {4}|-\w, )--` + f.Name + `( |$)`).MatchString(text)
		if shown == f.Hidden {
			t.Errorf("--%s is shown: got %v, want %v", f.Name, shown, !shown)
		}
	})
}

// TestHelpWidth checks that lines have no trailing blanks, and are no wider than the terminal
// except for a single word.
func TestHelpWidth(t *testing.T) {
	for _, width := range []int{minHelpWidth, 80, defaultHelpWidth, 200} {
		var out bytes.Buffer
		newOptions().printHelp(&out, width)
		widest := 0
		for line := range strings.Lines(out.String()) {
			line = strings.TrimSuffix(line, "\n")
			if strings.TrimRight(line, " \t") != line {
				t.Errorf("width %d: trailing blanks in %q", width, line)
			}
			columns := utf8.RuneCountInString(line)
			if strings.Contains(strings.TrimSpace(line), " ") {
				widest = max(widest, columns)
			}
		}
		if widest > width || widest < width-20 {
			t.Errorf("width %d: got a line of %d columns", width, widest)
		}
	}
}

func TestHelpWidthOfOutput(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no terminal to test with: %v", err)
	}
	defer terminal.Close()
	for columns, want := range map[uint16]int{133: 133, 80: 80, 20: minHelpWidth, 0: defaultHelpWidth} {
		size := &unix.Winsize{Row: 40, Col: columns}
		if err := unix.IoctlSetWinsize(int(terminal.Fd()), unix.TIOCSWINSZ, size); err != nil {
			t.Fatal(err)
		}
		if got := helpWidth(terminal); got != want {
			t.Errorf("a terminal of %d columns: got %d, want %d", columns, got, want)
		}
	}
	file, err := os.Create(t.TempDir() + "/help")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if got := helpWidth(file); got != defaultHelpWidth {
		t.Errorf("a file: got %d, want %d", got, defaultHelpWidth)
	}
	if got := helpWidth(new(bytes.Buffer)); got != defaultHelpWidth {
		t.Errorf("a buffer: got %d, want %d", got, defaultHelpWidth)
	}
}
