package cluster

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// Telemetry is the content of /metrics: values by name and labels.
type Telemetry map[string]float64

// ParseTelemetry parses the text of /metrics, whose samples have no timestamps.
func ParseTelemetry(text []byte) (Telemetry, error) {
	t := Telemetry{}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		space := strings.LastIndexByte(line, ' ')
		value, err := strconv.ParseFloat(line[space+1:], 64)
		if space < 0 || err != nil {
			return nil, fmt.Errorf("parse /metrics: invalid line %q", line)
		}
		t[line[:space]] = value
	}
	return t, nil
}

// Sum returns the sum of all series of a name.
func (t Telemetry) Sum(name string) (sum float64) {
	for series, value := range t {
		if base, _, _ := strings.Cut(series, "{"); base == name {
			sum += value
		}
	}
	return sum
}

// Telemetry requests /metrics.
func (s *Standalone) Telemetry(ctx context.Context) (Telemetry, error) {
	text, _, err := s.Get(ctx, "/metrics", "text/plain")
	if err != nil {
		return nil, err
	}
	return ParseTelemetry(text)
}
