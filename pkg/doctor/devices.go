package doctor

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kube-vitals/kube-vitals/pkg/nodez"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// deviceChecks examines the exporters of devices, as kube-vitals sees them.
func deviceChecks(report *nodez.Report) []Check {
	var checks []Check
	for i := range report.DeviceExporters {
		e := &report.DeviceExporters[i]
		c := Check{ID: "devices", Title: "devices", Status: OK, Seen: fmt.Sprintf("exporter %s: %s", e.Name, e.Summary())}
		if len(e.Pods) == 0 {
			c.Status, c.Reason = Warning, exporterNoPods
		} else if e.LeftOut > 0 {
			c.Status, c.Reason = Warning, exporterManyPods
		}
		groups := map[reason.Reason]*Check{}
		for _, p := range e.Pods {
			if p.Reason == "" {
				continue
			}
			group := groups[p.Reason]
			if group == nil {
				group = &Check{ID: c.ID, Title: c.Title, Status: Failed, Reason: string(p.Reason),
					Seen: cmp.Or(p.Error, p.Problem), Cure: p.Reason.DescribeExporter().Cure, URL: p.URL}
				groups[p.Reason] = group
			}
			group.Objects = append(group.Objects, p.Node)
		}
		if len(groups) == 0 {
			checks = append(checks, c)
		}
		for _, r := range slices.Sorted(keys(groups)) {
			group := groups[r]
			group.Seen = fmt.Sprintf("%d of %d pods of exporter %s cannot be read: %s: %s", len(group.Objects), len(e.Pods),
				e.Name, r, group.Seen)
			checks = append(checks, *group)
		}
	}
	return checks
}
