// Package binaries builds the programs of a test cluster from Go modules at fixed versions, and
// caches them. It needs only Go. The first build takes minutes.
//
// The build has the flags of `make build`, and the control plane the library versions of the server:
// go compiles what both need once.
package binaries

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// The names of the programs of ControlPlane.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Kubectl           = "kubectl" // reads metrics.k8s.io/v1
	Kwok              = "kwok"
	Helm              = "helm"
)

const componentVersion = "k8s.io/component-base/version."

// Module is a Go module in a folder of test/tools. Its programs are its main package and its
// tools.
type Module struct {
	folder  string
	ldflags string   // sets versions that a module build leaves empty
	links   []string // additional names of the main package's program
	modfile string   // instead of go.mod; empty: go.mod
	others  *Module  // whose programs the folder has, too, unless the module has one of that name
}

// ControlPlane builds etcd, kube-apiserver, kube-controller-manager and kube-scheduler in one
// executable, kubectl, helm and kwok. The environment variable KUBERNETES chooses the version of
// Kubernetes: 1.37, the default, or an older one, with the kubectl of that version.
func ControlPlane() Module {
	newest := newestControlPlane()
	older := Module{
		folder: "kubernetes", links: []string{APIServer, ControllerManager, Scheduler, Kubectl}, others: &newest,
	}
	switch version := os.Getenv("KUBERNETES"); version {
	case "", "1.37", "1.37.2":
		return newest
	case "1.34", "1.34.4":
		older.ldflags = kubernetesVersion("34", "4")
	case "1.31", "1.31.13":
		older.ldflags, older.modfile = kubernetesVersion("31", "13"), "v1.31.mod"
	default:
		older.modfile = "v" + version + ".mod" // which Build will not find
	}
	return older
}

// kubernetesVersion returns the flags of the linker that set the version of Kubernetes' programs.
func kubernetesVersion(minor, patch string) string {
	return fmt.Sprintf("-X %[1]sgitVersion=v1.%[2]s.%[3]s -X %[1]sgitMajor=1 -X %[1]sgitMinor=%[2]s",
		componentVersion, minor, patch)
}

func newestControlPlane() Module {
	return Module{
		folder: "controlplane",
		ldflags: kubernetesVersion("37", "2") +
			// helm template assumes the Kubernetes version that helm was built for.
			" -X helm.sh/helm/v3/internal/version.version=v3.22.0" +
			" -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=37",
		links: []string{Etcd, APIServer, ControllerManager, Scheduler},
	}
}

// OldKubectl builds kubectl 1.36, the last that reads metrics.k8s.io/v1beta1.
func OldKubectl() Module {
	return Module{
		folder:  "kubectl",
		ldflags: kubernetesVersion("36", "3"),
	}
}

// Build returns a folder with the programs of a module. It builds them unless the cache has them,
// and reports to progress. Callers must not change the folder, which others use.
func Build(ctx context.Context, m Module, progress io.Writer) (dir string, err error) {
	checkout, err := Checkout()
	if err != nil {
		return "", err
	}
	others := ""
	if m.others != nil {
		if others, err = Build(ctx, *m.others, progress); err != nil {
			return "", err
		}
	}
	source := filepath.Join(checkout, "test", "tools", m.folder)
	key, err := m.fingerprint(source)
	if err != nil {
		return "", fmt.Errorf("compute the cache key of %s: %w", m.folder, err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache folder for %s; set XDG_CACHE_HOME: %w", m.folder, err)
	}
	dir = filepath.Join(cache, "kube-vitals", m.folder+"-"+key)
	if exists(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("create the cache of %s: %w", m.folder, err)
	}
	unlock, err := lock(ctx, filepath.Join(filepath.Dir(dir), "lock"), progress)
	if err != nil {
		return "", err
	}
	defer unlock()
	if exists(dir) { // another process has built them meanwhile
		return dir, nil
	}
	return dir, m.build(ctx, source, dir, others, progress)
}

// build builds in a temporary folder and renames it, so that a folder in the cache is complete. It adds links to the
// programs in the folder others, unless that is empty.
func (m Module) build(ctx context.Context, source, dir, others string, progress io.Writer) error {
	partial := dir + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return fmt.Errorf("remove an unfinished build: %w", err)
	}
	if err := os.Mkdir(partial, 0o755); err != nil {
		return fmt.Errorf("create the cache of %s: %w", m.folder, err)
	}
	started := time.Now()
	fmt.Fprintf(progress, "building %s into %s, once\n", m.folder, dir)
	log := &buildLog{name: m.folder, progress: progress}
	stale, err := m.run(ctx, source, log, "list", "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}")
	if err != nil {
		return err
	}
	log.start(bytes.Count(stale, []byte("\n")))
	if _, err := m.run(ctx, source, log, "build", "-v", "-o", partial+"/"); err != nil {
		return err
	}
	for _, link := range m.links {
		if err := os.Symlink(m.folder, filepath.Join(partial, link)); err != nil {
			return fmt.Errorf("link %s as %s: %w", m.folder, link, err)
		}
	}
	if err := linkOthers(others, partial); err != nil {
		return err
	}
	fmt.Fprintf(progress, "  %s: done in %s\n", m.folder, time.Since(started).Round(time.Second))
	return os.Rename(partial, dir)
}

