package main

import (
	"fmt"
	"io"
)

// result is what was measured with one size of cluster. All figures are medians unless they say
// otherwise.
type result struct {
	Server     string  `json:"server"`
	Nodes      int     `json:"nodes"`
	Pods       int     `json:"pods"`
	Containers int     `json:"containers"`
	Resolution float64 `json:"resolutionSeconds"`
	Rounds     int     `json:"rounds"`

	Start startResult `json:"start"`

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
	Goal    float64 `json:"goalMilliseconds,omitempty"`
	Latency float64 `json:"latencyMilliseconds"`
	Bytes   int64   `json:"bytes"`
	Count   int     `json:"count"` // how many were measured
	Items   int     `json:"items"` // in the answer
	Want    int     `json:"want"`  // how many items it should have; a server that loses some has less to do
}

// print writes the result as tables that are also Markdown.
func (r *result) print(w io.Writer) error {
	if err := r.measures().print(w); err != nil {
		return err
	}
	if err := r.requests().print(w); err != nil {
		return err
	}
	for _, q := range r.Requests {
		if q.Items == q.Want {
			continue
		}
		if _, err := fmt.Fprintf(w, "\nIncomplete: %s has %d items, not %d.\n", q.Name, q.Items, q.Want); err != nil {
			return err
		}
	}
	return nil
}

func (r *result) measures() *table {
	t := newTable(fmt.Sprintf("%s: %d nodes, %d pods, %d containers, resolution %g s, medians of %d rounds",
		r.Server, r.Nodes, r.Pods, r.Containers, r.Resolution, r.Rounds), "Measure", "measured", "goal", "floor", "ratio")
	row := func(name, format string, value float64, goal string) {
		t.row(name, fmt.Sprintf(format, value), goal, "", "")
	}
	against := func(name, goal string, floor float64) {
		t.row(name, ms(r.ScrapeCPU), goal, ms(floor), fmt.Sprintf("%.2f", r.ScrapeCPU/floor))
	}
	against("CPU a node-scrape; floor: spread over the interval", "≤ 0.3 ms, 1.5 × floor", r.Floor.Plain)
	against("CPU a node-scrape; floor: the same, with gzip", "", r.Floor.Gzip)
	against("CPU a node-scrape; floor: one right after the other", "", r.Floor.InRow)
	row("size of a kubelet's answer", "%.1f KiB", float64(r.Floor.Bytes)/1024, "")
	row("CPU while scraping", "%.4f cores", r.Cores, r.cores())
	row("RSS, steady", "%.0f MiB", r.RSS, r.memory(130))
	row(fmt.Sprintf("RSS after %d LISTs of all pods", r.Lists), "%.0f MiB", r.RSSAfterLists, r.memory(160))
	row("first figures of nodes and pods, after it knows what exists", "%.2f s", r.Start.afterSync(), "")
	row("all figures, after the start of the process", "%.2f s", r.Start.all(), "")
	row("age of the nodes' figures, median", "%.0f s", r.AgeMedian, "")
	row("age of the nodes' figures, maximum", "%.0f s", r.AgeMax, "")
	return t
}

// memory is a goal for RSS that is given for 1000 nodes: it may grow with them. One node has a goal
// of its own.
func (r *result) memory(mebibytes float64) string {
	if r.Nodes == 1 {
		return "≤ 40 MiB"
	}
	if r.Nodes < 1000 {
		return ""
	}
	return fmt.Sprintf("≤ %.0f MiB", mebibytes*float64(r.Nodes)/1000)
}

func (r *result) cores() string {
	if r.Nodes == 1 {
		return "≤ 0.002 cores"
	}
	return ""
}

func (r *result) requests() *table {
	t := newTable("Requests, straight to the server", "Request", "CPU", "goal", "latency", "KiB")
	for _, q := range r.Requests {
		goal := ""
		if q.Goal > 0 {
			goal = fmt.Sprintf("≤ %g ms", q.Goal)
		}
		t.row(q.Name, ms(q.CPU), goal, ms(q.Latency), fmt.Sprintf("%.0f", float64(q.Bytes)/1024))
	}
	return t
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
