package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const moving = "testdata/moving"

// names returns the files or folders in a folder of testdata/moving, without .yaml.
func names(t *testing.T, folder string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(moving, folder))
	must(t, err)
	for _, entry := range entries {
		all = append(all, strings.TrimSuffix(entry.Name(), ".yaml"))
	}
	return all
}

// TestMovingValues renders the chart with values that users of metrics-server's chart have, and checks what each of
// them is for. TestChartObjects has the API server validate them.
func TestMovingValues(t *testing.T) {
	const (
		beta    = "APIService v1beta1.metrics.k8s.io"
		monitor = "ServiceMonitor kube-system/kube-vitals"
		labels  = "metadata.labels."
		arg     = container + "args."

		checksum = "spec.template.metadata.annotations.checksum/devices"
	)
	type m = map[string]any
	tests := map[string]map[string]fields{
		"host-network": {deployment: {pod + "hostNetwork": true, container + "ports.0.containerPort": 4443.0,
			arg + "0": "--secure-port=4443", arg + "4": "--kubelet-insecure-tls",
			"spec.strategy.rollingUpdate": m{"maxSurge": 0.0, "maxUnavailable": 1.0}}},
		"fargate":  {deployment: {container + "ports.0.containerPort": 10251.0, arg + "4": "--secure-port=10251"}},
		"recreate": {deployment: {"spec.strategy": m{"type": "Recreate"}}},
		"api-service": {beta: {"spec.insecureSkipTLSVerify": true, "spec.caBundle": nil,
			"metadata.annotations": m{"helm.sh/resource-policy": "keep"}}},
		"no-api-service": {beta: nil, apiService: nil, deployment: {}},
		"tls-helm": {beta: {"spec.insecureSkipTLSVerify": nil}, helmSecret: {"type": "kubernetes.io/tls"},
			deployment: {container + "volumeMounts.0.mountPath": "/etc/kube-vitals/tls"}},
		"tls-cert-manager": {
			beta: {`metadata.annotations.cert-manager\.io/inject-ca-from`: "kube-system/kube-vitals"},
			"Certificate kube-system/kube-vitals": {"spec.issuerRef.kind": "ClusterIssuer", "spec.issuerRef.name": "internal",
				"spec.duration": "2160h", "spec.renewBefore": "360h", labels + "c": "d"}},
		"tls-existing-secret": {beta: {"spec.caBundle": "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t"},
			deployment: {pod + "volumes.0.secret.secretName": "metrics-server-cert"}},
		"tls-default": {beta: {"spec.insecureSkipTLSVerify": true}, servingSecret: nil,
			deployment: {pod + "volumes.0.emptyDir.medium": "Memory"}},
		"addon-resizer-off":  {deployment: {pod + "containers.1": nil}},
		"addon-resizer-null": {deployment: {pod + "containers.1": nil}},
		"metrics": {monitor: {labels + "release": "prometheus", "spec.endpoints.0.interval": "30s",
			"spec.endpoints.0.scrapeTimeout": "5s", "spec.endpoints.0.relabelings.0.replacement": "a",
			"spec.endpoints.0.metricRelabelings.0.action": "drop", "spec.endpoints.0.bearerTokenFile": nil}},
		"metrics-text": {monitor: {}, budget: {"spec.maxUnavailable": "50%"},
			deployment: {pod + "hostNetwork": true, pod + "dnsPolicy": "ClusterFirstWithHostNet"}},
		"default-args": {deployment: {arg + "1": "--cert-dir=/tmp", arg + "5": "--kubelet-insecure-tls", arg + "6": nil}},
		"args-empty":   {deployment: {arg + "4": "--v=2", arg + "5": nil}},
		"args-null":    {deployment: {arg + "1": "--metric-resolution=20s", arg + "2": nil}},
		"args-separate": {deployment: {arg + "4": "--kubelet-preferred-address-types=InternalIP",
			arg + "5": "--kubelet-insecure-tls", arg + "6": "--metric-resolution=40s"}},
		"args-space": {deployment: {arg + "4": "--kubelet-insecure-tls", arg + "5": "--v=2"}},
		"args-map":   {deployment: {arg + "4": "--kubelet-insecure-tls", arg + "5": "--v=2"}},
		"args-of-metrics-server": {deployment: {pod + "volumes.1.secret.secretName": "client",
			arg + "5": "--kubelet-client-certificate=/etc/client/tls.crt"},
			kubeletRole: nil}, // kubelets get no token
		"mirror": {deployment: {container + "image": "registry.example/mirror/kube-vitals:dev", // by --set
			container + "imagePullPolicy": "Always", pod + "imagePullSecrets.0.name": "regcred"}},
		"name-override": {"Deployment kube-system/kube-vitals-metrics-server": {
			`spec.selector.matchLabels.app\.kubernetes\.io/name`: "metrics-server"}},
		"fullname-override": {"Deployment monitoring/metrics-server": {}, "Role monitoring/metrics-server-serving": {},
			beta: {"spec.service.name": "metrics-server", "spec.service.namespace": "monitoring"}},
		"high-availability": {
			"Deployment kube-system/kube-vitals-metrics-server": {"spec.replicas": 2.0,
				`spec.template.metadata.labels.app\.kubernetes\.io/name`:   "metrics-server",
				"spec.template.metadata.labels.k8s-app":                    "metrics-server",
				pod + "topologySpreadConstraints.0.topologyKey":            "topology.kubernetes.io/zone",
				pod + "topologySpreadConstraints.1":                        nil,
				pod + "affinity.podAntiAffinity.preferredDuringScheduling": nil},
			"PodDisruptionBudget kube-system/kube-vitals-metrics-server": {"apiVersion": "policy/v1", "spec.minAvailable": 1.0,
				"spec.maxUnavailable": nil, "spec.unhealthyPodEvictionPolicy": "AlwaysAllow"}},
		"scheduling": {deployment: {
			pod + "nodeSelector":      m{"kubernetes.io/os": "linux", "node-role.kubernetes.io/control-plane": ""},
			pod + "tolerations.0.key": "CriticalAddonsOnly", pod + "priorityClassName": "system-node-critical",
			pod + "schedulerName": "custom", "spec.revisionHistoryLimit": 2.0, pod + "dnsConfig.options.0.name": "ndots",
			pod + "hostUsers": false}},
		"no-priority": {deployment: {pod + "priorityClassName": nil}},
		"service": {service: {"spec.ports.0.port": 8443.0, labels + `kubernetes\.io/cluster-service`: "true",
			"metadata.annotations.a": "b"}, beta: {"spec.service.port": 8443.0}},
		"integers-as-text": {service: {"spec.ports.0.port": 8443.0}, deployment: {"spec.replicas": 2.0,
			"spec.revisionHistoryLimit": 3.0, pod + "terminationGracePeriodSeconds": 40.0,
			container + "ports.0.containerPort": 4443.0, arg + "0": "--secure-port=4443"}},
		"service-misindented": {service: {labels + `kubernetes\.io/cluster-service`: nil, "spec.ports.0.port": 443.0}},
		"labels": {
			deployment: {labels + "team": "platform", pod + "serviceAccountName": "metrics",
				`spec.template.metadata.labels.sidecar\.istio\.io/inject`: "false", "spec.selector.matchLabels.team": nil,
				`metadata.annotations.reloader\.stakater\.com/auto`:                                   "true",
				`spec.template.metadata.annotations.cluster-autoscaler\.kubernetes\.io/safe-to-evict`: "true"},
			service: {labels + "team": "platform"}, beta: {labels + "team": "platform"},
			"ServiceAccount kube-system/metrics": {"secrets.0.name": "s", "metadata.annotations.a": "b"}},
		"foreign-account": {account: nil, deployment: {pod + "serviceAccountName": "shared"},
			"ClusterRoleBinding system:kube-vitals": {"subjects.0.name": "shared"}},
		"args-comma": {deployment: {arg + "4": "--kubelet-insecure-tls",
			arg + "5": "--kubelet-preferred-address-types=InternalIP,Hostname,ExternalIP", arg + "6": "--v=2"}},
		"resources": {deployment: {
			container + "resources.limits":                  m{"cpu": "200m", "memory": "500Mi"},
			container + "livenessProbe.initialDelaySeconds": 60.0, container + "livenessProbe.httpGet.path": "/livez",
			container + "readinessProbe.initialDelaySeconds": 30.0, container + "securityContext.runAsUser": 1000.0,
			container + "securityContext.runAsGroup": nil, pod + "securityContext.fsGroup": 1000.0}},
		"selector-labels": {deployment: {
			"spec.template.metadata.labels": m{"app.kubernetes.io/name": "kube-vitals",
				"app.kubernetes.io/instance": "kube-vitals", "app.kubernetes.io/version": "0.7.2"},
			labels + "team": "a", labels + `app\.kubernetes\.io/name`: "kube-vitals"},
			service: {labels + `app\.kubernetes\.io/name`: "kube-vitals",
				labels + `app\.kubernetes\.io/instance`: "kube-vitals"}},
		"empty-kinds": {beta: {"spec.insecureSkipTLSVerify": nil},
			budget: {"spec.minAvailable": nil, "spec.maxUnavailable": 1.0},
			deployment: {pod + "affinity": nil, pod + "tolerations": nil, pod + "nodeSelector": nil,
				pod + "securityContext": nil}},
		"budget-zero": {budget: {"spec.minAvailable": nil, "spec.maxUnavailable": 2.0}},
		"image-null":  {deployment: {container + "image": "ghcr.io/kube-vitals/kube-vitals:dev"}}, // the tag by --set
		"own-certificate": {
			beta:          {"spec.caBundle": "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t", "spec.insecureSkipTLSVerify": nil},
			monitor:       {"spec.endpoints.0.tlsConfig.ca.configMap.name": "kube-vitals-ca"},
			deployment:    {arg + "4": "--tls-cert-file=/certs/tls.crt", env + "name": "KUBE_VITALS_DEPLOYMENT"},
			servingSecret: nil},
		"global": {deployment: {container + "image": "registry.example/kube-vitals:dev",
			pod + "imagePullSecrets.0.name": "regcred"}},
		"bitnami-empty": {deployment: {container + "image": "ghcr.io/kube-vitals/kube-vitals:dev"}},
		"empty":         {deployment: {pod + "volumes": nil, arg + "4": nil, container + "resources.limits.memory": "1Gi"}},
		"umbrella":      {deployment: {arg + "4": "--kubelet-insecure-tls"}},
		"args-quoted": {deployment: {arg + "4": "--kubelet-insecure-tls", arg + "5": "--v=2",
			arg + "6": "--metric-resolution=30s", arg + "7": "--node-selector=a#b"}},
		"args-names": {deployment: {arg + "4": "--v=2", arg + "5": "--kubelet-insecure-tls=true",
			arg + "6": "--kubelet-preferred-address-types=InternalIP"}},
		"args-numbers": {deployment: {arg + "4": "--v=-1", arg + "5": "--active-budget=1.5",
			arg + "6": "--kubelet-max-response-bytes=52428800", arg + "7": nil}},
		"resources-request": {deployment: {container + "resources": m{
			"requests": m{"cpu": "500m", "memory": "2Gi"}, "limits": m{"memory": "2Gi"}}}},
		"resources-limit": {deployment: {container + "resources": m{
			"requests": m{"cpu": "50m", "memory": "150Mi"}, "limits": m{"cpu": "50m", "memory": "150Mi"}}}},
		"volume-tls": {deployment: {pod + "volumes.0.name": "kube-vitals-tls", pod + "volumes.1.name": "tls"}},
		"no-surge": {deployment: {
			"spec.strategy": m{"type": "RollingUpdate", "rollingUpdate": m{"maxSurge": 0.0}}}},
		"injected-ca": {
			beta: {"spec.insecureSkipTLSVerify": nil, "spec.caBundle": nil,
				`metadata.annotations.cert-manager\.io/inject-ca-from`: "kube-system/ms"},
			monitor:    {"spec.endpoints.0.tlsConfig": m{"serverName": "kube-vitals.kube-system.svc"}},
			deployment: {arg + "4": "--tls-cert-file=/certs/tls.crt"}, servingSecret: nil},
		"injected-ca-openshift": {
			beta: {"spec.insecureSkipTLSVerify": nil,
				`metadata.annotations.service\.beta\.openshift\.io/inject-cabundle`: "true"},
			monitor:    {"spec.endpoints.0.tlsConfig": m{"insecureSkipVerify": true}}, // as before: no token is sent
			deployment: {arg + "5": "--tls-cert-file=/certs/tls.crt"}, servingSecret: nil},
		"cert-dir": {deployment: {pod + "volumes.0": m{"name": "tmp", "emptyDir": m{}},
			container + "volumeMounts.0": m{"name": "tmp", "mountPath": "/tmp"}, pod + "volumes.1.name": "ca"}},
		"cert-dir-mounted": {deployment: {pod + "volumes.0.name": "certs", pod + "volumes.1": nil}},
		"audit":            {deployment: {pod + "volumes.0.name": "tmp", pod + "volumes.1.name": "policy"}},
		"mount-tmp": {deployment: {pod + "volumes.0.name": "tmp",
			container + "volumeMounts.1": m{"name": "tmp", "mountPath": "/var/tmp"}}},
		"budget-zero-unavailable": {budget: {"spec.minAvailable": 1.0, "spec.maxUnavailable": nil}},
		"existing-secret-unverified": {beta: {"spec.insecureSkipTLSVerify": true},
			monitor: {"spec.endpoints.0.tlsConfig": m{"insecureSkipVerify": true}}},
		"harmless": {deployment: {pod + "hostUsers": nil, pod + "imagePullSecrets": nil,
			pod + "tolerations.0.operator": "Exists", "spec.template.metadata.annotations": m{"b": "c"},
			"spec.template.metadata.labels.a": nil, pod + "nodeSelector": m{"kubernetes.io/os": "linux"}}},
		"host-users": {deployment: {pod + "hostUsers": false}},
		"labels-twice": {
			deployment: {labels + "team": "metrics", labels + `app\.kubernetes\.io/version`: "0.7.2",
				"spec.template.metadata.annotations.team": "metrics"},
			beta:    {`metadata.annotations.cert-manager\.io/inject-ca-from`: "kube-system/metrics-server"},
			service: {labels + "team": "metrics"}, account: {labels + "team": "platform"},
			monitor:                               {labels + "team": "prometheus"},
			"Certificate kube-system/kube-vitals": {labels + "team": "certificates"}},
		"anti-affinity-beside": {deployment: {
			pod + "affinity.podAntiAffinity.preferredDuringSchedulingIgnoredDuringExecution.0.weight": 100.0}},
		"selectors": {deployment: {pod + "topologySpreadConstraints.1.topologyKey": "kubernetes.io/hostname"}},
		"stable":    {deployment: {arg + "4": "--kubelet-insecure-tls", pod + "containers.1": nil}},
	}
	for _, name := range names(t, "values") {
		t.Run(name, func(t *testing.T) {
			if tests[name] == nil {
				t.Fatal("no effect is checked")
			}
			objs := mustHelm(t, withValues(filepath.Join(moving, "values", name+".yaml"))...)
			objs.checkReferences(t)
			for id, want := range tests[name] {
				if exists := objs[id] != nil; exists != (want != nil) {
					t.Errorf("%s exists: %t", id, exists)
				} else if exists {
					objs.want(t, id, want)
				}
			}
			if name == "labels-twice" && objs.value(t, deployment, checksum) == "x" {
				t.Error("a value replaces the checksum of the devices")
			}
		})
	}
}

