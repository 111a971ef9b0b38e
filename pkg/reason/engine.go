package reason

// DescribeEngine returns the description of the reason for a server that reads an engine instead of
// the kubelets. It is that of Describe if the reason does not depend on the source.
func (r Reason) DescribeEngine() Description {
	if d, ok := engineDescriptions()[r]; ok {
		return d
	}
	return r.Describe()
}

func engineDescriptions() map[Reason]Description {
	const (
		checkURL   = "check that --prometheus-url is that of Prometheus' HTTP API"
		checkRoute = "check the routes and NetworkPolicies between kube-vitals and the engine"
		checkJob   = "check that the engine scrapes the node's kubelet, and "
	)
	return map[Reason]Description{
		DNS: {"the engine's host name cannot be resolved", "check the host of --prometheus-url"},
		ConnectRefused: {"the engine's port refuses connections",
			"check that the engine runs, and the port of --prometheus-url"},
		Unreachable:    {"the engine is unreachable", checkRoute},
		ConnectTimeout: {"the engine cannot be connected to in time", checkRoute},
		Timeout: {"the engine does not respond in time",
			"check the load of the engine; if it is only slow, raise timeout in --prometheus-config"},
		ConnectionLost: {"the connection to the engine was lost", "check whether the engine was restarted"},
		BadHTTP:        {"the engine's HTTP response is invalid", "check the scheme and port of --prometheus-url"},
		TLSAuthority: {"the engine's certificate is signed by an unknown authority",
			"set http.tls_config.ca_file in --prometheus-config to the CA that signed the certificate"},
		TLSName: {"the engine's certificate is for other names",
			"set http.tls_config.server_name in --prometheus-config to a name of the certificate"},
		TLSExpired: {"the engine's certificate has expired or is not yet valid",
			"renew the engine's certificate, and check the clocks of both sides"},
		TLSHandshake: {"the TLS handshake with the engine fails",
			"check the scheme and port of --prometheus-url, and http.tls_config in --prometheus-config"},
		Unauthorized: {"the engine rejects the credentials",
			"set http.authorization or http.basic_auth in --prometheus-config"},
		Forbidden: {"the engine denies access", "check the permissions of the credentials in --prometheus-config"},
		NotFound: {"the engine does not have the path of Prometheus' HTTP API",
			"check the path of --prometheus-url, such as /prometheus for Mimir"},
		ServerError: {"the engine reports an error", "see the engine's log"},
		BadStatus: {"the response has an unexpected status",
			"see the log of kube-vitals, and check --prometheus-url and queries in --prometheus-config"},
		BadFormat: {"the response has an unexpected format", checkURL},
		BodyTooLarge: {"the engine's response is too large",
			"if the cluster has so many containers, raise maxResponseBytes in --prometheus-config"},
		Truncated: {"the engine's response is incomplete",
			"check the network and the proxies between kube-vitals and the engine"},
		Undecodable: {"the engine's response cannot be decoded", checkURL},
		NoSamples: {"the engine has no samples of the cluster's nodes and pods",
			"check preset, matchers, labels and queries in --prometheus-config, and the header of the tenant"},
		Canceled: {"the refresh was canceled", ""},

		NodeStarting: {"the engine has not been read twice yet", "wait until the engine has two samples"},
		StaleSamples: {"the engine's samples are too old or too far apart",
			"let the engine scrape the kubelets every 15 to 30 seconds, check the clocks, or raise --max-sample-age"},
		NoContainers: {"the engine has series of the node, but not of the pod",
			checkJob + "preset, matchers and queries in --prometheus-config"},
		ContainerMissing: {"the engine does not have CPU and memory of every container of the pod",
			checkJob + "preset, matchers and queries in --prometheus-config"},
	}
}
