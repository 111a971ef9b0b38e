// Package server wires the other packages together: it watches nodes and pods, scrapes kubelets or reads an engine, and
// serves their usage as the aggregated API metrics.k8s.io.
//
// New builds a Server and opens its port. Run serves until its context ends, then drains. Neither
// needs the cluster's API server: until nodes, pods and the request-header CA have been read from
// it, requests get status 503 and the server is not ready. After that, the server keeps serving
// from memory while the API server or kubelets are unavailable.
package server

import (
	"context"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/device"
	"github.com/kube-vitals/kube-vitals/pkg/engine"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet/decode"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/servingcert"
)

// Config configures a Server. Resolution, MaxSampleAge, Kubelet and the options of the library must be set.
type Config struct {
	Version, Commit string                // of this program, for telemetry
	Flags           cliflag.NamedFlagSets // for /flagz; their values are not secret

	Kubeconfig   string         // file for access to the API server; "": the pod's ServiceAccount
	NodeSelector string         // label selector of the nodes to scrape; "": all
	Resolution   time.Duration  // interval between two scrapes of a node
	MaxSampleAge time.Duration  // age above which a sample is not served
	RateWindow   time.Duration  // window of a CPU rate; 0: from each sample to the next
	Kubelet      kubelet.Config // New sets Pins, Clock, Token, UserAgent and Reloaded, and credentials by default
	Active       scrape.Active  // scrapes of nodes whose metrics are read by name or label selector

	MissingMetricsWarnings bool          // a Warning header in tables if nodes or pods are missing
	Engine                 engine.Config // engine to read instead of kubelets; only URL and File are set; no URL: none
	Devices                device.Config // exporters of the usage of devices; only File is set; "": none
	StorageInterval        time.Duration // between two scrapes of a kubelet for ephemeral-storage; 0: it is not served

	// KubeletServiceAccount is a ServiceAccount in the namespace of this pod, whose tokens are sent
	// to kubelets. If it is empty, kubelets get the credentials that the API server gets.
	KubeletServiceAccount string

	// KubeletPins is a ConfigMap in the namespace of this pod, where the keys of kubelets with
	// self-signed certificates are pinned. If it is empty, such certificates are rejected.
	KubeletPins string

	// EventDeployment is the Deployment of this program, in the namespace of this pod. If it is set,
	// events are recorded on nodes that cannot be scraped, or on the Deployment if these are many or if
	// the engine cannot be read.
	EventDeployment string

	// ServingCert configures the serving certificate that the server creates and renews. New sets
	// its Client. Without a Secret, the certificate comes from Serving; the APIServices are still
	// checked if a Service is set.
	ServingCert servingcert.Config

	// The options of the API server library.
	Generic        *genericoptions.ServerRunOptions
	Serving        *genericoptions.SecureServingOptions
	Authentication *genericoptions.DelegatingAuthenticationOptions
	Authorization  *genericoptions.DelegatingAuthorizationOptions
	Audit          *genericoptions.AuditOptions
	Features       *genericoptions.FeatureOptions

	maxWriteTime, lookupTimeout time.Duration // for tests; 0: the constants
}

const (
	// maxContainers is the maximum number of containers kept for one node: as many as fit into one
	// response of the default maximum size. Responses that can be read only in part do not remove
	// containers.
	maxContainers = kubelet.DefaultMaxBodyBytes / decode.MinContainerBytes
	// readyInterval is the time between two checks whether the server is ready, and notReadyInterval
	// that between two log lines about why it is not.
	readyInterval    = 100 * time.Millisecond
	notReadyInterval = 15 * time.Second
	// connectionTimeout is the maximum time to wait for open connections once the port is closed. It
	// ends connections without a complete request; the library waits for requests in flight, for up to
	// --request-timeout each.
	connectionTimeout = 15 * time.Second
	// gcPercent replaces Go's default GOGC of 100. Most of the heap is long-lived and a scrape
	// leaves little garbage, so a smaller heap costs little CPU. With 50, memory after many LISTs
	// would be 7 % larger.
	gcPercent = 35
	// startGCPercent is used until the server is ready. The lists of objects and the TLS handshakes
	// leave much garbage: with 35, its collection would take a quarter of the CPU of a start. With 70,
	// the peak of the start would be the peak of the server.
	startGCPercent = 50
)

// Server serves metrics.k8s.io.
type Server struct{ assembly *assembly }

// New returns a Server that listens on its port. Its errors are for the user to correct, such as an
// unreadable file or a port in use.
func New(c Config) (*Server, error) {
	a, err := newAssembly(c)
	if err != nil {
		return nil, err
	}
	for _, add := range []func() error{a.addSource, a.addWatches, a.addDevices, a.addServingCert, a.addAPI} {
		if err := add(); err != nil {
			return nil, err
		}
	}
	return &Server{a}, nil
}

// Run serves until the context ends. Then the server becomes unready, waits a bounded time for the
// requests in flight, and returns nil. Watches and scrapes go on until the last request has ended.
func (s *Server) Run(ctx context.Context) error {
	a := s.assembly
	setGCPercent(startGCPercent)
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for _, loop := range a.loops {
		running.Go(func() { loop(background) })
	}
	running.Go(func() {
		if a.logReadiness(background) {
			setGCPercent(gcPercent)
			debug.FreeOSMemory() // that only the lists and the first TLS handshakes needed
		}
	})
	prepared := a.api.PrepareRun()
	a.nameZPages()
	return prepared.RunWithContext(ctx)
}

// setGCPercent sets GOGC, unless the environment variable is set.
func setGCPercent(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// logReadiness waits until the server is ready or the context ends, and reports whether the server
// is ready. In the meantime it logs why not.
func (a *assembly) logReadiness(ctx context.Context) bool {
	start := time.Now()
	lastLog := start
	err := wait.PollUntilContextCancel(ctx, readyInterval, true, func(ctx context.Context) (bool, error) {
		_, reasons := a.ready.missing()
		if reasons != nil && time.Since(lastLog) >= notReadyInterval {
			lastLog = time.Now()
			klog.FromContext(ctx).Info("Not ready yet", "reason", strings.Join(reasons, "; "))
		}
		return reasons == nil, nil
	})
	if err == nil {
		klog.FromContext(ctx).Info("Ready", "after", time.Since(start).Round(time.Millisecond))
	}
	return err == nil
}
