package nodez

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
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
			Name: printable(s.Name, maxNameBytes), Namespace: s.Namespace, PodSelector: s.PodSelector,
			Pods: make([]DevicePod, len(s.Pods)), LeftOut: s.LeftOut, LeftOutPod: printable(s.LeftOutPod, maxNameBytes),
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
		Node: printable(h.Node, maxNameBytes), Name: printable(h.Name, maxNameBytes), State: attemptsState(&h.Attempts),
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

// hasDevices reports whether there is a pod of an exporter.
func (r *Report) hasDevices() bool {
	return slices.ContainsFunc(r.DeviceExporters, func(e DeviceExporter) bool { return len(e.Pods) > 0 })
}

// writeExporters writes a table of the exporters' pods with the failing ones first, and their errors.
func writeExporters(w io.Writer, r *Report) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "EXPORTER\tNODE\tSTATE\tREASON\tDEVICES\tLAST-SUCCESS\tPOD")
	var problems strings.Builder
	for i := range r.DeviceExporters {
		e := &r.DeviceExporters[i]
		pods := slices.Clone(e.Pods)
		slices.SortStableFunc(pods, func(a, b DevicePod) int { return cmp.Compare(a.State.rank(), b.State.rank()) })
		for _, p := range pods {
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%s\t%s/%s\n", e.Name, p.Node, p.State, cmp.Or(string(p.Reason), "-"),
				p.Devices, cmp.Or(ago(p.LastSuccess, r.Time), "-"), e.Namespace, p.Name)
			if p.Reason != "" {
				fmt.Fprintf(&problems, "\ndevice exporter %q on node %q: %s (%s)\n  see %s\n", e.Name, p.Node,
					cmp.Or(p.Error, p.Problem), p.Cure, p.URL)
			}
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := io.WriteString(w, problems.String())
	return err
}
