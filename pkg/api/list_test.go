package api

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
)

func TestOnlyRunningPodsAreServed(t *testing.T) {
	c := world()
	metrics := c.Usage.(used).pods
	for phase, name := range map[inventory.Phase]string{
		inventory.PhaseUnknown: "unknown", inventory.PodPending: "pending", inventory.PodSucceeded: "succeeded", inventory.PodFailed: "failed",
	} {
		o := object("phases", name, time.Hour)
		o.Phase = phase
		c.Pods = append(c.Pods.(existing), o)
		metrics["phases/"+name] = metrics["apps/web-1"]
	}
	c.Pods = append(c.Pods.(existing), object("phases", "runs", time.Hour))
	metrics["phases/runs"] = metrics["apps/web-1"]
	h := serve(t, c)
	if got := get[list](t, h, "/apis/metrics.k8s.io/v1/namespaces/phases/pods", http.StatusOK).names(); !slices.Equal(got, []string{"phases/runs"}) {
		t.Errorf("the list has %q", got)
	}
	for _, o := range c.Pods.(existing) {
		path := "/apis/metrics.k8s.io/v1/namespaces/phases/pods?fieldSelector=metadata.name%3D" + o.Name
		if got := get[list](t, h, path, http.StatusOK).names(); o.Namespace == "phases" && o.Phase != inventory.PodRunning && len(got) > 0 {
			t.Errorf("the list by name has %q", got)
		}
	}
	for _, name := range []string{"unknown", "pending", "succeeded", "failed"} {
		got := get[struct{ Message string }](t, h, "/apis/metrics.k8s.io/v1/namespaces/phases/pods/"+name, http.StatusNotFound)
		if want := fmt.Sprintf("no pod %q is running", name); !strings.Contains(got.Message, want) {
			t.Errorf("%q does not say %q", got.Message, want)
		}
	}
	page := get[list](t, h, "/apis/metrics.k8s.io/v1/namespaces/phases/pods?limit=1", http.StatusOK)
	if page.Metadata.Continue != "" {
		t.Errorf("a page of the only running pod has a continuation: %+v", page.Metadata)
	}
}

func TestSelectorsAreBounded(t *testing.T) {
	h := serve(t, world())
	// many joins n parts, in which %d is their number.
	many := func(part, separator string, n int) string {
		parts := make([]string, n)
		for i := range parts {
			parts[i] = fmt.Sprintf(part, i)
		}
		return strings.Join(parts, separator)
	}
	for _, test := range []struct {
		parameter, selector string
		count               int // of requirements and values; 0: the selector is accepted
	}{
		{"labelSelector", many("!k%d", ",", maxSelectorSize), 0},
		{"labelSelector", many("!k%d", ",", maxSelectorSize+1), maxSelectorSize + 1},
		{"labelSelector", many("k%d=v", ",", maxSelectorSize+1), maxSelectorSize + 1},
		{"labelSelector", "app in (" + many("v%d", ",", maxSelectorSize) + ")", 0},
		{"labelSelector", "app in (" + many("v%d", ",", maxSelectorSize) + "),tier", maxSelectorSize + 1},
		{"labelSelector", "app notin (" + many("v%d", ",", maxSelectorSize+1) + ")", maxSelectorSize + 1},
		{"fieldSelector", many("metadata.name!=n%d", ",", maxSelectorSize), 0},
		{"fieldSelector", many("metadata.name!=n%d", ",", maxSelectorSize+1), maxSelectorSize + 1},
	} {
		for _, resource := range []string{"pods", "nodes", "namespaces/apps/pods"} {
			path := "/apis/metrics.k8s.io/v1/" + resource + "?" + url.Values{test.parameter: {test.selector}}.Encode()
			name := resource + " " + test.selector[:20]
			if test.count == 0 {
				if w := do(h, http.MethodGet, path, jsonType); w.Code != http.StatusOK {
					t.Errorf("%s: %d: %s", name, w.Code, w.Body)
				}
				continue
			}
			got := get[struct{ Reason, Message string }](t, h, path, http.StatusBadRequest)
			if got.Reason != "BadRequest" || !strings.Contains(got.Message, fmt.Sprint(test.count)) || !strings.Contains(got.Message, fmt.Sprint(maxSelectorSize)) {
				t.Errorf("%s: %+v names neither the bound nor the count", name, got)
			}
		}
	}
}
