// Command kubectl-vitals is a plugin of kubectl. "kubectl vitals top" shows usage beside requests and limits,
// "kubectl vitals doctor" finds out why a cluster has no metrics, or not all, and "kubectl vitals preflight" examines a
// cluster before kube-vitals is installed.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	_ "k8s.io/client-go/plugin/pkg/client/auth/oidc" // kubeconfigs for kubectl may use it
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/internal/terminal"
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
	exitBroken     = 1 // at least one check has failed, or top could not read everything
	exitUnexamined = 2 // wrong flags or kubeconfig, or the API server cannot be used
)

const exitCodes = "\n\nIt exits with 0, with 1 if something is broken, or with 2 if it could not examine the cluster."

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, out, errOut io.Writer) int {
	o := &options{out: out}
	cmd := o.command()
	cmd.SetArgs(args)
	cmd.SetOut(out)
	cmd.SetErr(errOut)
	if err := cmd.ExecuteContext(ctx); err != nil {
		for line := range strings.Lines(err.Error()) { // it may have texts of a server
			fmt.Fprintln(errOut, terminal.Printable(strings.TrimSuffix(line, "\n")))
		}
		return exitUnexamined
	}
	return o.code
}

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
		Short:         "Show usage, and find out why a cluster has no metrics",
		Version:       version + ", commit " + commit,
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl vitals"},
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w; see --help", err) })
	flags := root.PersistentFlags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "the kubeconfig file (default: $KUBECONFIG, else ~/.kube/config)")
	flags.StringVar(&o.context, "context", "", "the context of the kubeconfig (default: its current context)")
	add := func(name, short, long string, examine examiner) {
		cmd := &cobra.Command{Use: name, Short: short, Long: long + exitCodes, Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), examine) }}
		flags := cmd.Flags()
		flags.StringVarP(&o.config.Namespace, "namespace", "n", "",
			"the namespace of kube-vitals (default: found by the APIServices, or chosen by preflight)")
		flags.DurationVar(&o.config.Timeout, "timeout", 10*time.Second, "the timeout of each request")
		flags.StringVarP(&o.output, "output", "o", "text", "the format of the output: text or json")
		flags.BoolVarP(&o.all, "all", "v", false, "print the names of all affected objects, not only the first 10")
		root.AddCommand(cmd)
	}
	root.AddCommand(o.topCommand())
	add("doctor", "Find out why a cluster has no metrics, or not all",
		"doctor examines each link from the API server to the kubelets, and prints what it sees and what to do.",
		doctor.Examine)
	add("preflight", "Examine a cluster before an installation",
		"preflight examines a cluster before kube-vitals is installed, and prints the command of helm that fits it.",
		preflight.Examine)
	return root
}

// examiner examines a cluster. It returns a report as far as it came.
type examiner func(context.Context, doctor.Config) (*doctor.Report, error)

// run prints the report of an examination, and sets the exit code.
func (o *options) run(ctx context.Context, examine examiner) error {
	if err := o.complete(); err != nil {
		return err
	}
	screen := terminal.Of(o.out)
	printer := &doctor.Printer{Out: o.out, Terminal: screen.Size != nil, Color: screen.Color, All: o.all}
	if o.output == "text" {
		o.config.Start, o.config.Done = printer.Start, printer.Done
	}
	report, err := examine(ctx, o.config)
	o.code = exitUnexamined
	if report == nil {
		return err
	}
	if o.output == "text" {
		printer.Finish(report)
	} else if err := terminal.WriteJSON(o.out, report); err != nil {
		return err
	}
	switch {
	case errors.Is(err, doctor.ErrUnreachable): // a check says so
	case err != nil:
		return fmt.Errorf("the examination was interrupted: %w", err)
	default:
		o.code = exitCode(report)
	}
	return nil
}

// exitCode returns the exit code of a whole report.
func exitCode(r *doctor.Report) int {
	// The first two steps are about the API server only, and the last one of preflight follows from the others.
	examined := func(c doctor.Check) bool {
		return c.Status != doctor.Skipped && c.Reason != doctor.RequestFailed &&
			!slices.Contains([]string{"api-server", "aggregation", preflight.InstallStep}, c.ID)
	}
	switch {
	case r.Summary[doctor.Failed] > 0:
		return exitBroken
	case slices.ContainsFunc(r.Checks, examined):
		return exitHealthy
	}
	return exitUnexamined
}

// complete sets how to reach the cluster. It reports all wrong flags at once.
func (o *options) complete() (err error) {
	var errs []error
	if o.output != "text" && o.output != "json" {
		errs = append(errs, fmt.Errorf("--output must be text or json, but is %q", o.output))
	}
	if o.config.Timeout <= 0 {
		errs = append(errs, fmt.Errorf("--timeout must be above 0, but is %v", o.config.Timeout))
	}
	o.config.Version = version
	if o.context != "" {
		o.config.KubectlFlags, o.config.HelmFlags = " --context="+quote(o.context), " --kube-context="+quote(o.context)
	}
	if o.kubeconfig != "" {
		o.config.KubectlFlags += " --kubeconfig=" + quote(o.kubeconfig)
		o.config.HelmFlags += " --kubeconfig=" + quote(o.kubeconfig)
	}
	o.config.Client, _, err = o.connect()
	return errors.Join(append(errs, err)...)
}

// plain matches texts that shells read as they are.
var plain = regexp.MustCompile(`^[\w@%+=:,./-]+$`)

// quote returns a text as an argument of a shell.
func quote(text string) string {
	if plain.MatchString(text) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// connect returns how to reach the cluster, and the namespace of the context.
func (o *options) connect() (client *rest.Config, namespace string, err error) {
	klog.SetLogger(logr.Discard()) // the library logs failures that are reported
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: o.context})
	client, err = config.ClientConfig()
	if clientcmd.IsEmptyConfig(err) { // the library names no file
		err = fmt.Errorf("no current context with a cluster in %s", strings.Join(rules.GetLoadingPrecedence(), ", "))
	}
	if err == nil {
		namespace, _, err = config.Namespace()
	}
	if err != nil {
		return nil, "", fmt.Errorf("cannot use the kubeconfig: set --kubeconfig or --context: %w", err)
	}
	return client, namespace, nil
}
