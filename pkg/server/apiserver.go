package server

import (
	"cmp"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/pkg/api"
	"github.com/kube-vitals/kube-vitals/pkg/api/openapi"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/memory"
	"github.com/kube-vitals/kube-vitals/pkg/nodez"
	"github.com/kube-vitals/kube-vitals/pkg/servingcert"
)

// newAPIServer returns a generic API server with metrics.k8s.io and /nodez, and the checks of
// /readyz. It opens the port.
func newAPIServer(
	c Config, watches *inventory.Watches, usageSource source, servingCert *servingcert.Manager,
	instruments *instruments, resources api.Config, page nodez.Config,
) (*genericapiserver.GenericAPIServer, readiness, error) {
	scheme := api.NewScheme()
	codecs := serializer.NewCodecFactory(scheme)
	config := genericapiserver.NewConfig(codecs)
	if err := c.Generic.ApplyTo(config); err != nil {
		return nil, nil, fmt.Errorf("cannot apply the generic flags: %w", err)
	}
	config.EffectiveVersion = compatibility.DefaultBuildEffectiveVersion()
	config.EnableProfiling = c.Features.EnableProfiling
	config.EnableContentionProfiling = c.Features.EnableContentionProfiling
	config.DebugSocketPath = c.Features.DebugSocketPath
	config.EnableMetrics = false                 // instruments serves /metrics
	config.LoopbackClientConfig = &rest.Config{} // required, but not used
	// The library has no limits for watches and profiles, not even before they are rejected.
	config.LongRunningFunc = func(*http.Request, *request.RequestInfo) bool { return false }
	limitInFlight(config)
	setOpenAPI(config, openapinamer.NewDefinitionNamer(scheme), c.Version)

	if err := serveTLS(c, servingCert, config); err != nil {
		return nil, nil, err
	}
	writeTime := cmp.Or(c.maxWriteTime, maxWriteTime)
	config.SecureServing.Listener = deadlineListener{config.SecureServing.Listener, writeTime}
	instruments.registerCertificate(config.SecureServing.Cert)
	caPublished, err := authenticate(c, config)
	if err != nil {
		return nil, nil, err
	}
	if err := authorize(c, config); err != nil {
		return nil, nil, err
	}
	resources.Authorizer = config.Authorization.Authorizer
	required := readiness{
		{"nodes", watches.NodesSynced},
		{"pods", watches.PodsSynced},
		{"authentication", caPublished},
	}
	ready := append(required, requirement{"metrics", newFirstMetrics(required, usageSource).check})
	if servingCert != nil {
		ready = append(ready, requirement{"serving-certificate", servingCert.Ready})
	}
	if err := c.Audit.ApplyTo(config); err != nil {
		return nil, nil, fmt.Errorf("cannot set up auditing: %w", err)
	}
	config.BuildHandlerChainFunc = func(handler http.Handler, config *genericapiserver.Config) http.Handler {
		handler = api.WithResponseMemory(handler, codecs, responseMemory(memory.Limit()))
		handler = api.WithMetadataCheck(handler, codecs)
		handler = genericapiserver.DefaultBuildHandlerChain(handler, config)
		handler = withWriteDeadline(rejectUntilReady(handler, required, codecs), config.RequestTimeout, writeTime)
		return drainer(handler, config.ShutdownInitiatedNotify())
	}
	config.AddReadyzChecks(ready.probes()...)
	config.AddLivezChecks(probe("scraping", usageSource.Alive))

	server, err := config.Complete(nil).New("kube-vitals", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, nil, fmt.Errorf("cannot set up the API server: %w", err)
	}
	server.ShutdownTimeout = connectionTimeout
	limitDebugFlags(c, server)
	server.Handler.NonGoRestfulMux.Handle("/metrics", instruments.handler())
	server.Handler.NonGoRestfulMux.Handle(nodez.Path, nodez.Handler(page))
	if err := server.InstallAPIGroup(api.NewGroup(resources, scheme, codecs)); err != nil {
		return nil, nil, fmt.Errorf("cannot install metrics.k8s.io: %w", err)
	}
	return server, ready, nil
}

// setOpenAPI sets the OpenAPI documents, which kubectl explain reads.
func setOpenAPI(config *genericapiserver.Config, namer *openapinamer.DefinitionNamer, version string) {
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIConfig.Info.Title, config.OpenAPIConfig.Info.Version = "kube-vitals", version
	config.OpenAPIV3Config.Info.Title, config.OpenAPIV3Config.Info.Version = "kube-vitals", version
}

// serveTLS opens the port. If no certificate is configured, it makes a self-signed one for the
// names of the default Service.
func serveTLS(c Config, servingCert *servingcert.Manager, config *genericapiserver.Config) error {
	if servingCert != nil {
		c.Serving.ServerCert.GeneratedCert = servingCert
	} else {
		namespace := "kube-system"
		if text, err := os.ReadFile(inClusterNamespaceFile); err == nil {
			namespace = strings.TrimSpace(string(text))
		}
		service := "kube-vitals." + namespace
		names := []string{"kube-vitals", service, service + ".svc", service + ".svc.cluster.local"}
		ips := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
		if err := c.Serving.MaybeDefaultWithSelfSignedCerts("localhost", names, ips); err != nil {
			return fmt.Errorf("cannot make a self-signed serving certificate: %w; "+
				"set --tls-cert-file and --tls-private-key-file, or set --cert-dir to a writable directory", err)
		}
	}
	if err := c.Serving.ApplyTo(&config.SecureServing); err != nil {
		return fmt.Errorf("cannot serve HTTPS: %w", err)
	}
	return nil
}
