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

// Reference has the series and labels in a query, as the program in test/promql returns them.
type Reference struct {
	Error     string     `json:"error"` // of the parser
	Selectors []Selector `json:"selectors"`
	Labels    []string   `json:"labels"` // in grouping and matching
}

// Selector is a series selector.
type Selector struct {
	Metric string            `json:"metric"`
	Labels []string          `json:"labels"` // in its matchers
	Equals map[string]string `json:"equals"` // label → the value that it must have
}

// Parse parses queries with Prometheus' parser, which it builds the first time, and returns their
// references.
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
		return nil, fmt.Errorf("parse queries: %w", err)
	}
	var references []Reference
	if err := json.Unmarshal(output, &references); err != nil {
		return nil, fmt.Errorf("decode the output of test/promql: %w", err)
	}
	return references, nil
}

// Promtool runs promtool and returns its output, even if it fails. The environment variable
// PROMTOOL names the program; without it, the version in test/promql/go.mod is built, which takes
// minutes.
func Promtool(ctx context.Context, checkout string, args ...string) (string, error) {
	if program := os.Getenv("PROMTOOL"); program != "" {
		output, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
		return string(output), err
	}
	output, err := run(ctx, checkout, nil, append([]string{"tool", "promtool"}, args...)...)
	return string(output), err
}

// run runs go in the module test/promql, without Prometheus' service discovery, which would take
// most of the time.
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
