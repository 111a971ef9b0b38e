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

	// Of the current pod: the position of its first container in dst.Storage, the number of skipped
	// values before it, and the used bytes and when the kubelet measured them.
	first, before int
	total         number
	totalAt       usage.Time
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
	d.begin(dst, times)
	d.limits, d.readUID, d.fs, d.fsAt = &d.Limits, true, number{}, 0
	return d.decode(d, text, node)
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

func (d *Storage) nodeField(key string) {
	if key != "fs" {
		d.json.skip()
		return
	}
	before := d.skipped()
	if d.fs = d.usedBytes(&d.fsAt); d.skipped() != before {
		d.fs.present = false
	}
}

func (d *Storage) beginPod() {
	d.first, d.before, d.total, d.totalAt = len(d.dst.Storage), d.skipped(), number{}, 0
}

func (d *Storage) podField(key string) {
	if key == "ephemeral-storage" {
		d.total = d.usedBytes(&d.totalAt)
	} else {
		d.json.skip()
	}
}

func (d *Storage) endPod(ref podRef) {
	containers := d.dst.Storage[d.first:]
	d.dst.Storage = d.dst.Storage[:d.first]
	if len(containers) == 0 {
		return
	}
	reason, ok := d.Limits.check(ref.namespace, ref.name)
	if ok && len(ref.uid) > 0 {
		reason, ok = d.Limits.check(ref.uid)
	}
	switch {
	case !ok:
		d.skipContainer(reason)
	case d.skipped() != d.before:
		d.dropPod(ref.namespace, ref.name)
	case d.total.present:
		d.addPod(containers, usage.StorageSample{
			Namespace: ref.namespace, Pod: ref.name, UID: ref.uid, Bytes: d.total.value, At: d.totalAt,
		})
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

// container appends a container to dst.Storage.
func (d *Storage) container() {
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
	if d.canKeep(c.Container, len(d.dst.Storage)) {
		c.Bytes = min(rootfs.value+logs.value, math.MaxInt64)
		d.dst.Storage = append(d.dst.Storage, c)
	}
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
