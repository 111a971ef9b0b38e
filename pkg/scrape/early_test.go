package scrape

import (
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

func TestPlan(t *testing.T) { // rule 4
	const now = usage.Time(1_795_205_767 * int64(time.Second))
	ago := func(seconds float64) usage.Time { return now.Add(-time.Duration(seconds * float64(time.Second))) }
	old := func(sampled, missing float64) usage.Missing {
		return usage.Missing{Since: ago(missing), SampledAt: ago(sampled), StartedAt: ago(3600), KubeletRate: true}
	}
	young := func(sampled, started float64) usage.Missing {
		return usage.Missing{Since: now, SampledAt: ago(sampled), StartedAt: ago(started)}
	}
	unsampled := usage.Missing{Since: now}
	later := func(wait time.Duration) plan { return plan{wait: wait} }
	withSummary := func(wait time.Duration) plan { return plan{wait: wait, missesKubeletRate: true} }

	for _, tc := range []struct {
		name    string
		missing []usage.Missing
		want    plan
	}{
		{"nothing", nil, plan{}},
		{"sampled on demand or just now", []usage.Missing{old(0.1, 0)}, withSummary(3200 * time.Millisecond)},
		{"sampled 1.1 s ago", []usage.Missing{old(1.1, 0)}, withSummary(3200 * time.Millisecond)},
		{"sampled 1.2 s ago: next 10 s after the last", []usage.Missing{old(1.2, 0)}, withSummary(8900 * time.Millisecond)},
		{"sampled 4 s ago", []usage.Missing{old(4, 0)}, withSummary(6100 * time.Millisecond)},
		{"the next sample is overdue", []usage.Missing{old(14, 0)}, withSummary(2 * time.Second)},
		{"missing for 30 s", []usage.Missing{old(14, 30)}, withSummary(2 * time.Second)},
		{"missing for longer", []usage.Missing{old(14, 30.1)}, plan{}},
		{"3 s old: the next sample serves when it is 10 s old", []usage.Missing{young(0, 3)}, later(7100 * time.Millisecond)},
		{"8 s old, the next sample comes later", []usage.Missing{young(5, 8)}, later(5100 * time.Millisecond)},
		{"was young when it was sampled", []usage.Missing{young(14, 20)}, later(2 * time.Second)},
		{"not sampled yet", []usage.Missing{unsampled}, later(2 * time.Second)},
		{"several", []usage.Missing{young(0, 3), old(4, 0), unsampled, old(14, 60)}, withSummary(2 * time.Second)},
		{"several: one on demand", []usage.Missing{old(4, 0), young(0, 60)}, withSummary(3200 * time.Millisecond)},
	} {
		if got := newPlan(tc.missing, now, 3*time.Second); got != tc.want {
			t.Errorf("%s: got %+v, want %+v", tc.name, got, tc.want)
		}
	}
}
