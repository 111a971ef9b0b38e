// Package reason defines the closed set of reasons why metrics are missing.
//
// A Reason has the same name wherever it occurs: in the metrics of kube-vitals, its log, the events
// of nodes, the errors and warnings of the API, the page of nodes, and the output of doctor. Each
// has a section of that name in docs/troubleshooting.md, see URL.
package reason

// Reason is the name of a reason, such as "tls-expired". The empty Reason means that nothing is
// known to be wrong.
type Reason string

// The reasons why a scrape of a kubelet fails. Many are also why an engine cannot be read.
const (
	NoAddress       Reason = "no-address"
	BadEndpoint     Reason = "bad-endpoint"
	DNS             Reason = "dns"
	ConnectRefused  Reason = "connect-refused"
	Unreachable     Reason = "unreachable"
	ConnectTimeout  Reason = "connect-timeout"
	Timeout         Reason = "timeout"
	ConnectionLost  Reason = "connection-lost"
	BadHTTP         Reason = "invalid-http"
	TLSSelfSigned   Reason = "tls-self-signed"
	TLSAuthority    Reason = "tls-unknown-authority"
	TLSName         Reason = "tls-name-mismatch"
	TLSExpired      Reason = "tls-expired"
	TLSHandshake    Reason = "tls-handshake"
	TLSKeyChanged   Reason = "tls-key-changed"
	TLSNotPinned    Reason = "tls-not-pinned"
	NoToken         Reason = "no-token"
	Unauthorized    Reason = "unauthorized"
	Forbidden       Reason = "forbidden"
	NotFound        Reason = "not-found"
	ServerError     Reason = "server-error"
	BadStatus       Reason = "unexpected-status"
	BadFormat       Reason = "unexpected-format"
	BodyTooLarge    Reason = "body-too-large"
	Truncated       Reason = "truncated"
	Undecodable     Reason = "undecodable"
	NoSamples       Reason = "no-samples"
	RuntimeNoStats  Reason = "runtime-without-stats"
	ClockSkew       Reason = "clock-skew"
	Canceled        Reason = "canceled"
	InternalFailure Reason = "internal-error"
)

// The reasons why a node or pod has no metrics although scrapes succeed, or because there is
// nothing to scrape.
const (
	NodeNotFound     Reason = "node-not-found"
	NotSelected      Reason = "not-selected"
	NodeStarting     Reason = "node-starting"
	StaleSamples     Reason = "stale-samples"
	Slow             Reason = "slow" // metrics are current nevertheless
	EngineFailing    Reason = "engine-failing"
	NotInEngine      Reason = "not-in-engine"
	UsageUnknown     Reason = "usage-unknown"
	BadTime          Reason = "invalid-time"
	BadValue         Reason = "invalid-value"
	CounterFell      Reason = "counter-fell"
	AboveCapacity    Reason = "above-capacity"
	OtherPod         Reason = "other-pod"
	PodNotFound      Reason = "pod-not-found"
	PodPending       Reason = "pod-pending"
	PodStarting      Reason = "pod-starting"
	PodSucceeded     Reason = "pod-succeeded"
	PodFailed        Reason = "pod-failed"
	PodUnknown       Reason = "pod-unknown"
	NotRunning       Reason = "containers-not-running"
	NoContainers     Reason = "no-containers"
	ContainerMissing Reason = "container-missing"
)

// Description is what users are told about a Reason. It contains no names or addresses.
type Description struct {
	Problem string // what is wrong
	Cure    string // what to do about it; empty if nothing needs to be done
}

// URL returns the address of the section about the reason in docs/troubleshooting.md.
func (r Reason) URL() string {
	return "https://github.com/kube-vitals/kube-vitals/blob/main/docs/troubleshooting.md#" + string(r)
}

// Describe returns the description of the reason. It is empty if the reason is not of this package.
func (r Reason) Describe() Description { return descriptions()[r] }

