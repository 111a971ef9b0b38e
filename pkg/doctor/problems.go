package doctor

import "regexp"

// Problem is what is wrong, and what to do about it.
type Problem struct {
	Reason string // for programs; docs/why-no-metrics.md has all
	Cure   string // a line that begins with a command can be pasted; empty if another check has the cure
}

const (
	upgrade  = "restore it, for example with helm upgrade"
	describe = "see the pod's events and log:\nkubectl --namespace NAMESPACE describe pod POD\n" +
		"kubectl --namespace NAMESPACE logs POD --tail=20"
)

// The problems whose reasons are not in pkg/reason. helm upgrade restores objects that are missing,
// but no field of an APIService that was changed in the cluster.
var (
	apiServerUnreachable = Problem{"api-server-unreachable",
		"check --kubeconfig and --context, and whether kubectl get nodes works"}
	unauthorizedUser = Problem{"user-unauthorized", "log in again, or check the credentials in the kubeconfig"}
	requestFailed    = Problem{"request-failed", "try again, also with a longer --timeout, and see the API server's log"}
	noPermission     = Problem{"no-permission", "run doctor as a user with this permission to include the check"}
	noServer         = Problem{"no-server", ""}
	noConnection     = Problem{"no-connection", ""}
	nodezUnavailable = Problem{"nodez-unavailable",
		"upgrade kube-vitals with its chart, which lets its ServiceAccount get /nodez; the next checks use the API instead"}
	engineStarting = Problem{"engine-not-read", "see the log of kube-vitals, and run doctor again"}
	enginePartial  = Problem{"engine-partial",
		"see the log of the engine, or of its stores; metrics that a response omits are served until they expire"}
	engineFile = Problem{"engine-config-rejected",
		"see the error in the log of kube-vitals, and correct source.prometheus.config"}
	engineSeries = Problem{"engine-series-missing",
		"check preset and queries in --prometheus-config, and whether the engine's metric_relabel_configs drop them"}
	engineOtherNodes = Problem{"engine-other-nodes",
		"set matchers in --prometheus-config to the labels of this cluster: nodes and pods with the same names are mixed"}
	scrapeInterval = Problem{"scrape-interval-long",
		"let the engine scrape these kubelets every 15 to 30 seconds, or raise --max-sample-age"}
	requestHeaderCAMissing = Problem{"request-header-ca-missing",
		"start kube-apiserver with --requestheader-client-ca-file, --proxy-client-cert-file and --proxy-client-key-file, " +
			"then restart kube-vitals"}
	requestHeaderCAInvalid = Problem{"request-header-ca-invalid",
		"renew the CA in --requestheader-client-ca-file of kube-apiserver"}
	clientCAMissing = Problem{"client-ca-missing",
		"start kube-apiserver with --client-ca-file, unless no client uses certificates"}
	notInstalled = Problem{"not-installed",
		"install it: this prints the command that fits the cluster\nkubectl vitals preflight"}
	serverUnconfirmed = Problem{"server-unconfirmed",
		"if you have installed one of them, run doctor with its --namespace"}
	serverAmbiguous = Problem{"server-ambiguous",
		"uninstall those that should not be there, or run doctor with a --namespace that has one"}
	apiServiceMissing   = Problem{"apiservice-missing", upgrade + "; its version is not served without it"}
	apiServiceElsewhere = Problem{"apiservice-elsewhere",
		"switch the other server off, or take the APIService from its release, as kubectl vitals preflight describes"}
	runsBeside = Problem{"apiservice-elsewhere",
		"leave it if kube-vitals runs beside that server on purpose (apiService.create=false); otherwise, this names who " +
			"owns the metrics API, and what to do\nkubectl vitals preflight"}
	apiServiceUnavailable = Problem{"apiservice-unavailable",
		"see the other checks; the condition changes some seconds after its cause"}
	apiServerRejected = Problem{"api-server-rejected",
		"check the CA by which kube-vitals authenticates the API server (aggregation), and restart kube-vitals"}
	serverUnreachable = Problem{"server-unreachable",
		"let the API server connect to the pods: check firewalls and NetworkPolicies for the port of the container; " +
			"where it has no route to pods, set hostNetwork.enabled"}
	tlsNotVerified = Problem{"tls-not-verified",
		"set spec.insecureSkipTLSVerify to false and spec.caBundle to the CA of the certificate, which kube-vitals does " +
			"itself with --tls-secret: now any server that answers in place of this one is believed"}
	caBundleForeign = Problem{"ca-bundle-foreign",
		"write the CA of the served certificate into spec.caBundle; with --tls-secret, kube-vitals does it itself if it " +
			"has the permissions; find out what changed it:\n" +
			"kubectl get apiservice v1beta1.metrics.k8s.io --output=yaml --show-managed-fields"}
	certificateName      = Problem{"certificate-name", "issue a certificate for SERVICE.NAMESPACE.svc"}
	certificateExpired   = Problem{"certificate-expired", "renew it; kube-vitals does so itself with --tls-secret"}
	certificateHandshake = Problem{"certificate-handshake", "check the target port of the Service, and the log of the pod"}
	serviceMissing       = Problem{"service-missing", upgrade}
	servicePortMissing   = Problem{"service-port-missing", "give the Service and the APIServices the same port"}
	noEndpoints          = Problem{"no-endpoints",
		"see Deployment and pods; compare the selector of the Service with the labels of the pods"}
	deploymentMissing = Problem{"deployment-missing", "compare the selector of the Service with the labels of the pods"}
	zeroReplicas      = Problem{"zero-replicas", "start it, and find out who stopped it:\n" +
		"kubectl --namespace NAMESPACE scale deployment NAME --replicas=1"}
	noReplicaReady = Problem{"replicas-not-ready", "see pods"}
	noPods         = Problem{"no-pods", "see the events of the Deployment and of its ReplicaSet with kubectl describe"}
	podNotReady    = Problem{"pod-not-ready", describe}
	nodeOrGate     = Problem{"pod-or-node-not-ready", // a node that is not ready returns no logs
		"see the conditions of both:\nkubectl describe node NODE\nkubectl --namespace NAMESPACE describe pod POD"}
	oomKilled        = Problem{"oom-killed", "raise the memory limit (resources.limits.memory); docs/install.md has sizes"}
	crashLoop        = Problem{"crash-loop", describe + " --previous"}
	imagePull        = Problem{"image-pull", "check image and imagePullSecrets, and that the node can reach the registry"}
	containerWaiting = Problem{"container-waiting", describe}
	unschedulable    = Problem{"unschedulable",
		"make room on the nodes, or change the pod's nodeSelector, tolerations or requests"}
	noMetrics         = Problem{"no-metrics", "see the log of the server, and the conditions of the nodes"}
	permissionMissing = Problem{"permission-missing",
		"restore the roles and bindings, for example with helm upgrade (rbac.create)"}
	exporterNoPods = Problem{"exporter-no-pods",
		"if there are nodes with devices, correct namespace and podSelector of the exporter (devices.exporters)"}
	exporterManyPods = Problem{"exporter-many-pods",
		"find out who creates pods with the exporter's labels: who may do so in its namespace can report false values"}
	clockSkew = Problem{"clocks-differ",
		"set the clocks of the nodes, for example by NTP; metrics stay right, but logs and tokens suffer"}
	memoryLimit  = Problem{"memory-limit", "raise resources.limits.memory; docs/install.md has sizes"}
	hpaNoRequest = Problem{"hpa-no-request",
		"set resources.requests of that resource for every container of the pods, or use an averageValue target"}
	hpaNoMetrics = Problem{"hpa-no-metrics",
		"see the pods of its target, if there are any: kubectl top pod names the reason for each without metrics"}
	hpaNoAPI     = Problem{"hpa-no-api", "see APIService and metrics API; the autoscaler tries again every 15 seconds"}
	hpaForbidden = Problem{"hpa-forbidden",
		"let the HorizontalPodAutoscaler controller read metrics.k8s.io; every cluster has a role for it"}
	hpaOther = Problem{"hpa-other", "see kubectl describe hpa"}
)

