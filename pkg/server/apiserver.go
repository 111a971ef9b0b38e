package server

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/compatibility"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/pkg/api"
	"github.com/kube-vitals/kube-vitals/pkg/api/openapi"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/servingcert"
)

// newAPIServer gives the generic API server with metrics.k8s.io in it, and what it needs to be
// ready. It opens the port.
func newAPIServer(c Config, watches *watches, scraper *scrape.Scraper, servingCert *servingcert.Manager, instruments *instruments, resources api.Config) (*genericapiserver.GenericAPIServer, readiness, error) {
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
	config.EnableMetrics = false                 // instruments serves all of them
	config.StorageObjectCountTracker = nil       // there is no storage
	config.LoopbackClientConfig = &rest.Config{} // nothing in here talks to itself
	describe(config, openapinamer.NewDefinitionNamer(scheme), c.Version)

	if err := serveTLS(c, servingCert, config); err != nil {
		return nil, nil, err
	}
	instruments.certificate(config.SecureServing.Cert)
	trusted, err := authenticate(c, config)
	if err != nil {
		return nil, nil, err
	}
	if err := authorize(c, config); err != nil {
		return nil, nil, err
	}
	needed := readiness{
		{"nodes", watches.nodes.synced},
		{"pods", watches.pods.synced},
		{"authentication", trusted},
	}
	ready := append(needed, requirement{"figures", firstFigures(needed, scraper).check})
	if servingCert != nil {
		ready = append(ready, requirement{"identity", servingCert.Ready})
	}
	if err := c.Audit.ApplyTo(config); err != nil {
		return nil, nil, fmt.Errorf("cannot set up auditing: %w", err)
	}
	config.BuildHandlerChainFunc = func(handler http.Handler, config *genericapiserver.Config) http.Handler {
		handler = genericapiserver.DefaultBuildHandlerChain(api.WithMetadataCheck(handler, codecs), config)
		return drainer(untilReady(handler, needed, codecs), config.ShutdownInitiatedNotify())
	}
	config.AddReadyzChecks(ready.probes()...)
	config.AddLivezChecks(probe("scraping", scraper.Alive))

	server, err := config.Complete(nil).New("kube-vitals", genericapiserver.NewEmptyDelegate())
	if err != nil {
		return nil, nil, fmt.Errorf("cannot set up the API server: %w", err)
	}
	server.ShutdownTimeout = connectionTimeout
	limitDebugFlags(c, server)
	server.Handler.NonGoRestfulMux.Handle("/metrics", instruments.handler())
	if err := server.InstallAPIGroup(api.NewGroup(resources, scheme, codecs)); err != nil {
		return nil, nil, fmt.Errorf("cannot install metrics.k8s.io: %w", err)
	}
	return server, ready, nil
}

// describe lets `kubectl explain` know the types.
func describe(config *genericapiserver.Config, namer *openapinamer.DefinitionNamer, version string) {
	config.OpenAPIConfig = genericapiserver.DefaultOpenAPIConfig(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIV3Config = genericapiserver.DefaultOpenAPIV3Config(openapi.GetOpenAPIDefinitions, namer)
	config.OpenAPIConfig.Info.Title, config.OpenAPIConfig.Info.Version = "kube-vitals", version
	config.OpenAPIV3Config.Info.Title, config.OpenAPIV3Config.Info.Version = "kube-vitals", version
}

// namespaceFile has the namespace of the pod that this runs in.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// serveTLS opens the port. Without a certificate in the flags one is made, for the names of the
// usual Service.
func serveTLS(c Config, servingCert *servingcert.Manager, config *genericapiserver.Config) error {
	if servingCert != nil {
		c.Serving.ServerCert.GeneratedCert = servingCert
		return applyServing(c, config)
	}
	namespace := "kube-system"
	if text, err := os.ReadFile(namespaceFile); err == nil {
		namespace = strings.TrimSpace(string(text))
	}
	service := "kube-vitals." + namespace
	names := []string{"kube-vitals", service, service + ".svc", service + ".svc.cluster.local"}
	if err := c.Serving.MaybeDefaultWithSelfSignedCerts("localhost", names, []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}); err != nil {
		return fmt.Errorf("cannot make a self-signed serving certificate; "+
			"give one by --tls-cert-file and --tls-private-key-file, or a folder that can be written to by --cert-dir: %w", err)
	}
	return applyServing(c, config)
}

func applyServing(c Config, config *genericapiserver.Config) error {
	if err := c.Serving.ApplyTo(&config.SecureServing); err != nil {
		return fmt.Errorf("cannot serve HTTPS: %w", err)
	}
	return nil
}
