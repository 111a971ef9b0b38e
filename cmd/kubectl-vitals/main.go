// Command kubectl-vitals is a plugin of kubectl. "kubectl vitals doctor" finds out why a cluster has no
// metrics, or not all, and "kubectl vitals preflight" examines a cluster before kube-vitals is installed.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	_ "k8s.io/client-go/plugin/pkg/client/auth/oidc" // kubeconfigs for kubectl may use it
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/doctor"
	"github.com/kube-vitals/kube-vitals/pkg/doctor/preflight"
)

// version is set by -ldflags "-X main.version=v1.2.3 -X main.commit=0123abc".
var (
	version = "v0.0.0-dev"
	commit  = "unknown"
)

// The exit codes.
const (
	exitHealthy    = 0
	exitBroken     = 1 // at least one check has failed
	exitUnexamined = 2 // wrong flags or kubeconfig, or the API server cannot be used
)

const exitCodes = "\n\nIt exits with 0, with 1 if something is broken, or with 2 if it could not examine the cluster."

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run runs the plugin and returns the exit code.
func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	o := &options{out: out}
	cmd := o.command()
	cmd.SetArgs(args)
	cmd.SetOut(out)
	cmd.SetErr(errOut)
	if err := cmd.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(errOut, err)
		return exitUnexamined
	}
	return o.code
}

// examiner examines a cluster. It returns a report as far as it came.
type examiner func(context.Context, doctor.Config) (*doctor.Report, error)

// options are the flags of the plugin.
type options struct {
	kubeconfig, context string
	output              string
	all                 bool
	config              doctor.Config

	out  io.Writer
	code int // the exit code of an examination
}

func (o *options) command() *cobra.Command {
	root := &cobra.Command{
		Use:           "kubectl-vitals",
		Short:         "Find out why a cluster has no metrics",
		Version:       version + ", commit " + commit,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl vitals"},
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w; see --help", err) })
	flags := root.PersistentFlags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "the kubeconfig file (default: $KUBECONFIG, else ~/.kube/config)")
	flags.StringVar(&o.context, "context", "", "the context of the kubeconfig (default: its current context)")
	flags.StringVarP(&o.config.Namespace, "namespace", "n", "",
		"the namespace of kube-vitals (default: found by the APIServices; of preflight: kube-system)")
	flags.DurationVar(&o.config.Timeout, "timeout", doctor.DefaultTimeout, "the timeout of each request")
	flags.StringVarP(&o.output, "output", "o", "text", "the format of the output: text or json")
	flags.BoolVarP(&o.all, "all", "v", false, "print the names of all affected objects, not only the first 10")
	root.AddCommand(
		o.subcommand("doctor", "Find out why a cluster has no metrics, or not all",
			"doctor examines the chain from the API server to the kubelets. For each link it prints what it sees\n"+
				"and what to do.", doctor.Examine),
		o.subcommand("preflight", "Examine a cluster before an installation",
			"preflight examines a cluster before kube-vitals is installed, and prints the command of helm that\n"+
				"fits it.", preflight.Examine))
	return root
}

func (o *options) subcommand(name, short, long string, examine examiner) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: short, Long: long + exitCodes,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unexpected argument %q; see --help", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			o.code, err = o.examine(cmd.Context(), examine)
			return err
		},
	}
}

// examine prints the report of an examination, and returns the exit code.
func (o *options) examine(ctx context.Context, examine examiner) (int, error) {
	config, err := o.client()
	if err != nil {
		return exitUnexamined, err
	}
	klog.LogToStderr(false) // the library logs failures that the checks report
	klog.SetOutput(io.Discard)
	o.config.Client, o.config.Version = config, version
	printer := newPrinter(o.out, o.all)
	if o.output == "text" {
		o.config.Start, o.config.Done = printer.Start, printer.Done
	}
	report, err := examine(ctx, o.config)
	if report == nil {
		return exitUnexamined, err
	}
	if o.output == "text" {
		printer.Finish(report)
	} else if err := doctor.PrintJSON(o.out, report); err != nil {
		return exitUnexamined, err
	}
	switch {
	case errors.Is(err, doctor.ErrUnreachable): // a check says so
		return exitUnexamined, nil
	case err != nil:
		return exitUnexamined, fmt.Errorf("the examination was interrupted: %w", err)
	case report.Summary[doctor.Failed] > 0:
		return exitBroken, nil
	}
	return exitHealthy, nil
}

// client returns how to reach the cluster. It reports all wrong flags at once.
func (o *options) client() (*rest.Config, error) {
	var errs []error
	if o.output != "text" && o.output != "json" {
		errs = append(errs, fmt.Errorf("--output must be text or json, but is %q", o.output))
	}
	if o.config.Timeout <= 0 {
		errs = append(errs, fmt.Errorf("--timeout must be above 0, but is %v", o.config.Timeout))
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	overrides := &clientcmd.ConfigOverrides{CurrentContext: o.context}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, overrides).ClientConfig()
	if err != nil {
		errs = append(errs, fmt.Errorf("cannot use the kubeconfig: set --kubeconfig or --context: %w", err))
	}
	return config, errors.Join(errs...)
}

// newPrinter returns a printer that uses control characters only on a terminal.
func newPrinter(out io.Writer, all bool) *doctor.Printer {
	file, ok := out.(*os.File)
	terminal := ok && term.IsTerminal(int(file.Fd())) && os.Getenv("TERM") != "dumb"
	return &doctor.Printer{Out: out, Terminal: terminal, Color: terminal && os.Getenv("NO_COLOR") == "", All: all}
}
