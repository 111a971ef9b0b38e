package reason

// ExporterURL is the address of the section about failing exporters of devices in docs/devices.md.
const ExporterURL = "https://github.com/kube-vitals/kube-vitals/blob/main/docs/devices.md#troubleshooting"

// DescribeExporter returns the description of the reason for an exporter of devices.
func (r Reason) DescribeExporter() Description {
	const (
		checkRoute = "check the NetworkPolicies between kube-vitals and the exporter, and port in the configuration"
		checkPath  = "check path and port: the path must return the text format of Prometheus"
		checkTLS   = "set tls.caFile to the CA of the exporter's certificate, and tls.serverName to a name in it"
		checkLog   = "see the log of the exporter"
	)
	switch r {
	case "":
		return Description{}
	case BadEndpoint:
		return Description{"the address of the exporter's pod cannot be used", "see the error"}
	case ConnectRefused, Unreachable, ConnectTimeout, DNS:
		return Description{"the exporter cannot be connected to", checkRoute}
	case Timeout:
		return Description{"the exporter does not respond in time", "raise timeout and interval, and " + checkLog}
	case TLSSelfSigned, TLSAuthority, TLSName, TLSExpired, TLSHandshake:
		return Description{"the exporter's certificate cannot be verified", checkTLS}
	case Unauthorized, Forbidden:
		return Description{"the exporter denies access", "let it serve metrics without credentials: kube-vitals sends none"}
	case NotFound, BadStatus, BadFormat, BadHTTP:
		return Description{"the exporter's response is not in the text format of Prometheus", checkPath}
	case Truncated, Undecodable:
		return Description{"the exporter's response is cut, or has an invalid line", checkLog}
	case BodyTooLarge:
		return Description{"the exporter's response is too large", "remove series from the exporter's list"}
	case NoSamples:
		return Description{"the exporter has none of the configured series",
			"wait half a minute after its start; then compare its list of series with resources in the configuration"}
	case InternalFailure:
		return r.Describe()
	}
	return Description{"the exporter cannot be read", checkLog}
}
