package server

import (
	"fmt"
	"strconv"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// MaxVerbosity is the maximum log level. From level 8, client-go logs the bodies of requests and
// responses, which contain clients' tokens (TokenReview) and the private key of the serving
// certificate (Secret). Up to level 7, it logs URLs and headers, with credentials masked.
const MaxVerbosity = 7

// LimitVerbosity lowers the levels of --v and --vmodule to MaxVerbosity.
func LimitVerbosity(c *logsapi.LoggingConfiguration) {
	c.Verbosity = min(c.Verbosity, MaxVerbosity)
	for i := range c.VModule {
		c.VModule[i].Verbosity = min(c.VModule[i].Verbosity, MaxVerbosity)
	}
}

// limitDebugFlags replaces the library's handlers of /debug/flags/v, which accept any level, on the
// port and on the socket of --debug-socket-path.
func limitDebugFlags(c Config, server *genericapiserver.GenericAPIServer) {
	handler := routes.StringFlagPutHandler(setVerbosity)
	if c.Features.EnableProfiling {
		server.Handler.NonGoRestfulMux.Unregister("/debug/flags/v")
		server.Handler.NonGoRestfulMux.UnlistedHandleFunc("/debug/flags/v", handler)
	}
	if server.UnprotectedDebugSocket != nil {
		server.UnprotectedDebugSocket = routes.NewDebugSocket(c.Features.DebugSocketPath)
		server.UnprotectedDebugSocket.InstallProfiling()
		server.UnprotectedDebugSocket.InstallDebugFlag("v", handler)
	}
}

// setVerbosity sets the log level. It returns an error for levels above MaxVerbosity.
func setVerbosity(level string) (string, error) {
	if n, err := strconv.ParseUint(level, 10, 32); err == nil && n > MaxVerbosity {
		return "", fmt.Errorf("log level %d is above the maximum of %d: the log would contain tokens and the private key",
			n, MaxVerbosity)
	}
	return logs.GlogSetter(level)
}
