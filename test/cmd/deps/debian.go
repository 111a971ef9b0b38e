package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// debianProgram is a program that tests run if the machine or Debian has it.
type debianProgram struct {
	names   []string // of the executables, any of them
	pkg     string   // Debian's package
	install bool     // install the package, which needs root; otherwise extract the executables
	tests   string   // what is skipped without it
}

func programs() []debianProgram {
	return []debianProgram{
		{
			names:   []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable"},
			pkg:     "chromium",
			install: true, // it needs libraries
			tests:   "the tests of /nodez in a browser",
		},
		// Installed, these would start services.
		{names: []string{"promtool"}, pkg: "prometheus", tests: "promtool's tests of the alerts and queries"},
		{names: []string{"prometheus"}, pkg: "prometheus", tests: "the end-to-end tests with Prometheus"},
		{names: []string{"victoria-metrics"}, pkg: "victoria-metrics", tests: "TestVictoriaMetrics"},
	}
}

// debian fetches packages with apt-get, which itself tries again and ends transfers that hang.
type debian struct {
	folder string // for extracted executables
	out    io.Writer
}

// aptOptions make apt-get try again, and give up on a server that sends no byte.
var aptOptions = []string{
	"--quiet=2", "-o", "Acquire::Retries=5", "-o", "Acquire::http::Timeout=30", "-o", "Acquire::https::Timeout=30",
}

// fetch fetches the programs that the machine does not have. It returns those that are missing.
// A machine without apt-get, root or network is no error: the tests are skipped.
func (d debian) fetch(ctx context.Context, all []debianProgram) (missing []debianProgram, err error) {
	if err := os.MkdirAll(d.folder, 0o755); err != nil {
		return nil, err
	}
	updated := false
	for _, p := range all {
		if d.has(p) {
			continue
		}
		isRoot := os.Geteuid() == 0
		if _, err := exec.LookPath("apt-get"); err == nil && (isRoot || !p.install) {
			if isRoot && !updated {
				updated = true
				if err := d.run(ctx, d.folder, "apt-get", append(aptOptions, "update")...); err != nil {
					fmt.Fprintf(d.out, "  apt-get update: %v\n", err)
				}
			}
			if err := d.get(ctx, p); err != nil {
				fmt.Fprintf(d.out, "  package %s: %v\n", p.pkg, err)
			}
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if !d.has(p) {
			missing = append(missing, p)
		}
	}
	return missing, nil
}

func (d debian) has(p debianProgram) bool {
	for _, name := range p.names {
		if _, err := exec.LookPath(name); err == nil {
			return true
		}
		if _, err := os.Stat(filepath.Join(d.folder, name)); err == nil {
			return true
		}
	}
	return false
}

// get installs a package, or extracts its executables into the folder.
func (d debian) get(ctx context.Context, p debianProgram) (err error) {
	fmt.Fprintf(d.out, "downloading Debian's package %s\n", p.pkg)
	if p.install {
		return d.run(ctx, d.folder, "apt-get", append(aptOptions, "install", "--yes", "--no-install-recommends", p.pkg)...)
	}
	partial, err := os.MkdirTemp(d.folder, "partial-") // what is in the folder itself is complete
	if err != nil {
		return err
	}
	defer os.RemoveAll(partial) //nolint:errcheck // it is only a copy
	if err := d.run(ctx, partial, "apt-get", append(aptOptions, "download", p.pkg)...); err != nil {
		return err
	}
	archives, err := filepath.Glob(filepath.Join(partial, "*.deb"))
	if err != nil || len(archives) != 1 {
		return fmt.Errorf("got %d archives, want 1", len(archives))
	}
	if err := d.run(ctx, partial, "dpkg-deb", "--extract", archives[0], "."); err != nil {
		return err
	}
	executables, err := filepath.Glob(filepath.Join(partial, "usr", "bin", "*"))
	if err != nil {
		return err
	}
	for _, file := range executables {
		if err := os.Rename(file, filepath.Join(d.folder, filepath.Base(file))); err != nil {
			return err
		}
	}
	return nil
}

// run runs a program in a folder. The error has the last line that it printed.
func (d debian) run(ctx context.Context, folder, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	output, err := cmd.CombinedOutput()
	if err != nil {
		lines := strings.Split(string(bytes.TrimSpace(output)), "\n")
		return fmt.Errorf("%w: %s", err, lines[len(lines)-1])
	}
	return nil
}

// writeSkipped writes which tests are skipped.
func writeSkipped(file string, missing []debianProgram) error {
	if file == "" {
		return nil
	}
	var text strings.Builder
	for _, p := range missing {
		fmt.Fprintf(&text, "skipped: %s: install %s (apt-get install %s)\n", p.tests, p.names[0], p.pkg)
	}
	return os.WriteFile(file, []byte(text.String()), 0o644)
}
