package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v2"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/kube-vitals/kube-vitals/pkg/adapter"
	"github.com/kube-vitals/kube-vitals/pkg/prometheus"
)

// convertCommand is the subcommand that converts prometheus-adapter's configuration.
const convertCommand = "convert-prometheus-adapter"

// The exit codes of convert-prometheus-adapter.
const (
	exitConverted    = 0
	exitNotConverted = 1 // nothing is printed
	exitDiffers      = 2 // what is printed does not give equal metrics
)

// maxAdapterConfig bounds the configuration, which is in a ConfigMap: at most 1 MiB.
const maxAdapterConfig = 4 << 20

// convertOptions are the flags of convert-prometheus-adapter.
type convertOptions struct {
	sections cliflag.NamedFlagSets
	flags    *pflag.FlagSet

	output, url   string
	help, version bool
}

func newConvertOptions() *convertOptions {
	o := &convertOptions{flags: pflag.NewFlagSet(convertCommand, pflag.ContinueOnError)}
	o.flags.Usage = func() {}
	fs := o.sections.FlagSet(convertCommand)
	fs.StringVarP(&o.output, "output", "o", "config", "What to print: 'config', the content of the file "+
		"--prometheus-config, or 'helm', values of the chart.")
	fs.StringVar(&o.url, "prometheus-url", "", "The URL of the engine, for the values of the chart: the flag "+
		"--prometheus-url of prometheus-adapter. Example: http://prometheus-k8s.monitoring.svc:9090")
	fs.BoolVar(&o.version, "version", false, "Print the version and exit.")
	fs.BoolVarP(&o.help, "help", "h", false, "Print this help and exit.")
	o.flags.AddFlagSet(fs)
	return o
}

func (o *convertOptions) printHelp(out io.Writer, width int) {
	var text bytes.Buffer
	fmt.Fprint(&text, convertCommand+" reads the configuration of prometheus-adapter, or a ConfigMap\n"+
		"with it, and prints the configuration with which kube-vitals serves the same metrics. It\n"+
		"reads standard input if FILE is - or missing. See docs/moving-from-prometheus-adapter.md.\n\n"+
		"Usage:\n  kube-vitals "+convertCommand+" [flags] [FILE]\n\n"+
		"It exits with 0, with 1 if it cannot read the configuration, or with 2 if the metrics would\n"+
		"differ by more than their window. Standard error lists what differs, and what to do.\n")
	cliflag.PrintSections(&text, o.sections, width)
	for line := range strings.Lines(text.String()) {
		fmt.Fprintln(out, strings.TrimRight(line, " \n"))
	}
}

// runConvert runs convert-prometheus-adapter and returns the exit code.
func runConvert(args []string, in io.Reader, out, errOut io.Writer) int {
	o := newConvertOptions()
	switch err := o.flags.Parse(args); {
	case err != nil && !errors.Is(err, pflag.ErrHelp):
		fmt.Fprintf(errOut, "%v; see --help\n", err)
		return exitNotConverted
	case err != nil || o.help:
		o.printHelp(out, helpWidth(out))
		return exitConverted
	case o.version:
		if err := printVersion(out); err != nil {
			return exitNotConverted
		}
		return exitConverted
	}
	if err := o.validate(); err != nil {
		fmt.Fprintln(errOut, err)
		return exitNotConverted
	}
	content, err := readInput(o.flags.Arg(0), in)
	if err != nil {
		fmt.Fprintln(errOut, err)
		return exitNotConverted
	}
	return o.convert(content, out, errOut)
}

func (o *convertOptions) validate() error {
	var mistakes []error
	if o.output != "config" && o.output != "helm" {
		mistakes = append(mistakes, fmt.Errorf("--output must be config or helm, but is %q", o.output))
	}
	if o.url != "" {
		if o.output != "helm" {
			mistakes = append(mistakes, errors.New("--prometheus-url has no effect without --output=helm: remove it"))
		}
		if _, err := prometheus.ParseURL(o.url); err != nil {
			mistakes = append(mistakes, fmt.Errorf("--prometheus-url: %w", err))
		}
	}
	if o.flags.NArg() > 1 {
		mistakes = append(mistakes, fmt.Errorf("unexpected argument %q; see --help", o.flags.Arg(1)))
	}
	return errors.Join(mistakes...)
}

// readInput reads a file, or in if the name is "" or "-".
func readInput(name string, in io.Reader) ([]byte, error) {
	file := io.NopCloser(in)
	if name != "" && name != "-" {
		var err error
		if file, err = os.Open(name); err != nil {
			return nil, err
		}
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxAdapterConfig+1))
	if err == nil && len(content) > maxAdapterConfig {
		err = fmt.Errorf("the configuration has more than %d bytes", maxAdapterConfig)
	}
	return content, err
}

func (o *convertOptions) convert(content []byte, out, errOut io.Writer) int {
	result, err := adapter.Convert(content)
	if err != nil {
		fmt.Fprintln(errOut, err)
		return exitNotConverted
	}
	for _, note := range result.Notes {
		fmt.Fprintln(errOut, "note:", note)
	}
	for _, difference := range result.Differences {
		fmt.Fprintln(errOut, "differs:", difference)
	}
	text, err := yaml.Marshal(result.Config)
	if err == nil {
		_, err = prometheus.ParseFile(text, "")
	}
	if err == nil && o.output == "helm" {
		text, err = yaml.Marshal(chartValues(o.url, result.Config))
	}
	if err != nil {
		fmt.Fprintln(errOut, "the result is not a valid configuration of kube-vitals:", err)
		return exitNotConverted
	}
	fmt.Fprint(out, string(text))
	if len(result.Differences) > 0 {
		return exitDiffers
	}
	return exitConverted
}

// chartValues returns values of the chart.
func chartValues(url string, config adapter.Config) any {
	values := yaml.MapSlice{{Key: "url", Value: url}, {Key: "config", Value: config}}
	return yaml.MapSlice{{Key: "source", Value: yaml.MapSlice{
		{Key: "type", Value: sourcePrometheus}, {Key: "prometheus", Value: values},
	}}}
}
