package server

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/statusz"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/pkg/api"
	"github.com/kube-vitals/kube-vitals/pkg/api/openapi"
	"github.com/kube-vitals/kube-vitals/pkg/explain"
	"github.com/kube-vitals/kube-vitals/pkg/filter"
	"github.com/kube-vitals/kube-vitals/pkg/nodez"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// componentName is the name of this program in the library.
const componentName = "kube-vitals"

// addAPI adds a generic API server with metrics.k8s.io and /nodez, and the checks of /readyz. It opens
// the port.
func (a *assembly) addAPI() error {
	scheme := api.NewScheme()
	codecs := serializer.NewCodecFactory(scheme)
	config := genericapiserver.NewConfig(codecs)
	if err := a.configure(config); err != nil {
		return err
	}
	setOpenAPI(config, openapinamer.NewDefinitionNamer(scheme), a.Version)
	toServe, err := a.secure(config)
	if err != nil {
		return err
	}
	a.addChecks(config, toServe)
	a.addFilters(config, toServe, codecs)
	if a.api, err = config.Complete(nil).New(componentName, genericapiserver.NewEmptyDelegate()); err != nil {
		return fmt.Errorf("cannot set up the API server: %w", err)
	}
	a.api.ShutdownTimeout = connectionTimeout
	limitDebugFlags(a.Config, a.api)
	a.api.Handler.NonGoRestfulMux.Handle("/metrics", a.instruments.handler())
	a.api.Handler.NonGoRestfulMux.Handle(nodez.Path, filter.WithShares(nodez.Handler(a.nodezConfig()), maxReports))
	resources := a.apiConfig(config.Authorization.Authorizer)
	if err := a.api.InstallAPIGroup(api.NewGroup(resources, scheme, codecs)); err != nil {
		return fmt.Errorf("cannot install metrics.k8s.io: %w", err)
	}
	return nil
}

// addChecks adds the checks of /readyz, the first of them those that serving requires, and of /livez.
func (a *assembly) addChecks(config *genericapiserver.Config, toServe readiness) {
	metrics := &firstMetrics{toServe: toServe, warmedUp: a.source.WarmedUp}
	a.ready = append(toServe, requirement{"metrics", metrics.check})
	if a.cert != nil {
		a.ready = append(a.ready, requirement{"serving-certificate", a.cert.Ready})
	}
	for _, r := range a.ready {
		config.AddReadyzChecks(r.probe())
	}
	config.AddLivezChecks(requirement{"scraping", a.source.Alive}.probe())
}

// addFilters adds filters around and inside those of the library. A request passes the last one here
// first. That of pkg/api comes after authorization: it needs the request info and the user.
func (a *assembly) addFilters(config *genericapiserver.Config, toServe readiness, codecs serializer.CodecFactory) {
	writeTime := cmp.Or(a.maxWriteTime, filter.MaxWriteTime)
	readTime := config.RequestTimeout + 2*writeTime // longer than any request lasts, see WithDeadline
	config.SecureServing.Listener = filter.NewListener(
		config.SecureServing.Listener, readTime, writeTime, connectionMemory(memoryLimit()))
	config.BuildHandlerChainFunc = func(handler http.Handler, config *genericapiserver.Config) http.Handler {
		handler = api.WithResponseMemory(handler, codecs, responseMemory(memoryLimit()))
		handler = genericapiserver.DefaultBuildHandlerChain(handler, config)
		handler = rejectUntilServing(handler, toServe, codecs)
		handler = filter.WithRequestLimits(
			handler, config, func() []string { return a.api.ListedPaths() }, config.ShutdownInitiatedNotify())
		return filter.WithDeadline(handler, config.RequestTimeout, writeTime)
	}
}

// defaultMemoryLimit is that of the chart. It bounds the memory of connections if the container has no limit.
const defaultMemoryLimit = 1 << 30

// connectionMemory returns what connections may take, with a memory limit of the container in bytes; 0: none.
func connectionMemory(limit uint64) int64 { return int64(cmp.Or(limit, defaultMemoryLimit) / 8) }

// responseMemory returns what responses may take, with a memory limit of the container in bytes; 0: none. The
// rest is for scrapes and for the cluster's objects.
func responseMemory(limit uint64) api.ResponseMemory {
	if limit == 0 {
		return api.ResponseMemory{Large: 128 << 20, Small: 64 << 20, Max: 1 << 30}
	}
	return api.ResponseMemory{Large: int64(limit / 8), Small: int64(limit / 16), Max: int64(limit / 4)}
}

// maxReports is how many responses of /nodez there are at the same time. One of 5000 nodes takes some megabytes until
// its client has read it.
const maxReports = 8

