package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const (
	deployment    = "Deployment kube-system/kube-vitals"
	account       = "ServiceAccount kube-system/kube-vitals"
	service       = "Service kube-system/kube-vitals"
	apiService    = "APIService v1.metrics.k8s.io"
	budget        = "PodDisruptionBudget kube-system/kube-vitals"
	helmSecret    = "Secret kube-system/kube-vitals-tls"     // tls.type=helm
	servingSecret = "Secret kube-system/kube-vitals-serving" // tls.type=kube-vitals
	servingRole   = "Role kube-system/kube-vitals-serving"
	caConfigMap   = "ConfigMap kube-system/kube-vitals-ca"
	networkPolicy = "NetworkPolicy kube-system/kube-vitals"
	clusterRole   = "ClusterRole system:kube-vitals"
	kubeletRole   = "ClusterRole system:kube-vitals-kubelet"
	policy        = "ValidatingAdmissionPolicy kube-vitals-apiservices"
	rule          = "PrometheusRule kube-system/kube-vitals"
	dashboard     = "ConfigMap kube-system/kube-vitals-dashboard"

	pod       = "spec.template.spec."
	container = pod + "containers.0."
	env       = container + "env.0."
	firstRule = "spec.groups.0.rules.0."

	// Values.
	existing = "tls.type=existingSecret,tls.existingSecret.name=x"
	caBundle = "apiService.caBundle=-----BEGIN CERTIFICATE-----"
	alerts   = "prometheusRule.enabled=true"
	engine   = "source.type=prometheus,source.prometheus.url=" // and the URL
)

// tcp returns a port of a NetworkPolicy.
func tcp(port any) any { return map[string]any{"port": port, "protocol": "TCP"} }

var metricsAPIServices = []any{"v1.metrics.k8s.io", "v1beta1.metrics.k8s.io"}

