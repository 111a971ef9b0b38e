package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	rule      = "PrometheusRule kube-system/kube-vitals"
	dashboard = "ConfigMap kube-system/kube-vitals-dashboard"
	firstRule = "spec.groups.0.rules.0."
)

// TestDashboardIsTheFile looks at the ConfigMap that Grafana's sidecar finds.
func TestDashboardIsTheFile(t *testing.T) {
	objs, err := lookTools(t).chart(t.Context(), chartFolder, []string{"dashboard.enabled=true"})
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(filepath.Join(chartFolder, "dashboards", "kube-vitals.json"))
	if err != nil {
		t.Fatal(err)
	}
	if got := lookup(t, objs, dashboard, `data.kube-vitals\.json`); got != string(want) {
		t.Errorf("the ConfigMap holds %s", show(got))
	}
	if got := lookup(t, objs, dashboard, "metadata.labels.grafana_dashboard"); got != "1" {
		t.Errorf("the label grafana_dashboard is %s", show(got))
	}
}

// TestMonitoringValues sets values of the dashboard and of the alerts.
func TestMonitoringValues(t *testing.T) {
	tools := lookTools(t)
	tests := []struct {
		name, values, object, path string
		want                       any
	}{
		{"runbooks", "runbookURL=https://example.org/r/", rule, firstRule + `annotations.runbook_url`, "https://example.org/r/KubeVitalsAbsent.md"},
		{"an alert left out", "disabled={KubeVitalsAbsent}", rule, firstRule + "alert", "KubeVitalsDown"},
		{"labels of alerts", "alertLabels.team=a", rule, firstRule + "labels.team", "a"},
		{"which leave theirs", "alertLabels.team=a", rule, firstRule + "labels.severity", "critical"},
		{"unless they are the same", "alertLabels.severity=page", rule, firstRule + "labels.severity", "page"},
		{"labels of the object", "additionalLabels.release=p", rule, "metadata.labels.release", "p"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			objs, err := tools.chart(t.Context(), chartFolder, []string{"prometheusRule.enabled=true", "prometheusRule." + tt.values})
			if err != nil {
				t.Fatal(err)
			}
			if got := lookup(t, objs, tt.object, tt.path); got != tt.want {
				t.Errorf("%s of %s is %s, want %s", tt.path, tt.object, show(got), show(tt.want))
			}
		})
	}
	for values, want := range map[string]string{
		"prometheusRule.disabled={KubeVitalsGone}": "at '/prometheusRule/disabled/0': value must be one of 'KubeVitalsAbsent'",
		"prometheusRule.runbookURL=runbooks":       "at '/prometheusRule/runbookURL': 'runbooks' does not match pattern '^https?://'",
		"dashboard.lables.a=b":                     "at '/dashboard': additional properties 'lables' not allowed",
	} {
		if _, err := tools.chart(t.Context(), chartFolder, []string{values}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v\nwant an error with %s", values, err, want)
		}
	}
}

// TestAlertsAreTheReleases expects every query of every alert to be about the release, wherever that is.
func TestAlertsAreTheReleases(t *testing.T) {
	objs, err := lookTools(t).chart(t.Context(), chartFolder, []string{"prometheusRule.enabled=true", "namespaceOverride=monitoring"})
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprint(objs["PrometheusRule monitoring/kube-vitals"])
	if given, meant := strings.Count(text, "namespace="), strings.Count(text, `job="kube-vitals",namespace="monitoring"`); meant == 0 || given != meant {
		t.Errorf("%d of %d selectors are those of the release", meant, given)
	}
}
