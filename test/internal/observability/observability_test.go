package observability

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	checkout = "../../.."
	chart    = checkout + "/charts/kube-vitals"
	runbooks = checkout + "/docs/runbooks"
	unitTest = "testdata/alerts_test.yaml"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mustQueries(t *testing.T) []Query {
	t.Helper()
	queries, err := Queries(chart)
	must(t, err)
	return queries
}

func mustAlerts(t *testing.T) []Alert {
	t.Helper()
	alerts, err := ReadAlerts(filepath.Join(chart, AlertsFile))
	must(t, err)
	return alerts
}

func mustParse(t *testing.T, queries []Query) []Reference {
	t.Helper()
	references, err := Parse(queries)
	must(t, err)
	return references
}

// TestQueries checks the syntax of every query, and that it selects servers: by the dashboard's
// variables, or those of the release. Package e2e checks that the series exist.
func TestQueries(t *testing.T) {
	queries := mustQueries(t)
	for i, r := range mustParse(t, queries) {
		q := queries[i]
		for _, s := range r.Selectors {
			if strings.HasPrefix(q.Place, "variable ") {
				continue // it lists the servers
			}
			if !q.Alerts && !slices.Contains(s.Labels, "cluster") {
				t.Errorf("%s: %s does not select by cluster", q.Place, s.Metric)
			}
			for name, want := range map[string]string{"job": "kube-vitals", "namespace": "kube-system"} {
				if !slices.Contains(s.Labels, name) || q.Alerts && s.Equals[name] != want {
					t.Errorf("%s: %s has no matcher for %s", q.Place, s.Metric, name)
				}
			}
		}
	}
	if output, err := checkSyntax(t, queries); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
	if output, err := checkSyntax(t, []Query{{Expr: "sum("}}); err == nil {
		t.Errorf("an invalid query passes: %s", output)
	}
}

// promtool runs promtool. It skips the test if PATH does not have it. CI must have it.
func promtool(t *testing.T, args ...string) (string, error) {
	t.Helper()
	const cure = "run make deps, or install it with apt-get install prometheus"
	if _, err := exec.LookPath("promtool"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%v: %s", err, cure)
		}
		t.Skipf("%v: %s", err, cure)
	}
	return Promtool(t.Context(), args...)
}

// checkSyntax has promtool check the queries as recording rules.
func checkSyntax(t *testing.T, queries []Query) (string, error) {
	t.Helper()
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var rules []rule
	for i, q := range queries {
		rules = append(rules, rule{fmt.Sprintf("query_%d", i), q.Expr})
	}
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "queries", "rules": rules}}})
	must(t, err)
	file := filepath.Join(t.TempDir(), "rules.yaml")
	must(t, os.WriteFile(file, text, 0o600))
	return promtool(t, "check", "rules", file)
}

func TestAlerts(t *testing.T) {
	const base = "https://github.com/kube-vitals/kube-vitals/blob/main/docs/runbooks/"
	var names []string
	for _, a := range mustAlerts(t) {
		names = append(names, a.Name)
		if !strings.HasPrefix(a.Name, "KubeVitals") {
			t.Errorf("%s: the name does not begin with KubeVitals", a.Name)
		}
		if severity := a.Labels["severity"]; !slices.Contains([]string{"critical", "warning", "info"}, severity) {
			t.Errorf("%s: severity %q", a.Name, severity)
		}
		if a.For == "" {
			t.Errorf("%s: for is not set", a.Name)
		}
		if a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
			t.Errorf("%s has no summary or no description", a.Name)
		}
		if want := base + a.Name + ".md"; a.Annotations["runbook_url"] != want {
			t.Errorf("%s: got runbook %s, want %s", a.Name, a.Annotations["runbook_url"], want)
		}
	}
	slices.Sort(names)
	if got := slices.Compact(slices.Clone(names)); len(got) != len(names) {
		t.Errorf("duplicate alert: %s", names)
	}
	if got := disabledEnum(t); !slices.Equal(got, names) {
		t.Errorf("prometheusRule.disabled in values.schema.json: got\n%s\nwant\n%s", got, names)
	}
}