// TestMovingRefusals checks that values that cannot work are refused with the cure in the first line of the file, and
// that the list in the README has every kind of them.
func TestMovingRefusals(t *testing.T) {
	failures, covered := failures(t), map[string]bool{}
	ofMetricsServer := withValues(filepath.Join(moving, "refused", "spread.yaml"))
	ofMetricsServer[1] = "metrics-server" // a release of metrics-server
	const named = "set nameOverride=metrics-server, or select"
	if _, err := helm(t, ofMetricsServer...); err == nil || !strings.Contains(err.Error(), named) {
		t.Errorf("got error %v, want %s", err, named)
	}
	for _, name := range names(t, "refused") {
		file := filepath.Join(moving, "refused", name+".yaml")
		first, _, _ := strings.Cut(string(mustRead(t, file)), "\n")
		want := strings.TrimPrefix(first, "# ")
		args := withValues(file)
		if strings.Contains(name, "tag") {
			args = slices.DeleteFunc(args, func(arg string) bool { return arg == "--set" || arg == "image.tag=dev" })
		}
		_, err := helm(t, args...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want %s", name, err, want)
			continue
		}
		for pattern := range failures {
			covered[pattern] = covered[pattern] || regexp.MustCompile(pattern).MatchString(err.Error())
		}
	}
	readme := string(mustRead(t, filepath.Join(chart, "README.md")))
	_, list, _ := strings.Cut(readme, "\n`helm install` fails for what it does not support")
	list, _, _ = strings.Cut(list, "\n| Value |")
	list = strings.Join(strings.Fields(list), " ")
	for pattern, key := range failures {
		switch {
		case key == "": // of values that metrics-server's chart does not have
		case !covered[pattern]:
			t.Errorf("no file in %s/refused has the error %s", moving, pattern)
		case !strings.Contains(list, "`"+key) && !strings.Contains(list, "`"+strings.Replace(key, ".", "`: `", 1)):
			t.Errorf("the list of the README does not have `%s`, for the error %s", key, pattern)
		}
	}
}

