package kubelettest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"
)

// A Fault makes a kubelet misbehave by altering a correct response. Faults compose: each one gets
// what the previous ones left. A fault that edits the text of /metrics/resource or the JSON of the
// summary leaves other responses alone.
type Fault func(*Response)

// Sometimes applies a fault to a share of the responses, from 0 to 1. The selection is random, but
// the same for the same seed.
func Sometimes(share float64, seed uint64, fault Fault) Fault {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 0))
	return func(r *Response) {
		mu.Lock()
		hit := random.Float64() < share
		mu.Unlock()
		if hit {
			fault(r)
		}
	}
}

// Refuse closes the connection without a response.
func Refuse(r *Response) { r.Abort = true }

// Hang never responds, and keeps the connection until the client gives up.
func Hang(r *Response) { r.Hang = true }

// Late responds after a delay.
func Late(delay time.Duration) Fault {
	return func(r *Response) { r.Delay = delay }
}

// Status responds with a status, such as 401, 403, 404 or 500, and its usual text.
func Status(code int) Fault {
	return func(r *Response) { r.setStatus(code, http.StatusText(code)) }
}

// HTML responds with a page for browsers, as a proxy in between may.
func HTML(r *Response) {
	r.Header.Set("Content-Type", "text/html; charset=utf-8")
	r.Body = []byte("<!DOCTYPE html>\n<html><head><title>Welcome</title></head>\n" +
		"<body>\n<h1>It works 1</h1>\n</body></html>\n")
}

// HalfBody declares the length of the body, sends half of it, and closes the connection.
func HalfBody(r *Response) { r.Truncate = true }

// EndlessBody repeats the body until the client gives up.
func EndlessBody(r *Response) {
	if len(r.Body) == 0 {
		r.Body = []byte("# nothing\n")
	}
	r.Endless = true
	r.Gzip = false // or it would end: one compressed body is sent once
}

// endless repeats b until the client gives up.
func endless(b byte) Fault {
	return func(r *Response) {
		r.Body = bytes.Repeat([]byte{b}, 64<<10)
		EndlessBody(r)
	}
}

// GzipBomb sends a body without end, compressed to a thousandth even if the client does not accept
// gzip.
func GzipBomb(r *Response) {
	r.Body = compress(bytes.Repeat([]byte("# nothing to see here\n"), 1<<16))
	declareEncoding("gzip")(r)
	r.Endless = true // gzip files in a row are one gzip file
}

// declareEncoding sets the Content-Encoding header, and leaves the body as it is.
func declareEncoding(encoding string) Fault {
	return func(r *Response) {
		r.Header.Set("Content-Encoding", encoding)
		r.Gzip = false
	}
}

// NoDate leaves out the Date header, as a proxy may.
func NoDate(r *Response) { r.Header["Date"] = nil }

// ScrapeError is the response of a kubelet that failed to read its own samples: only
// resource_scrape_error 1.
func ScrapeError(r *Response) {
	Edit(func([]byte) []byte { return text(nil).scrapeError(1) })(r)
}

// NamedFault is a Fault with a name, for table tests.
type NamedFault struct {
	Name  string
	Fault Fault
}

// Faults returns all known faults of /metrics/resource, with typical parameters. SummaryFaults does
// the same for the summary.
func Faults() []NamedFault {
	const cpu, memory = "container_cpu_usage_seconds_total", "container_memory_working_set_bytes"
	const start = "container_start_time_seconds"
	return append(commonFaults(), []NamedFault{
		{"cut text", Edit(func(text []byte) []byte { return text[:len(text)/2] })},
		{"duplicate series", editSamples(func(out []byte, s sample) []byte { return s.append(s.append(out)) })},
		{"contradictory series", editSamples(func(out []byte, s sample) []byte {
			wrong := s
			wrong.value = []byte("1234567")
			return wrong.append(s.append(out)) // the first one is correct
		})},
		{"line without labels", addText(cpu + " 1\n" + memory + "{} 1\n")},
		{"odd labels", oddLabels},
		{"NaN", setValue(cpu, "NaN")},
		{"infinite", setValue(cpu, "+Inf")},
		{"negative", setValue(memory, "-1")},
		{"no start time", dropFamily(start)},
		{"no memory", dropFamily(memory)},
		{"time of tomorrow", ShiftTime(24 * time.Hour)},
		{"time of yesterday", ShiftTime(-24 * time.Hour)},
		{"no time", editSamples(func(out []byte, s sample) []byte { s.timestamp = nil; return s.append(out) })},
		{"no date", NoDate},
		{"moved start times", MoveStarts(30 * time.Second)},
		{"start times that follow the samples", StartsBefore(12 * time.Second)},
		{"CRLF", Edit(func(text []byte) []byte {
			return bytes.ReplaceAll(text, []byte("\n"), []byte("\r\n"))
		})},
		{"no final newline", Edit(func(text []byte) []byte { return bytes.TrimSuffix(text, []byte("\n")) })},
		{"scrape error", ScrapeError},
	}...)
}

