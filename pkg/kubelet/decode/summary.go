package decode

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Summary decodes responses to /stats/summary, in JSON. It must not be copied, nor used by two goroutines
// at once.
type Summary struct {
	MaxContainers int // that are kept of a response
	state
}

// summaryNode is the node of a summary, and T the part of it that is decoded.
type summaryNode[T any] struct {
	Name   name `json:"nodeName"`
	Values T    `json:",embed"`
}

type summaryPod[T any] struct {
	Ref struct {
		Namespace name `json:"namespace"`
		Name      name `json:"name"`
		UID       name `json:"uid"`
	} `json:"podRef"`
	Containers list[summaryContainer[T]] `json:"containers"`
	Disk       filesystem                `json:"ephemeral-storage"`
}

type summaryContainer[T any] struct {
	Name   name `json:"name"`
	Values T    `json:",embed"`
}

// stats are the samples of a node or container. The start time of a node is ignored: /metrics/resource
// does not have it, and a node must not seem to restart because one of two responses does.
type stats struct {
	CPU struct {
		Time    timestamp `json:"time"`
		Counter *uint64   `json:"usageCoreNanoSeconds"`
		Rate    *uint64   `json:"usageNanoCores"`
	} `json:"cpu"`
	Memory struct {
		Time timestamp `json:"time"`
		Used *uint64   `json:"workingSetBytes"`
	} `json:"memory"`
	Swap struct {
		Time timestamp `json:"time"`
		Used *uint64   `json:"swapUsageBytes"`
	} `json:"swap"`
}

type containerStats struct {
	StartTime timestamp `json:"startTime"`
	stats
}

// Decode parses the summary of a node into dst, whose memory it reuses. The result is that of
// Text.Decode with four differences: times are in whole seconds, because kubelets truncate them; samples
// have the kubelet-reported rate; the start of a container that is later than any valid time counts as a
// BadTime; and a value that is skipped sets no Loss.
//
// Decode ignores other fields. It skips a pod with a value of the wrong type as a whole, and otherwise only
// values that are out of range. It counts both in dst.Skipped, by reason. A field that is null is missing.
// If a field occurs twice, the last value counts.
//
// Errors have a reason: Undecodable if the text is not valid JSON or no summary, BadEndpoint if it is the
// summary of another node, or one of the others of Text.Decode. dst is not valid after an error.
func (d *Summary) Decode(dst *usage.Scrape, text []byte, node string) error {
	defer d.release()
	n, err := decode[stats](d, dst, text, node, d.addContainers)
	if err != nil {
		return err
	}
	dst.Node = d.sample(&n)
	return d.finish()
}

// decode calls add for each pod that can be kept, and returns the values of the node. A pod is valid until
// add returns. Each is decoded alone: structs of a whole summary would take a hundred times the memory of
// its text if a kubelet is hostile.
func decode[N, C any](d *Summary, dst *usage.Scrape, text []byte, name string, add func(*summaryPod[C])) (N, error) {
	d.begin(dst, d.MaxContainers)
	var node N
	var rejected error
	summary := struct {
		Node value[summaryNode[N]] `json:"node"`
		Pods values[summaryPod[C]] `json:"pods"`
	}{
		func(n *summaryNode[N], err error) {
			rejected = cmp.Or(rejected, d.checkNode(n.Name, name, err))
			if node = *new(N); err == nil {
				node = n.Values
			}
		},
		func(p *summaryPod[C], err error) {
			if accept(d, p, err) {
				add(p)
			}
		},
	}
	// To find duplicates, the decoder would need memory for all names of fields.
	err := json.Unmarshal(text, &summary, jsontext.AllowDuplicateNames(true))
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok { // its text has names, which may be long
		err = fmt.Errorf("%w at offset %d", syntax.Err, syntax.ByteOffset)
	}
	if err != nil {
		return node, reason.Errorf(reason.Undecodable, "%w: %w", errNotSummary, err)
	}
	return node, rejected
}

