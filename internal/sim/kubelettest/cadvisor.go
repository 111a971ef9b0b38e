package kubelettest

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"time"
)

// CadvisorPath is the path of the metrics of cAdvisor, which have other labels than those of
// ResourcePath: a series for each cgroup, and so for containers, sandboxes, pods and the node.
const CadvisorPath = "/metrics/cadvisor"

const (
	kubepods     = "/kubepods"
	image        = "registry.example/app:1"
	sandboxImage = "registry.example/pause:3.10"
)

// sandboxUsage is the usage of a sandbox, which starts with its pod and then does nothing.
var sandboxUsage = reading{cpu: uint64(30 * time.Millisecond), memory: 1 << 20}

// appendCadvisor appends the body of /metrics/cadvisor. The readings must be up to date.
func (k *Kubelet) appendCadvisor(b []byte) []byte {
	counters, gauges := k.cgroups("cpu", "total"), k.cgroups()
	t := text(b)
	t = t.family(counters, "container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed in seconds.",
		cpuSeconds)
	t = t.family(gauges, "container_memory_working_set_bytes", "gauge", "Current working set in bytes.", memoryBytes)
	const name = "container_scrape_error"
	t = t.header(name, "gauge", "1 if there was an error while getting container metrics, 0 otherwise")
	t = t.sample(name, "", 0, 0)
	return t.family(gauges, "container_start_time_seconds", "gauge",
		"Start time of the container since unix epoch in seconds.", startSeconds)
}

func startSeconds(s *series) (float64, int64) { return float64(s.start / int64(time.Second)), 0 }

// cgroups returns copies of the series with the labels of their cgroups, in the order of the text.
// more are names and values of additional labels.
func (k *Kubelet) cgroups(more ...string) []*series {
	var all []*series
	add := func(s series, container, id, image, name, namespace, pod string) {
		if s.last.at != 0 {
			s.labels = labels(slices.Concat([]string{"container", container}, more, []string{
				"id", id, "image", image, "name", name, "namespace", namespace, "pod", pod,
			})...)
			all = append(all, &s)
		}
	}
	add(k.node, "", "/", "", "", "", "")
	pods := k.node
	pods.last.cpu, pods.last.memory = 0, 0
	for _, p := range k.pods {
		pods.last.cpu += p.last.cpu
		pods.last.memory += p.last.memory
	}
	add(pods, "", kubepods, "", "", "", "")
	ids := map[*container]string{}
	for _, p := range k.pods {
		id := kubepods + "/besteffort/pod" + p.id()
		add(p.series, "", id, "", "", p.namespace, p.name)
		sandbox, name := p.series, hash(id)
		sandbox.last.cpu, sandbox.last.memory = sandboxUsage.cpu, sandboxUsage.memory
		add(sandbox, k.cfg.SandboxContainer, id+"/"+name, sandboxImage, name, p.namespace, p.name)
		for _, c := range p.containers {
			ids[c] = id
		}
	}
	for _, c := range k.containers {
		// A restarted container has another name, but the labels of its predecessor otherwise.
		name := hash(ids[c], c.name, time.Unix(0, c.started).String())
		add(c.series, c.name, ids[c]+"/"+name, image, name, c.namespace, c.pod)
	}
	return all
}

// id returns the UID of a pod.
func (p *pod) id() string {
	h := hash(p.namespace, p.name, time.Unix(0, p.started).String())
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:32]
}

// hash returns a name as container runtimes generate them.
func hash(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		h.Write([]byte(part))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil))
}
