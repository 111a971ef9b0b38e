package main

import (
	"context"
	"debug/buildinfo"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// scaleColumns are the columns of the CSV file.
var scaleColumns = []string{
	"date", "server", "version", "machine", "objects", "nodes", "pods", "containers", "resolution_seconds",
	"rss_mib", "peak_start_mib", "rss_after_lists_mib", "peak_mib", "cpu_cores", "start_seconds", "start_cpu_seconds",
	"list_pods_protobuf_cpu_ms", "list_selector_cpu_ms", "received_bytes_per_second", "file_descriptors", "goroutines",
}

// scaleRow is what a server costs at one size of the cluster: values by column.
type scaleRow map[string]string

// number returns 0 for what is not a number, and so for what was not measured.
func (r scaleRow) number(column string) float64 {
	v, _ := strconv.ParseFloat(r[column], 64)
	return v
}

// podsPerNode returns the number of pods on each node.
func (r scaleRow) podsPerNode() int { return int(r.number("pods") / max(1, r.number("nodes"))) }

// measureScale measures one size of the cluster, and appends a row for each server to the CSV file.
func measureScale(ctx context.Context, b *bench) error {
	const lists = 10
	requests := []request{b.listPods("protobuf", cluster.TypeProtobuf), b.hpaRequest()}
	costs, err := b.measureServers(ctx, requests, lists)
	if err != nil || b.file == "" {
		return err
	}
	for _, c := range costs {
		row, err := c.scaleRow()
		if err != nil {
			return err
		}
		if err := appendScaleRow(b.file, row); err != nil {
			return err
		}
	}
	return nil
}

func (c *cost) scaleRow() (row scaleRow, err error) {
	row = scaleRow{"date": time.Now().UTC().Format(time.DateOnly), "objects": "full"}
	if c.smallObjects {
		row["objects"] = "small"
	}
	if row["server"], row["version"], err = programVersion(c.executable); err != nil {
		return nil, err
	}
	if row["machine"], err = machine(); err != nil {
		return nil, err
	}
	for column, value := range map[string]float64{
		"nodes": float64(c.nodes), "pods": float64(c.pods()), "containers": float64(c.pods() * containersPerPod),
		"resolution_seconds": c.resolution.Seconds(),
		"rss_mib":            c.rss, "peak_start_mib": c.start.peak, "rss_after_lists_mib": c.rssLists, "peak_mib": c.peak,
		"cpu_cores": c.cores, "start_seconds": c.start.all(), "start_cpu_seconds": c.start.cpu,
		"received_bytes_per_second": c.received, "file_descriptors": float64(c.descriptors), "goroutines": c.goroutines,
	} {
		row[column] = formatNumber(value)
	}
	for i, column := range []string{"list_pods_protobuf_cpu_ms", "list_selector_cpu_ms"} {
		if r := c.requests[i]; r.items == r.want { // else it has less to do, so its cost does not count
			row[column] = formatNumber(r.cpu)
		}
	}
	return row, nil
}

// formatNumber returns whole numbers in full, and others with five digits.
func formatNumber(v float64) string {
	if v == float64(int(v)) {
		return strconv.Itoa(int(v))
	}
	return strconv.FormatFloat(v, 'g', 5, 64)
}

// appendScaleRow appends a row to a CSV file, which it creates if necessary.
func appendScaleRow(file string, row scaleRow) error {
	_, err := os.Stat(file)
	isNew := errors.Is(err, fs.ErrNotExist)
	f, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	var records [][]string
	if isNew {
		records = append(records, scaleColumns)
	}
	record := make([]string, len(scaleColumns))
	for i, column := range scaleColumns {
		record[i] = row[column]
	}
	return errors.Join(csv.NewWriter(f).WriteAll(append(records, record)), f.Close())
}

func readScaleRows(file string) (rows []scaleRow, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()                            //nolint:errcheck // it is only read
	records, err := csv.NewReader(f).ReadAll() // records with another number of columns are errors
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	for i, record := range records {
		row := scaleRow{}
		for j, value := range record {
			row[records[0][j]] = value
		}
		if i > 0 {
			rows = append(rows, row)
		}
	}
	return rows, nil
}

// programVersion returns the name of a Go program and the version of its module, or the version that
// it prints if it was built in a checkout.
func programVersion(executable string) (name, version string, err error) {
	info, err := buildinfo.ReadFile(executable)
	if err != nil {
		return "", "", err
	}
	name, version = path.Base(info.Path), info.Main.Version
	for _, module := range info.Deps { // of a program that is not part of the main module
		if strings.HasPrefix(info.Path, module.Path+"/") {
			version = module.Version
		}
	}
	if version == "(devel)" {
		if output, err := exec.Command(executable, "--version").Output(); err == nil { //nolint:noctx // it ends at once
			version = strings.Trim(strings.Join(strings.Fields(string(output))[1:2], ""), ",")
		}
	}
	return name, version, nil
}

// machine describes this machine.
func machine() (string, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return "", err
	}
	var kib float64
	if _, err := fmt.Sscanf(string(text), "MemTotal: %f kB", &kib); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d × %s, %.0f GiB", runtime.NumCPU(), runtime.GOARCH, kib/(1<<20)), nil
}
