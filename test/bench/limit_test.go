package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"
)

// TestMemoryLimitIsThatOfTheChart compares the default of -memory-limit with the chart.
func TestMemoryLimitIsThatOfTheChart(t *testing.T) {
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := parse([]string{"-server=" + executable, "-only=limit"})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("../../charts/kube-vitals/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values struct {
		Resources struct {
			Limits struct{ Memory resource.Quantity }
		}
	}
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	if want := uint64(values.Resources.Limits.Memory.Value()); cfg.limit != want {
		t.Errorf("got a limit of %d bytes, want that of the chart, %d", cfg.limit, want)
	}
}

func TestCgroupParent(t *testing.T) {
	for _, tt := range []struct {
		name, self, want string
		files            cgroupFiles
	}{
		{"v1", "9:cpu:/a\n4:memory:/b/c\n0::/\n", "/sys/fs/cgroup/memory/b/c", cgroupV1},
		{"v2", "0::/user.slice/session-1.scope\n", "/sys/fs/cgroup/user.slice", cgroupV2},
		{"v2, container", "0::/\n", "/sys/fs/cgroup", cgroupV2},
		{"none", "9:cpu:/a\n", "", cgroupFiles{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir, files, err := cgroupParent(tt.self)
			if dir != tt.want || files != tt.files || (err == nil) != (tt.want != "") {
				t.Errorf("got %q, %+v and error %v, want %q", dir, files, err, tt.want)
			}
		})
	}
}

// TestCgroupFiles reads the files of both versions.
func TestCgroupFiles(t *testing.T) {
	for _, tt := range []struct {
		files  cgroupFiles
		events string
	}{
		{cgroupV1, "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"},
		{cgroupV2, "low 0\nhigh 0\nmax 17\noom 3\noom_kill 2\noom_group_kill 0\n"},
	} {
		c := &cgroup{t.TempDir(), tt.files}
		for file, text := range map[string]string{tt.files.events: tt.events, tt.files.peak: "4096\n"} {
			if err := c.write(file, text); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := c.kills(); n != 2 || err != nil {
			t.Errorf("%s: got %d kills and error %v, want 2", tt.files.events, n, err)
		}
		if n, err := c.bytes(tt.files.peak); n != 4096 || err != nil {
			t.Errorf("%s: got %d and error %v, want 4096", tt.files.peak, n, err)
		}
	}
}

// TestLauncher checks that the script joins the cgroup, sets the limit for Go's heap, and passes the
// arguments on.
func TestLauncher(t *testing.T) {
	group, dir := t.TempDir(), t.TempDir()
	executable := filepath.Join(t.TempDir(), "server")
	if err := os.WriteFile(executable, []byte("#!/bin/sh\necho $GOMEMLIMIT \"$2\" $$\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []*cgroup{nil, {dir: group}} {
		script, err := launcher(c, executable, dir, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		output, err := exec.CommandContext(t.Context(), script, "a", "b  c").CombinedOutput()
		text, pid, _ := strings.Cut(string(output), "b  c ")
		if err != nil || text != "921MiB " {
			t.Fatalf("got %q and error %v", output, err)
		}
		if c == nil {
			continue
		}
		if joined, err := os.ReadFile(filepath.Join(group, "cgroup.procs")); string(joined) != pid || err != nil {
			t.Errorf("process %q has joined the cgroup, and error %v, want process %q", joined, err, pid)
		}
	}
}
