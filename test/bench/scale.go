package main

import (
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// row is what a server costs at one size of the cluster: values by column of the CSV file. A value that
// was not measured is missing, or 0.
type row struct {
	server string
	values map[string]float64
}

func newRow(server string, b *bench) row {
	return row{server, map[string]float64{
		"nodes": float64(b.nodes), "pods": float64(b.pods()), "resolution_seconds": b.resolution.Seconds(),
	}}
}

const cpuCores, perScrape = "cpu_cores", "scrape_cpu_ms"

// quantity is a value that is measured, by its column.
type quantity struct {
	column, title, format string
	perInterval           bool // as it is published, it is what it would be with a scrape every 15 s
}

// quantities are what is measured of each server. The first six are drawn, the first nine are in
// docs/scaling.md.
var quantities = []quantity{
	{"peak_mib", "peak memory, MiB", "%.0f", false},
	{"rss_mib", "memory while scraping, MiB", "%.0f", false},
	{cpuCores, "CPU while scraping, cores", "%.3f", true},
	{"start_seconds", "start to all metrics, s", "%.1f", false},
	{"list_pods_protobuf_cpu_ms", "LIST of all pods, ms of CPU", "%.0f", false},
	{"received_mb_per_second", "from kubelets, MB/s", "%.2f", true},
	{"list_selector_cpu_ms", "LIST of an HPA, ms of CPU", "%.1f", false},
	{"file_descriptors", "open files", "%.0f", false},
	{"goroutines", "goroutines", "%.0f", false},
	{"rss_after_lists_mib", "memory after LISTs of all pods, MiB", "%.0f", false},
	{"peak_start_mib", "peak memory until all metrics, MiB", "%.0f", false},
}

// printedOnly are further values, from the start of the server on. They are not written.
var printedOnly = []quantity{
	{"first_node_seconds", "start to the first node, s", "%.2f", false},
	{"first_pod_seconds", "start to the first pod, s", "%.2f", false},
	{"all_nodes_seconds", "start to all nodes, s", "%.2f", false},
	{"all_pods_seconds", "start to all pods, s", "%.2f", false},
	{"ready_seconds", "start to ready, s", "%.2f", false},
	{"start_cpu_seconds", "CPU until all metrics, s", "%.2f", false},
	{perScrape, "CPU per scrape of a node", "%.3f ms", false},
}

const drawn, inDocs, plotResolution = 6, 9, 15

// published returns a quantity as it is drawn and in docs/scaling.md.
func (r row) published(q quantity) float64 {
	if q.perInterval {
		return r.values[q.column] * r.values["resolution_seconds"] / plotResolution
	}
	return r.values[q.column]
}

// podsPerNode returns the number of pods on each node.
func (r row) podsPerNode() int { return int(r.values["pods"] / max(1, r.values["nodes"])) }

// measureScale measures one size of the cluster, and appends a row for each server to the CSV file.
func measureScale(ctx context.Context, b *bench) error {
	list, selector := b.listPods("protobuf", cluster.TypeProtobuf), b.hpaRequest()
	list.column, selector.column = "list_pods_protobuf_cpu_ms", "list_selector_cpu_ms"
	costs, err := b.measureServers(ctx, []request{list, selector}, 10)
	if err != nil || b.csv == "" {
		return err
	}
	rows, err := readRows(b.csv)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	for _, c := range costs {
		rows = append(rows, c.row)
	}
	return writeRows(b.csv, latest(rows))
}

// latest returns the last row of each server and size, in the order of servers and sizes.
func latest(rows []row) []row {
	last := map[string]row{}
	for _, r := range rows {
		last[fmt.Sprint(r.server, r.values["nodes"], r.values["pods"])] = r
	}
	return slices.SortedFunc(maps.Values(last), func(a, b row) int {
		return cmp.Or(cmp.Compare(a.server, b.server), cmp.Compare(b.podsPerNode(), a.podsPerNode()),
			cmp.Compare(a.values["nodes"], b.values["nodes"]))
	})
}

func writeRows(file string, rows []row) error {
	columns := []string{"nodes", "pods", "resolution_seconds"}
	for _, q := range quantities {
		columns = append(columns, q.column)
	}
	records := [][]string{append([]string{"server"}, columns...)}
	for _, r := range rows {
		record := []string{r.server}
		for _, column := range columns {
			v, precision := r.values[column], 5
			if v == float64(int(v)) {
				precision = -1 // a whole number
			}
			record = append(record, strconv.FormatFloat(v, 'g', precision, 64))
		}
		records = append(records, record)
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(csv.NewWriter(f).WriteAll(records), f.Close())
}

func readRows(file string) (rows []row, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()                            //nolint:errcheck // it is only read
	records, err := csv.NewReader(f).ReadAll() // records with another number of columns are errors
	for i, record := range records {
		if i == 0 {
			continue
		}
		r := row{record[0], map[string]float64{}}
		for j, text := range record[1:] {
			v, parseErr := strconv.ParseFloat(text, 64)
			r.values[records[0][j+1]], err = v, cmp.Or(err, parseErr)
		}
		rows = append(rows, r)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return rows, nil
}