func TestValues(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0", 64)
	file, err := os.ReadFile(filepath.Join(chart, "dashboards", "kube-vitals.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		values string // in the format of helm --set
		object string
		path   string // in the object
		want   any
	}{
		{"image by tag, with a registry", "image.tag=v9",
			deployment, container + "image", "ghcr.io/kube-vitals/kube-vitals:v9"},
		{"image by digest", "image.tag=v9,image.digest=" + digest,
			deployment, container + "image", "ghcr.io/kube-vitals/kube-vitals@" + digest},

		{"default memory limit", "", deployment, container + "resources.limits.memory", "1Gi"},
		{"GOMEMLIMIT is 90 % of the default limit", "", deployment, env + "value", "921MiB"},
		{"GOMEMLIMIT of Mi", "resources.limits.memory=500Mi", deployment, env + "value", "450MiB"},
		{"GOMEMLIMIT of a fraction", "resources.limits.memory=1.5Gi", deployment, env + "value", "1382MiB"},
		{"GOMEMLIMIT of a decimal unit", "resources.limits.memory=2G", deployment, env + "value", "1716MiB"},
		{"GOMEMLIMIT of bytes", "resources.limits.memory=2147483648", deployment, env + "value", "1843MiB"},
		{"GOMEMLIMIT of a YAML float", "resources.limits.memory=2.147483648e+09", deployment, env + "value", "1843MiB"},
		{"no GOMEMLIMIT without a limit", "resources.limits=null", deployment, container + "env", nil},
		{"GOMEMLIMIT from env", "env[0].name=GOMEMLIMIT,env[0].value=1GiB",
			deployment, container + "env", []any{map[string]any{"name": "GOMEMLIMIT", "value": "1GiB"}}},
		{"env", "env[0].name=GOGC,env[0].value=50", deployment, container + "env.1.name", "GOGC"},

		{"labels of the Deployment", "deploymentLabels.a=b", deployment, "metadata.labels.a", "b"},
		{"no grace period", "", deployment, pod + "terminationGracePeriodSeconds", nil},
		{"grace period", "terminationGracePeriodSeconds=60",
			deployment, pod + "terminationGracePeriodSeconds", 60.0},
		{"no service links", "", deployment, pod + "enableServiceLinks", false},
		{"token is mounted in the pods", "", deployment, pod + "automountServiceAccountToken", true},
		{"token is not mounted in other pods", "", account, "automountServiceAccountToken", false},
		{"no volumes", "", deployment, pod + "volumes", nil},
		{"tmp volume", "tmpVolume.emptyDir.sizeLimit=1Mi", deployment, pod + "volumes.0.emptyDir.sizeLimit", "1Mi"},
		{"exporters of devices", "devices.exporters[0].preset=dcgm",
			deployment, container + "volumeMounts.0.mountPath", "/etc/kube-vitals/devices"},
		{"no liveness probe", "livenessProbe=null", deployment, container + "livenessProbe", nil},
		{"one replica is not spread", "", deployment, pod + "topologySpreadConstraints", nil},
		{"DNS policy", "dnsPolicy=Default", deployment, pod + "dnsPolicy", "Default"},
		{"no DNS policy", "", deployment, pod + "dnsPolicy", nil},
		{"two replicas are spread", "replicas=2",
			deployment, pod + "topologySpreadConstraints.0.topologyKey", "kubernetes.io/hostname"},
		{"false is a value", "hostUsers=false", deployment, pod + "hostUsers", false},
		{"zero is a value", "revisionHistoryLimit=0", deployment, "spec.revisionHistoryLimit", 0.0},
		{"zero maxUnavailable", "podDisruptionBudget.enabled=true,podDisruptionBudget.maxUnavailable=0",
			budget, "spec.maxUnavailable", 0.0},
		{"default maxUnavailable", "podDisruptionBudget.enabled=true", budget, "spec.maxUnavailable", 1.0},

		{"no IP family policy", "", service, "spec.ipFamilyPolicy", nil},
		{"IP family policy", "service.ipFamilyPolicy=PreferDualStack", service, "spec.ipFamilyPolicy", "PreferDualStack"},
		{"IP families", "service.ipFamilies={IPv6,IPv4}", service, "spec.ipFamilies", []any{"IPv6", "IPv4"}},
		{"port of the Service", "service.port=8443", service, "spec.ports.0.port", 8443.0},
		{"port in the APIService", "service.port=8443", apiService, "spec.service.port", 8443.0},
		{"egress is restricted", "networkPolicy.enabled=true",
			networkPolicy, "spec.policyTypes", []any{"Ingress", "Egress"}},
		{"egress to kubelets", "networkPolicy.enabled=true", networkPolicy, "spec.egress.0.ports.0.port", 10250.0},
		{"egress to the API server", "networkPolicy.enabled=true", networkPolicy, "spec.egress.1.ports.1.port", 6443.0},
		{"egress to DNS", "networkPolicy.enabled=true", networkPolicy, "spec.egress.2.ports.0.protocol", "UDP"},
		{"no further egress", "networkPolicy.enabled=true", networkPolicy, "spec.egress.3", nil},
		{"egress to exporters of a preset", "networkPolicy.enabled=true,devices.exporters[0].preset=dcgm",
			networkPolicy, "spec.egress.3.ports", []any{tcp(9400.0)}},
		{"egress to exporters, with equal ports", "networkPolicy.enabled=true,devices.exporters[0].preset=dcgm," +
			"devices.exporters[1].port=9400,devices.exporters[2].port=5000",
			networkPolicy, "spec.egress.3.ports", []any{tcp(9400.0), tcp(5000.0)}},
		{"an exporter's port instead of the preset's", "networkPolicy.enabled=true,devices.exporters[0].preset=dcgm," +
			"devices.exporters[0].port=9500", networkPolicy, "spec.egress.3.ports", []any{tcp(9500.0)}},
		{"egress to the engine", "networkPolicy.enabled=true," + engine + "http://prometheus.monitoring:9090/prefix",
			networkPolicy, "spec.egress.3.ports", []any{tcp(9090.0)}},
		{"no further egress if a rule has peers", "networkPolicy.enabled=true," +
			"networkPolicy.egress[0].to[0].ipBlock.cidr=10.0.0.0/8," + engine + "http://p", networkPolicy, "spec.egress.1", nil},
		{"further egress if a rule has peers", "networkPolicy.enabled=true," +
			"networkPolicy.egress[0].to[0].ipBlock.cidr=10.0.0.0/8,networkPolicy.extraEgress[0].ports[0].port=9090," +
			engine + "http://p",
			networkPolicy, "spec.egress.1.ports.0.port", 9090.0},
		{"egress to the engine by HTTP", "networkPolicy.enabled=true," + engine + "http://p",
			networkPolicy, "spec.egress.3.ports", []any{tcp(80.0)}},
		{"egress to the engine by HTTPS", "networkPolicy.enabled=true," + engine + "https://u:p@mimir.example.org/1:2",
			networkPolicy, "spec.egress.3.ports", []any{tcp(443.0)}},
		{"egress to the engine by IPv6", "networkPolicy.enabled=true," + engine + "https://[fd00::12]",
			networkPolicy, "spec.egress.3.ports", []any{tcp(443.0)}},
		{"egress to an engine's port by IPv6", "networkPolicy.enabled=true," + engine + "https://[fd00::12]:8481",
			networkPolicy, "spec.egress.3.ports", []any{tcp(8481.0)}},
		{"egress to the engine and exporters",
			"networkPolicy.enabled=true,devices.exporters[0].preset=dcgm," + engine + "http://p:9090",
			networkPolicy, "spec.egress.3.ports", []any{tcp(9400.0), tcp(9090.0)}},
		{"extra egress", "networkPolicy.enabled=true,networkPolicy.extraEgress[0].ports[0].port=9091",
			networkPolicy, "spec.egress.3.ports.0.port", 9091.0},
		{"unrestricted egress", "networkPolicy.enabled=true,networkPolicy.egress=null,devices.exporters[0].preset=dcgm",
			networkPolicy, "spec.policyTypes", []any{"Ingress"}},
		{"extra object", "extraObjects[0].kind=Thing,extraObjects[0].metadata.name=\\{\\{ .Release.Name \\}\\}-x",
			"Thing kube-vitals-x", "kind", "Thing"},
		{"extra object as text", "extraObjects[0]=kind: Thing\nmetadata: {name: {{ .Release.Namespace }}}",
			"Thing kube-system", "kind", "Thing"},

		{"API server verifies by default", "", apiService, "spec.insecureSkipTLSVerify", nil},
		{"server writes the caBundle", "", apiService, "spec.caBundle", nil},
		{"server writes the serving Secret", "", servingSecret, "data", nil},
		{"server writes the CA ConfigMap", "", caConfigMap, "data", nil},
		{"permissions on the serving Secret", "", servingRole, "rules.0.verbs", []any{"get", "watch", "update"}},
		{"name of the serving Secret", "fullnameOverride=x",
			"Role kube-system/x-serving", "rules.0.resourceNames", []any{"x-serving"}},
		{"permission to recreate the serving Secret", "tls.kubeVitals.recreateSecret=true",
			servingRole, "rules.0.verbs", []any{"get", "watch", "update", "patch", "create"}},
		{"permissions on the CA ConfigMap", "", servingRole, "rules.1.verbs", []any{"get", "update"}},
		{"name of the CA ConfigMap", "fullnameOverride=x",
			"Role kube-system/x-serving", "rules.1.resourceNames", []any{"x-ca"}},
		{"names of the APIServices", "", clusterRole, "rules.2.resourceNames", metricsAPIServices},
		{"permissions on the APIServices", "", clusterRole, "rules.2.verbs", []any{"get", "watch", "patch"}},
		{"cert-manager: APIServices are read-only", "tls.type=cert-manager", clusterRole, "rules.2.verbs", []any{"get"}},
		{"self-signed: names of the APIServices", "tls.type=self-signed",
			clusterRole, "rules.2.resourceNames", metricsAPIServices},
		{"APIServices of another release", "tls.type=cert-manager,apiService.create=false",
			clusterRole, "rules.2.verbs", []any{"get"}},
		{"admission policy matches the ServiceAccount", "tls.admissionPolicy.enabled=true,serviceAccount.name=x",
			policy, "spec.matchConditions.0.expression", `request.userInfo.username == "system:serviceaccount:kube-system:x"`},
		{"self-signed is not verified", "tls.type=self-signed", apiService, "spec.insecureSkipTLSVerify", true},
		{"no caBundle without verification", "apiService.insecureSkipTLSVerify=true", apiService, "spec.caBundle", nil},
		{"caBundle by value", existing + "," + caBundle, apiService, "spec.caBundle", "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t"},
		{"existing Secret", existing, deployment, pod + "volumes.0.secret.secretName", "x"},
		{"CA ConfigMap of an existing Secret", existing + "," + caBundle,
			caConfigMap, `data.ca\.crt`, "-----BEGIN CERTIFICATE-----\n"},

		{"dashboard is the file", "dashboard.enabled=true", dashboard, `data.kube-vitals\.json`, string(file)},
		{"dashboard has Grafana's label", "dashboard.enabled=true", dashboard, "metadata.labels.grafana_dashboard", "1"},
		{"runbook URL", alerts + ",prometheusRule.runbookURL=https://example.org/r/",
			rule, firstRule + "annotations.runbook_url", "https://example.org/r/KubeVitalsAbsent.md"},
		{"disabled alert", alerts + ",prometheusRule.disabled={KubeVitalsAbsent}",
			rule, firstRule + "alert", "KubeVitalsDown"},
		{"alert label", alerts + ",prometheusRule.alertLabels.team=a", rule, firstRule + "labels.team", "a"},
		{"other alert labels stay", alerts + ",prometheusRule.alertLabels.team=a",
			rule, firstRule + "labels.severity", "critical"},
		{"alert label is overridden", alerts + ",prometheusRule.alertLabels.severity=page",
			rule, firstRule + "labels.severity", "page"},
		{"label of the PrometheusRule", alerts + ",prometheusRule.additionalLabels.release=p",
			rule, "metadata.labels.release", "p"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, render(t, tt.values).value(t, tt.object, tt.path)); diff != "" {
				t.Errorf("%s of %s (-want +got):\n%s", tt.path, tt.object, diff)
			}
		})
	}
}