// checkNode rejects the summary of another node: the server at a node's address may represent many kubelets, or
// be the kubelet of another node that has the address now. It skips a node that cannot be decoded, and rejects the
// summary if that has hidden the name. A missing name is accepted.
func (d *Summary) checkNode(name name, want string, err error) error {
	switch {
	case len(name) > 0 && string(name) != want:
		return reason.Errorf(reason.BadEndpoint, "the response is from another node: its summary is that of %.100q", name)
	case err != nil && len(name) == 0:
		return errUndecodable
	case err != nil:
		d.skipContainer(usage.Malformed)
	}
	return nil
}

// accept reports whether a pod can be kept as a whole. If not, it drops the pod. err is not nil if the
// pod cannot be decoded.
func accept[C any](d *Summary, p *summaryPod[C], err error) bool {
	ref, kept := &p.Ref, len(d.dst.Containers)+len(d.dst.Storage) // one of them is empty
	r, ok := usage.CheckNames(ref.Namespace, ref.Name)
	if ok && len(ref.UID) > 0 {
		r, ok = usage.CheckNames(ref.UID)
	}
	for i := 0; ok && i < len(p.Containers); i++ {
		r, ok = usage.CheckNames(p.Containers[i].Name)
	}
	switch {
	case errors.Is(err, errTooMany), kept+len(p.Containers) > d.max:
		r, ok = usage.OverLimit, false
	case err != nil:
		r, ok = usage.Malformed, false
	case len(p.Containers) == 0:
		return false
	}
	if !ok {
		d.skipContainer(r)
		d.dropPod(ref.Namespace, ref.Name)
	}
	return ok
}

// addContainers appends the containers of a pod to dst.Containers.
func (d *Summary) addContainers(p *summaryPod[containerStats]) {
	for i := range p.Containers {
		c := &p.Containers[i]
		if !d.addID(p.Ref.Namespace, p.Ref.Name, c.Name) {
			d.skip(usage.Duplicate)
			continue
		}
		sample := d.sample(&c.Values.stats)
		if at, _ := d.time(c.Values.StartTime); at >= usage.NodeTime(usage.OldestStart*time.Second) {
			sample.StartedAt = at
		}
		d.dst.Containers = append(d.dst.Containers, usage.ContainerSample{
			Namespace: p.Ref.Namespace, Pod: p.Ref.Name, Name: c.Name, Sample: sample,
		})
	}
}

// addID adds names to the index, and reports whether they are new.
func (d *Summary) addID(namespace, pod, container []byte) (isNew bool) {
	id := containerID{alias(namespace), alias(pod), alias(container)}
	_, known := d.index[id]
	d.index[id] = 0
	return !known
}

// sample converts the values that are valid. A rate of 0 may mean that the kubelet does not know it; see
// usage.FromKubeletRate.
func (d *Summary) sample(from *stats) (s usage.Sample) {
	cpu, memory, swap := &from.CPU, &from.Memory, &from.Swap
	hasCounter, hasRate := cpu.Counter != nil, d.isSize(cpu.Rate) && cpu.Rate != nil
	if at, ok := d.time(cpu.Time); ok && (hasCounter || hasRate) {
		s.At, s.Untimed = at, at == 0
		if s.Untimed {
			s.At = d.scrapedAt
		}
		if hasCounter {
			s.CPUSeconds = float64(*cpu.Counter) / float64(time.Second)
			s.Has |= usage.HasCPU
		}
		if hasRate {
			s.Rate = *cpu.Rate
			s.Has |= usage.HasRate
		}
	}
	if _, ok := d.time(memory.Time); d.isSize(memory.Used) && ok && memory.Used != nil {
		s.Memory = *memory.Used
		s.Has |= usage.HasMemory
	}
	if _, ok := d.time(swap.Time); d.isSize(swap.Used) && ok && swap.Used != nil {
		s.Swap = *swap.Used
		s.Has |= usage.HasSwap
	}
	return s
}