// failures returns the errors of the chart's templates, as patterns, with the value or flag of metrics-server's chart
// that each is about. It is empty for errors about other values, and about the state of the cluster.
func failures(t *testing.T) map[string]string {
	t.Helper()
	call := regexp.MustCompile(`(?:fail|required|append \$wrong) (?:\(printf )?"([^"]*)"`)
	name := regexp.MustCompile(`--[a-z-]+|[a-zA-Z]+(?:\.[a-zA-Z]+)+`)
	isPlaceholder := regexp.MustCompile(`%[a-z]`)
	var theirs map[string]any
	must(t, yaml.Unmarshal(mustRead(t, filepath.Join("testdata", "metrics-server-3.13.1.yaml")), &theirs))
	flags := strings.Fields(string(mustRead(t, "../../cmd/kube-vitals/testdata/metrics-server-flags.txt")))
	isTheirs := func(name string) bool {
		if flag, ok := strings.CutPrefix(name, "--"); ok {
			return slices.Contains(flags, flag)
		}
		var at any = theirs
		for key := range strings.SplitSeq(name, ".") {
			object, _ := at.(map[string]any)
			value, ok := object[key]
			if !ok {
				return key == "memory" // of resources.limits, which is a comment there
			}
			at = value
		}
		return true
	}
	all := map[string]string{}
	for _, file := range glob(t, "templates/*") {
		if info, err := os.Stat(file); err != nil || info.IsDir() {
			continue
		}
		for _, m := range call.FindAllStringSubmatch(string(mustRead(t, file)), -1) {
			parts := isPlaceholder.Split(m[1], -1)
			for i := range parts {
				parts[i] = regexp.QuoteMeta(parts[i])
			}
			pattern, first := strings.Join(parts, ".*"), name.FindString(m[1])
			isOfVersion := strings.HasPrefix(m[1], "there is no published image") // see TestImage
			if all[pattern] = ""; isTheirs(first) && first != "" && !isOfVersion {
				all[pattern] = first
			}
		}
	}
	if len(all) < 20 {
		t.Fatalf("got %d errors in the templates", len(all))
	}
	return all
}

