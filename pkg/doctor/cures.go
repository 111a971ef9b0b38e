package doctor

import "strings"

// The reasons of checks that are not in pkg/reason. docs/why-no-metrics.md describes each.
const (
	apiServerUnreachable   = "api-server-unreachable"
	unauthorizedUser       = "user-unauthorized"
	requestFailed          = "request-failed"
	noPermission           = "no-permission"
	noServer               = "no-server"
	noConnection           = "no-connection"
	nodezUnavailable       = "nodez-unavailable"
	engineStarting         = "engine-not-read"
	enginePartial          = "engine-partial"
	engineFile             = "engine-config-rejected"
	engineSeries           = "engine-series-missing"
	engineOtherNodes       = "engine-other-nodes"
	engineStale            = "engine-stale"
	scrapeInterval         = "scrape-interval-long"
	requestHeaderCAMissing = "request-header-ca-missing"
	requestHeaderCAInvalid = "request-header-ca-invalid"
	clientCAMissing        = "client-ca-missing"
	notInstalled           = "not-installed"
	serverUnconfirmed      = "server-unconfirmed"
	serverAmbiguous        = "server-ambiguous"
	apiServiceMissing      = "apiservice-missing"
	apiServiceElsewhere    = "apiservice-elsewhere"
	apiServiceUnavailable  = "apiservice-unavailable"
	apiServerRejected      = "api-server-rejected"
	serverUnreachable      = "server-unreachable"
	tlsNotVerified         = "tls-not-verified"
	caBundleForeign        = "ca-bundle-foreign"
	certificateName        = "certificate-name"
	certificateExpired     = "certificate-expired"
	certificateHandshake   = "certificate-handshake"
	serviceMissing         = "service-missing"
	servicePortMissing     = "service-port-missing"
	noEndpoints            = "no-endpoints"
	deploymentMissing      = "deployment-missing"
	zeroReplicas           = "zero-replicas"
	noReplicaReady         = "replicas-not-ready"
	noPods                 = "no-pods"
	podNotReady            = "pod-not-ready"
	oomKilled              = "oom-killed"
	crashLoop              = "crash-loop"
	imagePull              = "image-pull"
	containerWaiting       = "container-waiting"
	unschedulable          = "unschedulable"
	noMetrics              = "no-metrics"
	permissionMissing      = "permission-missing"
	nodeNotReady           = "node-not-ready"
	exporterNoPods         = "exporter-no-pods"
	exporterManyPods       = "exporter-many-pods"
	clockSkew              = "clocks-differ"
	memoryLimit            = "memory-limit"
	hpaNoRequest           = "hpa-no-request"
	hpaNoMetrics           = "hpa-no-metrics"
	hpaNoPods              = "hpa-no-pods"
	hpaNoAPI               = "hpa-no-api"
	hpaForbidden           = "hpa-forbidden"
	hpaOther               = "hpa-other"
)