// disabledEnum returns the values that the chart's schema allows in prometheusRule.disabled,
// sorted.
func disabledEnum(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chart, "values.schema.json"))
	must(t, err)
	type object struct {
		Properties map[string]json.RawMessage
		Items      struct{ Enum []string }
	}
	var schema, rule, disabled object
	must(t, json.Unmarshal(text, &schema))
	must(t, json.Unmarshal(schema.Properties["prometheusRule"], &rule))
	must(t, json.Unmarshal(rule.Properties["disabled"], &disabled))
	slices.Sort(disabled.Items.Enum)
	return disabled.Items.Enum
}

// TestRunbooks checks that each alert has a runbook with the same headings, and that no other
// runbooks exist.
func TestRunbooks(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(runbooks, "KubeVitals*.md"))
	must(t, err)
	var got, want []string
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".md")
		got = append(got, name)
		text, err := os.ReadFile(file)
		must(t, err)
		headings := regexp.MustCompile(`(?m)^##? .*$`).FindAllString(string(text), -1)
		want := []string{"# " + name, "## Meaning", "## Diagnosis", "## What to do"}
		if !slices.Equal(headings, want) {
			t.Errorf("%s: got headings %q, want %q", file, headings, want)
		}
	}
	for _, a := range mustAlerts(t) {
		want = append(want, a.Name)
	}
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("got runbooks\n%s\nwant\n%s", got, want)
	}
}

// TestAlertRules checks the rules with promtool, and runs their unit tests.
func TestAlertRules(t *testing.T) {
	folder, err := os.Getwd()
	must(t, err)
	for _, args := range [][]string{
		{"check", "rules", filepath.Join(folder, chart, AlertsFile)},
		{"test", "rules", filepath.Join(folder, unitTest)},
	} {
		if output, err := promtool(t, args...); err != nil {
			t.Errorf("%v\n%s", err, output)
		}
	}
}

// TestAlertsAreTested checks that the unit tests have a case where each alert fires, and one where it
// does not.
func TestAlertsAreTested(t *testing.T) {
	text, err := os.ReadFile(unitTest)
	must(t, err)
	var content struct {
		Tests []struct {
			Cases []struct {
				Alert    string `json:"alertname"`
				Expected []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		} `json:"tests"`
	}
	must(t, yaml.Unmarshal(text, &content))
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range content.Tests {
		for _, c := range test.Cases {
			if len(c.Expected) > 0 {
				fires[c.Alert] = true
			} else {
				silent[c.Alert] = true
			}
		}
	}
	for _, a := range mustAlerts(t) {
		if !fires[a.Name] || !silent[a.Name] {
			t.Errorf("%s: got a test where it fires: %t, where it does not: %t", a.Name, fires[a.Name], silent[a.Name])
		}
	}
}

func TestDashboard(t *testing.T) {
	d, err := ReadDashboard(filepath.Join(chart, DashboardFile))
	must(t, err)
	if len(d.UID) == 0 || len(d.UID) > 40 {
		t.Errorf("uid %q: want 1 to 40 characters", d.UID)
	}
	var rows []string
	ids, titles := map[int]bool{}, map[string]bool{}
	for i, p := range d.Panels {
		if ids[p.ID] || titles[p.Title] {
			t.Errorf("panel %d %q: duplicate ID or title", p.ID, p.Title)
		}
		ids[p.ID], titles[p.Title] = true, true
		for _, other := range d.Panels[:i] {
			if overlap(p, other) {
				t.Errorf("panel %q overlaps %q", p.Title, other.Title)
			}
		}
		if p.Type == "row" {
			rows = append(rows, p.Title)
			continue
		}
		if p.Description == "" || len(p.Targets) == 0 {
			t.Errorf("panel %q has no description or no query", p.Title)
		}
		const source = "${datasource}"
		isOther := func(t Target) bool { return t.Datasource.UID != source }
		if p.Datasource.UID != source || slices.ContainsFunc(p.Targets, isOther) {
			t.Errorf("panel %q does not use the selected data source", p.Title)
		}
	}
	if want := []string{
		"Freshness", "Failing nodes", "Latency", "Resource usage", "Clients", "Engine",
	}; !slices.Equal(rows, want) {
		t.Errorf("the rows are %q, want %q", rows, want)
	}
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name)
	}
	if want := []string{"datasource", "cluster", "namespace", "job"}; !slices.Equal(variables, want) {
		t.Errorf("the variables are %q, want %q", variables, want)
	}
}