// TestMovingOverlays builds kustomizations of users of metrics-server, whose only change is the list of resources and
// components, and checks that their patches have an effect and that the API server can verify the server.
func TestMovingOverlays(t *testing.T) {
	const (
		deployment = "Deployment kube-system/metrics-server"
		arg        = container + "args."
		account    = "ServiceAccount kube-system/metrics-server"
		service    = "Service kube-system/metrics-server"
		beta       = "APIService v1beta1.metrics.k8s.io"
	)
	type m = map[string]any
	tests := map[string]map[string]fields{
		"json-replace-args": {deployment: {
			arg + "4": "--metric-resolution=30s", arg + "5": "--kubelet-insecure-tls", arg + "6": nil}},
		"json-add-arg": {deployment: {arg + "0": "--cert-dir=/tmp", arg + "5": "--kubelet-insecure-tls", arg + "6": nil}},
		"json-index": {deployment: {arg + "2": "--kubelet-preferred-address-types=InternalIP",
			arg + "4": "--metric-resolution=40s", arg + "5": "--kubelet-insecure-tls"}},
		"label-selector": {deployment: {
			arg + "5": "--kubelet-insecure-tls", container + "resources.requests.memory": "400Mi"}},
		"merge-args": {deployment: {
			arg + "2": "--kubelet-insecure-tls", arg + "5": nil, container + "resources.limits.memory": "300Mi"}},
		"command": {deployment: {container + "command.0": "/metrics-server", container + "args": []any{}}},
		"images":  {deployment: {container + "image": "mirror.example/kube-vitals:v0.2.0"}},
		"namespace": {deployment: {"metadata.annotations.team": "platform"},
			"Role kube-system/kube-vitals-node-events": {}},
		"replicas": {deployment: {"spec.replicas": 3.0, pod + "affinity.podAntiAffinity." +
			"requiredDuringSchedulingIgnoredDuringExecution.0.topologyKey": "kubernetes.io/hostname"},
			"PodDisruptionBudget kube-system/metrics-server": {"spec.minAvailable": 2.0, "spec.maxUnavailable": nil}},
		"host-network": {deployment: {pod + "hostNetwork": true, arg + "1": "--secure-port=4443"}},
		"scheduling": {deployment: {pod + "priorityClassName": "system-node-critical",
			pod + "nodeSelector":      m{"kubernetes.io/os": "linux", "node-role.kubernetes.io/control-plane": ""},
			pod + "tolerations.1.key": "CriticalAddonsOnly", "spec.revisionHistoryLimit": 3.0}},
		"volumes": {deployment: {
			pod + "volumes.1.configMap.name": "kubelet-ca", container + "volumeMounts.1.mountPath": "/ca",
			arg + "5": "--kubelet-certificate-authority=/ca/ca.crt"}},
		"proxy": {deployment: {container + "securityContext.runAsUser": 1000.0}},
		"own-certificate": {beta: {"spec.caBundle": "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t"},
			deployment: {arg + "1": "--tls-cert-file=/tls/tls.crt"}},
		"other-objects": {account: {"metadata.annotations.owner": "platform"},
			service:                             {`metadata.labels.kubernetes\.io/cluster-service`: "true"},
			beta:                                {"spec.groupPriorityMinimum": 200.0},
			"ClusterRole system:metrics-server": {"rules.4.resources": []any{"namespaces"}},
			"ClusterRole system:aggregated-metrics-reader": {
				`metadata.labels.rbac\.authorization\.k8s\.io/aggregate-to-view`: nil},
			"RoleBinding kube-system/metrics-server-auth-reader": {"metadata.annotations.owner": "platform"}},
		"components": {deployment: {arg + "2": nil},
			"Certificate kube-system/kube-vitals": {"spec.dnsNames.0": "metrics-server.kube-system.svc"},
			"ServiceMonitor kube-system/kube-vitals": {
				"spec.endpoints.0.tlsConfig.serverName": "metrics-server.kube-system.svc"},
			policy: {"spec.matchConditions.0.expression": "" +
				`request.userInfo.username == "system:serviceaccount:kube-system:metrics-server"`},
		},
		"step-1": {beta: {"spec.insecureSkipTLSVerify": true}, apiService: {"spec.insecureSkipTLSVerify": true}},
		"other-apps": {beta: {"spec.insecureSkipTLSVerify": true}, apiService: {"spec.insecureSkipTLSVerify": true},
			"APIService v1beta1.custom.metrics.k8s.io": {"spec.insecureSkipTLSVerify": nil, "metadata.labels": nil},
			"DaemonSet kube-system/node-local-dns": {"metadata.labels": m{"k8s-app": "node-local-dns"},
				"spec.template.metadata.labels": m{"k8s-app": "node-local-dns"}},
			"DaemonSet kube-system/node-exporter": {"metadata.labels": nil,
				"spec.template.metadata.labels": m{"app": "node-exporter"}}},
	}
	for _, name := range names(t, "kustomize") {
		t.Run(name, func(t *testing.T) {
			if tests[name] == nil {
				t.Fatal("no effect is checked")
			}
			text, err := run(t, "kubectl", "kustomize", filepath.Join(moving, "kustomize", name))
			must(t, err)
			objs := parse(t, text)
			objs.checkReferences(t)
			for id, want := range tests[name] {
				objs.want(t, id, want)
			}
			// The names of metrics-server's manifest.
			objs.want(t, deployment, fields{container + "name": "metrics-server", pod + "containers.1": nil,
				"spec.selector": m{"matchLabels": m{"k8s-app": "metrics-server"}}, pod + "serviceAccountName": "metrics-server"})
			objs.want(t, service, fields{"spec.selector": m{"k8s-app": "metrics-server"}})
			for _, id := range []string{
				account, "ClusterRole system:metrics-server", "ClusterRole system:aggregated-metrics-reader",
				"ClusterRoleBinding system:metrics-server", "ClusterRoleBinding metrics-server:system:auth-delegator",
				"RoleBinding kube-system/metrics-server-auth-reader", beta,
			} {
				objs.want(t, id, fields{"metadata.labels.k8s-app": "metrics-server"})
			}
		})
	}
}

