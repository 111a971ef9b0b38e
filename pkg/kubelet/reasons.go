package kubelet

// Reasons of errors, for telemetry.
const (
	reasonNoAddress       = "no_address"
	reasonEndpoint        = "bad_endpoint"
	reasonCanceled        = "canceled"
	reasonDNS             = "dns"
	reasonRefused         = "refused"
	reasonUnreachable     = "unreachable"
	reasonConnectTimeout  = "connect_timeout"
	reasonTimeout         = "timeout"
	reasonConnection      = "connection"
	reasonProtocol        = "protocol"
	reasonTLSAuthority    = "tls_authority"
	reasonTLSName         = "tls_name"
	reasonTLSExpired      = "tls_expired"
	reasonTLS             = "tls"
	reasonUnauthorized    = "unauthorized"
	reasonForbidden       = "forbidden"
	reasonNotFound        = "not_found"
	reasonServer          = "server_error"
	reasonStatus          = "status"
	reasonTooLarge        = "too_large"
	reasonTruncated       = "truncated"
	reasonContentType     = "content_type"
	reasonContentEncoding = "content_encoding"
	reasonMalformed       = "malformed"
	reasonNoSamples       = "no_samples"
	reasonUnread          = "containers_unread"
	reasonBadTime         = "bad_time"
	reasonNoToken         = "no_token"
	reasonOther           = "other"
)

// class describes all errors with the same reason.
type class struct {
	reason  string
	problem string // may be empty if the error itself names the problem
	hint    string // what to do about it; may be empty
}

// classes returns the classes of all errors.
func classes() []class {
	const (
		unverified  = "cannot verify the kubelet's certificate"
		noConnect   = "cannot connect to the kubelet"
		checkPort   = "check --kubelet-port and --kubelet-use-node-status-port"
		checkRoute  = "check the routes, firewalls and NetworkPolicies between kube-vitals and the node"
		checkPath   = "check the node's annotation " + PathAnnotation
		checkServer = "check --kubelet-port and the node's annotation " + PathAnnotation
		kubeletLog  = "see the kubelet's log"
	)
	return []class{
		{reasonNoAddress, "", ""},
		{reasonEndpoint, "", "check the node's addresses and --kubelet-preferred-address-types"},
		{reasonCanceled, "the scrape was canceled", ""},
		{reasonDNS, "cannot resolve the kubelet's host name",
			"make it resolvable for kube-vitals, or put InternalIP first in --kubelet-preferred-address-types"},
		{reasonRefused, noConnect, "check that the kubelet runs, and " + checkPort},
		{reasonUnreachable, noConnect, checkRoute},
		{reasonConnectTimeout, "", checkRoute + ", and whether the node is up"},
		{reasonTimeout, "", "check the load of the node; if the kubelet is only slow, raise --kubelet-request-timeout"},
		{reasonConnection, "lost the connection to the kubelet", "check whether the kubelet was restarted"},
		{reasonProtocol, "invalid HTTP response", checkPort},
		{reasonTLSAuthority, unverified, "set --kubelet-certificate-authority to the CA that signed it, " +
			"enable serverTLSBootstrap in the kubelet, or set --kubelet-insecure-tls"},
		{reasonTLSName, unverified, "enable serverTLSBootstrap in the kubelet to get a certificate for its names and " +
			"addresses, or set --kubelet-preferred-address-types to an address of the certificate"},
		{reasonTLSExpired, unverified, "renew the kubelet's certificate, and check the clocks of both sides"},
		{reasonTLS, "the TLS handshake with the kubelet failed",
			"check --kubelet-port, and whether the kubelet accepts the certificate of --kubelet-client-certificate"},
		{reasonUnauthorized, "the kubelet rejected the credentials",
			"enable webhook authentication in the kubelet, and check the bearer token or client certificate"},
		{reasonForbidden, "the kubelet denied access", "grant get on nodes/metrics to the user that kube-vitals runs as"},
		{reasonNotFound, "the kubelet has no such path", checkPath},
		{reasonServer, "the kubelet reported an error", kubeletLog},
		{reasonStatus, "unexpected response", checkServer},
		{reasonTooLarge, "the kubelet's response is too large",
			"if the node has so many containers, raise --kubelet-max-response-bytes"},
		{reasonTruncated, "the kubelet's response is incomplete", ""},
		{reasonContentType, "unexpected format of the response", checkServer},
		{reasonContentEncoding, "unexpected format of the response", checkServer},
		{reasonMalformed, "cannot decode the kubelet's response", "check --kubelet-port, and " + kubeletLog},
		{reasonNoSamples, "the kubelet's response has no samples", checkPath},
		{reasonUnread, "the kubelet cannot read its containers", kubeletLog + ", and check the container runtime"},
		{reasonBadTime, "no sample of the kubelet has a valid time", "set the node's clock, for example by NTP"},
		{reasonNoToken, "no token for the kubelet", ""},
		{reasonOther, "", ""},
	}
}

// Reasons returns all reasons that Reason returns for errors.
func Reasons() []string {
	var reasons []string
	for _, c := range classes() {
		reasons = append(reasons, c.reason)
	}
	return reasons
}
