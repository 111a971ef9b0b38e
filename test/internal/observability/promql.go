package observability

import (
	"context"
	"fmt"
	"os/exec"

	"github.com/VictoriaMetrics/metricsql"
)

// Reference has the series and labels in a query.
type Reference struct {
	Selectors []Selector
	Labels    []string // in grouping and matching
}

// Selector is a series selector.
type Selector struct {
	Metric string
	Labels []string          // in its matchers
	Equals map[string]string // label → the value that it must have
}

// Parse returns what the queries refer to. The parser accepts more than Prometheus does: TestQueries
// has promtool check the syntax.
func Parse(queries []Query) ([]Reference, error) {
	references := make([]Reference, len(queries))
	for i, q := range queries {
		root, err := metricsql.Parse(q.Expr)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", q.Place, err)
		}
		r := &references[i]
		metricsql.VisitAll(root, func(e metricsql.Expr) {
			switch e := e.(type) {
			case *metricsql.MetricExpr:
				r.Selectors = append(r.Selectors, selectorOf(e))
			case *metricsql.AggrFuncExpr:
				r.Labels = append(r.Labels, e.Modifier.Args...)
			case *metricsql.BinaryOpExpr:
				r.Labels = append(append(r.Labels, e.GroupModifier.Args...), e.JoinModifier.Args...)
			}
		})
	}
	return references, nil
}

func selectorOf(e *metricsql.MetricExpr) Selector {
	s := Selector{Equals: map[string]string{}}
	for _, filters := range e.LabelFilterss {
		for _, f := range filters {
			if f.Label == "__name__" {
				s.Metric = f.Value
				continue
			}
			s.Labels = append(s.Labels, f.Label)
			if !f.IsNegative && !f.IsRegexp {
				s.Equals[f.Label] = f.Value
			}
		}
	}
	return s
}

// Promtool runs promtool, which must be in PATH, and returns its output, even if it fails.
func Promtool(ctx context.Context, args ...string) (string, error) {
	output, err := exec.CommandContext(ctx, "promtool", args...).CombinedOutput()
	return string(output), err
}
