package decode

import (
	"math"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Summary decodes responses to /stats/summary, in JSON. A Summary that is reused decodes without
// allocating. It must not be copied, nor used by two goroutines at once.
type Summary struct {
	MaxContainers int // that are kept of a response; 0: defaultMaxContainers
	state
	document

	node    string // the expected name of the node
	other   error  // not nil if the summary is of another node
	storage bool   // whether the usage of storage is decoded, instead of that of CPU and memory

	// Of the current pod:
	names   podNames
	partial bool // a container was skipped
	first   int  // position of its first container in dst
	disk    disk
	before  int // number of values that were skipped before it

	nodeDisk disk
}

type podNames struct{ namespace, pod, uid []byte }

// Decode parses the summary of a node into dst, whose memory it reuses. The result is that of
// Text.Decode with two differences: times are in whole seconds, because kubelets truncate them, and
// samples have the kubelet-reported rate.
//
// Decode ignores other fields and counts the values that it skips in dst.Skipped, by reason. A
// field that is null is missing; of duplicates, the last one counts.
//
// Errors have a reason: Undecodable if the text is not valid JSON, BadEndpoint if it is the summary of
// another node, or one of the others of Text.Decode. dst is not valid after an error.
func (d *Summary) Decode(dst *usage.Scrape, text []byte, node string) error {
	return d.decode(dst, text, node, false)
}

func (d *Summary) decode(dst *usage.Scrape, text []byte, node string, storage bool) error {
	defer d.release()
	d.begin(dst, d.MaxContainers)
	d.node, d.other, d.storage, d.nodeDisk = node, nil, storage, disk{}
	d.read(text)
	for key := range d.keys {
		switch key {
		case "node":
			for key := range d.keys {
				d.nodeField(key)
			}
		case "pods":
			for range d.elements {
				d.pod()
			}
		default:
			d.ignore()
		}
	}
	switch err := d.end(); {
	case err != nil:
		return err
	case d.other != nil:
		return d.other
	case storage:
		return d.finishStorage()
	}
	return d.finish()
}

// release drops the references to the text and to the scrape.
func (d *Summary) release() {
	d.state.release()
	d.read(nil)
	d.names = podNames{}
}

// nodeField decodes a field of the node. Its start time is ignored: /metrics/resource does not have it,
// and a node must not seem to restart because one of two responses does.
func (d *Summary) nodeField(key string) {
	switch {
	case key == "nodeName":
		d.checkNode(d.name())
	case d.storage:
		d.diskField(key, "fs", &d.nodeDisk)
	default:
		d.sample(key, &d.dst.Node)
	}
}

// checkNode rejects the summary of another node. The server at a node's address may represent many
// kubelets, or be the kubelet of another node that has the address now.
func (d *Summary) checkNode(name []byte) {
	if len(name) > 0 && string(name) != d.node {
		d.other = reason.Errorf(reason.BadEndpoint,
			"the response is from another node: its summary is that of %.100q", name)
	}
}

// pod decodes a pod. Its containers may come before its name.
func (d *Summary) pod() {
	d.names, d.partial, d.disk, d.before = podNames{}, false, disk{}, d.skipped()
	d.first = len(d.dst.Containers) + len(d.dst.Storage) // one of them is empty
	for key := range d.keys {
		switch {
		case key == "podRef":
			d.podRef()
		case key == "containers":
			d.checkType('[')
			for range d.elements {
				d.podContainer()
			}
		case d.storage:
			d.diskField(key, "ephemeral-storage", &d.disk)
		default:
			d.ignore()
		}
	}
	if d.storage {
		d.endStorage()
	} else {
		d.endContainers()
	}
}

func (d *Summary) podRef() {
	for key := range d.keys {
		switch {
		case key == "namespace":
			d.names.namespace = d.name()
		case key == "name":
			d.names.pod = d.name()
		case key == "uid" && d.storage:
			d.names.uid = d.name()
		default:
			d.ignore()
		}
	}
}

// podContainer decodes an element of the containers of a pod.
func (d *Summary) podContainer() {
	d.checkType('{')
	switch {
	case d.peek() != '{':
		d.wrongType(usage.Malformed)
	case d.storage:
		d.containerStorage()
	default:
		d.container()
	}
}

// checkType marks the pod as partial unless the next value begins with the bracket or is null.
func (d *Summary) checkType(bracket byte) {
	c := d.peek()
	d.partial = d.partial || c != bracket && c != 'n'
}

// canKeep reports whether a container can be kept, given the number of others. If not, it skips the container.
func (d *Summary) canKeep(name []byte, others int) bool {
	r, ok := checkNames(name)
	if ok && others >= d.max {
		r, ok = usage.OverLimit, false
	}
	if !ok {
		d.skipContainer(r)
		d.partial = true
	}
	return ok
}

// endContainers adds the names of a pod to its containers, or drops the pod if it cannot be kept as a whole.
func (d *Summary) endContainers() {
	containers := d.dst.Containers[d.first:]
	d.dst.Containers = d.dst.Containers[:d.first]
	if r, ok := checkNames(d.names.namespace, d.names.pod); !ok {
		for range containers {
			d.skipContainer(r)
		}
		return
	}
	if d.partial {
		d.dropPod(d.names.namespace, d.names.pod)
		return
	}
	for _, c := range containers {
		c.Namespace, c.Pod = d.names.namespace, d.names.pod
		if d.addID(c.Namespace, c.Pod, c.Name) {
			d.dst.Containers = append(d.dst.Containers, c)
		} else {
			d.skip(usage.Duplicate)
		}
	}
}

// container appends a container to dst.Containers.
func (d *Summary) container() {
	var c usage.ContainerSample
	for key := range d.keys {
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
		if used, at, _ := d.bytes("workingSetBytes"); used.present && at != 0 {
			s.Memory = used.value
			s.Has |= usage.HasMemory
		}
	case "swap":
		if used, at, _ := d.bytes("swapUsageBytes"); used.present && at != 0 {
			s.Swap = used.value
			s.Has |= usage.HasSwap
		}
	default:
		d.ignore()
	}
}

// cpu decodes the counter and the kubelet-reported rate. A rate of 0 may mean that the kubelet does
// not know it; see usage.FromKubeletRate.
func (d *Summary) cpu(s *usage.Sample) {
	var used, rate integer
	at, untimed := d.scrapedAt, true
	for key := range d.keys {
		switch key {
		case "time":
			at, untimed = d.time()
		case "usageCoreNanoSeconds":
			used = d.integer(math.MaxUint64)
		case "usageNanoCores":
			rate = d.integer(math.MaxInt64)
		default:
			d.ignore()
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

// startTime decodes when a container started; 0 if that is not known.
func (d *Summary) startTime() usage.NodeTime {
	if t, _ := d.date(); t >= usage.NodeTime(usage.OldestStart*time.Second) {
		return t
	}
	return 0
}
