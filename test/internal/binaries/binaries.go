// Package binaries builds the programs that a test cluster is made of from their Go modules, each
// at a fixed version, and keeps them: etcd, kube-apiserver, kube-controller-manager, kube-scheduler
// and kubectl in one executable, a newer kubectl, kwok and helm. It needs nothing but Go and takes
// minutes the first time.
package binaries

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// The names under which the programs lie in the folder that Build returns.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Kubectl           = "kubectl"      // of the control plane's version
	NewKubectl        = "kubectl-1.37" // the first that reads metrics.k8s.io/v1
	Kwok              = "kwok"
	Helm              = "helm"
)

const componentVersion = "k8s.io/component-base/version."

// program is one executable.
type program struct {
	name    string
	source  string   // a module's folder inside the test module, or package@version
	ldflags string   // versions that a build from a module does not know by itself
	links   []string // further names
}

var programs = []program{
	{
		name: "controlplane", source: "controlplane",
		ldflags: "-X " + componentVersion + "gitVersion=v1.36.3 -X " + componentVersion + "gitMajor=1 -X " + componentVersion + "gitMinor=36",
		links:   []string{Etcd, APIServer, ControllerManager, Scheduler, Kubectl},
	},
	{
		name: NewKubectl, source: "kubectl",
		ldflags: "-X " + componentVersion + "gitVersion=v1.37.2 -X " + componentVersion + "gitMajor=1 -X " + componentVersion + "gitMinor=37",
	},
	{name: Kwok, source: "sigs.k8s.io/kwok/cmd/kwok@v0.8.0"},
	{
		name: Helm, source: "helm.sh/helm/v3/cmd/helm@v3.22.0",
		// Without a cluster, helm takes the one for which it was built.
		ldflags: "-X helm.sh/helm/v3/internal/version.version=v3.22.0" +
			" -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36",
	},
}

// Build returns a folder with all programs. It builds them if that has not been done yet on this
// machine, and writes to progress what it does. The folder is shared by all who build the same, and
// only read.
func Build(ctx context.Context, progress io.Writer) (dir string, err error) {
	checkout, err := Checkout(ctx)
	if err != nil {
		return "", err
	}
	module := filepath.Join(checkout, "test")
	key, err := fingerprint(module)
	if err != nil {
		return "", fmt.Errorf("cannot tell whether the cluster's programs have been built: %w", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("there is no place for the cluster's programs; set XDG_CACHE_HOME: %w", err)
	}
	dir = filepath.Join(cache, "kube-vitals", key)
	if exists(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("cannot keep the cluster's programs: %w", err)
	}
	unlock, err := lock(filepath.Join(filepath.Dir(dir), "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if exists(dir) { // someone else has built them meanwhile
		return dir, nil
	}
	return dir, buildAll(ctx, module, dir, progress)
}

// buildAll builds in a folder beside the final one, so that what has the final name is whole.
func buildAll(ctx context.Context, module, dir string, progress io.Writer) error {
	partial := dir + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return fmt.Errorf("cannot remove an unfinished build: %w", err)
	}
	if err := os.Mkdir(partial, 0o755); err != nil {
		return fmt.Errorf("cannot keep the cluster's programs: %w", err)
	}
	fmt.Fprintf(progress, "building the cluster's programs into %s; this takes some minutes, once\n", dir)
	for _, p := range programs {
		if err := p.build(ctx, module, partial, progress); err != nil {
			return err
		}
	}
	return os.Rename(partial, dir)
}

func (p program) build(ctx context.Context, module, dir string, progress io.Writer) error {
	started := time.Now()
	cmd := exec.CommandContext(ctx, "go", p.command(dir)...)
	cmd.Dir = dir // outside of any module
	if !p.installed() {
		cmd.Dir = filepath.Join(module, p.source)
	}
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOBIN="+dir, "GOWORK=off")
	// An interrupt reaches the compilers too, but go must not leave half a file behind.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	if err := watch(cmd, p.name, progress); err != nil {
		return fmt.Errorf("cannot build %s from %s: %w", p.name, p.source, err)
	}
	for _, link := range p.links {
		if err := os.Symlink(p.name, filepath.Join(dir, link)); err != nil {
			return fmt.Errorf("cannot give %s the name %s: %w", p.name, link, err)
		}
	}
	fmt.Fprintf(progress, "  %s: done in %s\n", p.name, time.Since(started).Round(time.Second))
	return nil
}

// installed is whether the program's own module says all that it is made of.
func (p program) installed() bool { return strings.Contains(p.source, "@") }

// command are go's arguments.
func (p program) command(dir string) []string {
	flags := []string{"-v", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w " + p.ldflags}
	if p.installed() {
		return append(append([]string{"install"}, flags...), p.source)
	}
	return append(append([]string{"build", "-o", filepath.Join(dir, p.name)}, flags...), ".")
}

// watch runs a verbose build, which names each package that it compiles, and reports from time to
// time how many.
func watch(cmd *exec.Cmd, name string, progress io.Writer) error {
	var output meter
	cmd.Stderr = &output
	stop := every(10*time.Second, func(elapsed time.Duration) {
		fmt.Fprintf(progress, "  %s: %d packages so far, %s\n", name, output.lines.Load(), elapsed)
	})
	err := cmd.Run()
	stop()
	if err != nil {
		return fmt.Errorf("%w:\n%s", err, output.tail)
	}
	return nil
}

// meter counts lines and keeps the end of what is written to it.
type meter struct {
	lines atomic.Int64
	tail  []byte
}

func (m *meter) Write(text []byte) (int, error) {
	const keep = 4096 // bytes
	m.lines.Add(int64(bytes.Count(text, []byte("\n"))))
	m.tail = append(m.tail, text...)
	m.tail = m.tail[max(0, len(m.tail)-keep):]
	return len(text), nil
}

// every calls f at intervals until stop is called.
func every(interval time.Duration, f func(elapsed time.Duration)) (stop func()) {
	started, done, ended := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case now := <-ticker.C:
				f(now.Sub(started).Round(time.Second))
			case <-done:
				return
			}
		}
	}()
	return func() { close(done); <-ended }
}

// fingerprint changes when the programs would: with the compiler, the sources here, and the
// versions.
func fingerprint(module string) (string, error) {
	h := sha256.New()
	fmt.Fprintln(h, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, p := range programs {
		fmt.Fprintln(h, p.name, p.command(""), p.links)
		if p.installed() {
			continue
		}
		for _, file := range []string{"go.mod", "go.sum", "main.go"} {
			content, err := os.ReadFile(filepath.Join(module, p.source, file))
			if err != nil {
				return "", err
			}
			fmt.Fprintf(h, "%s %x\n", file, sha256.Sum256(content))
		}
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8]), nil
}

// Checkout is the folder of the checkout that this package is in.
func Checkout(ctx context.Context) (string, error) {
	output, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/kube-vitals/kube-vitals/test").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
		}
		return "", fmt.Errorf("cannot find the test module; run this inside the folder test of a checkout: %w", err)
	}
	return filepath.Dir(string(bytes.TrimSpace(output))), nil
}

// lock waits until nobody else on this machine builds.
func lock(file string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock the cache of the cluster's programs: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot lock %s: %w", file, err), f.Close())
	}
	return func() { _ = f.Close() }, nil // closing unlocks; there is nothing to lose
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
