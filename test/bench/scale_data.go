package main

import (
	"bufio"
	"debug/buildinfo"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"runtime"
	"strconv"
	"strings"
)

// scaleRow is what a server costs at one size of the cluster, a row of the CSV file.
type scaleRow struct {
	Date, Version, Machine, Server string
	Nodes, Pods, Containers        int
	Resolution                     float64 // seconds
	Objects                        string  // "full", or "small" as of -small-objects

	RSS             float64 // MiB; while the server only scrapes
	PeakStart, Peak float64 // MiB; until all metrics were served, and in total
	RSSLists        float64 // MiB; after lists of all pods
	CPU             float64 // cores; while the server only scrapes
	Start, StartCPU float64 // seconds until all metrics are served, and CPU seconds
	List            float64 // ms of CPU for a protobuf list of all pods
	ListSelector    float64 // ms of CPU for the request of an HPA
	Received        float64 // bytes per second; while the server only scrapes
	Descriptors     int     // open files
	Goroutines      int
}

// column is a column of the CSV file.
type column struct {
	name  string
	value any // *string, *int or *float64
}

func (r *scaleRow) columns() []column {
	return []column{
		{"date", &r.Date},
		{"server", &r.Server},
		{"version", &r.Version},
		{"machine", &r.Machine},
		{"objects", &r.Objects},
		{"nodes", &r.Nodes},
		{"pods", &r.Pods},
		{"containers", &r.Containers},
		{"resolution_seconds", &r.Resolution},
		{"rss_mib", &r.RSS},
		{"peak_start_mib", &r.PeakStart},
		{"rss_after_lists_mib", &r.RSSLists},
		{"peak_mib", &r.Peak},
		{"cpu_cores", &r.CPU},
		{"start_seconds", &r.Start},
		{"start_cpu_seconds", &r.StartCPU},
		{"list_pods_protobuf_cpu_ms", &r.List},
		{"list_selector_cpu_ms", &r.ListSelector},
		{"received_bytes_per_second", &r.Received},
		{"file_descriptors", &r.Descriptors},
		{"goroutines", &r.Goroutines},
	}
}

// podsPerNode returns the number of pods on each node.
func (r *scaleRow) podsPerNode() int { return r.Pods / r.Nodes }

// interval returns the CPU seconds of one interval.
func (r *scaleRow) interval() float64 { return r.CPU * r.Resolution }

func formatColumn(value any) string {
	switch v := value.(type) {
	case *int:
		return strconv.Itoa(*v)
	case *float64:
		return strconv.FormatFloat(*v, 'g', 5, 64)
	default:
		return *value.(*string)
	}
}

func parseColumn(text string, value any) (err error) {
	switch v := value.(type) {
	case *int:
		*v, err = strconv.Atoi(text)
	case *float64:
		*v, err = strconv.ParseFloat(text, 64)
	default:
		*value.(*string) = text
	}
	return err
}

// appendScaleRow appends a row to a CSV file, which it creates if necessary.
func appendScaleRow(file string, row scaleRow) error {
	rows, err := readScaleFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var text strings.Builder
	if err := writeScale(&text, append(rows, row)); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(text.String()), 0o644)
}

func writeScale(w io.Writer, rows []scaleRow) error {
	c := csv.NewWriter(w)
	var titles []string
	for _, column := range new(scaleRow).columns() {
		titles = append(titles, column.name)
	}
	records := [][]string{titles}
	for _, row := range rows {
		var record []string
		for _, column := range row.columns() {
			record = append(record, formatColumn(column.value))
		}
		records = append(records, record)
	}
	return c.WriteAll(records)
}

func readScaleFile(file string) ([]scaleRow, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it is only read
	rows, err := readScale(f)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return rows, nil
}

// readScale reads the columns in the order of writeScale.
func readScale(r io.Reader) (rows []scaleRow, err error) {
	records, err := csv.NewReader(r).ReadAll()
	if err != nil {
		return nil, err
	}
	for i, record := range records {
		var row scaleRow
		for j, column := range row.columns() {
			switch {
			case j >= len(record) || i == 0 && record[j] != column.name:
				return nil, fmt.Errorf("line 1: column %d is not %s", j+1, column.name)
			case i > 0:
				if err := parseColumn(record[j], column.value); err != nil {
					return nil, fmt.Errorf("line %d: %s: %w", i+1, column.name, err)
				}
			}
		}
		if i == 0 {
			continue
		}
		if row.Nodes < 1 || row.Pods < row.Nodes || row.Resolution <= 0 {
			return nil, fmt.Errorf("line %d: %d nodes, %d pods, resolution %g s", i+1, row.Nodes, row.Pods, row.Resolution)
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// unknownVersion is the version of a program that was not built from a Go module.
const unknownVersion = "unknown"

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
	switch version {
	case "":
		version = unknownVersion
	case "(devel)":
		if output, err := exec.Command(executable, "--version").Output(); err == nil { //nolint:noctx // it ends at once
			version = strings.Trim(strings.Join(strings.Fields(string(output))[1:2], ""), ",")
		}
	}
	return name, version, nil
}

// machine describes this machine.
func machine() (string, error) {
	total, err := memoryInfo("MemTotal:")
	if err != nil {
		return "", err
	}
	model, err := scanFile("/proc/cpuinfo", "model name\t:")
	if err != nil {
		model = runtime.GOARCH // ARM has no such line
	}
	return fmt.Sprintf("%d × %s, %.0f GiB", runtime.NumCPU(), strings.TrimSpace(model), float64(total)/(1<<30)), nil
}

// memoryInfo returns a field of /proc/meminfo in bytes.
func memoryInfo(field string) (bytes uint64, err error) {
	value, err := scanFile("/proc/meminfo", field)
	if err != nil {
		return 0, err
	}
	kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(value, " kB")), 10, 64)
	return kib << 10, err
}

// scanFile returns the rest of the first line that has the prefix.
func scanFile(file, prefix string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // it is only read
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), prefix); ok {
			return rest, nil
		}
	}
	return "", errors.Join(lines.Err(), fmt.Errorf("%s has no %q", file, prefix))
}
