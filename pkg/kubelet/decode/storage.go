package decode

import (
	"math"
	"slices"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Storage decodes complete responses to /stats/summary, in JSON: the usage of local ephemeral
// storage. The zero value is ready for use. A Storage that is reused decodes without allocating. It
// must not be copied, nor used by two goroutines at once.
type Storage struct {
	Limits Limits
	document

	fs   number     // used bytes of the node
	fsAt usage.Time // when the kubelet measured them; 0: not known
}

// Decode parses the summary of a node into dst.Storage, whose memory it reuses. It sets no other
// samples.
//
// The usage of a pod is what the kubelet compares with the limit of the pod: the writable layers and
// logs of its containers, its volumes on the disk of the node, and a few files of the kubelet. A
// pod's samples are next to each other: one for each container with its writable layer and logs, as
// far as the kubelet knows them, then one for the rest. A pod has none if the kubelet does not know
// its usage. The sample of the node comes last.
//
// A pod is skipped as a whole if one of its values is invalid, or if it is reported twice. Apart from
// that, Decode treats the text as Summary.Decode does, and returns the same errors.
func (d *Storage) Decode(dst *usage.Scrape, text []byte, node string, times Times) error {
	defer d.release()
	d.begin(dst, text, node, times)
	d.fs, d.fsAt = number{}, 0
	d.summary()
	if err := d.json.finish(); err != nil {
		return err
	}
	if d.other != nil {
		return d.other
	}
	return d.finish()
}

// finish adds the sample of the node, removes those of dropped pods, and returns an error if nothing
// is left.
func (d *Storage) finish() error {
	if len(d.dropped) > 0 {
		d.dst.Storage = slices.DeleteFunc(d.dst.Storage, func(s usage.StorageSample) bool {
			_, dropped := d.dropped[podID{alias(s.Namespace), alias(s.Pod)}]
			return dropped
		})
	}
	if d.fs.present {
		d.dst.Storage = append(d.dst.Storage, usage.StorageSample{Bytes: d.fs.value, At: d.fsAt})
	}
	switch {
	case len(d.dst.Storage) > 0:
		return nil
	case d.dst.Skipped[usage.BadTime] > 0:
		return &BadTimeError{d.future, d.dst.Date}
	case d.dst.Skipped[usage.Malformed] > 0:
		return ErrUndecodable
	}
	return ErrNoSamples
}

func (d *Storage) summary() {
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

func (d *Storage) nodeStats() {
	for key := range d.fields {
		switch key {
		case "nodeName":
			d.checkNode(d.name())
		case "fs":
			before := d.skipped()
			if d.fs = d.usedBytes(&d.fsAt); d.skipped() != before {
				d.fs.present = false
			}
		default:
			d.json.skip()
		}
	}
}

// pod decodes a pod. Its names may come last.
func (d *Storage) pod() {
	var namespace, pod, uid []byte
	var total number
	var at usage.Time
	first, before := len(d.dst.Storage), d.skipped()
	for key := range d.fields {
		switch key {
		case "podRef":
			for key := range d.fields {
				switch key {
				case "namespace":
					namespace = d.name()
				case "name":
					pod = d.name()
				case "uid":
					uid = d.name()
				default:
					d.json.skip()
				}
			}
		case "containers":
			for range d.elements {
				d.container()
			}
		case "ephemeral-storage":
			total = d.usedBytes(&at)
		default:
			d.json.skip()
		}
	}
	containers := d.dst.Storage[first:]
	d.dst.Storage = d.dst.Storage[:first]
	if len(containers) == 0 {
		return
	}
	reason, ok := d.Limits.check(namespace, pod)
	if ok && len(uid) > 0 {
		reason, ok = d.Limits.check(uid)
	}
	switch {
	case !ok:
		d.skipContainer(reason)
	case d.skipped() != before:
		d.dropPod(namespace, pod)
	case total.present:
		d.addPod(containers, usage.StorageSample{Namespace: namespace, Pod: pod, UID: uid, Bytes: total.value, At: at})
	}
}

// addPod appends the samples of a pod's containers, and the rest of the pod's usage. It drops the pod
// if it or one of its containers was reported before.
func (d *Storage) addPod(containers []usage.StorageSample, rest usage.StorageSample) {
	isNew := d.addID(rest)
	for _, c := range containers {
		c.Namespace, c.Pod, c.UID, c.At = rest.Namespace, rest.Pod, rest.UID, rest.At
		isNew = isNew && d.addID(c)
		rest.Bytes -= min(rest.Bytes, c.Bytes)
		d.dst.Storage = append(d.dst.Storage, c)
	}
	d.dst.Storage = append(d.dst.Storage, rest)
	if !isNew {
		d.skipContainer(usage.Duplicate)
		d.dropPod(rest.Namespace, rest.Pod)
	}
}

// addID adds a sample to the index, and reports whether it is the first one of these names.
func (d *Storage) addID(s usage.StorageSample) bool {
	id := containerID{alias(s.Namespace), alias(s.Pod), alias(s.Container)}
	_, known := d.index[id]
	d.index[id] = 0
	return !known
}

// container appends a container to dst.Storage. Its pod is not known yet.
func (d *Storage) container() {
	if d.json.peek() != '{' {
		d.skipValue(usage.Malformed)
		return
	}
	var c usage.StorageSample
	var rootfs, logs number
	for key := range d.fields {
		switch key {
		case "name":
			c.Container = d.name()
		case "rootfs":
			rootfs = d.usedBytes(nil)
		case "logs":
			logs = d.usedBytes(nil)
		default:
			d.json.skip()
		}
	}
	reason, ok := d.Limits.check(c.Container)
	if ok && len(d.dst.Storage) >= d.Limits.maxContainers() {
		reason, ok = usage.OverLimit, false
	}
	if !ok {
		d.skipContainer(reason)
		return
	}
	c.Bytes = min(rootfs.value+logs.value, math.MaxInt64)
	d.dst.Storage = append(d.dst.Storage, c)
}

// usedBytes decodes the number of used bytes of a filesystem. It sets at, if it is not nil, to the
// time of the measurement; 0 if the kubelet does not report it. Of parts of a pod, containerd reports
// the year 1970 until it has measured them.
func (d *Storage) usedBytes(at *usage.Time) (used number) {
	if at != nil {
		*at = 0
	}
	for key := range d.fields {
		switch {
		case key == "usedBytes":
			used = d.number(math.MaxInt64)
		case key == "time" && at != nil:
			*at, _ = d.date()
		default:
			d.json.skip()
		}
	}
	return used
}

// skipped returns the number of values that were skipped.
func (d *Storage) skipped() (n int) {
	for _, count := range d.dst.Skipped {
		n += count
	}
	return n
}
