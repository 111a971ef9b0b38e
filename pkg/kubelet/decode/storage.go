package decode

import (
	"math"
	"slices"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// disk is what a node or pod uses of the disk of its node.
type disk struct {
	used integer
	at   usage.NodeTime // when the kubelet measured it; 0: not known
}

// DecodeStorage parses the complete summary of a node into dst.Storage, whose memory it reuses. It sets no other
// samples.
//
// The usage of a pod is what the kubelet compares with the limit of the pod: the writable layers and
// logs of its containers, its volumes on the disk of the node, and a few files of the kubelet. A
// pod's samples are next to each other: one for each container with its writable layer and logs, as
// far as the kubelet knows them, then one for the rest. A pod has none if the kubelet does not know
// its usage. The sample of the node comes last.
//
// A pod is skipped as a whole if one of its values is invalid, or if it is reported twice. Apart from
// that, DecodeStorage treats the text as Decode does, and returns the same errors.
func (d *Summary) DecodeStorage(dst *usage.Scrape, text []byte, node string) error {
	return d.decode(dst, text, node, true)
}

// finishStorage adds the sample of the node, removes those of dropped pods, and returns an error if
// nothing is left.
func (d *Summary) finishStorage() error {
	if len(d.dropped) > 0 {
		d.dst.Storage = slices.DeleteFunc(d.dst.Storage, func(s usage.StorageSample) bool {
			return d.isDropped(s.Namespace, s.Pod)
		})
	}
	if d.nodeDisk.used.present {
		d.dst.Storage = append(d.dst.Storage, usage.StorageSample{Bytes: d.nodeDisk.used.value, At: d.nodeDisk.at})
	}
	return d.result(len(d.dst.Storage) > 0)
}

// diskField decodes a field into to if it has the given name. A value that was skipped in it leaves
// nothing.
func (d *Summary) diskField(key, name string, to *disk) {
	if key != name {
		d.ignore()
		return
	}
	before := d.skipped()
	used, at, untimed := d.bytes("usedBytes")
	if untimed {
		at = 0
	}
	used.present = used.present && d.skipped() == before
	*to = disk{used, at}
}

// endStorage appends the samples of a pod, or drops it.
func (d *Summary) endStorage() {
	containers := d.dst.Storage[d.first:]
	d.dst.Storage = d.dst.Storage[:d.first]
	if len(containers) == 0 {
		return
	}
	r, ok := checkNames(d.names.namespace, d.names.pod)
	if ok && len(d.names.uid) > 0 {
		r, ok = checkNames(d.names.uid)
	}
	switch {
	case !ok:
		d.skipContainer(r)
	case d.skipped() != d.before:
		d.dropPod(d.names.namespace, d.names.pod)
	case d.disk.used.present:
		d.addPod(containers, usage.StorageSample{
			Namespace: d.names.namespace, Pod: d.names.pod, UID: d.names.uid, Bytes: d.disk.used.value, At: d.disk.at,
		})
	}
}

// addPod appends the samples of a pod's containers, and the rest of the pod's usage. It drops the pod
// if it or one of its containers was reported before.
func (d *Summary) addPod(containers []usage.StorageSample, rest usage.StorageSample) {
	isNew := d.addID(rest.Namespace, rest.Pod, nil)
	for _, c := range containers {
		c.Namespace, c.Pod, c.UID, c.At = rest.Namespace, rest.Pod, rest.UID, rest.At
		isNew = isNew && d.addID(c.Namespace, c.Pod, c.Container)
		rest.Bytes -= min(rest.Bytes, c.Bytes)
		d.dst.Storage = append(d.dst.Storage, c)
	}
	d.dst.Storage = append(d.dst.Storage, rest)
	if !isNew {
		d.skipContainer(usage.Duplicate)
		d.dropPod(rest.Namespace, rest.Pod)
	}
}

// addID adds names to the index, and reports whether they are new.
func (d *Summary) addID(namespace, pod, container []byte) (isNew bool) {
	id := containerID{alias(namespace), alias(pod), alias(container)}
	_, known := d.index[id]
	d.index[id] = 0
	return !known
}

// containerStorage appends a container to dst.Storage. The times of its parts are ignored: containerd
// reports the year 1970 until it has measured them.
func (d *Summary) containerStorage() {
	var c usage.StorageSample
	var rootfs, logs integer
	for key := range d.keys {
		switch key {
		case "name":
			c.Container = d.name()
		case "rootfs":
			rootfs = d.usedBytes()
		case "logs":
			logs = d.usedBytes()
		default:
			d.ignore()
		}
	}
	if d.canKeep(c.Container, len(d.dst.Storage)) {
		c.Bytes = min(rootfs.value+logs.value, math.MaxInt64)
		d.dst.Storage = append(d.dst.Storage, c)
	}
}

// usedBytes decodes the number of used bytes of a filesystem.
func (d *Summary) usedBytes() (used integer) {
	for key := range d.keys {
		if key == "usedBytes" {
			used = d.integer(math.MaxInt64)
		} else {
			d.ignore()
		}
	}
	return used
}

// skipped returns the number of values that were skipped.
func (d *Summary) skipped() (n int) {
	for _, count := range d.dst.Skipped {
		n += count
	}
	return n
}
