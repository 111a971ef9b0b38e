package cases

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Resource returns the response as a body of /metrics/resource.
func (r *Response) Resource() string {
	var b strings.Builder
	add := func(object, labels string, s *usage.Sample) {
		line := func(name string, value float64, at usage.NodeTime) {
			fmt.Fprintf(&b, "%s_%s%s %s", object, name, labels, strconv.FormatFloat(value, 'g', -1, 64))
			if at != 0 && !s.Untimed {
				fmt.Fprintf(&b, " %d", at.Time().UnixMilli())
			}
			b.WriteByte('\n')
		}
		if s.Has&usage.HasCPU != 0 {
			line("cpu_usage_seconds_total", s.CPUSeconds, s.At)
		}
		if s.Has&usage.HasMemory != 0 {
			line("memory_working_set_bytes", float64(s.Memory), s.At)
		}
		if s.Has&usage.HasSwap != 0 {
			line("swap_usage_bytes", float64(s.Swap), s.At)
		}
		if s.StartedAt != 0 {
			line("start_time_seconds", float64(s.StartedAt)/float64(time.Second), 0)
		}
	}
	add("node", "", &r.Node)
	for i := range r.Containers {
		c := &r.Containers[i]
		add("container", fmt.Sprintf("{container=%q,namespace=%q,pod=%q}", c.Name, c.Namespace, c.Pod), &c.Sample)
	}
	if b.Len()+len(r.Text) == 0 { // a response without a sample is an error
		b.WriteString("node_memory_working_set_bytes 1\n")
	}
	return b.String() + r.Text
}

// object is an object in JSON.
type object = map[string]any

// Summary returns the response as the body of /stats/summary, before its encoding as JSON.
func (r *Response) Summary() any {
	stats := func(s *usage.Sample) object {
		text := func(t usage.NodeTime) string { return t.Time().UTC().Format(time.RFC3339Nano) }
		cpu, memory, o := object{}, object{}, object{"startTime": text(s.StartedAt)}
		if s.StartedAt == 0 {
			delete(o, "startTime")
		}
		if s.At != 0 {
			cpu["time"], memory["time"] = text(s.At), text(s.At)
		}
		if s.Has&usage.HasCPU != 0 {
			cpu["usageCoreNanoSeconds"] = uint64(math.Round(s.CPUSeconds * 1e9))
		}
		if s.Has&usage.HasRate != 0 {
			cpu["usageNanoCores"] = s.Rate
		}
		if s.Has&usage.HasMemory != 0 {
			memory["workingSetBytes"] = s.Memory
		}
		o["cpu"], o["memory"] = cpu, memory
		return o
	}
	var pods []object
	for i := range r.Containers {
		c := &r.Containers[i]
		container := stats(&c.Sample)
		container["name"] = string(c.Name)
		pods = append(pods, object{"podRef": object{"name": string(c.Pod), "namespace": string(c.Namespace)},
			"containers": []object{container}})
	}
	node := stats(&r.Node)
	node["nodeName"] = NodeName
	return object{"node": node, "pods": pods}
}