// cures returns what to do, by reason; checks set other cures themselves. helm upgrade restores
// objects that are missing, but no field of an APIService that was changed in the cluster.
// A line that begins with a command can be pasted.
func cures() map[string]string { //nolint:funlen // a table
	const (
		upgrade = "restore it, for example with helm upgrade"
		bundle  = "write the CA of the served certificate into spec.caBundle; with --tls-secret, kube-vitals does it " +
			"itself if it has the permissions; find out what changed it:\n" +
			"kubectl get apiservice v1beta1.metrics.k8s.io --output=yaml --show-managed-fields"
		describe = "see the pod's events and log:\nkubectl --namespace NAMESPACE describe pod POD\n" +
			"kubectl --namespace NAMESPACE logs POD --tail=20"
	)
	return map[string]string{
		apiServerUnreachable: "check --kubeconfig and --context, and whether kubectl get nodes works",
		unauthorizedUser:     "log in again, or check the credentials in the kubeconfig",
		requestFailed:        "try again, and see the log of the API server",
		noPermission:         "run doctor as a user with this permission to include the check",
		nodezUnavailable: "upgrade kube-vitals with its chart, which lets its ServiceAccount get /nodez; the next checks " +
			"use the API instead",
		engineStarting: "see the log of kube-vitals, and run doctor again",
		enginePartial: "see the log and the status of the engine, for example of its stores; metrics that are missing in a " +
			"response are served until they expire",
		engineFile: "see the error in the log of kube-vitals, and correct source.prometheus.config",
		engineSeries: "check preset and queries in --prometheus-config, and the metric_relabel_configs of the engine: " +
			"they may drop these series",
		engineOtherNodes: "set matchers in --prometheus-config to the labels of this cluster; nodes and pods with the same " +
			"names in two clusters are mixed",
		engineStale:    "check the targets of the engine, and the clocks",
		scrapeInterval: "let the engine scrape these kubelets every 15 to 30 seconds, or raise --max-sample-age",
		requestHeaderCAMissing: "start kube-apiserver with --requestheader-client-ca-file, --proxy-client-cert-file and " +
			"--proxy-client-key-file, then restart kube-vitals",
		requestHeaderCAInvalid: "renew the CA in --requestheader-client-ca-file of kube-apiserver",
		clientCAMissing:        "start kube-apiserver with --client-ca-file, unless no client uses certificates",
		notInstalled:           "install it: this prints the command that fits the cluster\nkubectl vitals preflight",
		serverUnconfirmed:      "if you have installed one of them, run doctor with its --namespace",
		serverAmbiguous:        "uninstall those that should not be there, or run doctor with a --namespace that has one",
		apiServiceMissing:      upgrade + "; metrics.k8s.io is not served without it",
		apiServiceUnavailable:  "see the other checks; the condition changes some seconds after its cause",
		apiServerRejected: "kube-vitals cannot authenticate the API server: check the request-header CA (aggregation), and " +
			"restart kube-vitals if it was changed",
		serverUnreachable: "let the API server connect to the pods: check firewalls and NetworkPolicies for the port of " +
			"the container; where it has no route to pods, set hostNetwork.enabled",
		tlsNotVerified: "set spec.insecureSkipTLSVerify to false and spec.caBundle to the CA of the certificate, which " +
			"kube-vitals does itself with --tls-secret: now any server that answers in place of this one is believed",
		caBundleForeign:      bundle,
		certificateName:      "issue a certificate for SERVICE.NAMESPACE.svc",
		certificateExpired:   "renew the certificate; kube-vitals does it itself with --tls-secret",
		certificateHandshake: "check the target port of the Service, and the log of the pod",
		serviceMissing:       upgrade,
		servicePortMissing:   "give the Service and the APIServices the same port, for example with helm upgrade",
		noEndpoints:          "see Deployment and pods; compare the selector of the Service with the labels of the pods",
		deploymentMissing:    "compare the selector of the Service with the labels of the pods",
		noReplicaReady:       "see pods",
		noPods:               "see the events of the Deployment and of its ReplicaSet with kubectl describe",
		podNotReady:          describe,
		oomKilled:            "raise the memory limit (resources.limits.memory); docs/install.md has sizes",
		crashLoop:            describe + " --previous",
		imagePull:            "check image and imagePullSecrets, and whether the node can reach the registry",
		containerWaiting:     describe,
		unschedulable:        "make room on the nodes, or change the pod's nodeSelector, tolerations or requests",
		noMetrics:            "see the log of the server",
		permissionMissing:    "restore the roles and bindings, for example with helm upgrade (rbac.create)",
		nodeNotReady:         "repair the node: kubectl describe node shows its conditions",
		exporterNoPods: "if there are nodes with devices, correct namespace and podSelector in the configuration of the " +
			"exporter, which is devices.exporters in the chart",
		exporterManyPods: "find out who creates pods with the exporter's labels: who may do so in its namespace can report " +
			"false values",
		clockSkew: "set the clocks of the nodes, for example by NTP; metrics stay right, but logs and tokens " +
			"suffer",
		memoryLimit: "raise resources.limits.memory; docs/install.md has sizes",
		hpaNoRequest: "set resources.requests of that resource for every container of the pods, or use an " +
			"averageValue target",
		hpaNoMetrics: "see the pods: they may have just started, or not be ready",
		hpaNoPods:    "scale the target up, or correct its selector",
		hpaNoAPI:     "see APIService and metrics API; the autoscaler tries again every 15 seconds",
		hpaForbidden: "let the HorizontalPodAutoscaler controller read metrics.k8s.io; every cluster has a role " +
			"for it",
		hpaOther: "see kubectl describe hpa",
	}
}

// availableReason maps the condition Available of an APIService.
func availableReason(condition, message string) string {
	switch condition {
	case "ServiceNotFound":
		return serviceMissing
	case "ServicePortError":
		return servicePortMissing
	case "MissingEndpoints", "EndpointsNotFound":
		return noEndpoints
	}
	return metricsReason(message)
}

// metricsReason maps an error of the API server about a server behind it.
func metricsReason(text string) string {
	for _, known := range []struct{ text, reason string }{
		{"signed by unknown authority", caBundleForeign},
		{"certificate is valid for", certificateName},
		{"certificate has expired", certificateExpired},
		{": 401", apiServerRejected},
		{": 403", apiServerRejected},
		{"Unauthorized", apiServerRejected},
		{"no endpoints available", noEndpoints},
		{"connection refused", serverUnreachable},
		{"no route to host", serverUnreachable},
		{"timeout", serverUnreachable},
		{"Timeout", serverUnreachable},
		{"deadline exceeded", serverUnreachable},
		{"no such host", serverUnreachable},
	} {
		if strings.Contains(text, known.text) {
			return known.reason
		}
	}
	return apiServiceUnavailable
}
