package kubelettest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// A Fault makes a kubelet misbehave, by altering an answer that was right. Faults compose: each is
// given what the ones before it left. Those that are named after what they do to the text leave
// other answers, such as the summary, alone.
type Fault func(*Answer)

// Sometimes applies a fault to a share of the answers, 0 to 1, at random but always in the same
// sequence for a seed.
func Sometimes(share float64, seed uint64, fault Fault) Fault {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 0))
	return func(a *Answer) {
		mu.Lock()
		hit := random.Float64() < share
		mu.Unlock()
		if hit {
			fault(a)
		}
	}
}

// OnlyAt applies a fault only to the answers of one path.
func OnlyAt(path string, fault Fault) Fault {
	return func(a *Answer) {
		if a.Request.URL.Path == path {
			fault(a)
		}
	}
}

// Refuse closes the connection without an answer.
func Refuse(a *Answer) { a.Abort = true }

// Hang never answers, and keeps the connection until the client gives up.
func Hang(a *Answer) { a.Hang = true }

// Late answers after a delay.
func Late(delay time.Duration) Fault {
	return func(a *Answer) { a.Delay = delay }
}

// Slow sends the body in pieces of so many bytes, with a pause before each.
func Slow(piece int, pause time.Duration) Fault {
	return func(a *Answer) { a.Piece, a.Pause = piece, pause }
}

// Status answers with a status, such as 401, 403, 404 or 500, and its usual text.
func Status(code int) Fault {
	return func(a *Answer) { a.plain(code, http.StatusText(code)) }
}

// Redirect sends the client elsewhere.
func Redirect(url string) Fault {
	return func(a *Answer) {
		a.plain(http.StatusFound, http.StatusText(http.StatusFound))
		a.Header.Set("Location", url)
	}
}

// HTML answers with a page for a browser, as a proxy in between does.
func HTML(a *Answer) {
	a.Header.Set("Content-Type", "text/html; charset=utf-8")
	a.Body = []byte("<!DOCTYPE html>\n<html><head><title>Welcome</title></head>\n<body>\n<h1>It works 1</h1>\n</body></html>\n")
}

// Garbage answers with 16 KiB of bytes that mean nothing, always the same ones.
func Garbage(a *Answer) {
	random := rand.New(rand.NewPCG(1, 2))
	a.Body = make([]byte, 16<<10)
	for i := range a.Body {
		a.Body[i] = byte(random.Uint32())
	}
}

// Empty answers with status 200 and nothing.
func Empty(a *Answer) { a.Body = nil }

// HalfBody declares the whole body's length, sends half of it and closes the connection.
func HalfBody(a *Answer) { a.Half = true }

// CutText ends the text in the middle of a line, with a length that agrees.
func CutText(a *Answer) { editText(a, func(b []byte) []byte { return b[:len(b)/2] }) }

// EndlessBody sends the body again and again, until the client gives up.
func EndlessBody(a *Answer) {
	if len(a.Body) == 0 {
		a.Body = []byte("# nothing\n")
	}
	a.Endless = true
	a.Gzip = false // or it would end: one compressed body is sent once
}

// EndlessLine sends one line that never ends.
func EndlessLine(a *Answer) {
	a.Body = bytes.Repeat([]byte{'a'}, 64<<10)
	EndlessBody(a)
}

// GzipBomb sends, compressed whether the client asked for it or not, a body that never ends and is
// a thousand times as large as what is sent.
func GzipBomb(a *Answer) {
	a.Body = compress(bytes.Repeat([]byte("# nothing to see here\n"), 1<<16))
	a.Header.Set("Content-Encoding", "gzip")
	a.Gzip = false
	a.Endless = true // gzip files in a row are one gzip file
}

// WrongEncoding says that the body is compressed, though it is not.
func WrongEncoding(a *Answer) {
	a.Header.Set("Content-Encoding", "gzip")
	a.Gzip = false
}

// UnknownEncoding says that the body is in an encoding that no client asked for.
func UnknownEncoding(a *Answer) {
	a.Header.Set("Content-Encoding", "zstd")
	a.Gzip = false
}

// Edit alters the text of /metrics/resource.
func Edit(edit func(text []byte) []byte) Fault {
	return func(a *Answer) { editText(a, edit) }
}

// AddText appends to the text of /metrics/resource.
func AddText(more string) Fault {
	return Edit(func(text []byte) []byte { return append(text, more...) })
}

// DuplicateSeries tells each series twice, with the same value.
func DuplicateSeries(a *Answer) {
	editSamples(a, func(out []byte, s sample) []byte { return s.append(s.append(out)) })
}