// SummaryFaults returns all known faults of the summary, with typical parameters. They leave other
// responses alone.
func SummaryFaults() []NamedFault {
	const otherJSON = `{"kind": "Status", "node": [1, true], "pods": {"items": null}, "code": 200}`
	faults := append(commonFaults(), []NamedFault{
		{"status 405", Status(http.StatusMethodNotAllowed)},
		{"cut", editSummary(func(json []byte) []byte { return json[:len(json)/2] })},
		{"other JSON", editSummary(func([]byte) []byte { return []byte(otherJSON) })},
		{"endless nesting", endless('[')},
		{"endless blanks", endless(' ')},
		{"of another node", setField("nodeName", `"elsewhere"`)},
		{"placeholder rates", setField("usageNanoCores", "0")},
		{"no rates", dropField("usageNanoCores")},
		{"null rates", setField("usageNanoCores", "null")},
		{"impossible rates", setField("usageNanoCores", "18446744073709551615")},
		{"negative counters", setField("usageCoreNanoSeconds", "-1")},
		{"memory in words", setField("workingSetBytes", `"1Mi"`)},
		{"no start time", dropField("startTime")},
		{"times of tomorrow", ShiftSummaryTime(24 * time.Hour)},
		{"times of yesterday", ShiftSummaryTime(-24 * time.Hour)},
		{"no times", dropField("time")},
	}...)
	for i, f := range faults {
		faults[i].Fault = func(r *Response) {
			if r.Request.URL.Path == SummaryPath {
				f.Fault(r)
			}
		}
	}
	return faults
}

// commonFaults returns the faults that do not depend on the endpoint.
func commonFaults() []NamedFault {
	return []NamedFault{
		{"refuse", Refuse},
		{"hang", Hang},
		{"late", Late(200 * time.Millisecond)},
		{"slow", func(r *Response) { r.ChunkSize, r.ChunkDelay = 1024, time.Millisecond }},
		{"status 204", Status(http.StatusNoContent)},
		{"status 401", Status(http.StatusUnauthorized)},
		{"status 403", Status(http.StatusForbidden)},
		{"status 404", Status(http.StatusNotFound)},
		{"status 500", Status(http.StatusInternalServerError)},
		{"redirect", func(r *Response) {
			r.setStatus(http.StatusFound, http.StatusText(http.StatusFound))
			r.Header.Set("Location", "https://127.0.0.1:1/")
		}},
		{"html", HTML},
		{"garbage", garbage},
		{"empty", func(r *Response) { r.Body = nil }},
		{"half body", HalfBody},
		{"endless body", EndlessBody},
		{"endless line", endless('a')},
		{"gzip bomb", GzipBomb},
		{"wrong encoding", declareEncoding("gzip")},
		{"unknown encoding", declareEncoding("zstd")},
	}
}

// garbage responds with 16 KiB of random bytes, always the same ones.
func garbage(r *Response) {
	random := rand.New(rand.NewPCG(1, 2))
	r.Body = make([]byte, 16<<10)
	for i := range r.Body {
		r.Body[i] = byte(random.Uint32())
	}
}

// oddLabels adds a container of the pod default/odd. Its labels are in another order, with one more
// label, and its name needs every escape: a, quotation mark, backslash, newline, b.
func oddLabels(r *Response) {
	const labels = `{pod="odd",id="/kubepods\\x",namespace="default",container="a\"\\\nb",}`
	addText(fmt.Sprintf("container_cpu_usage_seconds_total%s 7.5 %d\ncontainer_memory_working_set_bytes%[1]s 4096 %[2]d\n",
		labels, r.Now.UnixMilli()))(r)
}
