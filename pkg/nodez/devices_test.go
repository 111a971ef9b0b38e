package nodez

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/health/healthtest"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

func TestDeviceExporters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := time.Now()
		ago := func(d time.Duration) time.Time { return now.Add(-d) }
		config := newWorld(now).config(now)
		config.Source = &healthtest.Source{}
		config.Devices = func() []health.Exporter {
			return []health.Exporter{
				{
					Name: "dcgm", Namespace: "gpu", PodSelector: "app=x",
					Pods: []health.ExporterPod{
						{Name: "p3", Node: "n3"},
						{Name: "p2", Node: "n2", Devices: 8, Attempts: health.Attempts{
							Last: ago(5 * time.Second), LastSuccess: ago(5 * time.Second),
						}},
						{Name: "p1", Node: "n1", Devices: 4, Attempts: health.Attempts{
							Last: ago(time.Second), LastSuccess: ago(3 * time.Minute), Failures: 1,
							Err: errors.New("connection refused"), Reason: reason.ConnectRefused,
						}},
					},
				},
				{Name: "amd", Namespace: "amd", PodSelector: "app=y"},
			}
		}
		report := config.Report()
		var b strings.Builder
		if err := writeText(&b, report); err != nil {
			t.Fatal(err)
		}
		cure := reason.ConnectRefused.DescribeExporter().Cure
		for _, want := range []string{`
Device exporter dcgm: 1 of 3 pods can be read, with 8 devices
Device exporter amd: no running pod matches "app=y" in namespace "amd"
`, `
EXPORTER  NODE  STATE     REASON           DEVICES  LAST-SUCCESS  POD
dcgm      n1    failing   connect-refused  4        3m            gpu/p1
dcgm      n3    starting  -                0        -             gpu/p3
dcgm      n2    ready     -                8        5s            gpu/p2

device exporter "dcgm" on node "n1": the exporter cannot be connected to: connection refused (` + cure + `)
  see ` + reason.ExporterURL + "\n",
		} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("got\n%s\nwant\n%s", b.String(), want)
			}
		}
		pods := report.DeviceExporters[0].Pods
		if p := pods[0]; p.Node != "n1" || p.State != Failing || p.Problem == "" || p.Cure != cure || p.URL == "" ||
			!p.LastSuccess.Equal(ago(3*time.Minute)) || !p.LastScrape.Equal(ago(time.Second)) {
			t.Errorf("got %+v", p)
		}
		if p := pods[1]; p.Node != "n2" || p.State != Ready || p.Cure != "" || p.Devices != 8 {
			t.Errorf("got %+v", p)
		}
		for i, want := range []State{Failing, Starting} {
			if got := report.DeviceExporters[i].State(); got != want {
				t.Errorf("exporter %d: got %s, want %s", i, got, want)
			}
		}
		page := httptest.NewRecorder()
		Handler(config).ServeHTTP(page, httptest.NewRequest(http.MethodGet, Path+"?format=html", nil))
		for _, want := range []string{
			"<b>Device exporter dcgm</b> <span class=\"badge failing\">", "1 of 3 pods can be read", "gpu/p2",
		} {
			if !strings.Contains(page.Body.String(), want) {
				t.Errorf("the page does not have %s", want)
			}
		}
	})
}

// TestWithoutDevices checks that nothing shows devices if there are no exporters.
func TestWithoutDevices(t *testing.T) {
	now := time.Now()
	config := newWorld(now).config(now)
	for _, f := range formats() {
		w := httptest.NewRecorder()
		Handler(config).ServeHTTP(w, httptest.NewRequest(http.MethodGet, Path+"?format="+f.name, nil))
		if body := w.Body.String(); strings.Contains(body, "xporter ") || strings.Contains(body, "deviceExporters") {
			t.Errorf("%s: got %s", f.name, body)
		}
	}
}
