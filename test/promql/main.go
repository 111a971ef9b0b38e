// Command promql prints what PromQL expressions refer to, by Prometheus' own parser. It reads a
// JSON list of expressions and writes a JSON list with a Reference for each. It is a program of a
// module of its own, so its dependencies affect no other module; the same module pins promtool,
// which `go tool promtool` runs.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// Reference is what an expression refers to.
type Reference struct {
	Error     string     `json:"error,omitempty"` // why it cannot be parsed
	Selectors []Selector `json:"selectors,omitempty"`
	Labels    []string   `json:"labels,omitempty"` // by which it groups and matches
}

// Selector picks series.
type Selector struct {
	Metric string            `json:"metric"`
	Labels []string          `json:"labels,omitempty"` // that it looks at
	Equals map[string]string `json:"equals,omitempty"` // label → the value that it demands
}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "promql:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	var expressions []string
	if err := json.NewDecoder(in).Decode(&expressions); err != nil {
		return fmt.Errorf("the input is no JSON list of expressions: %w", err)
	}
	p := parser.NewParser(parser.Options{})
	references := make([]Reference, len(expressions))
	for i, e := range expressions {
		references[i] = refer(p, e)
	}
	return json.NewEncoder(out).Encode(references)
}

func refer(p parser.Parser, expression string) (r Reference) {
	root, err := p.ParseExpr(expression)
	if err != nil {
		return Reference{Error: err.Error()}
	}
	parser.Inspect(root, func(node parser.Node, _ []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			r.Selectors = append(r.Selectors, selector(n))
		case *parser.AggregateExpr:
			r.Labels = append(r.Labels, n.Grouping...)
		case *parser.BinaryExpr:
			if m := n.VectorMatching; m != nil {
				r.Labels = append(append(r.Labels, m.MatchingLabels...), m.Include...)
			}
		}
		return nil
	})
	return r
}

func selector(v *parser.VectorSelector) Selector {
	s := Selector{Metric: v.Name, Equals: map[string]string{}}
	for _, m := range v.LabelMatchers {
		if m.Name == model.MetricNameLabel {
			continue
		}
		s.Labels = append(s.Labels, m.Name)
		if m.Type == labels.MatchEqual {
			s.Equals[m.Name] = m.Value
		}
	}
	return s
}