// TestRunbooksNamePanels checks that the panels and rows that runbooks name exist.
func TestRunbooksNamePanels(t *testing.T) {
	d, err := ReadDashboard(filepath.Join(chart, DashboardFile))
	must(t, err)
	files, err := filepath.Glob(filepath.Join(runbooks, "*.md"))
	must(t, err)
	list := regexp.MustCompile(`(?:panels?|row)\s+"[^"]+"(?:,?\s+(?:and\s+)?"[^"]+")*`)
	title := regexp.MustCompile(`"([^"]+)"`)
	found := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		for _, name := range submatches(title, strings.Join(list.FindAllString(string(text), -1), " ")) {
			found++
			name = strings.Join(strings.Fields(name), " ")
			if !slices.ContainsFunc(d.Panels, func(p Panel) bool { return p.Title == name }) {
				t.Errorf("%s: the dashboard has no panel %q", file, name)
			}
		}
	}
	if found == 0 {
		t.Errorf("got %d panels in runbooks, want some", found)
	}
}

func overlap(a, b Panel) bool {
	return a.GridPos.X < b.GridPos.X+b.GridPos.W && b.GridPos.X < a.GridPos.X+a.GridPos.W &&
		a.GridPos.Y < b.GridPos.Y+b.GridPos.H && b.GridPos.Y < a.GridPos.Y+a.GridPos.H
}

func TestMissing(t *testing.T) {
	series := ParseSeries(`# HELP requests_total Requests.
# TYPE requests_total counter
requests_total{code="200",path="/a\"b"} 3
requests_total{code="404",path="/"} 1
goroutines 7
`)
	tests := []struct {
		query Query
		want  []string
	}{
		{query: Query{Expr: `sum by (code) (rate(requests_total{job=~"a",path="/"}[5m])) / on () group_left () goroutines`}},
		{query: Query{Expr: `up{job="a"} == 0`, Shown: []string{"pod"}}},
		{query: Query{Expr: `ALERTS{alertstate="firing"}`}},
		{query: Query{Expr: `requests_total{code=~"5.."}`}}, // the value may appear later
		{query: Query{Expr: `request_total`}, want: []string{"no series request_total"}},
		{query: Query{Expr: `up{code="200"}`}, want: []string{"up has no label code"}},
		{query: Query{Expr: `requests_total{status="200"}`}, want: []string{"requests_total has no label status"}},
		{
			query: Query{Expr: `requests_total{code="0"}`},
			want:  []string{`code of requests_total is never "0", only one of ["200" "404"]`},
		},
		{query: Query{Expr: `sum by (status) (requests_total)`}, want: []string{"no series has the label status"}},
		{query: Query{Expr: `goroutines`, Shown: []string{"code"}}, want: []string{"no series has the label code"}},
		{query: Query{Expr: `goroutines / on (status) requests_total`}, want: []string{"no series has the label status"}},
	}
	var queries []Query
	for _, tt := range tests {
		queries = append(queries, tt.query)
	}
	for i, r := range mustParse(t, queries) {
		if got := series.Missing(tests[i].query, r); !slices.Equal(got, tests[i].want) {
			t.Errorf("%s: got %q, want %q", tests[i].query.Expr, got, tests[i].want)
		}
	}
}

func TestReplaceVariables(t *testing.T) {
	for given, want := range map[string]string{
		`rate(a{job=~"$job"}[$__rate_interval])`: `rate(a{job=~".+"}[5m])`,
		`a{job=~"${job}"} offset ${__interval}`:  `a{job=~".+"} offset 5m`,
	} {
		if got := replaceVariables(given); got != want {
			t.Errorf("%s: got %s, want %s", given, got, want)
		}
	}
}
