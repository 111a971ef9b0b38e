package nodez

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// exportersOf returns the exporters as the page shows them.
func exportersOf(known []health.Exporter, now time.Time) []DeviceExporter {
	exporters := make([]DeviceExporter, len(known))
	for i := range known {
		s := &known[i]
		e := &exporters[i]
		*e = DeviceExporter{
			Name: shorten(s.Name, maxNameBytes), Namespace: s.Namespace, PodSelector: s.PodSelector,
			Pods: make([]DevicePod, len(s.Pods)), LeftOut: s.LeftOut, LeftOutPod: shorten(s.LeftOutPod, maxNameBytes),
		}
		for j := range s.Pods {
			e.Pods[j] = podOf(&s.Pods[j], now)
		}
		slices.SortFunc(e.Pods, func(a, b DevicePod) int {
			return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Name, b.Name))
		})
	}
	return exporters
}

func podOf(h *health.ExporterPod, now time.Time) DevicePod {
	return DevicePod{
		Node: shorten(h.Node, maxNameBytes), Name: shorten(h.Name, maxNameBytes), State: attemptsState(&h.Attempts),
		Diagnosis:   diagnosisOf(h.Reason, h.Reason.DescribeExporter(), reason.ExporterURL, h.Err),
		LastSuccess: wallAt(h.LastSuccess, now), LastScrape: wallAt(h.Last, now), Devices: h.Devices,
	}
}

// count returns the number of pods in a state.
func (e *DeviceExporter) count(s State) int {
	n := 0
	for i := range e.Pods {
		if e.Pods[i].State == s {
			n++
		}
	}
	return n
}

// State returns the worst state of the pods.
func (e *DeviceExporter) State() State {
	switch {
	case e.count(Failing) > 0:
		return Failing
	case len(e.Pods) == 0 || e.count(Starting) > 0:
		return Starting
	}
	return Ready
}

// Summary returns how many pods can be read, how many devices they have, and how many other pods are
// not scraped.
func (e *DeviceExporter) Summary() string {
	if len(e.Pods) == 0 {
		return fmt.Sprintf("no running pod matches %q in namespace %q", e.PodSelector, e.Namespace)
	}
	devices := 0
	for i := range e.Pods {
		if e.Pods[i].State == Ready {
			devices += e.Pods[i].Devices
		}
	}
	summary := fmt.Sprintf("%s of %s pods can be read, with %s devices", count(e.count(Ready)), count(len(e.Pods)),
		count(devices))
	if e.LeftOut > 0 {
		summary += fmt.Sprintf("; of nodes with more than two, %s other pods are not scraped, such as (node, pod) %s",
			count(e.LeftOut), e.LeftOutPod)
	}
	return summary
}

// problemsFirst returns the pods, sorted by state, then by node.
func (e *DeviceExporter) problemsFirst() []*DevicePod {
	return problemsFirst(e.Pods, func(p *DevicePod) State { return p.State })
}

// hasDevices reports whether there is a pod of an exporter.
func (r *Report) hasDevices() bool {
	return slices.ContainsFunc(r.DeviceExporters, func(e DeviceExporter) bool { return len(e.Pods) > 0 })
}