// nodezConfig returns what /nodez serves.
func (a *assembly) nodezConfig() nodez.Config {
	return nodez.Config{
		Version:      a.Version,
		Resolution:   a.Resolution,
		MaxSampleAge: a.MaxSampleAge,
		View:         a.view,
		Source:       a.source,
		Devices:      a.exporters,
		Memory: func() *nodez.Memory {
			return &nodez.Memory{ResidentBytes: residentMemory(), LimitBytes: memoryLimit()}
		},
		Now:   time.Now,
		Clock: a.clock,
	}
}

// apiConfig returns what metrics.k8s.io serves. The authorizer decides who may know why metrics are
// missing.
func (a *assembly) apiConfig(authorizer authorizer.Authorizer) api.Config {
	explanations := explain.Config{
		View:         a.view,
		Source:       a.source,
		Lookup:       explain.NewClient(a.clients.CoreV1(), a.lookupTimeout),
		SelectsNodes: a.NodeSelector != "",
		Resolution:   a.Resolution,
		MaxSampleAge: a.MaxSampleAge,
		Clock:        a.clock,
	}
	return api.Config{
		View:             a.view,
		NoteRead:         a.noteRead,
		ExplainPods:      &explain.Pods{Config: explanations},
		ExplainNodes:     &explain.Nodes{Config: explanations},
		Authorizer:       authorizer,
		FromEngine:       a.Engine.URL != "",
		Warnings:         a.MissingMetricsWarnings,
		Now:              time.Now,
		Clock:            a.clock,
		ObserveAnswerAge: a.instruments.observeAnswerAge,
	}
}

// configure applies the generic flags.
func (a *assembly) configure(config *genericapiserver.Config) error {
	if err := a.Generic.ApplyTo(config); err != nil {
		return fmt.Errorf("cannot apply the generic flags: %w", err)
	}
	if err := a.Audit.ApplyTo(config); err != nil {
		return fmt.Errorf("cannot set up auditing: %w", err)
	}
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	config.EnableProfiling = a.Features.EnableProfiling
	config.EnableContentionProfiling = a.Features.EnableContentionProfiling
	config.DebugSocketPath = a.Features.DebugSocketPath
	config.EnableMetrics = false                 // instruments serves /metrics
	config.LoopbackClientConfig = &rest.Config{} // required, but not used
	// The library has no limits for watches and profiles, not even before they are rejected.
	config.LongRunningFunc = func(*http.Request, *request.RequestInfo) bool { return false }
	filter.LimitInFlight(config)
	return nil
}

// secure opens the port, and sets up TLS, authentication and authorization. It returns what requests
// need before they can be served. If no certificate is configured, it makes a self-signed one for the names
// of the default Service.
func (a *assembly) secure(config *genericapiserver.Config) (readiness, error) {
	if a.cert != nil {
		a.Serving.ServerCert.GeneratedCert = a.cert
	} else {
		service := "kube-vitals." + a.namespace
		names := []string{"kube-vitals", service, service + ".svc", service + ".svc.cluster.local"}
		ips := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
		if err := a.Serving.MaybeDefaultWithSelfSignedCerts("localhost", names, ips); err != nil {
			return nil, &reason.Error{
				Err:  fmt.Errorf("cannot make a self-signed serving certificate: %w", err),
				Cure: "set --tls-cert-file and --tls-private-key-file, or set --cert-dir to a writable directory",
			}
		}
	}
	// With HTTP/2, an unknown client could make the library keep a hundred times what it sent: compressed headers, streams
	// and frames of control. What they take cannot be counted or ended here.
	a.Serving.DisableHTTP2Serving = true
	if err := a.Serving.ApplyTo(&config.SecureServing); err != nil {
		return nil, fmt.Errorf("cannot serve HTTPS: %w", err)
	}
	a.instruments.registerCertificate(config.SecureServing.Cert)
	caPublished, err := filter.Secure(config, *a.Authentication, *a.Authorization)
	if err != nil {
		return nil, err
	}
	return readiness{
		{"nodes", a.watches.NodesSynced},
		{"pods", a.watches.PodsSynced},
		{"authentication", caPublished},
	}, nil
}

// setOpenAPI sets the OpenAPI documents, which kubectl explain reads.
func setOpenAPI(config *genericapiserver.Config, namer *openapinamer.DefinitionNamer, version string) {
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIConfig.Info.Title, config.OpenAPIConfig.Info.Version = componentName, version
	config.OpenAPIV3Config.Info.Title, config.OpenAPIV3Config.Info.Version = componentName, version
}

// nameZPages replaces the library's /statusz, which PrepareRun installs for the component
// "apiserver", and adds /flagz. Both need the permission for their path.
func (a *assembly) nameZPages() {
	mux := a.api.Handler.NonGoRestfulMux
	mux.Unregister(statusz.DefaultStatuszPath)
	flagz.Install(mux, componentName, flagz.NamedFlagSetsReader{FlagSets: a.Flags})
	paths := statusz.WithListedPaths(a.api.ListedPaths())
	statusz.Install(mux, componentName, statusz.NewRegistry(a.api.EffectiveVersion, paths))
}
