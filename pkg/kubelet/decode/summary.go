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

	partial bool // a container of the current pod was skipped
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
	d.begin(dst, text, node, times)
	d.summary()
	if err := d.json.finish(); err != nil {
		return err
	}
	if d.other != nil {
		return d.other
	}
	return d.finish()
}

func (d *Summary) summary() {
	for key := range d.fields {
		switch key {
		case "node":
			d.nodeStats()
		case "pods":
			for range d.elements {
				d.pod()
			}
		default:
			d.json.skip()
		}
	}
}

// nodeStats decodes the samples of the node. Its start time is ignored: /metrics/resource does not
// have it, and a node must not seem to restart because one of two responses does.
func (d *Summary) nodeStats() {
	for key := range d.fields {
		if key == "nodeName" {
			d.checkNode(d.name())
			continue
		}
		d.sample(key, &d.dst.Node)
	}
}

// pod decodes a pod. Its containers may come before its name.
func (d *Summary) pod() {
	var namespace, pod []byte
	first := len(d.dst.Containers)
	d.partial = false
	for key := range d.fields {
		switch key {
		case "podRef":
			for key := range d.fields {
				switch key {
				case "namespace":
					namespace = d.name()
				case "name":
					pod = d.name()
				default:
					d.json.skip()
				}
			}
		case "containers":
			d.checkType('[')
			for range d.elements {
				d.container()
			}
		default:
			d.json.skip()
		}
	}
	containers := d.dst.Containers[first:]
	d.dst.Containers = d.dst.Containers[:first]
	d.addPod(namespace, pod, containers)
}

// checkType marks the pod as partial unless the next value begins with the bracket or is null.
func (d *Summary) checkType(bracket byte) {
	c := d.json.peek()
	d.partial = d.partial || c != bracket && c != 'n'
}

// addPod appends the containers of a pod, or drops the pod if it cannot be kept as a whole.
func (d *Summary) addPod(namespace, pod []byte, containers []usage.ContainerSample) {
	if reason, ok := d.Limits.check(namespace, pod); !ok {
		for range containers {
			d.skipContainer(reason)
		}
		return
	}
	if d.partial {
		d.dropPod(namespace, pod)
		return
	}
	for _, c := range containers {
		c.Namespace, c.Pod = namespace, pod
		id := containerID{alias(namespace), alias(pod), alias(c.Name)}
		if _, known := d.index[id]; known {
			d.skip(usage.Duplicate)
			continue
		}
		d.index[id] = len(d.dst.Containers)
		d.dst.Containers = append(d.dst.Containers, c)
	}
}

// container appends a container to dst.Containers. Its pod is not known yet.
func (d *Summary) container() {
	d.checkType('{')
	if d.json.peek() != '{' {
		d.skipValue(usage.Malformed)
		return
	}
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
	reason, ok := d.Limits.check(c.Name)
	if ok && len(d.dst.Containers) >= d.Limits.maxContainers() {
		reason, ok = usage.OverLimit, false
	}
	if !ok {
		d.skipContainer(reason)
		d.partial = true
		return
	}
	d.dst.Containers = append(d.dst.Containers, c)
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
