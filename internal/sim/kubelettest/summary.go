package kubelettest

import (
	"encoding/hex"
	"encoding/json"
	"hash/fnv"
	"strconv"
	"time"
)

const (
	diskBytes = 100 << 30
	logBytes  = 4 << 10 // of a container, as far as it uses so much
)

// newSummary returns the body of /stats/summary, indented as by a kubelet; with filesystems unless
// only_cpu_and_memory=true was requested. The readings must be up to date.
func (k *Kubelet) newSummary(filesystems bool) []byte {
	j := &jsonWriter{noSwap: k.cfg.NoSwap, filesystems: filesystems, now: k.now() + int64(k.ahead)}
	j.open("", '{')
	j.open("node", '{')
	j.string("nodeName", k.name)
	j.open("systemContainers", '[')
	j.open("", '{')
	j.string("name", "pods")
	pods := k.allPods()
	j.time("startTime", pods.start)
	j.usage(&pods, details{psi: true, available: true})
	j.close('}')
	j.close(']')
	j.time("startTime", k.node.start)
	j.usage(&k.node, details{psi: true, available: true, swapAvailable: true})
	j.filesystem("fs", k.node.last.stamp, k.storage)
	j.close('}')
	j.open("pods", '[')
	for _, p := range k.pods {
		if p.last.at != 0 {
			k.appendPod(j, p)
		}
	}
	j.close(']')
	j.close('}')
	return j.b
}

func (k *Kubelet) appendPod(j *jsonWriter, p *pod) {
	j.open("", '{')
	j.open("podRef", '{')
	j.string("name", p.name)
	j.string("namespace", p.namespace)
	j.string("uid", p.uid)
	j.close('}')
	j.time("startTime", p.start)
	j.open("containers", '[')
	total := p.storage
	for _, c := range p.containers {
		if c.last.at == 0 {
			continue
		}
		j.open("", '{')
		j.string("name", c.name)
		j.time("startTime", c.start)
		j.usage(&c.series, details{onDemand: k.cfg.ContainersOnDemand, available: true, swapAvailable: true})
		logs := min(c.storage, logBytes)
		j.filesystem("rootfs", j.now, c.storage-logs)
		j.filesystem("logs", j.now, logs)
		total += c.storage
		j.close('}')
	}
	j.close(']')
	j.usage(&p.series, details{psi: true})
	j.filesystem("ephemeral-storage", j.now, total)
	j.close('}')
}

// allPods returns the series of the cgroup above all pods, as of the node's last reading and
// without a rate.
func (k *Kubelet) allPods() series {
	sum := series{start: k.node.start, last: reading{at: k.node.last.at, stamp: k.node.last.stamp}}
	for _, p := range k.pods {
		sum.last.cpu += p.last.cpu
		sum.last.memory += p.last.memory
		sum.last.swap += p.last.swap
	}
	return sum
}

// details selects the fields that a kubelet reports for some kinds of objects only.
type details struct {
	onDemand      bool // of containerd, which has no usageNanoCores and swap: 0
	psi           bool // pressure stall information
	available     bool // memory.availableBytes
	swapAvailable bool // swap.swapAvailableBytes
}

// jsonWriter writes indented JSON. It costs a fraction of encoding/json, which matters when a
// benchmark scrapes a thousand fake kubelets at once on the machine that it measures.
type jsonWriter struct {
	b           []byte
	depth       int
	noSwap      bool
	filesystems bool  // whether to write them
	now         int64 // by the node's clock
}

// next starts the line of the next element or field.
func (j *jsonWriter) next(key string) {
	if n := len(j.b); n > 0 {
		if last := j.b[n-1]; last != '{' && last != '[' {
			j.b = append(j.b, ',')
		}
		j.newline()
	}
	if key != "" {
		j.b = strconv.AppendQuote(j.b, key)
		j.b = append(j.b, ": "...)
	}
}

func (j *jsonWriter) newline() {
	j.b = append(j.b, '\n')
	for range j.depth {
		j.b = append(j.b, ' ')
	}
}

func (j *jsonWriter) open(key string, bracket byte) {
	j.next(key)
	j.b = append(j.b, bracket)
	j.depth++
}

func (j *jsonWriter) close(bracket byte) {
	j.depth--
	if last := j.b[len(j.b)-1]; last != '{' && last != '[' {
		j.newline()
	}
	j.b = append(j.b, bracket)
}

func (j *jsonWriter) string(key, value string) {
	j.next(key)
	quoted, _ := json.Marshal(value) // cannot fail for a string
	j.b = append(j.b, quoted...)
}

func (j *jsonWriter) uint(key string, value uint64) {
	j.next(key)
	j.b = strconv.AppendUint(j.b, value, 10)
}

func (j *jsonWriter) time(key string, at int64) {
	j.next(key)
	j.b = append(j.b, '"')
	j.b = time.Unix(0, at).UTC().AppendFormat(j.b, time.RFC3339)
	j.b = append(j.b, '"')
}

// usage writes the fields cpu, memory and swap.
func (j *jsonWriter) usage(s *series, d details) {
	j.open("cpu", '{')
	j.time("time", s.last.stamp)
	rate := s.kubeletRate()
	swap := s.last.swap
	if d.onDemand {
		rate, swap = 0, 0
	}
	j.uint("usageNanoCores", rate)
	j.uint("usageCoreNanoSeconds", s.last.cpu)
	j.pressure(d.psi)
	j.close('}')

	j.open("memory", '{')
	j.time("time", s.last.stamp)
	if d.available {
		j.uint("availableBytes", 0)
	}
	j.uint("usageBytes", s.last.memory)
	j.uint("workingSetBytes", s.last.memory)
	j.uint("rssBytes", s.last.memory)
	j.uint("pageFaults", 0)
	j.uint("majorPageFaults", 0)
	j.pressure(d.psi)
	j.close('}')

	if j.noSwap {
		return
	}
	j.open("swap", '{')
	j.time("time", s.last.stamp)
	if d.swapAvailable {
		j.uint("swapAvailableBytes", 0)
	}
	j.uint("swapUsageBytes", swap)
	j.close('}')
}

// filesystem writes the usage of a part of the node's disk.
func (j *jsonWriter) filesystem(key string, at int64, used uint64) {
	if !j.filesystems {
		return
	}
	j.open(key, '{')
	j.time("time", at)
	j.uint("availableBytes", diskBytes-min(diskBytes, used))
	j.uint("capacityBytes", diskBytes)
	j.uint("usedBytes", used)
	j.uint("inodesFree", 0)
	j.uint("inodes", 0)
	j.uint("inodesUsed", 0)
	j.close('}')
}

func (j *jsonWriter) pressure(known bool) {
	if !known {
		return
	}
	j.open("psi", '{')
	for _, kind := range []string{"full", "some"} {
		j.open(kind, '{')
		for _, key := range []string{"total", "avg10", "avg60", "avg300"} {
			j.uint(key, 0)
		}
		j.close('}')
	}
	j.close('}')
}

// uid returns a UID that is a hash of a pod's names.
func uid(namespace, name string) string {
	h := fnv.New128a()
	h.Write([]byte(namespace + "/" + name))
	s := hex.EncodeToString(h.Sum(nil))
	return s[:8] + "-" + s[8:12] + "-4" + s[13:16] + "-a" + s[17:20] + "-" + s[20:]
}
