// Package observability compares the PromQL queries in the chart's Grafana dashboard and alerts
// with the series that kube-vitals exposes. A query for a series or label that does not exist is
// valid, and never returns anything.
package observability

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// Files in the chart.
const (
	DashboardFile = "dashboards/kube-vitals.json"
	AlertsFile    = "alerts/kube-vitals.yaml"
)

// Query is a PromQL expression.
type Query struct {
	Place  string   // the panel or alert that has it
	Expr   string   // with values in place of Grafana's variables
	Shown  []string // labels of the result that a legend or annotation shows
	Alerts bool     // it is an alert's
}

// Queries returns all queries in the dashboard and the alerts of a chart.
func Queries(chart string) ([]Query, error) {
	dashboard, err := ReadDashboard(filepath.Join(chart, DashboardFile))
	if err != nil {
		return nil, err
	}
	rules, err := ReadAlerts(filepath.Join(chart, AlertsFile))
	if err != nil {
		return nil, err
	}
	queries, err := dashboard.queries()
	if err != nil {
		return nil, err
	}
	for _, a := range rules {
		text := a.Annotations["summary"] + a.Annotations["description"]
		queries = append(queries, Query{
			Place: "alert " + a.Name, Expr: a.Expr, Shown: submatches(alertLabel, text), Alerts: true,
		})
	}
	return queries, nil
}

// Dashboard has the fields of a Grafana dashboard that are tested.
type Dashboard struct {
	UID        string  `json:"uid"`
	Panels     []Panel `json:"panels"`
	Templating struct {
		List []Variable `json:"list"`
	} `json:"templating"`
}

// Panel is a panel of a dashboard, or the heading of a row.
type Panel struct {
	ID          int    `json:"id"`
	Type        string `json:"type"`
	Title       string `json:"title"`
	Description string `json:"description"`
	GridPos     struct {
		H, W, X, Y int
	} `json:"gridPos"`
	Datasource Datasource `json:"datasource"`
	Targets    []Target   `json:"targets"`
}

// Target is one query of a panel.
type Target struct {
	RefID        string     `json:"refId"`
	Expr         string     `json:"expr"`
	LegendFormat string     `json:"legendFormat"`
	Datasource   Datasource `json:"datasource"`
}

// Datasource names a data source.
type Datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

// Variable is a variable of a dashboard.
type Variable struct {
	Name       string `json:"name"`
	Type       string `json:"type"`
	Definition string `json:"definition"`
}

// ReadDashboard reads a dashboard's file.
func ReadDashboard(file string) (*Dashboard, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the dashboard: %w", err)
	}
	var d Dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, fmt.Errorf("decode %s: %w", file, err)
	}
	return &d, nil
}

var (
	// variable matches a reference to a Grafana variable.
	variable = regexp.MustCompile(`\$(\w+)|\$\{(\w+)\}`)
	// labelValues matches the definition of a variable with the values of a label.
	labelValues = regexp.MustCompile(`^label_values\((.+), *(\w+)\)$`)
	// legendLabel matches a label in a legend, alertLabel one in an alert's annotation.
	legendLabel = regexp.MustCompile(`\{\{ *(\w+) *\}\}`)
	alertLabel  = regexp.MustCompile(`\$labels\.(\w+)`)
)

func (d *Dashboard) queries() ([]Query, error) {
	var queries []Query
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		parts := labelValues.FindStringSubmatch(v.Definition)
		if parts == nil {
			return nil, fmt.Errorf("variable %s: want label_values(SERIES, LABEL), got %s", v.Name, v.Definition)
		}
		queries = append(queries, Query{
			Place: "variable " + v.Name,
			Expr:  fmt.Sprintf("group by (%s) (%s)", parts[2], replaceVariables(parts[1])),
		})
	}
	for _, p := range d.Panels {
		for _, t := range p.Targets {
			queries = append(queries, Query{
				Place: fmt.Sprintf("panel %q, query %s", p.Title, t.RefID),
				Expr:  replaceVariables(t.Expr),
				Shown: submatches(legendLabel, t.LegendFormat),
			})
		}
	}
	return queries, nil
}

// replaceVariables replaces Grafana's variables: built-in ones, which begin with __, by durations,
// and others, which are in matchers, by a pattern that matches everything.
func replaceVariables(expr string) string {
	return variable.ReplaceAllStringFunc(expr, func(v string) string {
		if strings.HasPrefix(strings.Trim(v, "${}"), "__") {
			return "5m"
		}
		return ".+"
	})
}

// submatches returns the first group of each match.
func submatches(r *regexp.Regexp, text string) (groups []string) {
	for _, match := range r.FindAllStringSubmatch(text, -1) {
		groups = append(groups, match[1])
	}
	return groups
}

// Alert is an alerting rule of Prometheus.
type Alert struct {
	Name        string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

// ReadAlerts reads a file with alerting rules only.
func ReadAlerts(file string) ([]Alert, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the alerts: %w", err)
	}
	var content struct {
		Groups []struct {
			Name  string  `json:"name"`
			Rules []Alert `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.UnmarshalStrict(text, &content); err != nil {
		return nil, fmt.Errorf("decode %s: %w", file, err)
	}
	var alerts []Alert
	for _, g := range content.Groups {
		alerts = append(alerts, g.Rules...)
	}
	return alerts, nil
}