// ContradictorySeries tells each series twice, with different values; the right one is the first.
func ContradictorySeries(a *Answer) {
	editSamples(a, func(out []byte, s sample) []byte {
		out = s.append(out)
		s.value = []byte("1234567")
		return s.append(out)
	})
}

// LineWithoutLabels adds a line about a container, and one about its memory, without saying of
// which.
func LineWithoutLabels(a *Answer) {
	editText(a, func(text []byte) []byte {
		return append(text, "container_cpu_usage_seconds_total 1\ncontainer_memory_working_set_bytes{} 1\n"...)
	})
}

// OddLabels adds a container of the pod default/odd whose labels stand in another order, with one
// more label among them, and whose name needs every escape: it is a, quotation mark, backslash,
// newline, b.
func OddLabels(a *Answer) {
	now := a.Now.UnixMilli()
	labels := `{pod="odd",id="/kubepods\\x",namespace="default",container="a\"\\\nb",}`
	editText(a, func(text []byte) []byte {
		text = fmt.Appendf(text, "container_cpu_usage_seconds_total%s 7.5 %d\n", labels, now)
		return fmt.Appendf(text, "container_memory_working_set_bytes%s 4096 %d\n", labels, now)
	})
}

// Value puts one value, such as NaN, +Inf or -1, into all lines of a metric family.
func Value(family, value string) Fault {
	return func(a *Answer) {
		editSamples(a, func(out []byte, s sample) []byte {
			if string(s.family()) == family {
				s.value = []byte(value)
			}
			return s.append(out)
		})
	}
}

// DropFamily leaves a metric family out.
func DropFamily(family string) Fault {
	return func(a *Answer) {
		editSamples(a, func(out []byte, s sample) []byte {
			if string(s.family()) == family {
				return out
			}
			return s.append(out)
		})
	}
}

// ShiftTime moves all timestamps, but not the Date header: the samples of another day.
// Kubelet.SetClockOffset moves both.
func ShiftTime(by time.Duration) Fault {
	return func(a *Answer) {
		editSamples(a, func(out []byte, s sample) []byte {
			if at, err := strconv.ParseInt(string(s.timestamp), 10, 64); err == nil {
				s.timestamp = strconv.AppendInt(nil, at+by.Milliseconds(), 10)
			}
			return s.append(out)
		})
	}
}

// NoTime leaves all timestamps out.
func NoTime(a *Answer) {
	editSamples(a, func(out []byte, s sample) []byte {
		s.timestamp = nil
		return s.append(out)
	})
}

// NoDate leaves the Date header out, as a proxy may.
func NoDate(a *Answer) { a.Header["Date"] = nil }

// MoveStarts moves the start times of all containers, whose counters go on: cAdvisor takes a start
// time from files that are touched while the container runs.
func MoveStarts(by time.Duration) Fault {
	return editStarts(func(start, _ time.Time) time.Time { return start.Add(by) })
}

// StartsBefore sets the start times of all containers to a moment that is always so long before the
// last sample, and therefore moves with every sample.
func StartsBefore(age time.Duration) Fault {
	return editStarts(func(_, sample time.Time) time.Time { return sample.Add(-age) })
}

// editStarts alters the start times of containers, given the time of their last sample.
func editStarts(edit func(start, sample time.Time) time.Time) Fault {
	return func(a *Answer) {
		sampled := map[string]time.Time{} // by labels
		editSamples(a, func(out []byte, s sample) []byte {
			family := string(s.family())
			labels := string(s.series[len(family):])
			switch family {
			case "container_cpu_usage_seconds_total":
				if ms, err := strconv.ParseInt(string(s.timestamp), 10, 64); err == nil {
					sampled[labels] = time.UnixMilli(ms)
				}
			case "container_start_time_seconds":
				at, ok := sampled[labels]
				if seconds, err := strconv.ParseFloat(string(s.value), 64); err == nil && ok {
					start := edit(time.UnixMicro(int64(seconds*1e6)), at)
					s.value = appendFloat(nil, float64(start.UnixMicro())/1e6)
				}
			}
			return s.append(out)
		})
		editSummaryStarts(a, edit)
	}
}