// checkReferences checks that the Deployment, its flags and the other objects refer to each other.
func (o objects) checkReferences(t *testing.T) {
	t.Helper()
	var id string
	for candidate := range o {
		if strings.HasPrefix(candidate, "Deployment ") {
			id = candidate
		}
	}
	namespace, name, _ := strings.Cut(strings.TrimPrefix(id, "Deployment "), "/")
	flags := map[string]string{}
	for _, arg := range o.args(t) {
		flag, value, _ := strings.Cut(arg, "=")
		flags[flag] = value // the last one wins
	}
	exists := func(kind, name string) {
		t.Helper()
		if id := fmt.Sprintf("%s %s/%s", kind, namespace, name); o[id] == nil {
			t.Errorf("got no %s", id)
		}
	}
	isManaged := flags["--tls-secret"] != "" && flags["--tls-cert-file"] == ""
	if isManaged {
		exists("Secret", flags["--tls-secret"])
		exists("ConfigMap", flags["--tls-ca-configmap"])
		role := "RoleBinding " + namespace + "/" + flags["--tls-secret"]
		o.want(t, role, fields{"subjects.0.name": o.value(t, id, pod+"serviceAccountName")})
	}
	if account := flags["--kubelet-service-account"]; account != "" {
		exists("ServiceAccount", account)
	}
	if flags["--deployment"] != name {
		t.Errorf("got --deployment=%s, want %s", flags["--deployment"], name)
	}
	o.want(t, "Role "+namespace+"/"+o.events(t, namespace), fields{"rules.1.resourceNames": []any{name}})

	host, port, _ := strings.Cut(flags["--service"], ":")
	service := "Service " + namespace + "/" + strings.TrimSuffix(host, "."+namespace+".svc")
	if got := fmt.Sprint(o.value(t, service, "spec.ports.0.port")); got != port {
		t.Errorf("%s has port %s, and --service is %s", service, got, flags["--service"])
	}
	labels, _ := o.value(t, id, "spec.template.metadata.labels").(map[string]any)
	for _, selector := range []any{o.value(t, service, "spec.selector"), o.value(t, id, "spec.selector.matchLabels")} {
		for label, value := range selector.(map[string]any) {
			if labels[label] != value {
				t.Errorf("the label %s=%v is selected, and pods have %v", label, value, labels[label])
			}
		}
	}
	if got := fmt.Sprint(o.value(t, id, container+"ports.0.containerPort")); got != flags["--secure-port"] {
		t.Errorf("the container has port %s, and the server %s", got, flags["--secure-port"])
	}
	for _, candidate := range []string{apiService, "APIService v1beta1.metrics.k8s.io"} {
		if o[candidate] != nil {
			o.want(t, candidate, fields{"spec.service.name": strings.TrimPrefix(service, "Service "+namespace+"/"),
				"spec.service.namespace": namespace})
		}
	}
}

// events returns the name of the Role for events in a namespace.
func (o objects) events(t *testing.T, namespace string) string {
	t.Helper()
	for id := range o {
		if name, ok := strings.CutPrefix(id, "Role "+namespace+"/"); ok && strings.HasSuffix(name, "-events") &&
			!strings.HasSuffix(name, "-node-events") {
			return name
		}
	}
	t.Error("got no Role for events")
	return ""
}
