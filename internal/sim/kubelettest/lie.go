package kubelettest

import (
	"bytes"
	"encoding/json"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Sample is what a response reports of a container, or of the node itself, which has no names.
type Sample struct {
	Namespace, Pod, Container string

	CPU       float64   // core-seconds
	Rate      float64   // cores; in the summary only
	Memory    float64   // bytes of the working set
	At, Start time.Time // by the node's clock; Start is zero for the node in /metrics/resource
	Omitted   bool      // the response does not mention it
}

// Zero makes a sample what a kubelet reports of a container that runs, but whose statistics the
// runtime cannot read: everything is 0, sampled now. The start time stays (zeroMissingValues in the
// kubelet's cri_stats_provider.go).
func (s *Sample) Zero(now time.Time) { s.CPU, s.Rate, s.Memory, s.At = 0, 0, 0, now }

// EditSamples alters what both responses report of containers and of the node. The responses stay
// valid and complete. edit is called once for each sample; now is the node's clock.
func EditSamples(edit func(s *Sample, now time.Time)) Fault {
	return func(r *Response) {
		change := func(s *Sample) { edit(s, r.Now) }
		Edit(func(text []byte) []byte { return editTextSamples(text, change) })(r)
		editSummary(func(body []byte) []byte { return editSummarySamples(body, change) })(r)
	}
}

// containerLabels matches the labels of a container whose names have nothing escaped.
var containerLabels = regexp.MustCompile(`^\{container="([^"\\]*)",namespace="([^"\\]*)",pod="([^"\\]*)"\}$`)

// edited is a sample before and after the edit.
type edited struct{ old, new Sample }

func editTextSamples(text []byte, edit func(*Sample)) []byte {
	all := map[string]*edited{} // by labels
	r := &Response{Body: text, format: resource}
	editSamples(func(out []byte, s sample) []byte {
		if e, kind := find(all, s); e != nil {
			value, _ := strconv.ParseFloat(string(s.value), 64)
			switch kind {
			case cpuFamily:
				e.old.CPU = value
				e.old.At, _ = s.time()
			case memoryFamily:
				e.old.Memory = value
			case startFamily:
				e.old.Start = secondsTime(value)
			}
		}
		return s.append(out)
	})(r)
	for _, e := range all {
		e.new = e.old
		edit(&e.new)
	}
	editSamples(func(out []byte, s sample) []byte {
		e, kind := find(all, s)
		if e == nil {
			return s.append(out)
		}
		if e.new.Omitted {
			return out
		}
		return e.rewrite(s, kind).append(out)
	})(r)
	return r.Body
}

// The ends of the names of the families with samples.
const (
	cpuFamily    = "_cpu_usage_seconds_total"
	memoryFamily = "_memory_working_set_bytes"
	startFamily  = "_start_time_seconds"
)

// find returns the sample that a line belongs to, or nil, and the family of the line.
func find(all map[string]*edited, s sample) (e *edited, kind string) {
	family, labels := s.split()
	object, kind, _ := strings.Cut(family, "_")
	var names [4]string
	switch m := containerLabels.FindStringSubmatch(labels); {
	case object == "container" && m != nil:
		copy(names[:], m)
	case object != "node":
		return nil, ""
	}
	if all[labels] == nil {
		all[labels] = &edited{old: Sample{Container: names[1], Namespace: names[2], Pod: names[3]}}
	}
	return all[labels], "_" + kind
}

// rewrite writes what the edit has changed into a line.
func (e *edited) rewrite(s sample, kind string) sample {
	set := func(old, value float64) {
		if old != value {
			s.value = strconv.AppendFloat(nil, value, 'g', -1, 64)
		}
	}
	switch kind {
	case cpuFamily:
		set(e.old.CPU, e.new.CPU)
	case memoryFamily:
		set(e.old.Memory, e.new.Memory)
	case startFamily:
		if !e.old.Start.Equal(e.new.Start) {
			set(-1, float64(e.new.Start.UnixMicro())/1e6)
		}
		return s
	}
	if len(s.timestamp) > 0 {
		s.timestamp = strconv.AppendInt(nil, e.new.At.UnixMilli(), 10)
	}
	return s
}

func secondsTime(seconds float64) time.Time { return time.UnixMicro(int64(math.Round(seconds * 1e6))) }

// The part of the summary that is edited, in the order of a kubelet. The pressure is left out.
type (
	summaryJSON struct {
		Node struct {
			NodeName         string          `json:"nodeName"`
			SystemContainers json.RawMessage `json:"systemContainers"`
			statsJSON
		} `json:"node"`
		Pods []struct {
			PodRef     map[string]string `json:"podRef"`
			StartTime  time.Time         `json:"startTime"`
			Containers []containerJSON   `json:"containers"`
			statsJSON
		} `json:"pods"`
	}
	containerJSON struct {
		Name string `json:"name"`
		statsJSON
	}
	statsJSON struct {
		StartTime time.Time `json:"startTime"`
		CPU       struct {
			Time  time.Time `json:"time"`
			Rate  uint64    `json:"usageNanoCores"`
			Total uint64    `json:"usageCoreNanoSeconds"`
		} `json:"cpu"`
		Memory struct {
			Time       time.Time `json:"time"`
			Usage      uint64    `json:"usageBytes"`
			WorkingSet uint64    `json:"workingSetBytes"`
		} `json:"memory"`
		Swap    json.RawMessage `json:"swap,omitempty"`
		FS      json.RawMessage `json:"fs,omitempty"`
		Rootfs  json.RawMessage `json:"rootfs,omitempty"`
		Logs    json.RawMessage `json:"logs,omitempty"`
		Storage json.RawMessage `json:"ephemeral-storage,omitempty"`
	}
)

func editSummarySamples(body []byte, edit func(*Sample)) []byte {
	var all summaryJSON
	if json.Unmarshal(body, &all) != nil {
		return body // altered by another fault
	}
	all.Node.edit(Sample{}, edit)
	for i := range all.Pods {
		p := &all.Pods[i]
		kept := p.Containers[:0]
		for _, c := range p.Containers {
			if c.edit(Sample{Namespace: p.PodRef["namespace"], Pod: p.PodRef["name"], Container: c.Name}, edit) {
				kept = append(kept, c)
			}
		}
		p.Containers = kept
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetIndent("", " ")
	_ = encoder.Encode(all) // cannot fail
	return out.Bytes()
}

// edit reports whether the object stays in the response.
func (j *statsJSON) edit(s Sample, edit func(*Sample)) bool {
	s.CPU, s.Rate, s.Memory = float64(j.CPU.Total)/1e9, float64(j.CPU.Rate)/1e9, float64(j.Memory.WorkingSet)
	s.At, s.Start = j.CPU.Time, j.StartTime
	old := s
	edit(&s)
	if s.CPU != old.CPU {
		j.CPU.Total = nanocores(s.CPU)
	}
	j.CPU.Rate, j.Memory.WorkingSet = nanocores(s.Rate), uint64(s.Memory)
	j.CPU.Time, j.Memory.Time = s.At.UTC().Truncate(time.Second), s.At.UTC().Truncate(time.Second)
	j.StartTime = s.Start.UTC().Truncate(time.Second)
	return !s.Omitted
}
