package kubelettest

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// labels gives the label block of a series, with braces: names and values in turn.
func labels(pairs ...string) string {
	escape := strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
	var b strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		b.WriteByte("{,"[min(i, 1)])
		b.WriteString(pairs[i])
		b.WriteString(`="`)
		b.WriteString(escape.Replace(pairs[i+1]))
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.String()
}

// text is an answer in the text exposition format that is being written.
type text []byte

// family begins a metric family.
func (t text) family(name, kind, help string) text {
	t = append(t, "# HELP "...)
	t = append(t, name...)
	t = append(t, ' ')
	t = append(t, help...)
	t = append(t, "\n# TYPE "...)
	t = append(t, name...)
	t = append(t, ' ')
	t = append(t, kind...)
	return append(t, '\n')
}

// sample writes one line; at is in nanoseconds, 0 for a line without a timestamp.
func (t text) sample(name, labels string, value float64, at int64) text {
	t = append(t, name...)
	t = append(t, labels...)
	t = append(t, ' ')
	t = appendFloat(t, value)
	if at != 0 {
		t = append(t, ' ')
		t = strconv.AppendInt(t, at/int64(time.Millisecond), 10)
	}
	return append(t, '\n')
}

// appendFloat writes a value as Prometheus' libraries do.
func appendFloat(b []byte, v float64) []byte {
	switch {
	case v == 0:
		return append(b, '0') // common enough to be worth a shortcut
	case math.IsInf(v, 1):
		return append(b, "+Inf"...)
	default:
		return strconv.AppendFloat(b, v, 'g', -1, 64)
	}
}

// field is one reading of a series that a family tells.
type field func(*series) (value float64, at int64)

func cpuSeconds(s *series) (float64, int64)  { return float64(s.last.cpu) / 1e9, s.last.stamp }
func memoryBytes(s *series) (float64, int64) { return float64(s.last.memory), s.last.stamp }
func swapBytes(s *series) (float64, int64)   { return float64(s.last.swap), s.last.stamp }
func startTime(s *series) (float64, int64)   { return float64(s.start) / 1e9, 0 }

// appendResource writes the answer of /metrics/resource. The readings must be up to date.
func (k *Kubelet) appendResource(b []byte, now int64) []byte {
	t := k.containerFamilies(b, now)
	if k.node.last.at != 0 {
		t = k.nodeFamilies(t)
	}
	t = k.podFamilies(t)
	t = t.family("resource_scrape_error", "gauge", "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise")
	return t.sample("resource_scrape_error", "", 0, 0)
}

func (k *Kubelet) containerFamilies(t text, now int64) text {
	t = k.containerFamily(t, "container_cpu_usage_seconds_total", "counter",
		"[STABLE] Cumulative cpu time consumed by the container in core-seconds", cpuSeconds)
	t = k.containerFamily(t, "container_memory_working_set_bytes", "gauge",
		"[STABLE] Current working set of the container in bytes", memoryBytes)
	t = k.containerFamily(t, "container_start_time_seconds", "gauge",
		"[STABLE] Start time of the container since unix epoch in seconds", startTime)
	if k.cfg.NoSwap {
		return t
	}
	// A kubelet that asks the container runtime for samples stamps swap with the moment at which it
	// asks.
	swapAt := func(s *series) int64 { return s.last.stamp }
	if k.containerHousekeeping() == 0 {
		swapAt = func(*series) int64 { return now + int64(k.ahead) }
	}
	t = k.containerFamily(t, "container_swap_limit_bytes", "gauge",
		"[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems",
		func(s *series) (float64, int64) { return 0, swapAt(s) })
	return k.containerFamily(t, "container_swap_usage_bytes", "gauge",
		"[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems",
		func(s *series) (float64, int64) { return float64(s.last.swap), swapAt(s) })
}

func (k *Kubelet) nodeFamilies(t text) text {
	node := func(name, kind, help string, f field) {
		value, at := f(&k.node)
		t = t.family(name, kind, help).sample(name, "", value, at)
	}
	node("node_cpu_usage_seconds_total", "counter",
		"[STABLE] Cumulative cpu time consumed by the node in core-seconds", cpuSeconds)
	node("node_memory_working_set_bytes", "gauge",
		"[STABLE] Current working set of the node in bytes", memoryBytes)
	if !k.cfg.NoSwap {
		node("node_swap_usage_bytes", "gauge",
			"[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems", swapBytes)
	}
	return t
}

func (k *Kubelet) podFamilies(t text) text {
	t = k.podFamily(t, "pod_cpu_usage_seconds_total", "counter",
		"[STABLE] Cumulative cpu time consumed by the pod in core-seconds", cpuSeconds)
	t = k.podFamily(t, "pod_memory_working_set_bytes", "gauge",
		"[STABLE] Current working set of the pod in bytes", memoryBytes)
	if k.cfg.NoSwap {
		return t
	}
	return k.podFamily(t, "pod_swap_usage_bytes", "gauge",
		"[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems", swapBytes)
}

// containerFamily writes a family of all containers that have been sampled; one without a series is
// left out whole.
func (k *Kubelet) containerFamily(t text, name, kind, help string, f field) text {
	begun := false
	for _, c := range k.containers {
		if c.last.at == 0 {
			continue
		}
		if !begun {
			t, begun = t.family(name, kind, help), true
		}
		value, at := f(&c.series)
		t = t.sample(name, c.labels, value, at)
	}
	return t
}

// podFamily does the same for pods.
func (k *Kubelet) podFamily(t text, name, kind, help string, f field) text {
	begun := false
	for _, p := range k.pods {
		if p.last.at == 0 {
			continue
		}
		if !begun {
			t, begun = t.family(name, kind, help), true
		}
		value, at := f(&p.series)
		t = t.sample(name, p.labels, value, at)
	}
	return t
}
