// Package binaries builds the programs of a test cluster from Go modules at fixed versions, and
// caches them: etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kubectl in one
// executable, a newer kubectl, kwok and helm. It needs only Go. The first build takes minutes.
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
	"syscall"
	"time"
)

// The names of the programs in the folder that Build returns.
const (
	Etcd              = "etcd"
	APIServer         = "kube-apiserver"
	ControllerManager = "kube-controller-manager"
	Scheduler         = "kube-scheduler"
	Kubectl           = "kubectl"      // the control plane's version
	NewKubectl        = "kubectl-1.37" // the first that reads metrics.k8s.io/v1
	Kwok              = "kwok"
	Helm              = "helm"
)

const componentVersion = "k8s.io/component-base/version."

// program is one executable.
type program struct {
	name    string
	source  string   // a folder in the test module that is a module, or package@version
	ldflags string   // sets versions that a module build leaves empty
	links   []string // additional names
}

var programs = []program{
	{
		name: "controlplane", source: "controlplane",
		ldflags: "-X " + componentVersion + "gitVersion=v1.36.3" +
			" -X " + componentVersion + "gitMajor=1 -X " + componentVersion + "gitMinor=36",
		links: []string{Etcd, APIServer, ControllerManager, Scheduler, Kubectl},
	},
	{
		name: NewKubectl, source: "kubectl",
		ldflags: "-X " + componentVersion + "gitVersion=v1.37.2" +
			" -X " + componentVersion + "gitMajor=1 -X " + componentVersion + "gitMinor=37",
	},
	{name: Kwok, source: "sigs.k8s.io/kwok/cmd/kwok@v0.8.0"},
	{
		name: Helm, source: "helm.sh/helm/v3/cmd/helm@v3.22.0",
		// helm template assumes the Kubernetes version that helm was built for.
		ldflags: "-X helm.sh/helm/v3/internal/version.version=v3.22.0" +
			" -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=36",
	},
}

// Build returns a folder with all programs. It builds them unless the cache has them, and reports
// to progress. Callers must not change the folder, which others use.
func Build(ctx context.Context, progress io.Writer) (dir string, err error) {
	checkout, err := Checkout(ctx)
	if err != nil {
		return "", err
	}
	module := filepath.Join(checkout, "test")
	key, err := fingerprint(module)
	if err != nil {
		return "", fmt.Errorf("compute the cache key of the cluster's programs: %w", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache folder for the cluster's programs; set XDG_CACHE_HOME: %w", err)
	}
	dir = filepath.Join(cache, "kube-vitals", key)
	if exists(dir) {
		return dir, nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return "", fmt.Errorf("create the cache of the cluster's programs: %w", err)
	}
	unlock, err := lock(filepath.Join(filepath.Dir(dir), "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if exists(dir) { // another process has built them meanwhile
		return dir, nil
	}
	return dir, buildAll(ctx, module, dir, progress)
}

// buildAll builds in a temporary folder and renames it, so that a folder in the cache is complete.
func buildAll(ctx context.Context, module, dir string, progress io.Writer) error {
	partial := dir + ".partial"
	if err := os.RemoveAll(partial); err != nil {
		return fmt.Errorf("remove an unfinished build: %w", err)
	}
	if err := os.Mkdir(partial, 0o755); err != nil {
		return fmt.Errorf("create the cache of the cluster's programs: %w", err)
	}
	fmt.Fprintf(progress, "building the cluster's programs into %s: this takes minutes, once\n", dir)
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
	cmd.Dir = dir // not in a module
	if !p.installed() {
		cmd.Dir = filepath.Join(module, p.source)
	}
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOBIN="+dir, "GOWORK=off")
	// SIGTERM lets go remove unfinished files.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	log := &buildLog{name: p.name, progress: progress}
	cmd.Stderr = log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s from %s: %w:\n%s", p.name, p.source, err, log.tail)
	}
	for _, link := range p.links {
		if err := os.Symlink(p.name, filepath.Join(dir, link)); err != nil {
			return fmt.Errorf("link %s as %s: %w", p.name, link, err)
		}
	}
	fmt.Fprintf(progress, "  %s: done in %s\n", p.name, time.Since(started).Round(time.Second))
	return nil
}

// installed reports whether the program is installed from its own module, which fixes all versions.
func (p program) installed() bool { return strings.Contains(p.source, "@") }

// command returns the arguments of go.
func (p program) command(dir string) []string {
	flags := []string{"-v", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w " + p.ldflags}
	if p.installed() {
		return append(append([]string{"install"}, flags...), p.source)
	}
	return append(append([]string{"build", "-o", filepath.Join(dir, p.name)}, flags...), ".")
}

// buildLog reports the number of packages that a verbose build has compiled, and keeps the end of its
// output.
type buildLog struct {
	name     string
	progress io.Writer
	packages int
	tail     []byte
}

func (l *buildLog) Write(text []byte) (int, error) {
	const every, keep = 250, 4096 // packages, bytes
	before := l.packages
	l.packages += bytes.Count(text, []byte("\n"))
	if l.packages/every > before/every {
		fmt.Fprintf(l.progress, "  %s: %d packages so far\n", l.name, l.packages)
	}
	l.tail = append(l.tail, text...)
	l.tail = l.tail[max(0, len(l.tail)-keep):]
	return len(text), nil
}

// fingerprint returns the cache key: it depends on the compiler, the platform, the sources in the
// test module, and the versions.
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

// Checkout returns the root folder of the source tree that has this package.
func Checkout(ctx context.Context) (string, error) {
	const module = "github.com/kube-vitals/kube-vitals/test"
	output, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, bytes.TrimSpace(exit.Stderr))
		}
		return "", fmt.Errorf("find the test module: run this in the folder test of the source tree: %w", err)
	}
	return filepath.Dir(string(bytes.TrimSpace(output))), nil
}

// lock waits until no other process builds.
func lock(file string) (unlock func(), err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the cache of the cluster's programs: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", file, err), f.Close())
	}
	return func() { _ = f.Close() }, nil // closing unlocks
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
