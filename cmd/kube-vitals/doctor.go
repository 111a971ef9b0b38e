package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"
	"golang.org/x/term"
	_ "k8s.io/client-go/plugin/pkg/client/auth/oidc" // kubeconfigs for kubectl may use it
	"k8s.io/client-go/tools/clientcmd"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/doctor"
	"github.com/kube-vitals/kube-vitals/pkg/doctor/preflight"
)

// The exit codes of doctor.
const (
	exitHealthy    = 0
	exitBroken     = 1 // at least one check has failed
	exitUnexamined = 2 // wrong flags or kubeconfig, or the API server cannot be used
)

// pluginName is the program's name as a plugin of kubectl: kubectl vitals.
const pluginName = "kubectl-vitals"

// doctorArguments returns the arguments of doctor, and whether the command line is for it.
func doctorArguments(command []string) ([]string, bool) {
	plugin := strings.TrimSuffix(filepath.Base(command[0]), ".exe") == pluginName
	if args := command[1:]; len(args) > 0 && args[0] == "doctor" {
		return args[1:], true
	}
	return command[1:], plugin
}

// doctorOptions are the flags of doctor.
type doctorOptions struct {
	sections cliflag.NamedFlagSets
	all      *pflag.FlagSet

	kubeconfig, context string
	output              string
	verbose, preflight  bool
	help, version       bool
	config              doctor.Config
}

func newDoctorOptions() *doctorOptions {
	o := &doctorOptions{all: pflag.NewFlagSet("doctor", pflag.ContinueOnError)}
	o.all.Usage = func() {}
	fs := o.sections.FlagSet("doctor")
	fs.StringVar(&o.kubeconfig, "kubeconfig", "",
		"The kubeconfig file. (default: $KUBECONFIG, else ~/.kube/config, as for kubectl)")
	fs.StringVar(&o.context, "context", "", "The context of the kubeconfig. (default: its current context)")
	fs.StringVarP(&o.config.Namespace, "namespace", "n", "",
		"The namespace of kube-vitals. (default: found by the APIServices; with --preflight: kube-system)")
	fs.BoolVar(&o.preflight, "preflight", false,
		"Examine the cluster before an installation, and print the command of helm that fits it.")
	fs.DurationVar(&o.config.Timeout, "timeout", doctor.DefaultTimeout, "The timeout of each request.")
	fs.StringVarP(&o.output, "output", "o", "text", "The format of the output: text or json.")
	fs.BoolVarP(&o.verbose, "all", "v", false, "Print the names of all affected objects, not only the first 10.")
	fs.BoolVar(&o.version, "version", false, "Print the version and exit.")
	fs.BoolVarP(&o.help, "help", "h", false, "Print this help and exit.")
	for _, name := range o.sections.Order {
		o.all.AddFlagSet(o.sections.FlagSets[name])
	}
	return o
}

func (o *doctorOptions) printHelp(out io.Writer, width int) {
	var text bytes.Buffer
	fmt.Fprint(&text, "doctor finds out why a cluster has no metrics, or not all. It examines the chain from\n"+
		"the API server to the kubelets, and prints for each link what it sees and what to do.\n"+
		"With --preflight, it examines a cluster before an installation.\n\n"+
		"Usage:\n  kube-vitals doctor [flags]\n  kubectl vitals [flags]\n\n"+
		"It exits with 0, with 1 if something is broken, or with 2 if it could not examine the\ncluster.\n")
	cliflag.PrintSections(&text, o.sections, width)
	for line := range strings.Lines(text.String()) {
		fmt.Fprintln(out, strings.TrimRight(line, " \n"))
	}
}

// runDoctor runs doctor and returns the exit code.
func runDoctor(ctx context.Context, args []string, out, errOut io.Writer) int {
	code, err := runDoctorFlags(ctx, args, out)
	if err != nil {
		fmt.Fprintln(errOut, err)
	}
	return code
}

func runDoctorFlags(ctx context.Context, args []string, out io.Writer) (int, error) {
	o := newDoctorOptions()
	err := o.all.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
	case err != nil:
		return exitUnexamined, fmt.Errorf("%w; see --help", err)
	case o.help:
	case o.version:
		return exitHealthy, run(ctx, []string{"--version"}, out)
	case o.all.NArg() > 0:
		return exitUnexamined, fmt.Errorf("unexpected argument %q; see --help", o.all.Arg(0))
	case o.output != "text" && o.output != "json":
		return exitUnexamined, fmt.Errorf("--output must be text or json, but is %q", o.output)
	case o.config.Timeout <= 0:
		return exitUnexamined, fmt.Errorf("--timeout must be above 0, but is %v", o.config.Timeout)
	default:
		return o.examine(ctx, out)
	}
	o.printHelp(out, helpWidth(out))
	return exitHealthy, nil
}

func (o *doctorOptions) examine(ctx context.Context, out io.Writer) (int, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: o.context}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		return exitUnexamined, fmt.Errorf("cannot use the kubeconfig: set --kubeconfig or --context: %w", err)
	}
	klog.LogToStderr(false) // the library logs failures that the checks report
	klog.SetOutput(io.Discard)
	o.config.Client, o.config.Version = config, version
	printer := newPrinter(out, o.verbose)
	if o.output == "text" {
		o.config.Start, o.config.Done = printer.Start, printer.Done
	}
	examine := doctor.Examine
	if o.preflight {
		examine = preflight.Examine
	}
	report, err := examine(ctx, o.config)
	if report == nil {
		return exitUnexamined, err
	}
	if o.output == "text" {
		printer.Finish(report)
	} else if err := doctor.PrintJSON(out, report); err != nil {
		return exitUnexamined, err
	}
	switch {
	case errors.Is(err, doctor.ErrUnreachable): // a check says so
		return exitUnexamined, nil
	case err != nil:
		return exitUnexamined, fmt.Errorf("the examination was interrupted: %w", err)
	case report.Summary.Failed > 0:
		return exitBroken, nil
	}
	return exitHealthy, nil
}

// newPrinter returns a printer that uses control characters only on a terminal.
func newPrinter(out io.Writer, all bool) *doctor.Printer {
	file, ok := out.(*os.File)
	terminal := ok && term.IsTerminal(int(file.Fd())) && os.Getenv("TERM") != "dumb"
	return &doctor.Printer{Out: out, Terminal: terminal, Color: terminal && os.Getenv("NO_COLOR") == "", All: all}
}