func TestArguments(t *testing.T) {
	const (
		port    = "--secure-port=10250"
		address = "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname"
		status  = "--kubelet-use-node-status-port"
		period  = "--metric-resolution=15s"
		ca      = "--kubelet-certificate-authority=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
		account = "--kubelet-service-account=kube-vitals-kubelet"
		service = "--service=kube-vitals.kube-system.svc:443"
	)
	for _, tt := range []struct {
		name, values string
		want         []string
	}{
		{"default", "", []string{port, address, status, period, ca, account, service}},
		{"port of the Service", "service.port=8443",
			[]string{port, address, status, period, ca, account, "--service=kube-vitals.kube-system.svc:8443"}},
		{"APIServices of another release", "apiService.create=false",
			[]string{port, address, status, period, ca, account, service}},
		{"every value with a flag",
			"containerPort=1,kubelet.insecureTLS=true,maxSampleAge=2m,rateWindow=30s,activeResolution=10s,activeBudget=1.5," +
				"metrics.enabled=true,args={-v=2}",
			[]string{"--secure-port=1", address, status, period, "--kubelet-insecure-tls", account, "--max-sample-age=2m",
				"--rate-window=30s", "--active-resolution=10s", "--active-budget=1.5",
				"--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics", service, "-v=2"}},
		{"ephemeral-storage", "ephemeralStorage.enabled=true",
			[]string{port, address, status, period, ca, account, "--resources=cpu,memory,swap,ephemeral-storage", service}},
		{"pace of ephemeral-storage", "ephemeralStorage.enabled=true,ephemeralStorage.interval=2m",
			[]string{port, address, status, period, ca, account, "--resources=cpu,memory,swap,ephemeral-storage",
				"--ephemeral-storage-interval=2m", service}},
		{"no ephemeral-storage", "ephemeralStorage.interval=2m",
			[]string{port, address, status, period, ca, account, service}},
		{"insecure kubelets in args", "args={--kubelet-insecure-tls}",
			[]string{port, address, status, period, account, service, "--kubelet-insecure-tls"}},
		{"CA of the kubelets in defaultArgs", "defaultArgs={--kubelet-certificate-authority=/ca}",
			[]string{port, "--kubelet-certificate-authority=/ca", account, service}},
		{"certificate of the server", "tls.type=kube-vitals",
			[]string{port, address, status, period, ca, account, service, "--tls-secret=kube-vitals-serving",
				"--tls-names=kube-vitals.kube-system.svc,kube-vitals.kube-system.svc.cluster.local,kube-vitals.kube-system",
				"--tls-ca-configmap=kube-vitals-ca"}},
		{"no CA of the kubelets", "kubelet.certificateAuthority=",
			[]string{port, address, status, period, account, service}},
		{"one ServiceAccount", "kubelet.serviceAccount.create=false",
			[]string{port, address, status, period, ca, service}},
		{"existing ServiceAccount for kubelets", "kubelet.serviceAccount.create=false,kubelet.serviceAccount.name=x",
			[]string{port, address, status, period, ca, "--kubelet-service-account=x", service}},
		{"pinned keys of kubelets", "kubelet.tls=pin",
			[]string{port, address, status, period, ca, account, "--kubelet-pins=kube-vitals-kubelet-pins", service}},
		{"allowed paths in args", `args={--authorization-always-allow-paths=/livez\,/readyz\,/metrics}`,
			[]string{port, address, status, period, ca, account, service,
				"--authorization-always-allow-paths=/livez,/readyz,/metrics"}},
		{"client certificate for kubelets", "args={--kubelet-client-certificate=/crt}",
			[]string{port, address, status, period, ca, service, "--kubelet-client-certificate=/crt"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			objs := render(t, "tls.type=self-signed,events.enabled=false", tt.values)
			args, _ := objs.value(t, deployment, container+"args").([]any)
			for _, arg := range args {
				got = append(got, fmt.Sprint(arg))
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	for _, tt := range []struct{ values, want string }{
		// The schema.
		{"replcas=2", "additional properties 'replcas' not allowed"},
		{"tls.helm.days=3", "at '/tls/helm': additional properties 'days' not allowed"},
		{"replicas=two", "at '/replicas': got string, want integer"},
		{"tls.type=none", "at '/tls/type': value must be one of 'kube-vitals', 'helm', 'existingSecret', 'cert-manager', "},
		{"maxSampleAge=5", "at '/maxSampleAge': got number, want string"},
		{"args={verbose}", "at '/args/0': 'verbose' does not match pattern '^-'"},
		{"podLabels.a=1", "at '/podLabels/a': got number, want string"},
		{"service.port=0", "at '/service/port': minimum: got 0, want 1"},
		{"terminationGracePeriodSeconds=no", "at '/terminationGracePeriodSeconds': got string, want null or integer"},
		{"env[0].value=1", "at '/env/0': missing property 'name'"},
		{"service.ipFamilyPolicy=Dual", "at '/service/ipFamilyPolicy': value must be one of '', 'SingleStack'"},
		{"dnsPolicy=cluster", "at '/dnsPolicy': value must be one of '', 'ClusterFirst'"},
		{"tests.image.digest=1", "at '/tests/image/digest': got number, want string"},
		{"tls.helm.lookup=yes,", "at '/tls/helm/lookup': got string, want boolean"},
		{"imagePullSecrets={secret}", "at '/imagePullSecrets/0': got string, want object"},
		{"prometheusRule.disabled={Unknown}", "at '/prometheusRule/disabled/0': value must be one of 'KubeVitalsAbsent'"},
		{"prometheusRule.runbookURL=runbooks", "at '/prometheusRule/runbookURL': 'runbooks' does not match pattern"},
		{"dashboard.lables.a=b", "at '/dashboard': additional properties 'lables' not allowed"},
		// The templates.
		{"image.repository=mirror.example/metrics-server/metrics-server", "set image.repository to that of kube-vitals"},
		{"addonResizer.enabled=true", "addonResizer.enabled=true: this chart has no addon-resizer: set resources"},
		{"tls.type=metrics-server," + caBundle, "tls.type=self-signed creates the certificate"},
		{caBundle, "the server writes the caBundle"},
		{"tls.type=helm," + caBundle, "tls.type=helm creates the certificate: leave apiService.caBundle empty"},
		{"tls.type=self-signed," + caBundle, "tls.type=self-signed creates the certificate: leave apiService.caBundle empty"},
		{"tls.type=existingSecret", "set tls.existingSecret.name"},
		{"tls.type=cert-manager,tls.certManager.existingIssuer.enabled=true", "set tls.certManager.existingIssuer.name"},
		{"tls.type=helm,tls.admissionPolicy.enabled=true", "tls.type=kube-vitals"},
		{"podMonitor.enabled=true", "podMonitor.enabled needs metrics.enabled=true"},
		{"tls.type=self-signed,serviceMonitor.enabled=true",
			"would send Prometheus' token to a server that it cannot verify"},
		{"tls.type=self-signed,podMonitor.enabled=true,podMonitor.authorization.type=Bearer",
			"podMonitor.authorization would be sent to a server"},
		{"resources.limits.memory=lots", "resources.limits.memory=lots: write it as bytes"},
		{"hostNetwork.enabled=true", "the kubelet already listens on port 10250 of the node: set another containerPort"},
		{"updateStrategy.type=Recreate",
			"updateStrategy.type=Recreate has no rollingUpdate: set updateStrategy.rollingUpdate=null too"},
		{"podDisruptionBudget.enabled=true,podDisruptionBudget.minAvailable=1,podDisruptionBudget.maxUnavailable=0",
			"podDisruptionBudget.maxUnavailable contradict each other"},
		{"kubelet.serviceAccount.name=kube-vitals", "kubelet.serviceAccount.name is the ServiceAccount of the pods"},
		{"args={--secure-port=8443}", "set containerPort instead"},
		{"defaultArgs={--secure-port=8443}", "set containerPort instead"},
		{"args={--kubelet-service-account=x}", "set kubelet.serviceAccount.name instead"},
		{"kubelet.tls=insecure", "at '/kubelet/tls': value must be one of 'verify', 'pin'"},
		{"args={--kubelet-pins=x}", "set kubelet.tls=pin instead"},
		{"kubelet.tls=pin,kubelet.insecureTLS=true", "kubelet.tls=pin and the option to verify no kubelet contradict"},
		{"kubelet.tls=pin,args={--kubelet-insecure-tls}", "remove kubelet.insecureTLS, --kubelet-insecure-tls"},
		{"args={--tls-secret=x}", "tls.type=kube-vitals sets all of them"},
		{"args={--tls-cert-file=/crt}", "set tls.type=existingSecret"},
		{"args={--node-events=false}", "set events.enabled instead"},
		{"ephemeralStorage.enabled=true,source.type=prometheus,source.prometheus.url=http://p",
			"ephemeralStorage.enabled=true needs source.type=kubelet"},
		{"rateWindow=15s,source.type=prometheus,source.prometheus.url=http://p", "rateWindow needs source.type=kubelet"},
		{"activeResolution=5s,source.type=prometheus,source.prometheus.url=http://p",
			"activeResolution and activeBudget need source.type=kubelet"},
		{"activeBudget=3,source.type=prometheus,source.prometheus.url=http://p",
			"activeResolution and activeBudget need source.type=kubelet"},
		{"activeResolution=5", "at '/activeResolution': got number, want string"},
		{"activeBudget=0", "at '/activeBudget': minimum: got 0, want 1"},
		{"activeBudget=0.5", "at '/activeBudget': '0.5' does not match pattern"},
		{"rateWindow=15", "at '/rateWindow': got number, want string"},
		{"devices.exporters[0].preset=dcgm,args={--device-config=/x}", "set one of them"},
		{"devices.exporters[0].preset=rocm", "at '/devices/exporters/0/preset': value must be 'dcgm'"},
		{"devices.exporters[0].prot=1", "at '/devices/exporters/0': additional properties 'prot' not allowed"},
		{"args={--authorization-always-allow-paths=/metrics}", "add /healthz,/readyz,/livez to it"},
		{"tls.type=self-signed,args={--cert-dir=/tmp}", "or set tmpVolume"},
	} {
		t.Run(tt.values, func(t *testing.T) {
			if err := renderError(t, tt.values); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got error %v, want %s", err, tt.want)
			}
		})
	}
}

// TestKubeletPins checks that the server may use the ConfigMap of pinned keys, and only with
// kubelet.tls=pin.
func TestKubeletPins(t *testing.T) {
	const name = "kube-system/kube-vitals-kubelet-pins"
	for _, values := range []string{"", "kubelet.tls=verify",
		"kubelet.tls=pin,source.type=prometheus,source.prometheus.url=http://p"} {
		objs := render(t, values)
		for _, kind := range []string{"ConfigMap ", "Role ", "RoleBinding "} {
			if objs[kind+name] != nil {
				t.Errorf("%s: %s%s is rendered", values, kind, name)
			}
		}
	}
	objs := render(t, "kubelet.tls=pin")
	if objs["ConfigMap "+name] == nil {
		t.Errorf("there is no ConfigMap %s", name)
	}
	want := []any{map[string]any{"apiGroups": []any{""}, "resources": []any{"configmaps"},
		"resourceNames": []any{"kube-vitals-kubelet-pins"},
		"verbs":         []any{"list", "watch", "update"}}}
	if diff := cmp.Diff(any(want), objs.value(t, "Role "+name, "rules")); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	for path, want := range map[string]any{"roleRef.name": "kube-vitals-kubelet-pins", "subjects.0.name": "kube-vitals"} {
		if got := objs.value(t, "RoleBinding "+name, path); got != want {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
}

// TestKubeletServiceAccount checks which ServiceAccount has permissions on kubelets: the one whose
// token is sent to kubelets, and no other.
func TestKubeletServiceAccount(t *testing.T) {
	const (
		binding      = "ClusterRoleBinding system:kube-vitals-kubelet"
		tokenRole    = "Role kube-system/kube-vitals-kubelet"
		tokenBinding = "RoleBinding kube-system/kube-vitals-kubelet"
	)
	permissions := func(verb string, resource string, names ...any) any {
		p := map[string]any{"apiGroups": []any{""}, "resources": []any{resource}, "verbs": []any{verb}}
		if len(names) > 0 {
			p["resourceNames"] = names
		}
		return p
	}
	kubelets := []any{permissions("get", "nodes/metrics"), permissions("get", "nodes/stats")}
	for _, tt := range []struct {
		name, values string
		account      string // whose token is sent to kubelets; empty: that of the pods
		accounts     int    // ServiceAccounts of the chart
	}{
		{"two", "", "kube-vitals-kubelet", 2},
		{"two with names", "serviceAccount.name=a,kubelet.serviceAccount.name=b", "b", 2},
		{"existing", "kubelet.serviceAccount.create=false,kubelet.serviceAccount.name=x", "x", 1},
		{"one", "kubelet.serviceAccount.create=false", "", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			objs := render(t, tt.values)
			accounts := 0
			for id := range objs {
				if strings.HasPrefix(id, "ServiceAccount ") {
					accounts++
				}
			}
			if accounts != tt.accounts {
				t.Errorf("got %d ServiceAccounts, want %d", accounts, tt.accounts)
			}
			rules, _ := objs.value(t, clusterRole, "rules").([]any)
			for _, permission := range kubelets {
				has := slices.ContainsFunc(rules, func(r any) bool { return reflect.DeepEqual(r, permission) })
				if want := tt.account == ""; has != want {
					t.Errorf("the ServiceAccount of the pods has %v: %t, want %t", permission, has, want)
				}
			}
			if tt.account == "" {
				for _, id := range []string{kubeletRole, binding, tokenRole, tokenBinding} {
					if objs[id] != nil {
						t.Errorf("%s is rendered", id)
					}
				}
				return
			}
			for _, want := range []struct {
				object, path string
				value        any
			}{
				{kubeletRole, "rules", kubelets},
				{binding, "subjects.0.name", tt.account},
				{tokenRole, "rules", []any{permissions("create", "serviceaccounts/token", tt.account)}},
				{tokenBinding, "subjects.0.name", objs.value(t, deployment, pod+"serviceAccountName")},
			} {
				if diff := cmp.Diff(want.value, objs.value(t, want.object, want.path)); diff != "" {
					t.Errorf("%s of %s (-want +got):\n%s", want.path, want.object, diff)
				}
			}
		})
	}
}

// TestEvents checks that the server has the flags and the permissions for events, or neither.
func TestEvents(t *testing.T) {
	const (
		nodeRole       = "Role default/kube-vitals-events"
		deploymentRole = "Role kube-system/kube-vitals-events"
	)
	events := map[string]any{
		"apiGroups": []any{""}, "resources": []any{"events"}, "verbs": []any{"create", "patch"},
	}
	get := map[string]any{
		"apiGroups": []any{"apps"}, "resources": []any{"deployments"}, "resourceNames": []any{"kube-vitals"},
		"verbs": []any{"get"},
	}
	for _, tt := range []struct {
		values string
		roles  map[string]any // their rules
		flags  []string
	}{
		{"", map[string]any{nodeRole: []any{events}, deploymentRole: []any{events, get}},
			[]string{"--node-events", "--deployment=kube-vitals"}},
		{"namespaceOverride=default", map[string]any{nodeRole: []any{events, get}},
			[]string{"--node-events", "--deployment=kube-vitals"}},
		{"rbac.create=false", nil, []string{"--node-events", "--deployment=kube-vitals"}},
		{"events.enabled=false", nil, nil},
		{"source.type=prometheus,source.prometheus.url=http://p", map[string]any{deploymentRole: []any{events, get}},
			[]string{"--node-events", "--deployment=kube-vitals"}},
	} {
		t.Run(tt.values, func(t *testing.T) {
			objs := render(t, tt.values)
			roles, bindings := map[string]any{}, 0
			for id := range objs {
				if !strings.HasSuffix(id, "/kube-vitals-events") {
					continue
				}
				if strings.HasPrefix(id, "Role ") {
					roles[id] = objs.value(t, id, "rules")
					continue
				}
				bindings++
				for path, want := range map[string]any{
					"roleRef.name": "kube-vitals-events", "subjects.0.name": "kube-vitals",
				} {
					if got := objs.value(t, id, path); got != want {
						t.Errorf("%s of %s is %v, want %v", path, id, got, want)
					}
				}
			}
			if diff := cmp.Diff(tt.roles, roles, cmpopts.EquateEmpty()); diff != "" || bindings != len(roles) {
				t.Errorf("%d bindings, rules of roles (-want +got):\n%s", bindings, diff)
			}
			args, _ := objs.value(t, deploymentOf(objs), container+"args").([]any)
			var flags []string
			for _, arg := range args {
				if text := arg.(string); strings.HasPrefix(text, "--node-events") || strings.HasPrefix(text, "--deployment") {
					flags = append(flags, text)
				}
			}
			if diff := cmp.Diff(tt.flags, flags); diff != "" {
				t.Errorf("flags (-want +got):\n%s", diff)
			}
		})
	}
}

// deploymentOf returns the key of the Deployment in any namespace.
func deploymentOf(objs objects) string {
	for id := range objs {
		if strings.HasPrefix(id, "Deployment ") {
			return id
		}
	}
	return ""
}

// TestReuseValues renders the chart with the default values of v0.1.0 instead of its own, as helm
// upgrade --reuse-values does. The result must be complete, and immutable fields must not change.
func TestReuseValues(t *testing.T) {
	old := filepath.Join(t.TempDir(), "kube-vitals")
	if err := os.CopyFS(old, os.DirFS(chart)); err != nil {
		t.Fatal(err)
	}
	values, err := os.ReadFile(filepath.Join("testdata", "values-0.1.0.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(old, "values.yaml"), values, 0o600); err != nil {
		t.Fatal(err)
	}
	args := slices.Clone(helmTemplate)
	args[slices.Index(args, chart)] = old
	text, err := helm(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	objs := parse(t, text)
	for path, want := range map[string]any{
		"spec.selector.matchLabels": map[string]any{
			"app.kubernetes.io/name": "kube-vitals", "app.kubernetes.io/instance": "kube-vitals",
		},
		pod + "serviceAccountName": "kube-vitals",
		pod + "volumes.0.emptyDir": map[string]any{},
		container + "args.1":       "--cert-dir=/tmp",
		container + "env":          nil,
	} {
		if diff := cmp.Diff(want, objs.value(t, deployment, path)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
	for _, id := range []string{
		kubeletRole, service, apiService, servingSecret, servingRole, "ClusterRoleBinding system:kube-vitals",
		"ClusterRoleBinding kube-vitals:system:auth-delegator", "RoleBinding kube-system/kube-vitals-auth-reader",
		"Role default/kube-vitals-events", "Role kube-system/kube-vitals-events",
	} {
		if objs[id] == nil {
			t.Errorf("no %s is rendered", id)
		}
	}
}

// TestHelmCertificate verifies the certificate of tls.type=helm by the caBundles and by the CA for
// clients.
func TestHelmCertificate(t *testing.T) {
	objs := render(t, "tls.type=helm")
	decode := func(object, path string) []byte {
		text, _ := objs.value(t, object, path).(string)
		data, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(data) == 0 {
			t.Fatalf("%s of %s is %q: %v", path, object, text, err)
		}
		return data
	}
	pair, err := tls.X509KeyPair(decode(helmSecret, `data.tls\.crt`), decode(helmSecret, `data.tls\.key`))
	if err != nil {
		t.Fatal(err)
	}
	published, _ := objs.value(t, caConfigMap, `data.ca\.crt`).(string)
	for source, ca := range map[string][]byte{
		apiService:                          decode(apiService, "spec.caBundle"),
		"APIService v1beta1.metrics.k8s.io": decode("APIService v1beta1.metrics.k8s.io", "spec.caBundle"),
		caConfigMap:                         []byte(published),
	} {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(ca) {
			t.Fatalf("no CA in %s", source)
		}
		for _, name := range []string{"kube-vitals.kube-system.svc", "kube-vitals.kube-system.svc.cluster.local"} {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
				t.Errorf("verify %s by the CA in %s: %v", name, source, err)
			}
		}
	}
}

// TestAlertsSelectRelease checks that all queries of all alerts select the metrics of the release.
func TestAlertsSelectRelease(t *testing.T) {
	text := fmt.Sprint(render(t, alerts, "namespaceOverride=monitoring")["PrometheusRule monitoring/kube-vitals"])
	all := strings.Count(text, "namespace=")
	right := strings.Count(text, `job="kube-vitals",namespace="monitoring"`)
	if all == 0 || right != all {
		t.Errorf("%d of %d selectors are those of the release", right, all)
	}
}

// TestAlertsOfSource checks that the PrometheusRule has the alerts about the configured source only.
func TestAlertsOfSource(t *testing.T) {
	const engine = "source.type=prometheus,source.prometheus.url=http://p"
	for values, want := range map[string]map[string]bool{
		alerts:                {"KubeVitalsAbsent": true, "KubeVitalsNodeStale": true, "KubeVitalsEngineFailing": false},
		alerts + "," + engine: {"KubeVitalsAbsent": true, "KubeVitalsNodeStale": false, "KubeVitalsEngineFailing": true},
	} {
		text := fmt.Sprint(render(t, values)[rule])
		for name, exists := range want {
			if got := strings.Contains(text, name+" "); got != exists {
				t.Errorf("%s: has %s: %v, want %v", values, name, got, exists)
			}
		}
	}
}

// TestMonitorsVerify checks that Prometheus verifies the server by a CA that it can read without
// access to the key, and sends no token to a server that it does not verify.
func TestMonitorsVerify(t *testing.T) {
	verified := func(ca ...string) any {
		config := map[string]any{"serverName": "kube-vitals.kube-system.svc"}
		if len(ca) > 0 {
			config["ca"] = map[string]any{ca[0]: map[string]any{"name": ca[1], "key": "ca.crt"}}
		}
		return config
	}
	for _, tt := range []struct {
		name, values string
		tlsConfig    any
		token        bool // Prometheus sends its token
	}{
		{"kube-vitals", "", verified("configMap", "kube-vitals-ca"), true},
		{"helm", "tls.type=helm", verified("configMap", "kube-vitals-ca"), true},
		{"cert-manager", "tls.type=cert-manager", verified("secret", "kube-vitals-tls"), true},
		{"existing Secret with caBundle", existing + "," + caBundle, verified("configMap", "kube-vitals-ca"), true},
		{"existing Secret, system roots", existing, verified(), true},
		{"self-signed", "tls.type=self-signed,metrics.enabled=true", map[string]any{"insecureSkipVerify": true}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			values := []string{tt.values, "serviceMonitor.enabled=true", "podMonitor.enabled=true"}
			if tt.token {
				values = append(values, "podMonitor.authorization.credentials.name=t")
			}
			objs := render(t, values...)
			const serviceMonitor = "ServiceMonitor kube-system/kube-vitals"
			for object, path := range map[string]string{
				serviceMonitor:                       "spec.endpoints.0.tlsConfig",
				"PodMonitor kube-system/kube-vitals": "spec.podMetricsEndpoints.0.tlsConfig",
			} {
				if diff := cmp.Diff(tt.tlsConfig, objs.value(t, object, path)); diff != "" {
					t.Errorf("tlsConfig of %s (-want +got):\n%s", object, diff)
				}
			}
			if strings.Contains(fmt.Sprint(tt.tlsConfig), "configMap") && objs[caConfigMap] == nil {
				t.Errorf("no %s is rendered", caConfigMap)
			}
			if token := objs.value(t, serviceMonitor, "spec.endpoints.0.bearerTokenFile") != nil; token != tt.token {
				t.Errorf("Prometheus sends its token: %t, want %t", token, tt.token)
			}
		})
	}
}

// TestAdmissionPolicy checks that the policy is on by default where the cluster has its API and the
// server may change the APIServices.
func TestAdmissionPolicy(t *testing.T) {
	const old = "needs Kubernetes 1.30 or newer; this is v1.29.0"
	for _, tt := range []struct {
		version, values string
		want            bool
		err             string
	}{
		{"1.36.0", "", true, ""},
		{"1.30.0-gke.1", "", true, ""},
		{"1.29.0", "", false, ""},
		{"1.36.0", "tls.admissionPolicy.enabled=false", false, ""},
		{"1.36.0", "tls.type=self-signed", false, ""},
		{"1.29.0", "tls.admissionPolicy.enabled=true", false, old},
	} {
		t.Run(tt.version+" "+tt.values, func(t *testing.T) {
			text, err := helm(t, append(setValues(tt.values), "--kube-version", tt.version)...)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got error %v, want %s", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := parse(t, text)[policy] != nil; got != tt.want {
				t.Errorf("the policy exists: %t, want %t", got, tt.want)
			}
		})
	}
}

// TestMetricsServerValues renders the chart with all values of metrics-server's chart, which keep
// their meaning. Only its image must be replaced.
func TestMetricsServerValues(t *testing.T) {
	args := append(slices.Clone(helmTemplate), "--values", filepath.Join("testdata", "metrics-server-3.13.1.yaml"))
	if _, err := helm(t, args...); err == nil || !strings.Contains(err.Error(), "is the image of metrics-server") {
		t.Errorf("got error %v, want one for the image", err)
	}
	text, err := helm(t, append(args, "--set", "image.repository=registry.example/kube-vitals")...)
	if err != nil {
		t.Fatal(err)
	}
	objs := parse(t, text)
	for path, want := range map[string]any{
		container + "image":                              "registry.example/kube-vitals:dev",
		container + "args.1":                             "--cert-dir=/tmp",
		container + "securityContext.runAsUser":          1000.0,
		container + "readinessProbe.initialDelaySeconds": 20.0,
		pod + "volumes":                                  []any{map[string]any{"name": "tmp", "emptyDir": map[string]any{}}},
	} {
		if diff := cmp.Diff(want, objs.value(t, deployment, path)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
	if got := objs.value(t, apiService, "spec.insecureSkipTLSVerify"); got != true {
		t.Errorf("insecureSkipTLSVerify: got %v", got)
	}
	if objs[servingSecret] != nil {
		t.Errorf("%s is rendered, which tls.type=metrics-server does not need", servingSecret)
	}
}

// TestHelmTest checks what the pod of helm test reads, how it verifies it, and that it has the
// security context and the labels that clusters demand.
func TestHelmTest(t *testing.T) {
	const (
		testPod = "Pod kube-system/kube-vitals-test"
		config  = "ConfigMap kube-system/kube-vitals-test"
		command = "spec.containers.0.command"
		ca      = "spec.volumes.1"
		direct  = "apiService.create=false"
	)
	hooks := func(values string) objects {
		args := slices.DeleteFunc(setValues(values), func(arg string) bool { return arg == "--no-hooks" })
		text, err := helm(t, append(args, "--show-only", "templates/tests/top.yaml")...)
		if err != nil {
			t.Fatal(err)
		}
		return parse(t, text)
	}
	top := []any{"kubectl", "top", "nodes"}
	for _, tt := range []struct {
		values, object, path string
		want                 any
	}{
		{"", testPod, command, top},
		{"", testPod, "spec.volumes", nil},
		{"", testPod, "spec.containers.0.securityContext.runAsUser", 65532.0},
		{"", testPod, "spec.containers.0.resources.limits.memory", "128Mi"},
		{"", testPod, `metadata.labels.sidecar\.istio\.io/inject`, "false"},
		{"", testPod, `metadata.annotations.linkerd\.io/inject`, "disabled"},
		{"securityContext.runAsUser=null", testPod, "spec.containers.0.securityContext.runAsUser", nil},
		{"podSecurityContext.fsGroup=1", testPod, "spec.securityContext.fsGroup", 1.0},
		{direct, testPod, command,
			[]any{"kubectl", "--kubeconfig=/etc/kube-vitals/kubectl/config", "top", "pods", "--all-namespaces"}},
		{direct, testPod, ca + ".configMap.name", "kube-vitals-ca"},
		{direct + ",tls.type=cert-manager", testPod, ca + ".secret.secretName", "kube-vitals-tls"},
		{direct + ",tls.type=self-signed", testPod, ca, nil},
		{direct + "," + existing, testPod, ca, nil},
		{direct + "," + existing + "," + caBundle, testPod, ca + ".configMap.name", "kube-vitals-ca"},
	} {
		if diff := cmp.Diff(tt.want, hooks(tt.values).value(t, tt.object, tt.path)); diff != "" {
			t.Errorf("%s: %s (-want +got):\n%s", tt.values, tt.path, diff)
		}
	}
	for values, want := range map[string]string{
		direct:                           "certificate-authority: /etc/kube-vitals/ca/ca.crt",
		direct + ",tls.type=self-signed": "insecure-skip-tls-verify: true",
		direct + ",service.port=8443":    "server: https://kube-vitals.kube-system.svc:8443\n",
	} {
		if text, _ := hooks(values).value(t, config, "data.config").(string); !strings.Contains(text, want) {
			t.Errorf("%s: got the kubeconfig %s, want %s", values, text, want)
		}
	}
	for id, object := range hooks(direct) {
		annotations := object["metadata"].(map[string]any)["annotations"].(map[string]any)
		if got := annotations["helm.sh/hook-delete-policy"]; got != "before-hook-creation,hook-succeeded,hook-failed" {
			t.Errorf("%s is deleted %v", id, got)
		}
	}
}

// TestLint lints the chart with every preset and every file in ci.
func TestLint(t *testing.T) {
	for _, file := range valuesFiles(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := helm(t, "lint", chart, "--strict", "--kube-version", "1.36.0", "--set", "image.tag=dev",
				"--values", file)
			if err != nil {
				t.Errorf("%v\n%s", err, text)
			}
		})
	}
}

// TestImage checks that only releases and their candidates have a default image, since no other
// version is published.
func TestImage(t *testing.T) {
	const missing = "there is no published image of version"
	for version, want := range map[string]string{
		"1.2.3":            "ghcr.io/kube-vitals/kube-vitals:v1.2.3",
		"1.2.3-rc.1":       "ghcr.io/kube-vitals/kube-vitals:v1.2.3-rc.1",
		"1.2.3-dev":        missing,
		"1.2.3-4-gabcdef0": missing,
		"0.0.0-gabcdef0":   missing,
	} {
		t.Run(version, func(t *testing.T) {
			folder := t.TempDir()
			if _, err := helm(t, "package", chart, "--destination", folder, "--version", version,
				"--app-version", version); err != nil {
				t.Fatal(err)
			}
			text, err := helm(t, "template", "kube-vitals", filepath.Join(folder, "kube-vitals-"+version+".tgz"),
				"--namespace", "kube-system", "--kube-version", "1.36.0")
			if want == missing {
				if err == nil || !strings.Contains(err.Error(), missing+" "+version) ||
					!strings.Contains(err.Error(), "set image.repository and image.tag") {
					t.Errorf("got error %v, want %s", err, missing)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := parse(t, text).value(t, deployment, container+"image"); got != want {
				t.Errorf("got image %v, want %s", got, want)
			}
		})
	}
}
