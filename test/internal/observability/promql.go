package observability

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Reference is what a query refers to, as the program in test/promql tells it.
type Reference struct {
	Error     string     `json:"error"` // why the query cannot be parsed
	Selectors []Selector `json:"selectors"`
	Labels    []string   `json:"labels"` // by which it groups and matches
}

// Selector picks series.
type Selector struct {
	Metric string            `json:"metric"`
	Labels []string          `json:"labels"` // that it looks at
	Equals map[string]string `json:"equals"` // label → the value that it demands
}

// Parse parses queries with Prometheus' own parser, and says what each refers to. The parser is
// built the first time.
func Parse(ctx context.Context, checkout string, queries []Query) ([]Reference, error) {
	var expressions []string
	for _, q := range queries {
		expressions = append(expressions, q.Expr)
	}
	input, err := json.Marshal(expressions)
	if err != nil {
		return nil, err
	}
	output, err := run(ctx, checkout, input, "run", ".")
	if err != nil {
		return nil, fmt.Errorf("queries cannot be parsed: %w", err)
	}
	var references []Reference
	if err := json.Unmarshal(output, &references); err != nil {
		return nil, fmt.Errorf("the parser in test/promql gave no list of references: %w", err)
	}
	return references, nil
}

// Promtool runs promtool, and gives what it printed, also where it fails. That is the program which
// the variable PROMTOOL names, or else the one of the version in test/promql/go.mod: building it
// takes minutes, once, which make does before.
func Promtool(ctx context.Context, checkout string, args ...string) (string, error) {
	if program := os.Getenv("PROMTOOL"); program != "" {
		output, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
		return string(output), err
	}
	output, err := run(ctx, checkout, nil, append([]string{"tool", "promtool"}, args...)...)
	return string(output), err
}

// run runs go in the module of Prometheus. The services of clouds in which Prometheus can look for
// targets are left out: they would be most of the work.
func run(ctx context.Context, checkout string, input []byte, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(checkout, "test", "promql")
	cmd.Env = append(os.Environ(), "GOFLAGS=-tags=remove_all_sd -trimpath", "GOWORK=off", "CGO_ENABLED=0")
	cmd.Stdin = bytes.NewReader(input)
	output, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s: %w: %s", cmd, err, exit.Stderr)
	}
	return output, err
}
