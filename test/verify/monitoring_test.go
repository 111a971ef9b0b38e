package main

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
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

// TestAlertsAreTheReleases expects every query of every alert to be about the release, wherever
// that is.
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

// TestMonitorsVerify expects that Prometheus verifies the server by a CA that it can read without
// the key, and sends no token to a server that it cannot verify.
func TestMonitorsVerify(t *testing.T) {
	tools := lookTools(t)
	const (
		serverName = "kube-vitals.kube-system.svc"
		known      = "tls.type=existingSecret,tls.existingSecret.name=x,apiService.caBundle=-----BEGIN CERTIFICATE-----"
		unknown    = "tls.type=existingSecret,tls.existingSecret.name=x"
		anonymous  = "tls.type=self-signed,metrics.enabled=true"
	)
	ca := func(kind, name string) any {
		return map[string]any{kind: map[string]any{"name": name, "key": "ca.crt"}}
	}
	for _, tt := range []struct {
		name, values string
		want         map[string]any // tlsConfig
		token        bool
	}{
		{"made by helm", "tls.type=helm", map[string]any{"serverName": serverName, "ca": ca("configMap", "kube-vitals-ca")}, true},
		{"known CA", known, map[string]any{"serverName": serverName, "ca": ca("configMap", "kube-vitals-ca")}, true},
		{"the system's roots", unknown, map[string]any{"serverName": serverName}, true},
		{"cert-manager", "tls.type=cert-manager", map[string]any{"serverName": serverName, "ca": ca("secret", "kube-vitals-tls")}, true},
		{"the server's own", "", map[string]any{"serverName": serverName, "ca": ca("configMap", "kube-vitals-ca")}, true},
		{"not verified", anonymous, map[string]any{"insecureSkipVerify": true}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			monitors := []string{tt.values, "serviceMonitor.enabled=true", "podMonitor.enabled=true"}
			if tt.token {
				monitors = append(monitors, "podMonitor.authorization.credentials.name=t")
			}
			objs, err := tools.chart(t.Context(), chartFolder, monitors)
			if err != nil {
				t.Fatal(err)
			}
			for object, endpoint := range map[string]string{
				"ServiceMonitor kube-system/kube-vitals": "spec.endpoints.0.",
				"PodMonitor kube-system/kube-vitals":     "spec.podMetricsEndpoints.0.",
			} {
				if got := lookup(t, objs, object, endpoint+"tlsConfig"); !reflect.DeepEqual(got, any(tt.want)) {
					t.Errorf("%s: tlsConfig is %s, want %s", object, show(got), show(tt.want))
				}
			}
			if strings.Contains(show(tt.want), "configMap") {
				lookup(t, objs, caConfigMap, "metadata") // fails if there is none
			}
			_, none := lookup(t, objs, "ServiceMonitor kube-system/kube-vitals", "spec.endpoints.0.bearerTokenFile").(absent)
			if none == tt.token {
				t.Errorf("Prometheus sends its token: %t, want %t", !none, tt.token)
			}
		})
	}
}
