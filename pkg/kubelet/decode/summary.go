package decode

import (
	"math"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Summary decodes responses to /stats/summary, in JSON. The zero value is ready for use. A Summary
// that is reused decodes without allocating. It must not be copied, nor used by two goroutines at
// once.
type Summary struct {
	Limits Limits
	document

	first int // position in dst.Containers of the first container of the current pod
}

// Decode parses the summary of a node into dst, whose memory it reuses. The result is that of
// Text.Decode with two differences: times are in whole seconds, because kubelets truncate them, and
// samples have the kubelet-reported rate.
//
// Decode ignores other fields and counts the values that it skips in dst.Skipped, by reason. A
// field that is null is missing; of duplicates, the last one counts.
//
// Decode returns ErrNotJSON if the text is not valid JSON; ErrOtherNode if it is the summary of
// another node; ErrNoSamples if there is no sample of the node or of a container; ErrUndecodable if
// there is none, but a value of another type than in summaries; and a BadTimeError if no sample has
// a valid time. dst is not valid after an error.
func (d *Summary) Decode(dst *usage.Scrape, text []byte, node string, times Times) error {
	defer d.release()
	d.begin(dst, times)
	d.limits = &d.Limits
	return d.decode(d, text, node)
}

// nodeField decodes a part of the samples of the node. Its start time is ignored: /metrics/resource
// does not have it, and a node must not seem to restart because one of two responses does.
func (d *Summary) nodeField(key string) { d.sample(key, &d.dst.Node) }

func (d *Summary) podField(string) { d.json.skip() }

func (d *Summary) beginPod() { d.first = len(d.dst.Containers) }

// endPod adds the names of a pod to its containers, or drops the pod if it cannot be kept as a whole.
func (d *Summary) endPod(ref podRef) {
	containers := d.dst.Containers[d.first:]
	d.dst.Containers = d.dst.Containers[:d.first]
	if reason, ok := d.Limits.check(ref.namespace, ref.name); !ok {
		for range containers {
			d.skipContainer(reason)
		}
		return
	}
	if d.partial {
		d.dropPod(ref.namespace, ref.name)
		return
	}
	for _, c := range containers {
		c.Namespace, c.Pod = ref.namespace, ref.name
		id := containerID{alias(ref.namespace), alias(ref.name), alias(c.Name)}
		if _, known := d.index[id]; known {
			d.skip(usage.Duplicate)
			continue
		}
		d.index[id] = len(d.dst.Containers)
		d.dst.Containers = append(d.dst.Containers, c)
	}
}

// container appends a container to dst.Containers.
func (d *Summary) container() {
	var c usage.ContainerSample
	for key := range d.fields {
		switch key {
		case "name":
			c.Name = d.name()
		case "startTime":
			c.StartedAt = d.startTime()
		default:
			d.sample(key, &c.Sample)
		}
	}
	if d.canKeep(c.Name, len(d.dst.Containers)) {
		d.dst.Containers = append(d.dst.Containers, c)
	}
}

// sample decodes a field of a node or container into s, if it is a part of a sample.
func (d *Summary) sample(key string, s *usage.Sample) {
	switch key {
	case "cpu":
		d.cpu(s)
	case "memory":
		if used, at := d.bytes("workingSetBytes"); used.present && at != 0 {
			s.Memory, s.MemoryAt = used.value, at
			s.Has |= usage.HasMemory
		}
	case "swap":
		if used, at := d.bytes("swapUsageBytes"); used.present && at != 0 {
			s.Swap = used.value
			s.Has |= usage.HasSwap
		}
	default:
		d.json.skip()
	}
}

// cpu decodes the counter and the kubelet-reported rate. A rate of 0 may mean that the kubelet does
// not know it; see usage.FromKubeletRate.
func (d *Summary) cpu(s *usage.Sample) {
	var used, rate number
	at, untimed := d.dst.At, true
	for key := range d.fields {
		switch key {
		case "time":
			at, untimed = d.time()
		case "usageCoreNanoSeconds":
			used = d.number(math.MaxUint64)
		case "usageNanoCores":
			rate = d.number(math.MaxInt64)
		default:
			d.json.skip()
		}
	}
	if at == 0 || !used.present && !rate.present {
		return
	}
	s.At, s.Untimed = at, untimed
	if used.present {
		s.CPUSeconds = float64(used.value) / float64(time.Second)
		s.Has |= usage.HasCPU
	}
	if rate.present {
		s.Rate = rate.value
		s.Has |= usage.HasRate
	}
}

// bytes decodes an object that has a time and, under the given key, a number of bytes.
func (d *Summary) bytes(name string) (used number, at usage.Time) {
	at = d.dst.At
	for key := range d.fields {
		switch key {
		case "time":
			at, _ = d.time()
		case name:
			used = d.number(math.MaxInt64)
		default:
			d.json.skip()
		}
	}
	return used, at
}

// startTime decodes when a container started; 0 if that is not known.
func (d *Summary) startTime() usage.Time {
	if t, _ := d.date(); t >= usage.Time(oldestStart*time.Second) {
		return t
	}
	return 0
}
