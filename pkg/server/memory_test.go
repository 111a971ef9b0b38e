package server

import (
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/kube-vitals/kube-vitals/pkg/api"
)

func TestResponseMemory(t *testing.T) {
	limited := api.ResponseMemory{Large: 128 << 20, Small: 64 << 20, Max: 256 << 20}
	if got := responseMemory(1 << 30); got != limited {
		t.Errorf("with a limit of 1 GiB: got %+v, want %+v", got, limited)
	}
	unlimited := api.ResponseMemory{Large: 128 << 20, Small: 64 << 20, Max: 1 << 30}
	if got := responseMemory(0); got != unlimited {
		t.Errorf("without a limit: got %+v, want %+v", got, unlimited)
	}
}

// TestMemoryOfConnections checks the limit in docs/security.md.
func TestMemoryOfConnections(t *testing.T) {
	for limit, want := range map[uint64]int64{1 << 30: 128 << 20, 0: 128 << 20, 512 << 20: 64 << 20} {
		if got := connectionMemory(limit); got != want {
			t.Errorf("with a limit of %d: got %d, want %d", limit, got, want)
		}
	}
}

// TestLimitMemory checks that the limit of the Go runtime is lowered and never raised.
func TestLimitMemory(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	defer debug.SetMemoryLimit(before)
	for _, tt := range []struct {
		set       int64 // GOMEMLIMIT
		container uint64
		want      int64
	}{
		{math.MaxInt64, 10 << 30, 9 << 30},
		{921 << 20, 500 << 20, 450 << 20},
		{921 << 20, 2 << 30, 921 << 20},
		{450 << 20, 500 << 20, 450 << 20},
		{921 << 20, 0, 921 << 20},
		{math.MaxInt64, 0, math.MaxInt64},
	} {
		debug.SetMemoryLimit(tt.set)
		limitMemory(tt.container)
		if got := debug.SetMemoryLimit(-1); got != tt.want {
			t.Errorf("%+v: got %d", tt, got)
		}
	}
}

// TestMemoryLimit reads the files of the kernel as they are in containers and outside of them.
func TestMemoryLimit(t *testing.T) {
	for _, tt := range []struct {
		name   string
		cgroup string
		files  map[string]string // below /sys/fs/cgroup
		want   uint64
	}{
		{
			name: "v2, container", cgroup: "0::/\n",
			files: map[string]string{"memory.max": "1073741824\n"}, want: 1 << 30,
		},
		{name: "v2, no limit", cgroup: "0::/\n", files: map[string]string{"memory.max": "max\n"}},
		{
			name: "v2, a service of systemd in a slice with a lower limit", cgroup: "0::/a.slice/b.service\n",
			files: map[string]string{"a.slice/b.service/memory.max": "3000000\n", "a.slice/memory.max": "2000000\n"},
			want:  2_000_000,
		},
		{
			name: "v2, container with the cgroup namespace of its node", cgroup: "0::/kubepods/pod1/c1\n",
			files: map[string]string{"memory.max": "2000000\n"}, want: 2_000_000,
		},
		{
			name: "v2, cgroup outside of the cgroup namespace", cgroup: "0::/../../pod2/c2\n",
			files: map[string]string{"memory.max": "2000000\n"}, want: 2_000_000,
		},
		{
			name: "v1, container", cgroup: "9:cpu,cpuacct:/kubepods/pod1/c1\n8:memory:/kubepods/pod1/c1\n0::/\n",
			files: map[string]string{"memory/memory.limit_in_bytes": "2000000\n"}, want: 2_000_000,
		},
		{
			name: "v1, no limit", cgroup: "8:memory:/x\n",
			files: map[string]string{"memory/x/memory.limit_in_bytes": "9223372036854771712\n"},
		},
		{
			name: "v1, parent", cgroup: "8:memory:/x\n9:cpu,cpuacct:/y\n",
			files: map[string]string{
				"memory/x/memory.limit_in_bytes": "9223372036854771712\n", "memory/memory.limit_in_bytes": "2000000\n",
				"cpu,cpuacct/y/memory.limit_in_bytes": "1\n",
			},
			want: 2_000_000,
		},
		{
			name: "memory in v1 beside an empty v2", cgroup: "8:memory:/x\n0::/\n",
			files: map[string]string{"memory/x/memory.limit_in_bytes": "2000000\n", "unified/cgroup.procs": "1\n"},
			want:  2_000_000,
		},
		{name: "files are missing", cgroup: "0::/a\n8:memory:/b\n"},
		{name: "negative", cgroup: "0::/\n", files: map[string]string{"memory.max": "-1\n"}},
		{name: "malformed cgroup", cgroup: "0\n", files: map[string]string{"memory.max": "1\n"}},
		{name: "no files in /proc"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			write := func(path, text string) {
				t.Helper()
				path = filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("proc/stat", "")
			if tt.cgroup != "" {
				write("proc/7/cgroup", tt.cgroup)
				if err := os.Symlink("7", filepath.Join(root, "proc/self")); err != nil {
					t.Fatal(err)
				}
			}
			for path, text := range tt.files {
				write(filepath.Join("sys/fs/cgroup", path), text)
			}
			if got := memoryLimitIn(root); got != tt.want {
				t.Errorf("got %d, want %d", got, tt.want)
			}
		})
	}
}

// TestMemoryOfThisProcess reads the files of this machine. Its limit, if it has one, is not below what this
// process uses.
func TestMemoryOfThisProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	resident := residentMemory()
	if resident < 1<<20 || resident > 1<<40 {
		t.Errorf("got %d bytes of resident memory", resident)
	}
	if l := memoryLimit(); l != 0 && l < resident {
		t.Errorf("got a limit of %d bytes and %d bytes of resident memory", l, resident)
	}
}
