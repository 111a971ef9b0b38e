// Package observability reads the chart's Grafana dashboard and its alerts, and compares what they
// ask Prometheus for with what kube-vitals exposes: a query for a series or a label that does not
// exist is valid, and silent for ever.
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

// Where the chart has its files.
const (
	DashboardFile = "dashboards/kube-vitals.json"
	AlertsFile    = "alerts/kube-vitals.yaml"
)

// Query is a PromQL expression, and where it stands.
type Query struct {
	Place  string   // panel or alert
	Expr   string   // without Grafana's variables
	Shown  []string // labels that a legend or a text shows of the result
	Alerts bool     // whether it is an alert's
}

// Queries gives all queries of the dashboard and of the alerts of a chart.
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
		queries = append(queries, Query{Place: "alert " + a.Name, Expr: a.Expr, Shown: submatches(alertLabel, text), Alerts: true})
	}
	return queries, nil
}

// Dashboard is what is looked at of a Grafana dashboard.
type Dashboard struct {
	UID        string  `json:"uid"`
	Panels     []Panel `json:"panels"`
	Templating struct {
		List []Variable `json:"list"`
	} `json:"templating"`
}

// Panel is a panel of a dashboard, or the heading of a row of them.
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

// Datasource says whom to ask.
type Datasource struct {
	Type string `json:"type"`
	UID  string `json:"uid"`
}

// Variable is what the user of a dashboard can choose.
type Variable struct {
	Name       string `json:"name"`
	Type       string `json:"type"`
	Definition string `json:"definition"`
}

// ReadDashboard reads a dashboard's file.
func ReadDashboard(file string) (*Dashboard, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("the chart has no dashboard: %w", err)
	}
	var d Dashboard
	if err := json.Unmarshal(text, &d); err != nil {
		return nil, fmt.Errorf("%s is not a dashboard: %w", file, err)
	}
	return &d, nil
}

var (
	// variable is a reference to a variable of Grafana.
	variable = regexp.MustCompile(`\$(\w+)|\$\{(\w+)\}`)
	// labelValues is how a variable asks for the values of a label.
	labelValues = regexp.MustCompile(`^label_values\((.+), *(\w+)\)$`)
	// legendLabel is a label in a legend, and alertLabel is one in the text of an alert.
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
			return nil, fmt.Errorf("variable %s is not label_values(SERIES, LABEL), but %s", v.Name, v.Definition)
		}
		queries = append(queries, Query{
			Place: "variable " + v.Name,
			Expr:  fmt.Sprintf("group by (%s) (%s)", parts[2], withoutVariables(parts[1])),
		})
	}
	for _, p := range d.Panels {
		for _, t := range p.Targets {
			queries = append(queries, Query{
				Place: fmt.Sprintf("panel %q, query %s", p.Title, t.RefID),
				Expr:  withoutVariables(t.Expr),
				Shown: submatches(legendLabel, t.LegendFormat),
			})
		}
	}
	return queries, nil
}

// withoutVariables puts values in the place of Grafana's variables: durations for its own, which
// begin with __, and what matches everything for the others, which stand in matchers.
func withoutVariables(expr string) string {
	return variable.ReplaceAllStringFunc(expr, func(v string) string {
		if strings.HasPrefix(strings.Trim(v, "${}"), "__") {
			return "5m"
		}
		return ".+"
	})
}

// submatches gives the first group of each match.
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

// ReadAlerts reads a file of rules that are all alerts.
func ReadAlerts(file string) ([]Alert, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("the chart has no alerts: %w", err)
	}
	var content struct {
		Groups []struct {
			Name  string  `json:"name"`
			Rules []Alert `json:"rules"`
		} `json:"groups"`
	}
	if err := yaml.UnmarshalStrict(text, &content); err != nil {
		return nil, fmt.Errorf("%s is not a file of alerts: %w", file, err)
	}
	var alerts []Alert
	for _, g := range content.Groups {
		alerts = append(alerts, g.Rules...)
	}
	return alerts, nil
}