// symptoms are expressions for messages, and the problems that they show. The first match counts.
type symptoms []struct {
	message *regexp.Regexp
	problem Problem
}

// serverSymptoms are those of the API server about a server behind it.
var serverSymptoms = symptoms{
	{regexp.MustCompile(`ServiceNotFound`), serviceMissing},
	{regexp.MustCompile(`ServicePortError`), servicePortMissing},
	{regexp.MustCompile(`MissingEndpoints|EndpointsNotFound|no endpoints available`), noEndpoints},
	{regexp.MustCompile(`signed by unknown authority`), caBundleForeign},
	{regexp.MustCompile(`certificate is (not )?valid for|legacy Common Name`), certificateName},
	{regexp.MustCompile(`certificate has expired`), certificateExpired},
	{regexp.MustCompile(`: 401|: 403|Unauthorized`), apiServerRejected},
	{regexp.MustCompile(`connection refused|no route to host|(?i:timeout)|deadline exceeded|no such host`),
		serverUnreachable},
}

// autoscalerSymptoms are those of HorizontalPodAutoscalers.
var autoscalerSymptoms = symptoms{
	{regexp.MustCompile(`missing request for`), hpaNoRequest},
	{regexp.MustCompile(`is forbidden`), hpaForbidden},
	{regexp.MustCompile(`could not find the requested resource|unable to handle the request`), hpaNoAPI},
	{regexp.MustCompile(`no metrics returned|did not receive metrics for`), hpaNoMetrics},
	{regexp.MustCompile(`unable to fetch metrics`), hpaNoAPI},
}

func (s symptoms) of(message string, otherwise Problem) Problem {
	for _, known := range s {
		if known.message.MatchString(message) {
			return known.problem
		}
	}
	return otherwise
}