// linkOthers makes a link in dir to each program of another folder whose name dir does not have.
func linkOthers(others, dir string) error {
	if others == "" {
		return nil
	}
	programs, err := os.ReadDir(others)
	if err != nil {
		return fmt.Errorf("list the other programs: %w", err)
	}
	for _, program := range programs {
		link := filepath.Join(dir, program.Name())
		if _, err := os.Lstat(link); err == nil {
			continue
		}
		if err := os.Symlink(filepath.Join(others, program.Name()), link); err != nil {
			return fmt.Errorf("link %s: %w", program.Name(), err)
		}
	}
	return nil
}

// run runs a go command for the programs of the module.
func (m Module) run(ctx context.Context, source string, log *buildLog, command ...string) ([]byte, error) {
	args := append(command,
		"-buildvcs=false", "-trimpath", "-gcflags=all=-dwarf=false", "-ldflags=-s -w "+m.ldflags)
	if m.modfile != "" {
		args = append(args, "-modfile="+m.modfile)
	}
	args = append(args, ".")
	if m.others == nil {
		args = append(args, "tool")
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	// SIGTERM lets go remove unfinished files.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.Stderr = log
	output, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s in %s: %w:\n%s", command[0], source, err, log.tail)
	}
	return output, nil
}

// buildLog reports how much of a verbose build is done, and keeps the end of its output.
type buildLog struct {
	name     string
	progress io.Writer
	started  time.Time
	total    int // packages that the build compiles; 0: the build has not started
	packages int // compiled
	reported time.Time
	tail     []byte
}

// start makes the log report how many of the packages are compiled.
func (l *buildLog) start(packages int) {
	l.started, l.total, l.packages = time.Now(), packages, 0
	l.reported = l.started
}

func (l *buildLog) Write(text []byte) (int, error) {
	const every, keep = 15 * time.Second, 4096 // bytes
	l.tail = append(l.tail, text...)
	l.tail = l.tail[max(0, len(l.tail)-keep):]
	l.packages += bytes.Count(text, []byte("\n"))
	if time.Since(l.reported) < every {
		return len(text), nil
	}
	l.reported = time.Now()
	if l.total == 0 {
		fmt.Fprintf(l.progress, "  %s: downloading modules\n", l.name)
		return len(text), nil
	}
	// The packages at the end, which import all others, take a little longer than those at the start.
	left := time.Since(l.started) * time.Duration(max(0, l.total-l.packages)) / time.Duration(max(1, l.packages))
	fmt.Fprintf(l.progress, "  %s: %3d%%, about %s left\n",
		l.name, min(99, 100*l.packages/l.total), left.Round(15*time.Second))
	return len(text), nil
}

// fingerprint returns the cache key: it depends on the compiler, the platform, the flags, and the
// module.
func (m Module) fingerprint(source string) (string, error) {
	h := sha256.New()
	fmt.Fprintf(h, "%s %s %s {%s %s %v}\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, m.folder, m.ldflags, m.links)
	modfile := cmp.Or(m.modfile, "go.mod")
	for _, file := range []string{modfile, strings.TrimSuffix(modfile, ".mod") + ".sum", "main.go"} {
		content, err := os.ReadFile(filepath.Join(source, file))
		if errors.Is(err, fs.ErrNotExist) && m.modfile != "" {
			err = fmt.Errorf("%w: set KUBERNETES to 1.31, 1.34 or 1.37, or make that file as the others were", err)
		}
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %x\n", file, sha256.Sum256(content))
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8]), nil
}

// Checkout returns the root folder of the source tree that the current folder is in.
func Checkout() (string, error) {
	current, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the source tree: %w", err)
	}
	for dir := current; ; dir = filepath.Dir(dir) {
		switch {
		case exists(filepath.Join(dir, "test", "tools", ControlPlane().folder)):
			return dir, nil
		case dir == filepath.Dir(dir):
			return "", fmt.Errorf("%s is not in the source tree of kube-vitals: change to its folder test", current)
		}
	}
}

// lock waits until no other process builds.
func lock(ctx context.Context, file string, progress io.Writer) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the cache of the cluster's programs: %w", err)
	}
	for waited := false; ; waited = true {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil // closing unlocks
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", file, err), f.Close())
		}
		if !waited {
			fmt.Fprintln(progress, "waiting for the build of another checkout")
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
