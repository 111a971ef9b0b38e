package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

// result is what was measured with one size of cluster. All figures are medians unless they say otherwise.
type result struct {
	Server     string  `json:"server"`
	Nodes      int     `json:"nodes"`
	Pods       int     `json:"pods"`
	Containers int     `json:"containers"`
	Resolution float64 `json:"resolutionSeconds"`
	Rounds     int     `json:"rounds"`

	FirstFigures float64 `json:"firstFiguresSeconds"` // from the start of the process
	AllFigures   float64 `json:"allFiguresSeconds"`

	ScrapeCPU float64     `json:"nodeScrapeCPUMilliseconds"` // all that the process does in an interval, a node
	Cores     float64     `json:"scrapingCores"`
	Floor     floorResult `json:"floor"`

	AgeMedian float64 `json:"nodeFigureAgeMedianSeconds"`
	AgeMax    float64 `json:"nodeFigureAgeMaxSeconds"`

	RSS           float64 `json:"rssMebibytes"`
	RSSAfterLists float64 `json:"rssAfterListsMebibytes"`
	Lists         int     `json:"lists"` // how many LISTs of all pods were made

	Requests []requestResult `json:"requests"`
}

// requestResult is what one kind of request costs.
type requestResult struct {
	Name    string  `json:"name"`
	CPU     float64 `json:"cpuMilliseconds"`
	Latency float64 `json:"latencyMilliseconds"`
	Bytes   int64   `json:"bytes"`
	Count   int     `json:"count"` // how many were measured
	Items   int     `json:"items"` // in the answer
	Want    int     `json:"want"`  // how many items it should have; a server that loses some has less to do
}

// print writes the result as a table that is also Markdown.
func (r *result) print(w io.Writer) error {
	var b bytes.Buffer
	p := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	p("")
	p("%s: %d nodes, %d pods, %d containers, resolution %g s, medians of %d rounds",
		r.Server, r.Nodes, r.Pods, r.Containers, r.Resolution, r.Rounds)
	p("")
	p("| %-58s | %12s | %9s | %6s |", "Measure", "measured", "floor", "ratio")
	p("| %s | -----------: | --------: | -----: |", strings.Repeat("-", 58))
	row := func(name, format string, value float64) {
		p("| %-58s | %12s | %9s | %6s |", name, fmt.Sprintf(format, value), "", "")
	}
	against := func(name string, floor float64) {
		p("| %-58s | %12s | %9s | %6.2f |", name, ms(r.ScrapeCPU), ms(floor), r.ScrapeCPU/floor)
	}
	against("CPU a node-scrape; floor: spread over the interval", r.Floor.Plain)
	against("CPU a node-scrape; floor: the same, with gzip", r.Floor.Gzip)
	against("CPU a node-scrape; floor: one right after the other", r.Floor.InRow)
	row("size of a kubelet's answer", "%.1f KiB", float64(r.Floor.Bytes)/1024)
	row("CPU while scraping", "%.4f cores", r.Cores)
	row("RSS, steady", "%.0f MiB", r.RSS)
	row(fmt.Sprintf("RSS after %d LISTs of all pods", r.Lists), "%.0f MiB", r.RSSAfterLists)
	row("first figures after", "%.1f s", r.FirstFigures)
	row("all figures after", "%.1f s", r.AllFigures)
	row("age of the nodes' figures, median", "%.0f s", r.AgeMedian)
	row("age of the nodes' figures, maximum", "%.0f s", r.AgeMax)
	p("")
	p("| %-58s | %12s | %9s | %6s |", "Request", "CPU", "latency", "KiB")
	p("| %s | -----------: | --------: | -----: |", strings.Repeat("-", 58))
	for _, q := range r.Requests {
		p("| %-58s | %12s | %9s | %6.0f |", q.Name, ms(q.CPU), ms(q.Latency), float64(q.Bytes)/1024)
	}
	for _, q := range r.Requests {
		if q.Items != q.Want {
			p("\nIncomplete: %s has %d items, not %d.", q.Name, q.Items, q.Want)
		}
	}
	_, err := b.WriteTo(w)
	return err
}

// ms prints milliseconds with three digits that say something.
func ms(v float64) string {
	switch {
	case v < 1:
		return fmt.Sprintf("%.3f ms", v)
	case v < 100:
		return fmt.Sprintf("%.1f ms", v)
	default:
		return fmt.Sprintf("%.0f ms", v)
	}
}
