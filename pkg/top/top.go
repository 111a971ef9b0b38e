// Package top shows the usage of pods, workloads, namespaces and nodes beside their requests and limits, and why usage
// is missing. It reads the API server with the permissions of its user, and changes nothing.
package top

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/kube-vitals/kube-vitals/internal/terminal"
)

// The kinds of rows.
const (
	Pods       = "pods"
	Workloads  = "workloads"
	Namespaces = "namespaces"
	Nodes      = "nodes"
)

// Config configures what is shown.
type Config struct {
	Client *rest.Config
	Kind   string

	Names                   []string // empty: all
	Namespace               string   // of pods; empty: all
	Selector, FieldSelector string   // of nodes, if they are the kind, and otherwise of pods
	Containers              bool     // a row for each container
	SortBy                  string
	NoHeaders               bool   // no header and no total
	Output                  string // empty: a table; wide, json, yaml or name
	Watch                   bool   // show it again and again until the context ends

	Out, ErrOut io.Writer
	Screen      terminal.Screen // of Out
	Interval    time.Duration   // between two tables of Watch
}

// report is the output as JSON: docs/top.md.
type report struct {
	Version string    `json:"version"` // v1; fields are added without a new version
	Kind    string    `json:"kind"`
	Time    time.Time `json:"time"`
	Items   []*row    `json:"items"`
	Total   row       `json:"total"`
	Unread  []string  `json:"unread,omitempty"` // why values are unknown
}

// Validate returns all that is wrong with the flags.
func (c *Config) Validate() error {
	var errs []error
	if _, _, ok := parseOrder(c.SortBy); !ok {
		errs = append(errs, fmt.Errorf("--sort-by must be name, cpu, memory, or one of the latter with -request, -limit, "+
			"-allocatable or -percent, such as cpu-percent, but is %q", c.SortBy))
	}
	if !slices.Contains([]string{"", "wide", "json", "yaml", "name"}, c.Output) {
		errs = append(errs, fmt.Errorf("--output must be wide, json, yaml or name, but is %q", c.Output))
	} else if c.Watch && c.Output != "" && c.Output != "wide" {
		errs = append(errs, fmt.Errorf("--watch shows tables, not %s: remove --output", c.Output))
	}
	if c.Containers && c.Kind != Pods {
		errs = append(errs, fmt.Errorf("--containers is for pods, not for %s", c.Kind))
	}
	return errors.Join(errs...)
}

// Run reads and prints. It reports whether everything could be read.
func Run(ctx context.Context, c Config) (complete bool, err error) {
	r, err := newReader(&c)
	if err != nil {
		return false, fmt.Errorf("cannot create a client: %w", err)
	}
	if c.Watch {
		return true, c.watch(ctx, r)
	}
	report, err := r.read(ctx)
	if err == nil {
		err = c.print(report)
	}
	if err != nil {
		return false, err
	}
	for _, note := range report.Unread {
		fmt.Fprintln(c.ErrOut, terminal.Printable(note))
	}
	return len(report.Unread) == 0, nil
}

// print prints a report.
func (c *Config) print(r *report) (err error) {
	switch c.Output {
	case "json":
		err = terminal.WriteJSON(c.Out, r)
	case "yaml":
		text, err := json.Marshal(r)
		if err == nil { // YAML rejects control characters
			text, err = yaml.JSONToYAML([]byte(terminal.Printable(string(text))))
		}
		if err == nil {
			_, err = c.Out.Write(text)
		}
		return err
	case "name":
		for i := range r.Items {
			fmt.Fprintln(c.Out, terminal.Name(r.Items[i].fullName()))
		}
	default:
		if len(r.Items) == 0 {
			if len(c.Names) == 0 { // else Unread has each. Rows of what has no pods do not exist.
				fmt.Fprintf(c.ErrOut, "there are no %s%s\n", c.resource(), c.where(c.resource()))
			}
			return nil
		}
		out := bufio.NewWriter(c.Out)
		for _, line := range c.table(r) {
			fmt.Fprintln(out, line)
		}
		err = out.Flush()
	}
	return err
}

// watch prints tables until the context ends. If reading pods, nodes or metrics fails, the last one stays.
func (c *Config) watch(ctx context.Context, r *reader) error {
	var last *report
	for {
		next, err := r.read(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && last == nil:
			return err
		case err != nil:
			last.Unread = []string{err.Error()}
		case last != nil && last.Total.WithMetrics > 0 && r.served == nil:
			last.Unread = next.Unread
		default:
			if last == nil && c.Screen.Size != nil { // the alternate screen, without cursor and line wraps
				fmt.Fprint(c.Out, "\x1b[?1049h\x1b[?25l\x1b[?7l")
				defer fmt.Fprint(c.Out, "\x1b[?7h\x1b[?25h\x1b[?1049l")
			}
			last = next
		}
		if _, err := io.WriteString(c.Out, c.frame(last)); err != nil { // at once, so that it does not flicker
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(c.Interval):
		}
	}
}

// frame returns a table of watch. If a terminal has too few lines, the last rows are not shown.
func (c *Config) frame(r *report) string {
	lines, foot := c.table(r), []string{""}
	for _, note := range r.Unread {
		foot = append(foot, terminal.Printable(note))
	}
	if c.Screen.Size == nil {
		return strings.Join(append(lines, foot...), "\n") + "\n"
	}
	_, height := c.Screen.Size()
	foot = append(foot[:min(len(foot), max(1, height/3))],
		fmt.Sprintf("%s; every %v, until Ctrl-C", r.Time.Format(time.TimeOnly+" MST"), c.Interval))
	if hidden := len(lines) + len(foot) - height; hidden > 0 && len(lines) > hidden+2 {
		total := lines[len(lines)-1]
		lines = append(lines[:len(lines)-hidden-2], fmt.Sprintf("… and %d more lines", hidden+1), total)
	}
	return "\x1b[H" + strings.Join(append(lines, foot...), "\x1b[K\n") + "\x1b[K\x1b[J"
}
