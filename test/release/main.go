// Command release makes what a release consists of, in one folder: static binaries, a bill of
// materials for each (CycloneDX), the packaged chart, the same as one file for kubectl apply, and
// the checksums of all. Made again from the same commit by the same Go, all files have the same
// bytes.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// A release is what is to be made.
type release struct {
	root      string    // folder of the repository
	out       string    // folder for the files; what is in it goes
	version   string    // semantic, with a v in front
	digest    string    // of the pushed image, for the chart and the manifest; empty: they name its tag
	ldflags   string    // for the Go linker
	platforms []string  // such as linux/amd64
	at        time.Time // of the commit; what has a time in it has this one

	helm, kustomize string // programs
}

func main() {
	var r release
	var platforms string
	var seconds int64
	flag.StringVar(&r.root, "root", "..", "folder of the repository")
	flag.StringVar(&r.out, "out", "../dist", "folder for the files; what is in it goes")
	flag.StringVar(&r.version, "version", "", "semantic version, with a v in front")
	flag.StringVar(&r.digest, "digest", "", "digest of the pushed image (sha256:…), for the chart and the manifest")
	flag.StringVar(&r.ldflags, "ldflags", "", "flags for the Go linker")
	flag.StringVar(&platforms, "platforms", "linux/amd64", "platforms of the binaries, with commas between")
	flag.Int64Var(&seconds, "time", 0, "the commit's time, in seconds since 1970")
	flag.StringVar(&r.helm, "helm", "helm", "helm 3 program")
	flag.StringVar(&r.kustomize, "kustomize", "kustomize", "kustomize 5 program")
	flag.Parse()
	r.platforms, r.at = strings.Split(platforms, ","), time.Unix(seconds, 0).UTC()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := r.make(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
	fmt.Printf("%s is in %s\n", r.version, r.out)
}

func (r release) make(ctx context.Context) error {
	if err := r.validate(); err != nil {
		return err
	}
	if err := os.RemoveAll(r.out); err != nil {
		return fmt.Errorf("the last release cannot be cleared away: %w", err)
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return fmt.Errorf("there is no folder for the release: %w", err)
	}
	for _, step := range []func(context.Context) error{r.chart, r.manifest, r.binaries} { // what is quick to fail is first
		if err := step(ctx); err != nil {
			return err
		}
	}
	return writeChecksums(r.out)
}

// semantic is a version as helm takes it, after a v: https://semver.org.
var semantic = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-(0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*)(\.(0|[1-9]\d*|\d*[A-Za-z-][0-9A-Za-z-]*))*)?$`)

var digest = regexp.MustCompile(`^(sha256:[0-9a-f]{64})?$`)

var platform = regexp.MustCompile(`^linux/[a-z0-9]+$`)

func (r release) validate() error {
	var mistakes []error
	if !semantic.MatchString(r.version) {
		mistakes = append(mistakes, fmt.Errorf("%q is not a semantic version such as v1.2.3; tag the commit, or set VERSION", r.version))
	}
	if !digest.MatchString(r.digest) {
		mistakes = append(mistakes, fmt.Errorf("%q is not a digest such as sha256:… with 64 digits", r.digest))
	}
	for _, p := range r.platforms {
		if !platform.MatchString(p) {
			mistakes = append(mistakes, fmt.Errorf("%q is not a platform such as linux/amd64", p))
		}
	}
	return errors.Join(mistakes...)
}

// bare is the version without the v.
func (r release) bare() string { return strings.TrimPrefix(r.version, "v") }

// binaries builds one for each platform, and writes what it was built from.
func (r release) binaries(ctx context.Context) error {
	for _, p := range r.platforms {
		goos, arch, _ := strings.Cut(p, "/")
		file, err := filepath.Abs(filepath.Join(r.out, "kube-vitals-"+goos+"-"+arch))
		if err != nil {
			return err
		}
		build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", r.ldflags, "-o", file, "./cmd/kube-vitals")
		build.Dir = r.root
		build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+arch)
		if err := run(build); err != nil {
			return fmt.Errorf("the binary for %s cannot be built: %w", p, err)
		}
		if err := writeMaterials(file, r.version); err != nil {
			return err
		}
	}
	return nil
}

// run runs a program. Where it fails, the error has what it said.
func run(cmd *exec.Cmd) error {
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, err, said)
	}
	return nil
}
