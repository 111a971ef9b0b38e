package server

import (
	"net/http"

	"k8s.io/apiserver/pkg/endpoints/filters"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	genericfilters "k8s.io/apiserver/pkg/server/filters"
)

// chain is what each request goes through: the library's filters in the library's order, but for those that a server of small
// answers without storage pays for and has nothing of. These are tracing (nobody can switch it on here), the latency of each
// filter, fairness between clients (there is a limit on all of them), and watches. They take a third of what a small request
// costs. The library's wait for requests in flight is left out, too: it answers 503 when the port is about to be closed, and
// waits without a bound. The HTTP server waits for what it has accepted, up to drainTimeout.
func chain(handler http.Handler, c *genericapiserver.Config) http.Handler {
	handler = filters.WithAuthorization(handler, c.Authorization.Authorizer, c.Serializer)
	handler = genericfilters.WithMaxInFlightLimit(handler, c.MaxRequestsInFlight, c.MaxMutatingRequestsInFlight, c.LongRunningFunc)
	if c.FeatureGate.Enabled(features.ConstrainedImpersonation) {
		handler = impersonation.WithConstrainedImpersonation(handler, c.Authorization.Authorizer, c.Serializer)
	} else {
		handler = impersonation.WithImpersonation(handler, c.Authorization.Authorizer, c.Serializer)
	}
	handler = filters.WithAudit(handler, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc)
	refused := filters.Unauthorized(c.Serializer)
	refused = filters.WithFailedAuthenticationAudit(refused, c.AuditBackend, c.AuditPolicyRuleEvaluator)
	handler = filters.WithAuthentication(handler, c.Authentication.Authenticator, refused, c.Authentication.APIAudiences, c.Authentication.RequestHeaderConfig)
	if len(c.CorsAllowedOriginList) > 0 {
		handler = genericfilters.WithCORS(handler, c.CorsAllowedOriginList, nil, nil, nil, "true")
	}
	handler = filters.WithWarningRecorder(handler) // inside of the time limit, which makes its headers safe
	handler = genericfilters.WithTimeoutForNonLongRunningRequests(handler, c.LongRunningFunc)
	handler = filters.WithRequestDeadline(handler, c.AuditBackend, c.AuditPolicyRuleEvaluator, c.LongRunningFunc, c.Serializer, c.RequestTimeout)
	if !c.SecureServing.DisableHTTP2 && c.GoawayChance > 0 {
		handler = genericfilters.WithProbabilisticGoaway(handler, c.GoawayChance)
	}
	handler = filters.WithCacheControl(handler)
	handler = genericfilters.WithHSTS(handler, c.HSTSDirectives)
	handler = genericfilters.WithHTTPLogging(handler)
	if c.AuditBackend != nil {
		handler = filters.WithLatencyTrackers(handler) // for the audit's annotations
	}
	handler = filters.WithRequestInfo(handler, c.RequestInfoResolver)
	handler = filters.WithRequestReceivedTimestamp(handler)
	handler = genericfilters.WithPanicRecovery(handler, c.RequestInfoResolver)
	return filters.WithAuditInit(handler)
}
