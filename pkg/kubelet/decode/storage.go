package decode

import (
	"slices"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// filesystem is what a node or pod uses of the disk of its node.
type filesystem struct {
	Time timestamp `json:"time"`
	Used *uint64   `json:"usedBytes"`
}

type nodeDisk struct {
	FS filesystem `json:"fs"`
}

type containerDisk struct {
	Rootfs partOfDisk `json:"rootfs"`
	Logs   partOfDisk `json:"logs"`
}

// partOfDisk is a filesystem without its time: containerd reports the year 1970 until it has measured.
type partOfDisk struct {
	Used *uint64 `json:"usedBytes"`
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
	defer d.release()
	n, err := decode[nodeDisk](d, dst, text, node, d.addStorage)
	if err != nil {
		return err
	}
	if len(d.dropped) > 0 {
		dst.Storage = slices.DeleteFunc(dst.Storage, func(s usage.StorageSample) bool {
			return d.isDropped(s.Namespace, s.Pod)
		})
	}
	if s, ok := d.disk(&n.FS); ok && n.FS.Used != nil {
		dst.Storage = append(dst.Storage, s)
	}
	return d.result(len(dst.Storage) > 0)
}

// disk converts the usage of a filesystem. It skips values that are not valid, and returns false if there
// are any.
func (d *Summary) disk(fs *filesystem) (s usage.StorageSample, ok bool) {
	s.At, ok = d.time(fs.Time)
	s.Bytes = valueOf(fs.Used)
	return s, d.isSize(fs.Used) && ok
}

// addStorage appends the samples of a pod's containers and the rest of the pod's usage to dst.Storage. It
// drops the pod if it or one of its containers was reported before.
func (d *Summary) addStorage(p *summaryPod[containerDisk]) {
	rest, ok := d.disk(&p.Disk)
	for i := range p.Containers {
		c := &p.Containers[i].Values
		ok = d.isSize(c.Rootfs.Used) && d.isSize(c.Logs.Used) && ok
	}
	if !ok {
		d.dropPod(p.Ref.Namespace, p.Ref.Name)
	}
	if !ok || p.Disk.Used == nil {
		return
	}
	rest.Namespace, rest.Pod, rest.UID = p.Ref.Namespace, p.Ref.Name, p.Ref.UID
	isNew := d.addID(rest.Namespace, rest.Pod, nil)
	for i := range p.Containers {
		from, c := &p.Containers[i], rest
		c.Container = from.Name
		c.Bytes = usage.Sum(valueOf(from.Values.Rootfs.Used), valueOf(from.Values.Logs.Used))
		isNew = d.addID(c.Namespace, c.Pod, c.Container) && isNew
		rest.Bytes -= min(rest.Bytes, c.Bytes)
		d.dst.Storage = append(d.dst.Storage, c)
	}
	d.dst.Storage = append(d.dst.Storage, rest)
	if !isNew {
		d.skipContainer(usage.Duplicate)
		d.dropPod(rest.Namespace, rest.Pod)
	}
}

// valueOf returns a value, or 0 if it is missing.
func valueOf(value *uint64) uint64 {
	if value == nil {
		return 0
	}
	return *value
}