// CRLF ends lines as Windows does.
func CRLF(a *Answer) {
	editText(a, func(text []byte) []byte { return bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n")) })
}

// NoFinalNewline leaves the last newline out.
func NoFinalNewline(a *Answer) {
	editText(a, func(text []byte) []byte { return bytes.TrimSuffix(text, []byte("\n")) })
}

// ScrapeError is the answer of a kubelet that could not read its own samples: nothing but
// resource_scrape_error 1.
func ScrapeError(a *Answer) {
	editText(a, func([]byte) []byte {
		return text(nil).
			family("resource_scrape_error", "gauge",
				"[STABLE] 1 if there was an error while getting container metrics, 0 otherwise").
			sample("resource_scrape_error", "", 1, 0)
	})
}

// NamedFault is a Fault with a name, for tables of tests.
type NamedFault struct {
	Name  string
	Fault Fault
	// Fatal is whether the answer as a whole cannot be used. After others, what is intact in it
	// can.
	Fatal bool
}

// Faults lists every way of misbehaving on /metrics/resource that is known, with typical
// parameters, for tests that try them all. SummaryFaults does the same for the summary.
func Faults() []NamedFault {
	return append(faultsOfAny(), []NamedFault{
		{"cut text", CutText, false},
		{"duplicate series", DuplicateSeries, false},
		{"contradictory series", ContradictorySeries, false},
		{"line without labels", LineWithoutLabels, false},
		{"odd labels", OddLabels, false},
		{"NaN", Value("container_cpu_usage_seconds_total", "NaN"), false},
		{"infinite", Value("container_cpu_usage_seconds_total", "+Inf"), false},
		{"negative", Value("container_memory_working_set_bytes", "-1"), false},
		{"no start time", DropFamily("container_start_time_seconds"), false},
		{"no memory", DropFamily("container_memory_working_set_bytes"), false},
		{"time of tomorrow", ShiftTime(24 * time.Hour), true},
		{"time of yesterday", ShiftTime(-24 * time.Hour), false},
		{"no time", NoTime, false},
		{"no date", NoDate, false},
		{"moved start times", MoveStarts(30 * time.Second), false},
		{"start times that follow the samples", StartsBefore(12 * time.Second), false},
		{"CRLF", CRLF, false},
		{"no final newline", NoFinalNewline, false},
		{"scrape error", ScrapeError, true},
	}...)
}

// faultsOfAny lists the ways that do not depend on what is asked for.
func faultsOfAny() []NamedFault {
	return []NamedFault{
		{"refuse", Refuse, true},
		{"hang", Hang, true},
		{"late", Late(200 * time.Millisecond), false},
		{"slow", Slow(1024, time.Millisecond), false},
		{"status 401", Status(http.StatusUnauthorized), true},
		{"status 403", Status(http.StatusForbidden), true},
		{"status 404", Status(http.StatusNotFound), true},
		{"status 500", Status(http.StatusInternalServerError), true},
		{"redirect", Redirect("https://127.0.0.1:1/"), true},
		{"html", HTML, true},
		{"garbage", Garbage, true},
		{"empty", Empty, true},
		{"half body", HalfBody, true},
		{"endless body", EndlessBody, true},
		{"endless line", EndlessLine, true},
		{"gzip bomb", GzipBomb, true},
		{"wrong encoding", WrongEncoding, true},
		{"unknown encoding", UnknownEncoding, true},
	}
}

// sample is one line of the text that is not a comment: name and labels, value, and timestamp or
// nil.
type sample struct{ series, value, timestamp []byte }

// parseSample takes a line apart that this package wrote. Labels may have spaces in them; what
// follows has not.
func parseSample(line []byte) sample {
	end := bytes.LastIndexByte(line, '}') + 1
	if end == 0 {
		end = bytes.IndexByte(line, ' ')
	}
	value, timestamp, _ := bytes.Cut(line[end+1:], []byte(" "))
	return sample{series: line[:end], value: value, timestamp: timestamp}
}

func (s sample) family() []byte {
	name, _, _ := bytes.Cut(s.series, []byte("{"))
	return name
}

func (s sample) append(out []byte) []byte {
	out = append(append(append(out, s.series...), ' '), s.value...)
	if len(s.timestamp) > 0 {
		out = append(append(out, ' '), s.timestamp...)
	}
	return append(out, '\n')
}

// editText alters the body where it is meant to be the text of /metrics/resource.
func editText(a *Answer, edit func([]byte) []byte) {
	if a.text {
		a.Body = edit(a.Body)
	}
}

// editSamples writes each sample line of the text anew. Comments and lines that another fault has
// spoilt stay.
func editSamples(a *Answer, write func(out []byte, s sample) []byte) {
	editText(a, func(text []byte) []byte {
		out := make([]byte, 0, 2*len(text))
		for line := range bytes.Lines(text) {
			if bare := bytes.TrimSuffix(line, []byte("\n")); len(bare) > 0 && bare[0] != '#' && bytes.IndexByte(bare, ' ') > 0 {
				out = write(out, parseSample(bare))
			} else {
				out = append(out, line...)
			}
		}
		return out
	})
}