func descriptions() map[Reason]Description { //nolint:funlen // a table
	const (
		checkPort   = "check --kubelet-port and --kubelet-use-node-status-port"
		checkRoute  = "check the routes, firewalls and NetworkPolicies between kube-vitals and the node"
		annotation  = "the node's annotation metrics.k8s.io/resource-metrics-path"
		checkServer = "check --kubelet-port and " + annotation
		kubeletLog  = "see the kubelet's log"
	)
	return map[Reason]Description{
		NoAddress: {"the node has no address of a preferred type", "set --kubelet-preferred-address-types"},
		BadEndpoint: {"the address, port or path of the kubelet is not allowed",
			"check the node's addresses, " + annotation + " and --kubelet-preferred-address-types"},
		DNS: {"the kubelet's host name cannot be resolved",
			"make it resolvable for kube-vitals, or put InternalIP first in --kubelet-preferred-address-types"},
		ConnectRefused: {"the kubelet's port refuses connections", "check that the kubelet runs, and " + checkPort},
		Unreachable:    {"the node is unreachable", checkRoute},
		ConnectTimeout: {"the kubelet cannot be connected to in time", checkRoute + ", and whether the node is up"},
		Timeout:        {"the kubelet does not respond in time", "check the load of the node and its container runtime"},
		ConnectionLost: {"the connection to the kubelet was lost", "check whether the kubelet was restarted"},
		BadHTTP:        {"the kubelet's HTTP response is invalid", checkPort},
		TLSSelfSigned: {"the kubelet's certificate is self-signed",
			"set serverTLSBootstrap in the kubelet's configuration, then check and approve its certificate " +
				"request, or pin its key with --kubelet-pins, which kubelet.tls=pin of the chart sets"},
		TLSAuthority: {"the kubelet's certificate is signed by an unknown authority",
			"set --kubelet-certificate-authority to the CA that signed it"},
		TLSName: {"the kubelet's certificate is for other names",
			"if it is that of another node, correct the addresses of both or delete the Node that is gone; else set " +
				"serverTLSBootstrap in the kubelet's configuration to get a certificate for its names and addresses, or " +
				"set --kubelet-preferred-address-types to an address of the certificate"},
		TLSExpired: {"the kubelet's certificate has expired or is not yet valid",
			"renew it, and check the clocks of both sides"},
		TLSHandshake: {"the TLS handshake with the kubelet fails",
			"approve the kubelet's certificate request, if one waits (kubectl get csr); else check --kubelet-port and " +
				"--kubelet-client-certificate"},
		TLSKeyChanged: {"the kubelet does not have the pinned key",
			"find out whether its certificate was renewed; if so, accept the new key with the command in the log of " +
				"kube-vitals, else something intercepts the connection"},
		TLSNotPinned: {"the key of the kubelet cannot be pinned",
			"check that the API server responds, the ConfigMap of --kubelet-pins, and the permission to list, watch and " +
				"update it"},
		NoToken: {"kube-vitals has no token for the kubelet",
			"check that the API server responds, and the permission to create tokens of --kubelet-service-account"},
		Unauthorized: {"the kubelet rejects the credentials",
			"enable webhook authentication in the kubelet, and check the bearer token or client certificate"},
		Forbidden: {"the kubelet denies access",
			"grant get on nodes/metrics to the user that kubelets see (kube-vitals-kubelet in the chart)"},
		NotFound:    {"the kubelet does not have the path of the metrics", "check " + annotation},
		ServerError: {"the kubelet reports an error", kubeletLog},
		BadStatus:   {"the response has an unexpected status", checkServer},
		BadFormat:   {"the response has an unexpected format", checkServer},
		BodyTooLarge: {"the kubelet's response is too large",
			"if the node has so many containers, raise --kubelet-max-response-bytes"},
		Truncated:   {"the kubelet's response is incomplete", "check the network between kube-vitals and the node"},
		Undecodable: {"the kubelet's response cannot be decoded", "check --kubelet-port, and " + kubeletLog},
		NoSamples:   {"the kubelet's response has no samples", checkServer},
		RuntimeNoStats: {"the kubelet cannot read its containers",
			kubeletLog + ", and check the container runtime"},
		ClockSkew:       {"no sample of the kubelet has a valid time", "set the node's clock, for example by NTP"},
		Canceled:        {"the scrape was canceled", ""},
		InternalFailure: {"kube-vitals itself failed", "see the log of kube-vitals and report this bug"},

		NodeNotFound: {"the node does not exist", "check its name, or delete the pods of the deleted node"},
		NotSelected:  {"the node is not selected for scraping", "change the node's labels or --node-selector"},
		NodeStarting: {"the node has not been scraped twice yet", "wait until the second sample has arrived"},
		StaleSamples: {"the kubelet responds, but its samples are too old",
			kubeletLog + ", or raise --max-sample-age"},
		Slow:          {"the kubelet responds slowly", "check the load of the node and its container runtime"},
		EngineFailing: {"the engine cannot be read", "see the reason on /nodez, in the log, or with kubectl vitals doctor"},
		NotInEngine: {"the engine has no current series of the node",
			"check that the engine scrapes the node's kubelet, and that a label of the series names the node " +
				"(labels.node in --prometheus-config)"},
		UsageUnknown: {"the kubelet reports 0 for usage that it does not know",
			kubeletLog + ", and check the container runtime and the memory cgroups of the node"},
		BadTime: {"the kubelet reports usage with an impossible time",
			"set the node's clock, for example by NTP, and check the container runtime"},
		BadValue:    {"the kubelet reports an impossible value", kubeletLog + ", and check the container runtime"},
		CounterFell: {"a CPU counter fell without a restart", kubeletLog + ", and check the container runtime"},
		AboveCapacity: {"the CPU usage is above the capacity in the node's status",
			"if the node has more CPUs, restart its kubelet, or correct the capacity of the virtual node"},
		OtherPod: {"the kubelet's sample is of an earlier pod or container of the same name, or may be",
			"wait until the containers of that pod have ended, and if the node's clock was set back, for up to 10 minutes; " +
				"if there is no such pod, look for a container that could not be removed, and check the start times of the " +
				"kubelet and the CPU capacity in the node's status"},

		PodNotFound:  {"the pod does not exist", "check its name and namespace"},
		PodPending:   {"the pod is pending", "see its events with kubectl describe pod"},
		PodStarting:  {"the pod has just started", "wait until its containers have two samples"},
		PodSucceeded: {"the pod has ended successfully", ""},
		PodFailed:    {"the pod has failed", "see its status with kubectl describe pod"},
		PodUnknown:   {"the state of the pod is unknown", "check its node"},
		NotRunning: {"no container of the pod is running",
			"see its events with kubectl describe pod, and its log with kubectl logs --previous"},
		NoContainers: {"the kubelet responds, but does not report the pod",
			kubeletLog + ", and check the container runtime"},
		ContainerMissing: {"the kubelet does not report usage of every container of the pod",
			kubeletLog + ", and check the container runtime"},
	}
}
