// Command kube-vitals serves the current CPU and memory usage of the nodes and pods of a Kubernetes
// cluster as the API metrics.k8s.io. It replaces metrics-server, and has the same flags and a few
// more; see --help.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/time/rate"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/server"
)

// The version, set by -ldflags "-X main.version=v1.2.3 -X main.commit=0123abc".
var (
	version = "v0.0.0-dev"
	commit  = "unknown"
)

func main() {
	limitErrorLog()
	ctx := genericapiserver.SetupSignalContext()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run runs the program until ctx is done.
func run(ctx context.Context, args []string, out io.Writer) error {
	o := newOptions()
	o.parse(args)
	o.parseEnvironment(os.Environ())
	isParsed := o.errs == nil
	switch {
	case !isParsed: // report the errors of the other flags, too
	case o.help:
		o.printHelp(out, helpWidth(out))
		return nil
	case o.version:
		_, err := fmt.Fprintf(out, "kube-vitals %s, commit %s, %s, %s/%s\n",
			version, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
		return err
	}
	config := o.config()
	o.checkFiles()
	if isParsed { // otherwise, --kubeconfig may be misspelled
		o.checkCluster()
	}
	if err := errors.Join(o.errs...); err != nil {
		return err
	}
	if err := logsapi.ValidateAndApply(o.logging, nil); err != nil {
		return err
	}
	logs.InitLogs()
	defer logs.FlushLogs()
	server.LimitMemory()
	klog.FromContext(ctx).Info("Starting kube-vitals", "version", version, "commit", commit, "go", runtime.Version(),
		"maxProcs", runtime.GOMAXPROCS(0), "flags", args, "environment", o.environment)
	s, err := server.New(config)
	if err != nil {
		return reason.Description{Cure: portCure(err)}.Explain(err)
	}
	return s.Run(ctx)
}

// limitErrorLog limits what the API server library logs as errors: clients without credentials that end their
// requests cause several lines each, one with the whole query. It also prevents an error for each informer that
// has not synced when the server stops.
func limitErrorLog() {
	const perSecond, burst, maxValue = 5, 10, 256
	limiter := rate.NewLimiter(perSecond, burst)
	for i, handle := range utilruntime.ErrorHandlers {
		utilruntime.ErrorHandlers[i] = func(ctx context.Context, err error, msg string, keysAndValues ...any) {
			isStopping := ctx.Err() != nil && msg == "Unable to sync caches"
			if isStopping || i == 0 && !limiter.Allow() { // the first one logs
				return
			}
			for j, value := range keysAndValues {
				if text, ok := value.(string); ok && len(text) > maxValue {
					keysAndValues[j] = text[:maxValue] + "…"
				}
			}
			handle(ctx, err, msg, keysAndValues...)
		}
	}
}

// portCure returns what to do if the server cannot listen on its port, or "". The library does not wrap the
// system's error, so portCure recognizes it by its text.
func portCure(err error) string {
	text := err.Error()
	switch {
	case !strings.Contains(text, "failed to listen on"):
	case strings.Contains(text, syscall.EADDRINUSE.Error()):
		return "another program uses the port; choose another port with --secure-port"
	case strings.Contains(text, syscall.EACCES.Error()):
		return "choose a port above 1023 with --secure-port, or add the capability NET_BIND_SERVICE"
	case strings.Contains(text, syscall.EADDRNOTAVAIL.Error()):
		return "set --bind-address to an address of this machine"
	}
	return ""
}
