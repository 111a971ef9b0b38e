// Command metrics-conformance judges the implementation of metrics.k8s.io in a cluster.
//
// Exit status 0: it conforms. 1: a required or recommended check failed. 2: it could not judge.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"regexp"
	"strings"
	"syscall"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-vitals/kube-vitals/test/conformance"
)

const usage = `Judges the implementation of the API metrics.k8s.io in a cluster. It needs the kubeconfig of an
administrator, creates a namespace with pods of known usage, and deletes it at the end.

Exit status 0: it conforms. 1: a required or recommended check failed. 2: it could not judge.

`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "metrics-conformance:", err)
	}
	os.Exit(code)
}

type options struct {
	kubeconfig, profile, only, workload string
	cpu, memory                         string // annotations
	output, file, stop, start, kubectl  string
	disruptive, list                    bool
}

// run returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (int, error) {
	var o options
	var cfg conformance.Config
	flags := flag.NewFlagSet("metrics-conformance", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "`file`; default: $KUBECONFIG or ~/.kube/config")
	flags.StringVar(&o.profile, "profile", "recommended", "required, recommended (with required), or extension (all)")
	flags.StringVar(&o.only, "run", "", "run only the checks whose ID matches this `regexp`")
	flags.StringVar(&o.workload, "workload", "registry.k8s.io/e2e-test-images/busybox:1.36.1-1",
		"`image` with sh, sleep and dd; kwok: simulated pods with annotations; none: judge the metrics that exist")
	flags.StringVar(&o.cpu, "cpu-annotation", "kwok.x-k8s.io/usage-cpu", "`name` of the annotation of simulated pods")
	flags.StringVar(&o.memory, "memory-annotation", "kwok.x-k8s.io/usage-memory",
		"`name` of the annotation of simulated pods")
	flags.BoolVar(&o.disruptive, "disruptive", false, "also stop a kubelet, with --stop-node-command")
	flags.StringVar(&o.stop, "stop-node-command", "", "shell `command` that stops the kubelet of the node $NODE")
	flags.StringVar(&o.start, "start-node-command", "", "shell `command` that starts it again")
	flags.StringVar(&o.kubectl, "kubectl", "", "`program`; default: kubectl in $PATH, if there is one")
	flags.DurationVar(&cfg.Timeout, "timeout", 0, "for what takes a few scrapes; 0: 2m")
	flags.DurationVar(&cfg.MaxAge, "max-age", 0, "of metrics; 0: 5m")
	flags.StringVar(&o.output, "output", "text", "text, json or junit")
	flags.StringVar(&o.file, "o", "", "write the report to this `file` and the progress to standard output")
	flags.BoolVar(&o.list, "list", false, "list the checks with their sources and exit")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0, err
		}
		return 2, err
	}
	if flags.NArg() > 0 {
		return 2, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if o.list {
		for _, c := range conformance.Checks() {
			fmt.Fprintf(stdout, "%-11s %-26s %s\n    %s, %s\n", c.Profile, c.ID, c.Title, c.Source.Text, c.Source.URL)
		}
		return 0, nil
	}
	if err := o.apply(&cfg); err != nil {
		return 2, err
	}
	if o.file != "" {
		cfg.Progress = func(r conformance.Result) { fmt.Fprint(stdout, r.Text()) }
	}
	report, err := conformance.Run(ctx, cfg)
	if report == nil {
		return 2, err
	}
	if err := errors.Join(err, o.write(report, stdout)); err != nil {
		return 2, err
	}
	if !report.Conforms() {
		return 1, nil
	}
	return 0, nil
}

// apply sets the configuration, or returns what is wrong with the flags.
func (o *options) apply(cfg *conformance.Config) error {
	var errs []error
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	var err error
	cfg.REST, err = clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		errs = append(errs, fmt.Errorf("--kubeconfig: %w", err))
	}
	cfg.Kubeconfig = o.kubeconfig
	switch cfg.Profile = conformance.Profile(o.profile); cfg.Profile {
	case conformance.Required, conformance.Recommended, conformance.Extension:
	default:
		errs = append(errs, fmt.Errorf("--profile %q: must be required, recommended or extension", o.profile))
	}
	if o.only != "" {
		if cfg.Only, err = regexp.Compile(o.only); err != nil {
			errs = append(errs, fmt.Errorf("--run: %w", err))
		}
	}
	switch o.workload {
	case "none":
	case "kwok":
		cfg.Workload = conformance.Workload{CPUAnnotation: o.cpu, MemoryAnnotation: o.memory}
	default:
		cfg.Workload.Image = o.workload
	}
	switch o.output {
	case "text", "json", "junit":
	default:
		errs = append(errs, fmt.Errorf("--output %q: must be text, json or junit", o.output))
	}
	if o.disruptive != (o.stop != "") || o.disruptive != (o.start != "") {
		errs = append(errs, errors.New("--disruptive, --stop-node-command and --start-node-command: set all three or none"))
	}
	if o.disruptive {
		cfg.StopNode, cfg.StartNode = shell(o.stop), shell(o.start)
	}
	if cfg.Kubectl = o.kubectl; cfg.Kubectl == "" {
		cfg.Kubectl, _ = exec.LookPath("kubectl") // empty if there is none
	}
	return errors.Join(errs...)
}

// shell returns a function that runs a shell command with the name of a node in the environment.
func shell(command string) func(context.Context, string) error {
	return func(ctx context.Context, node string) error {
		cmd := exec.CommandContext(ctx, "sh", "-c", command)
		cmd.Env = append(os.Environ(), "NODE="+node)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", command, err, strings.TrimSpace(string(out)))
		}
		return nil
	}
}

func (o *options) write(report *conformance.Report, stdout io.Writer) error {
	write := map[string]func(io.Writer) error{
		"text": report.WriteText, "json": report.WriteJSON, "junit": report.WriteJUnit,
	}[o.output]
	if o.file == "" {
		return write(stdout)
	}
	f, err := os.Create(o.file)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
