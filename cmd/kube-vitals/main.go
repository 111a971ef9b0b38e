// Command kube-vitals serves what a Kubernetes cluster's nodes and pods use right now, as metrics.k8s.io.
//
// Its flags are those of metrics-server, which it takes the place of, and a few of its own; see --help.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/kube-vitals/kube-vitals/pkg/server"
)

// What this program was built from. Set by -ldflags "-X main.version=v1.2.3 -X main.commit=0123abc".
var (
	version = "v0.0.0-dev"
	commit  = "unknown"
)

func main() {
	if err := run(genericapiserver.SetupSignalContext(), os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run does what the arguments say until the context ends.
func run(ctx context.Context, args []string, out io.Writer) error {
	o := newOptions()
	mistakes := o.parse(args)
	switch {
	case mistakes != nil: // what the flags that could be read say may be wrong, too
	case o.help:
		o.printHelp(out)
		return nil
	case o.version:
		_, err := fmt.Fprintf(out, "kube-vitals %s, commit %s, %s, %s/%s\n", version, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return err
	}
	config, err := o.config()
	if err := errors.Join(mistakes, err); err != nil {
		return err
	}
	if err := logsapi.ValidateAndApply(o.logging, nil); err != nil {
		return err
	}
	logs.InitLogs()
	defer logs.FlushLogs()
	s, err := server.New(config)
	if err != nil {
		return err
	}
	return s.Run(ctx)
}
