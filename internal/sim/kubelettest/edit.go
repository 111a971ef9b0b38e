package kubelettest

import (
	"bytes"
	"regexp"
	"slices"
	"strconv"
	"time"
)

// Edit alters the text of /metrics/resource.
func Edit(edit func(text []byte) []byte) Fault { return editFormat(resource, edit) }

// editSummary alters the JSON of the summary.
func editSummary(edit func(json []byte) []byte) Fault { return editFormat(summary, edit) }

func editFormat(f format, edit func([]byte) []byte) Fault {
	return func(r *Response) {
		if r.format == f {
			r.Body = edit(r.Body)
		}
	}
}

// addText appends to the text.
func addText(more string) Fault {
	return Edit(func(text []byte) []byte { return append(text, more...) })
}

// sample is a line of the text that is not a comment.
type sample struct {
	series    []byte // name and labels
	value     []byte
	timestamp []byte // nil if there is none
}

// parseSample parses a line that this package wrote. Only labels can contain spaces.
func parseSample(line []byte) sample {
	end := bytes.LastIndexByte(line, '}') + 1
	if end == 0 {
		end = bytes.IndexByte(line, ' ')
	}
	value, timestamp, _ := bytes.Cut(line[end+1:], []byte(" "))
	return sample{series: line[:end], value: value, timestamp: timestamp}
}

// split returns the name of the metric, and the labels with braces.
func (s sample) split() (family, labels string) {
	name, _, _ := bytes.Cut(s.series, []byte("{"))
	return string(name), string(s.series[len(name):])
}

// time returns the timestamp. ok is false if there is none.
func (s sample) time() (at time.Time, ok bool) {
	ms, err := strconv.ParseInt(string(s.timestamp), 10, 64)
	return time.UnixMilli(ms), err == nil
}

func (s sample) append(out []byte) []byte {
	out = append(append(append(out, s.series...), ' '), s.value...)
	if len(s.timestamp) > 0 {
		out = append(append(out, ' '), s.timestamp...)
	}
	return append(out, '\n')
}

// editSamples replaces each sample of the text by what write appends. Comments stay, as do lines
// that another fault has made invalid.
func editSamples(write func(out []byte, s sample) []byte) Fault {
	return Edit(func(text []byte) []byte {
		out := make([]byte, 0, 2*len(text))
		for line := range bytes.Lines(text) {
			bare := bytes.TrimSuffix(line, []byte("\n"))
			if len(bare) > 0 && bare[0] != '#' && bytes.IndexByte(bare, ' ') > 0 {
				out = write(out, parseSample(bare))
			} else {
				out = append(out, line...)
			}
		}
		return out
	})
}

// setValue sets the value of all samples of a metric family, for example to NaN.
func setValue(family, value string) Fault {
	return editSamples(func(out []byte, s sample) []byte {
		if name, _ := s.split(); name == family {
			s.value = []byte(value)
		}
		return s.append(out)
	})
}

// dropFamily leaves out the samples of a metric family.
func dropFamily(family string) Fault {
	return editSamples(func(out []byte, s sample) []byte {
		if name, _ := s.split(); name == family {
			return out
		}
		return s.append(out)
	})
}

// ShiftTime moves all timestamps of the text, but not the Date header. Kubelet.SetClockOffset moves
// both.
func ShiftTime(by time.Duration) Fault {
	return editSamples(func(out []byte, s sample) []byte {
		if at, ok := s.time(); ok {
			s.timestamp = strconv.AppendInt(nil, at.Add(by).UnixMilli(), 10)
		}
		return s.append(out)
	})
}

// MoveStarts moves the start times of all containers that are at least that old, while their counters
// go on. cAdvisor takes start times from files that are touched while the container runs.
func MoveStarts(by time.Duration) Fault {
	return editStarts(func(start, sample time.Time) time.Time {
		if moved := start.Add(by); !moved.After(sample) {
			return moved
		}
		return start
	})
}

// StartsBefore sets the start times of all containers to a fixed time before their last sample, so
// that they move with every sample.
func StartsBefore(age time.Duration) Fault {
	return editStarts(func(_, sample time.Time) time.Time { return sample.Add(-age) })
}

// editStarts alters the start times of containers in both responses. edit gets the time of the last
// sample.
func editStarts(edit func(start, sample time.Time) time.Time) Fault {
	inSummary := editSummaryStarts(edit)
	return func(r *Response) {
		sampled := map[string]time.Time{} // by labels
		editSamples(func(out []byte, s sample) []byte {
			family, labels := s.split()
			at, ok := s.time()
			if ok && family == "container_cpu_usage_seconds_total" {
				sampled[labels] = at
			}
			if at, ok = sampled[labels]; ok && family == "container_start_time_seconds" {
				if seconds, err := strconv.ParseFloat(string(s.value), 64); err == nil {
					start := edit(time.UnixMicro(int64(seconds*1e6)), at)
					s.value = strconv.AppendFloat(nil, float64(start.UnixMicro())/1e6, 'g', -1, 64)
				}
			}
			return s.append(out)
		})(r)
		inSummary(r)
	}
}

// containerStart matches the start time of a container in the summary and the time of its CPU
// sample. The node and pods have other fields between the two.
var containerStart = regexp.MustCompile(`("name": "[^"]*",\s*"startTime": ")([^"]+)(",\s*"cpu": \{\s*"time": ")([^"]+)`)

func editSummaryStarts(edit func(start, sample time.Time) time.Time) Fault {
	return editSummary(func(json []byte) []byte {
		return containerStart.ReplaceAllFunc(json, func(match []byte) []byte {
			parts := containerStart.FindSubmatch(match)
			start, err1 := time.Parse(time.RFC3339, string(parts[2]))
			at, err2 := time.Parse(time.RFC3339, string(parts[4]))
			if err1 != nil || err2 != nil {
				return match // altered by another fault
			}
			start = edit(start, at).UTC()
			return slices.Concat(parts[1], start.AppendFormat(nil, time.RFC3339), parts[3], parts[4])
		})
	})
}

// setField sets all numbers and strings of the summary that have this key. value is JSON.
func setField(key, value string) Fault {
	pattern := regexp.MustCompile(scalar(key))
	return editSummary(func(json []byte) []byte {
		return pattern.ReplaceAllLiteral(json, []byte(`"`+key+`": `+value))
	})
}

// dropField leaves out all numbers and strings of the summary that have this key.
func dropField(key string) Fault {
	field := scalar(key)
	pattern := regexp.MustCompile(`,\s*` + field + `|` + field + `,\s*|` + field)
	return editSummary(func(json []byte) []byte { return pattern.ReplaceAllLiteral(json, nil) })
}

// scalar returns the pattern of a number or string with this key.
func scalar(key string) string { return `"` + regexp.QuoteMeta(key) + `": ("[^"]*"|[^",{}[\]\s]+)` }

// ShiftSummaryTime moves all times of the summary.
func ShiftSummaryTime(by time.Duration) Fault {
	const quoted = `"` + time.RFC3339 + `"`
	pattern := regexp.MustCompile(`"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"`)
	return editSummary(func(json []byte) []byte {
		return pattern.ReplaceAllFunc(json, func(match []byte) []byte {
			at, err := time.Parse(quoted, string(match))
			if err != nil {
				return match // a name that looks like a time
			}
			return at.Add(by).AppendFormat(nil, quoted)
		})
	})
}
