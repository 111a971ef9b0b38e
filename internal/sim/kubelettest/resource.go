package kubelettest

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// labels returns the label block of a series, with braces. Names and values alternate.
func labels(pairs ...string) string {
	escape := strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
	var list []string
	for i := 0; i < len(pairs); i += 2 {
		list = append(list, pairs[i]+`="`+escape.Replace(pairs[i+1])+`"`)
	}
	return "{" + strings.Join(list, ",") + "}"
}

// text is a response in the text exposition format.
type text []byte

// header appends the comments that start a metric family.
func (t text) header(name, kind, help string) text {
	return fmt.Appendf(t, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// sample appends a line. at is in nanoseconds; 0 means no timestamp.
func (t text) sample(name, labels string, value float64, at int64) text {
	t = append(append(append(t, name...), labels...), ' ')
	t = strconv.AppendFloat(t, value, 'g', -1, 64)
	if at != 0 {
		t = strconv.AppendInt(append(t, ' '), at/int64(time.Millisecond), 10)
	}
	return append(t, '\n')
}

// field returns one field of a series' last reading and its timestamp; 0 means no timestamp.
type field func(*series) (value float64, at int64)

// family appends a metric family with a sample for each series. A family without series is left
// out.
func (t text) family(all []*series, name, kind, help string, f field) text {
	if len(all) == 0 {
		return t
	}
	t = t.header(name, kind, help)
	for _, s := range all {
		value, at := f(s)
		t = t.sample(name, s.labels, value, at)
	}
	return t
}

func cpuSeconds(s *series) (float64, int64)  { return float64(s.last.cpu) / 1e9, s.last.stamp }
func memoryBytes(s *series) (float64, int64) { return float64(s.last.memory), s.last.stamp }
func swapBytes(s *series) (float64, int64)   { return float64(s.last.swap), s.last.stamp }
func startTime(s *series) (float64, int64)   { return float64(s.start) / 1e9, 0 }

// appendResource appends the body of /metrics/resource. The readings must be up to date.
func (k *Kubelet) appendResource(b []byte, now int64) []byte {
	// containerd reports no swap: a kubelet that requests samples from it writes 0, at the time of the request.
	swapOf := func(s *series, bytes uint64) (float64, int64) { return float64(bytes), s.last.stamp }
	if k.containerHousekeeping() == 0 {
		swapOf = func(*series, uint64) (float64, int64) { return 0, now + int64(k.ahead) }
	}
	const cpu, cpuHelp = "_cpu_usage_seconds_total", "[STABLE] Cumulative cpu time consumed by the %s in core-seconds"
	const memory, memoryHelp = "_memory_working_set_bytes", "[STABLE] Current working set of the %s in bytes"
	const notWindows = ". Reported only on non-windows systems"

	t := text(b)
	usage := func(object string, all []*series) {
		t = t.family(all, object+cpu, "counter", fmt.Sprintf(cpuHelp, object), cpuSeconds)
		t = t.family(all, object+memory, "gauge", fmt.Sprintf(memoryHelp, object), memoryBytes)
	}
	swap := func(all []*series, name, help string, f field) {
		if !k.cfg.NoSwap {
			t = t.family(all, name, "gauge", "[ALPHA] Current "+help+notWindows, f)
		}
	}
	containers := sampled(k.containers)
	usage("container", containers)
	t = t.family(containers, "container_start_time_seconds", "gauge",
		"[STABLE] Start time of the container since unix epoch in seconds", startTime)
	swap(containers, "container_swap_limit_bytes", "amount of the container swap limit in bytes",
		func(s *series) (float64, int64) { return swapOf(s, 0) })
	swap(containers, "container_swap_usage_bytes", "amount of the container swap usage in bytes",
		func(s *series) (float64, int64) { return swapOf(s, s.last.swap) })
	node := sampled([]*series{&k.node})
	usage("node", node)
	swap(node, "node_swap_usage_bytes", "swap usage of the node in bytes", swapBytes)
	pods := sampled(k.pods)
	usage("pod", pods)
	swap(pods, "pod_swap_usage_bytes", "amount of the pod swap usage in bytes", swapBytes)
	return t.scrapeError(0)
}

// scrapeError appends the metric that reports whether the kubelet failed to read its samples.
func (t text) scrapeError(value float64) text {
	const name = "resource_scrape_error"
	const help = "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise"
	return t.header(name, "gauge", help).sample(name, "", value, 0)
}
