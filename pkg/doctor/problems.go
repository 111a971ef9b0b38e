package doctor

import "regexp"

// Problem is what is wrong, and what to do about it.
type Problem struct {
	Reason string // for programs; docs/why-no-metrics.md has all
	Cure   string // a line that begins with a command can be pasted; empty if another check has the cure
}

// RequestFailed is the reason of checks that were not possible because a request failed.
const RequestFailed = "request-failed"

const (
	upgrade  = "restore it, for example with helm upgrade"
	describe = "see the pod's events and log:\nkubectl --namespace NAMESPACE describe pod POD\n" +
		"kubectl --namespace NAMESPACE logs POD --tail=20"
)

// Those that are not in pkg/reason. helm upgrade restores missing objects, but no changed field of an APIService.
var (
	apiServerUnreachable = Problem{"api-server-unreachable", "check --kubeconfig and --context, and kubectl get nodes"}
	unauthorizedUser     = Problem{"user-unauthorized", "log in again, or check the credentials in the kubeconfig"}
	requestFailed        = Problem{RequestFailed, "try again, or with a longer --timeout, and see the API server's log"}
	noPermission         = Problem{"no-permission", "run it as a user with this permission to include the check"}
	noServer             = Problem{"no-server", ""}
	noConnection         = Problem{"no-connection", ""}
	nodezUnavailable     = Problem{"nodez-unavailable", "upgrade with the chart, which allows /nodez; see the next checks"}
	engineStarting       = Problem{"engine-not-read", "see the log of kube-vitals, and run doctor again"}
	enginePartial        = Problem{"engine-partial", "see the log of the engine or its stores; old metrics expire"}
	engineFile           = Problem{"engine-config-rejected", "see kube-vitals' log, and correct source.prometheus.config"}
	engineSeries         = Problem{"engine-series-missing", "see preset, queries and the engine's metric_relabel_configs"}
	engineOtherNodes     = Problem{"engine-other-nodes", "set matchers in --prometheus-config to this cluster's labels"}
	scrapeInterval       = Problem{"scrape-interval-long", "scrape them every 15 to 30 s, or raise --max-sample-age"}
	headerCAMissing      = Problem{"request-header-ca-missing",
		"start kube-apiserver with --requestheader-client-ca-file, --proxy-client-cert-file and --proxy-client-key-file, " +
			"then restart kube-vitals"}
	headerCAInvalid     = Problem{"request-header-ca-invalid", "renew the CA in --requestheader-client-ca-file"}
	clientCAMissing     = Problem{"client-ca-missing", "set kube-apiserver's --client-ca-file if clients use certificates"}
	notInstalled        = Problem{"not-installed", "this prints a command that fits the cluster\nkubectl vitals preflight"}
	noServerThere       = Problem{"not-installed", "correct --namespace, or run doctor without it to examine that server"}
	serverUnconfirmed   = Problem{"server-unconfirmed", "if you have installed one, run doctor with its --namespace"}
	serverAmbiguous     = Problem{"server-ambiguous", "uninstall all but one, or run doctor with a --namespace of one"}
	apiServiceMissing   = Problem{"apiservice-missing", upgrade + ", apiService.create=true and both apiService.versions"}
	apiServiceElsewhere = Problem{"apiservice-elsewhere",
		"switch the other server off, or take the APIService from its release, as kubectl vitals preflight describes"}
	runsBeside = Problem{"apiservice-elsewhere",
		"leave it if kube-vitals runs beside that server on purpose (apiService.versions=[v1], or create=false); " +
			"otherwise, this names who owns the metrics API, and what to do\nkubectl vitals preflight"}
	elsewhereWithProvider = Problem{"apiservice-elsewhere",
		"v1beta1 leads to the same server, and kubectl vitals preflight names its owner. If that is the provider of the " +
			"cluster, leave it this version, too: let the object stay by this command, and then upgrade the release with " +
			"apiService.create=false"}
	apiServiceUnavailable = Problem{"apiservice-unavailable", "see the other checks; it follows its cause by some seconds"}
	apiServerRejected     = Problem{"api-server-rejected", "check the CAs (see aggregation), and restart kube-vitals"}
	serverUnreachable     = Problem{"server-unreachable",
		"let the API server connect to the pods: check firewalls and NetworkPolicies for the port of the container; " +
			"where it has no route to pods, set hostNetwork.enabled"}
	tlsNotVerified = Problem{"tls-not-verified",
		"remove spec.insecureSkipTLSVerify and set spec.caBundle to the CA of the certificate, in one patch: now any " +
			"server that answers in place of this one is believed. With --tls-secret, kube-vitals writes later caBundles"}
	caBundleForeign = Problem{"ca-bundle-foreign",
		"write the CA of the served certificate into spec.caBundle; with --tls-secret, kube-vitals does it itself if it " +
			"has the permissions; find out what changed it:\n" +
			"kubectl get apiservice v1beta1.metrics.k8s.io v1.metrics.k8s.io --output=yaml --show-managed-fields"}
	certificateName      = Problem{"certificate-name", "issue a certificate for SERVICE.NAMESPACE.svc"}
	certificateExpired   = Problem{"certificate-expired", "renew it; kube-vitals does so itself with --tls-secret"}
	certificateHandshake = Problem{"certificate-handshake", "check the target port of the Service, and the log of the pod"}
	serviceMissing       = Problem{"service-missing", upgrade}
	namespaceTerminating = Problem{"namespace-terminating",
		"delete the APIServices, without which the deletion ends; then you can install kube-vitals again:\n" +
			"kubectl delete apiservice APISERVICES\nkubectl wait --for=delete namespace/NAMESPACE"}
	servicePortMissing = Problem{"service-port-missing", "give the Service and the APIServices the same port"}
	noEndpoints        = Problem{"no-endpoints", "see Deployment and pods; compare the selector with their labels"}
	deploymentMissing  = Problem{"deployment-missing", "compare the selector of the Service with the labels of the pods"}
	zeroReplicas       = Problem{"zero-replicas", "start it, and find out who stopped it:\n" +
		"kubectl --namespace NAMESPACE scale deployment NAME --replicas=1"}
	noReplicaReady = Problem{"replicas-not-ready", "see pods"}
	noPods         = Problem{"no-pods", "see the events of the Deployment and of its ReplicaSet with kubectl describe"}
	podNotReady    = Problem{"pod-not-ready", describe}
	nodeOrGate     = Problem{"pod-or-node-not-ready", // a node that is not ready returns no logs
		"see the conditions of both:\nkubectl describe node NODE\nkubectl --namespace NAMESPACE describe pod POD"}
	oomKilled         = Problem{"oom-killed", "raise resources.limits.memory; docs/install.md has sizes"}
	crashLoop         = Problem{"crash-loop", describe + " --previous --container=CONTAINER"}
	imagePull         = Problem{"image-pull", "check image and imagePullSecrets, and that the node can reach the registry"}
	containerWaiting  = Problem{"container-waiting", describe}
	unschedulable     = Problem{"unschedulable", "make room, or change the pod's nodeSelector, tolerations or requests"}
	noMetrics         = Problem{"no-metrics", "see the log of the server, and the conditions of the nodes"}
	podsMissing       = Problem{"no-metrics", "see kubectl top pod POD, which names the reason; new pods get metrics soon"}
	accountMissing    = Problem{"service-account-missing", upgrade + "; then replace the pods, whose tokens have ended"}
	permissionMissing = Problem{"permission-missing", "restore them, for example with helm upgrade (rbac.create)"}
	exporterNoPods    = Problem{"exporter-no-pods", "if nodes have devices, correct it in devices.exporters"}
	exporterManyPods  = Problem{"exporter-many-pods",
		"find out who creates pods with the exporter's labels: who may do so in its namespace can report false values"}
	clockSkew    = Problem{"clocks-differ", "set the nodes' clocks by NTP; metrics stay right, but logs and tokens suffer"}
	memoryLimit  = Problem{"memory-limit", "raise resources.limits.memory; docs/install.md has sizes"}
	hpaNoRequest = Problem{"hpa-no-request", "set resources.requests in all containers, or use an averageValue target"}
	hpaNoMetrics = Problem{"hpa-no-metrics", "see its pods, if there are any: kubectl top pod names the reason of each"}
	hpaNoAPI     = Problem{"hpa-no-api", "see APIService and metrics API; the autoscaler tries again every 15 seconds"}
	hpaForbidden = Problem{"hpa-forbidden", "let the controller read metrics.k8s.io; every cluster has a role for it"}
	hpaOther     = Problem{"hpa-other", "see kubectl describe hpa"}
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
