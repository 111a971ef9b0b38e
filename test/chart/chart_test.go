package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"sigs.k8s.io/yaml"
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
	existing  = "tls.type=existingSecret,tls.existingSecret.name=x"
	unknownCA = existing + ",tls.existingSecret.lookup=false"
	caBundle  = "apiService.caBundle=-----BEGIN CERTIFICATE-----"
	alerts    = "prometheusRule.enabled=true"
	engine    = "source.type=prometheus,source.prometheus.url=" // and the URL
)

// tcp returns a port of a NetworkPolicy.
func tcp(port any) any { return map[string]any{"port": port, "protocol": "TCP"} }

var metricsAPIServices = []any{"v1.metrics.k8s.io", "v1beta1.metrics.k8s.io"}

func TestValues(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0", 64)
	file := mustRead(t, filepath.Join(chart, "dashboards", "kube-vitals.json"))
	for _, tt := range []struct {
		values string // in the format of helm --set
		object string
		path   string // in the object
		want   any
	}{
		{"image.tag=v9", deployment, container + "image", "ghcr.io/kube-vitals/kube-vitals:v9"},
		{"image.tag=0.2.7", deployment, container + "image", "ghcr.io/kube-vitals/kube-vitals:0.2.7"},
		{"image.repository=registry.example/metrics-server/vitals,image.tag=v0.7.2",
			deployment, container + "image", "registry.example/metrics-server/vitals:v0.7.2"},
		{"image.tag=v9,image.digest=" + digest,
			deployment, container + "image", "ghcr.io/kube-vitals/kube-vitals@" + digest},

		{"", deployment, container + "resources.limits.memory", "1Gi"},
		{"env[0].name=GOGC,env[0].value=50", deployment, env + "name", "GOGC"},
		{"env[0].name=GOGC,env[0].value=50", deployment, container + "env.1.name", "KUBE_VITALS_DEPLOYMENT"},
		{"fullnameOverride=x", "Deployment kube-system/x",
			container + "env.0", map[string]any{"name": "KUBE_VITALS_DEPLOYMENT", "value": "x"}},
		{"env[0].name=KUBE_VITALS_DEPLOYMENT,env[0].value=", deployment,
			container + "env.0", map[string]any{"name": "KUBE_VITALS_DEPLOYMENT", "value": ""}},

		{"updateStrategy.type=Recreate", deployment, "spec.strategy", map[string]any{"type": "Recreate"}},
		{"updateStrategy=null", deployment, "spec.strategy", nil},
		{"updateStrategy.rollingUpdate.maxSurge=0%,updateStrategy.rollingUpdate.maxUnavailable=1",
			deployment, "spec.strategy.rollingUpdate.maxUnavailable", 1.0},
		{"resources.requests.memory=1500000000", deployment, container + "resources.limits.memory", 1500000000.0},
		{"resources.requests.memory=0.5Gi", deployment, container + "resources.limits.memory", "1Gi"},
		{"resources.requests.cpu=1500m,resources.limits.cpu=1", deployment, container + "resources.requests.cpu", 1.0},
		{"resources.requests.cpu=1,resources.limits.cpu=1500m", deployment, container + "resources.requests.cpu", 1.0},
		// The port that containerPort has anyway.
		{"containerPort=8443,args={--secure-port=8443}", deployment, container + "ports.0.containerPort", 8443.0},
		// What metrics-server's chart ignores has no effect: labels of the Service with the wrong indentation, and an
		// API version.
		{`service.kubernetes\.io/name=x`, service, `metadata.labels.kubernetes\.io/name`, nil},
		{"podDisruptionBudget.enabled=true,podDisruptionBudget.apiVersion=policy/v1beta1", budget, "apiVersion", "policy/v1"},
		{"deploymentLabels.a=b", deployment, "metadata.labels.a", "b"},
		{"", deployment, pod + "terminationGracePeriodSeconds", nil},
		{"terminationGracePeriodSeconds=60", deployment, pod + "terminationGracePeriodSeconds", 60.0},
		{"", deployment, pod + "enableServiceLinks", false},
		{"", deployment, pod + "automountServiceAccountToken", true},
		{"", account, "automountServiceAccountToken", false},
		{"", deployment, pod + "volumes", nil},
		{"tls.type=self-signed,args={--cert-dir=}", deployment, pod + "volumes", nil},
		{"args={--audit-log-path=-,--audit-policy-file=/p}", deployment, pod + "volumes", nil},
		{"tls.type=self-signed,args={--cert-dir=/a,--cert-dir=}", deployment, pod + "volumes", nil},
		{"args={--audit-log-path=/dev/stdout,--audit-policy-file=/p}", deployment, pod + "volumes", nil},
		{"securityContext.readOnlyRootFilesystem=false,tls.type=self-signed,args={--cert-dir=/a}",
			deployment, pod + "volumes", nil},
		// The chart mounts nothing where the user does.
		{"extraVolumeMounts[0].name=tmp,extraVolumeMounts[0].mountPath=/tmp/",
			deployment, container + "volumeMounts", []any{map[string]any{"name": "tmp", "mountPath": "/tmp/"}}},
		{"extraVolumeMounts[0].name=tmp,extraVolumeMounts[0].mountPath=/tmp,extraVolumes[0].name=tmp",
			deployment, pod + "volumes", []any{map[string]any{"name": "tmp"}}},
		{"tmpVolume.emptyDir.sizeLimit=1Mi", deployment, pod + "volumes.0.emptyDir.sizeLimit", "1Mi"},
		{"devices.exporters[0].preset=dcgm",
			deployment, container + "volumeMounts.0.mountPath", "/etc/kube-vitals/devices"},
		{"livenessProbe=null", deployment, container + "livenessProbe", nil},
		{"", deployment, pod + "topologySpreadConstraints", nil}, // one replica is not spread
		{"dnsPolicy=Default", deployment, pod + "dnsPolicy", "Default"},
		{"", deployment, pod + "dnsPolicy", nil},
		{"replicas=2", deployment, pod + "topologySpreadConstraints.0.topologyKey", "kubernetes.io/hostname"},
		// False and 0 are values, and not rendered as if they were missing.
		{"hostUsers=false", deployment, pod + "hostUsers", false},
		{"revisionHistoryLimit=0", deployment, "spec.revisionHistoryLimit", 0.0},
		{"podDisruptionBudget.enabled=true,podDisruptionBudget.maxUnavailable=0",
			budget, "spec.maxUnavailable", 0.0},
		{"podDisruptionBudget.enabled=true", budget, "spec.maxUnavailable", 1.0},

		{"", service, "spec.ipFamilyPolicy", nil},
		{"service.ipFamilyPolicy=PreferDualStack", service, "spec.ipFamilyPolicy", "PreferDualStack"},
		{"service.ipFamilies={IPv6,IPv4}", service, "spec.ipFamilies", []any{"IPv6", "IPv4"}},
		{"service.port=8443", service, "spec.ports.0.port", 8443.0},
		{"service.port=8443", apiService, "spec.service.port", 8443.0},
		{"networkPolicy.enabled=true", networkPolicy, "spec.policyTypes", []any{"Ingress", "Egress"}},
		{"networkPolicy.enabled=true", networkPolicy, "spec.egress.0.ports.0.port", 10250.0},
		{"networkPolicy.enabled=true", networkPolicy, "spec.egress.1.ports.1.port", 6443.0},
		{"networkPolicy.enabled=true", networkPolicy, "spec.egress.2.ports.0.protocol", "UDP"},
		{"networkPolicy.enabled=true", networkPolicy, "spec.egress.3", nil},
		{"networkPolicy.enabled=true,devices.exporters[0].preset=dcgm",
			networkPolicy, "spec.egress.3.ports", []any{tcp(9400.0)}},
		// Equal ports are listed once.
		{"networkPolicy.enabled=true,devices.exporters[0].preset=dcgm," +
			"devices.exporters[1].port=9400,devices.exporters[2].port=5000",
			networkPolicy, "spec.egress.3.ports", []any{tcp(9400.0), tcp(5000.0)}},
		{"networkPolicy.enabled=true,devices.exporters[0].preset=dcgm," +
			"devices.exporters[0].port=9500", networkPolicy, "spec.egress.3.ports", []any{tcp(9500.0)}},
		{"networkPolicy.enabled=true," + engine + "http://prometheus.monitoring:9090/prefix",
			networkPolicy, "spec.egress.3.ports", []any{tcp(9090.0)}},
		// If a rule has peers, only extraEgress adds further egress: the engine's port does not.
		{"networkPolicy.enabled=true," +
			"networkPolicy.egress[0].to[0].ipBlock.cidr=10.0.0.0/8," + engine + "http://p", networkPolicy, "spec.egress.1", nil},
		{"networkPolicy.enabled=true," +
			"networkPolicy.egress[0].to[0].ipBlock.cidr=10.0.0.0/8,networkPolicy.extraEgress[0].ports[0].port=9090," +
			engine + "http://p",
			networkPolicy, "spec.egress.1.ports.0.port", 9090.0},
		{"networkPolicy.enabled=true," + engine + "http://p",
			networkPolicy, "spec.egress.3.ports", []any{tcp(80.0)}},
		{"networkPolicy.enabled=true," + engine + "https://u:p@mimir.example.org/1:2",
			networkPolicy, "spec.egress.3.ports", []any{tcp(443.0)}},
		{"networkPolicy.enabled=true," + engine + "https://[fd00::12]",
			networkPolicy, "spec.egress.3.ports", []any{tcp(443.0)}},
		{"networkPolicy.enabled=true," + engine + "https://[fd00::12]:8481",
			networkPolicy, "spec.egress.3.ports", []any{tcp(8481.0)}},
		{"networkPolicy.enabled=true,devices.exporters[0].preset=dcgm," + engine + "http://p:9090",
			networkPolicy, "spec.egress.3.ports", []any{tcp(9400.0), tcp(9090.0)}},
		{"networkPolicy.enabled=true,networkPolicy.extraEgress[0].ports[0].port=9091",
			networkPolicy, "spec.egress.3.ports.0.port", 9091.0},
		{"networkPolicy.enabled=true,networkPolicy.egress=null,devices.exporters[0].preset=dcgm",
			networkPolicy, "spec.policyTypes", []any{"Ingress"}},
		{"extraObjects[0].kind=Thing,extraObjects[0].metadata.name=\\{\\{ .Release.Name \\}\\}-x",
			"Thing kube-vitals-x", "kind", "Thing"},
		{"extraObjects[0]=kind: Thing\nmetadata: {name: {{ .Release.Namespace }}}",
			"Thing kube-system", "kind", "Thing"},

		{"", apiService, "spec.insecureSkipTLSVerify", nil},
		{"", apiService, "spec.caBundle", nil},
		{"", servingSecret, "data", nil},
		{"", caConfigMap, "data", nil},
		{"", servingRole, "rules.0.verbs", []any{"get", "watch", "update"}},
		{"fullnameOverride=x", "Role kube-system/x-serving", "rules.0.resourceNames", []any{"x-serving"}},
		{"tls.kubeVitals.recreateSecret=true",
			servingRole, "rules.0.verbs", []any{"get", "watch", "update", "patch", "create"}},
		{"", servingRole, "rules.1.verbs", []any{"get", "update"}},
		{"fullnameOverride=x", "Role kube-system/x-serving", "rules.1.resourceNames", []any{"x-ca"}},
		{"", clusterRole, "rules.2.resourceNames", metricsAPIServices},
		{"", clusterRole, "rules.2.verbs", []any{"get", "watch", "patch"}},
		{"apiService.versions={v1}", clusterRole, "rules.2.resourceNames", []any{"v1.metrics.k8s.io"}},
		{"apiService.versions={v1}", apiService, "spec.versionPriority", 200.0},
		{"apiService.versions={v1beta1}", "APIService v1beta1.metrics.k8s.io", "spec.versionPriority", 100.0},
		{"apiService.versions=null", clusterRole, "rules.2.resourceNames", metricsAPIServices},
		{"tls.type=cert-manager", clusterRole, "rules.2.verbs", []any{"get"}},
		{"tls.type=self-signed", clusterRole, "rules.2.resourceNames", metricsAPIServices},
		{"tls.type=cert-manager,apiService.create=false", clusterRole, "rules.2.verbs", []any{"get"}},
		{"tls.admissionPolicy.enabled=true,serviceAccount.name=x",
			policy, "spec.matchConditions.0.expression", `request.userInfo.username == "system:serviceaccount:kube-system:x"`},
		{"tls.type=self-signed", apiService, "spec.insecureSkipTLSVerify", true},
		{"apiService.insecureSkipTLSVerify=true", apiService, "spec.caBundle", nil},
		{existing + "," + caBundle, apiService, "spec.caBundle", "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t"},
		{existing, deployment, pod + "volumes.0.secret.secretName", "x"},
		{existing + "," + caBundle, caConfigMap, `data.ca\.crt`, "-----BEGIN CERTIFICATE-----\n"},

		{"dashboard.enabled=true", dashboard, `data.kube-vitals\.json`, string(file)},
		{"dashboard.enabled=true", dashboard, "metadata.labels.grafana_dashboard", "1"},
		{alerts + ",prometheusRule.runbookURL=https://example.org/r/",
			rule, firstRule + "annotations.runbook_url", "https://example.org/r/KubeVitalsAbsent.md"},
		{alerts + ",prometheusRule.disabled={KubeVitalsAbsent}", rule, firstRule + "alert", "KubeVitalsDown"},
		{alerts + ",prometheusRule.alertLabels.team=a", rule, firstRule + "labels.team", "a"},
		{alerts + ",prometheusRule.alertLabels.team=a", rule, firstRule + "labels.severity", "critical"},
		{alerts + ",prometheusRule.alertLabels.severity=page", rule, firstRule + "labels.severity", "page"},
		{alerts + ",prometheusRule.additionalLabels.release=p", rule, "metadata.labels.release", "p"},
	} {
		t.Run(tt.object+" "+tt.path+" "+tt.values, func(t *testing.T) {
			render(t, tt.values).want(t, tt.object, fields{tt.path: tt.want})
		})
	}
}

func TestArguments(t *testing.T) {
	const (
		ca      = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
		account = "--kubelet-service-account=kube-vitals-kubelet"
		service = "--service=kube-vitals.kube-system.svc:443"
	)
	defaults := []string{
		account, service, "--secure-port=10250", "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname",
		"--kubelet-use-node-status-port", "--metric-resolution=15s",
	}
	type flags = []string
	for _, tt := range []struct {
		values         string
		removed, added flags // in the order of the arguments
	}{
		{"", nil, nil},
		{"service.port=8443", flags{service}, flags{"--service=kube-vitals.kube-system.svc:8443"}},
		{"apiService.create=false", nil, nil},
		{"apiService.versions={v1beta1,v1}", nil, nil},
		{"apiService.versions={v1}", nil, flags{"--tls-apiservices=v1.metrics.k8s.io"}},
		{"apiService.versions={v1},tls.type=self-signed", nil, flags{"--tls-apiservices=v1.metrics.k8s.io"}},
		{"args=null,resources=null", nil, nil},
		{"defaultArgs=null", defaults[3:], nil},
		{"containerPort=1,kubelet.insecureTLS=true,maxSampleAge=2m,rateWindow=30s,activeResolution=10s,activeBudget=1.5," +
			"metrics.enabled=true,args={-v=2}",
			flags{"--secure-port=10250"},
			flags{"--secure-port=1", "--kubelet-insecure-tls", "--max-sample-age=2m", "--rate-window=30s",
				"--active-resolution=10s", "--active-budget=1.5",
				"--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics", "-v=2"}},
		{"ephemeralStorage.enabled=true", nil, flags{"--ephemeral-storage-interval=1m"}},
		{"ephemeralStorage.enabled=true,ephemeralStorage.interval=2m", nil, flags{"--ephemeral-storage-interval=2m"}},
		{"ephemeralStorage.interval=2m", nil, nil},
		{"args={--metric-resolution=30s}", nil, flags{"--metric-resolution=30s"}}, // the last one counts
		{"args={--kubelet-insecure-tls}", nil, flags{"--kubelet-insecure-tls"}},
		{"kubelet.certificateAuthority=/c,defaultArgs={--kubelet-certificate-authority=/ca}",
			defaults[3:], flags{"--kubelet-certificate-authority=/ca"}},
		{"tls.type=kube-vitals", nil, flags{"--tls-ca-configmap=kube-vitals-ca", "--tls-secret=kube-vitals-serving"}},
		{"tls.type=kube-vitals,tls.clusterDomain=example", nil, flags{"--tls-ca-configmap=kube-vitals-ca",
			"--tls-names=kube-vitals.kube-system.svc,kube-vitals.kube-system.svc.example,kube-vitals.kube-system",
			"--tls-secret=kube-vitals-serving"}},
		{"tls.type=helm", nil, flags{
			"--tls-cert-file=/etc/kube-vitals/tls/tls.crt", "--tls-private-key-file=/etc/kube-vitals/tls/tls.key"}},
		{"kubelet.certificateAuthority=" + ca, nil, flags{"--kubelet-certificate-authority=" + ca}},
		{"kubelet.serviceAccount.create=false", flags{account}, nil},
		// An element that is no flag is the value of the flag before it.
		{"args={--node-selector,a,-v=2}", nil, flags{"--node-selector=a", "-v=2"}},
		{"args={--audit-log-path,-,-v=2}", nil, flags{"--audit-log-path=-", "-v=2"}},
		{"args.audit-log-path=-,args.v=-1,args.x=null", nil, flags{"--v=-1", "--audit-log-path=-"}},
		{"args={--deprecated-kubelet-completely-insecure=false}", nil,
			flags{"--deprecated-kubelet-completely-insecure=false"}},
		{"kubelet.insecureTLS=true,args={--kubelet-insecure-tls=false}", nil, flags{"--kubelet-insecure-tls=false"}},
		{"kubelet.tls=pin,args={--kubelet-insecure-tls=false}", nil,
			flags{"--kubelet-pins=kube-vitals-kubelet-pins", "--kubelet-insecure-tls=false"}},
		{"args={,-v=2}", nil, flags{"-v=2"}}, // empty elements have no effect
		{"args[0]=null,args[1]=-v=2", nil, flags{"-v=2"}},
		{"args={--deprecated-kubelet-completely-insecure}", flags{account},
			flags{"--deprecated-kubelet-completely-insecure"}},
		{"kubelet.serviceAccount.create=false,kubelet.serviceAccount.name=x",
			flags{account}, flags{"--kubelet-service-account=x"}},
		{"kubelet.tls=pin", nil, flags{"--kubelet-pins=kube-vitals-kubelet-pins"}},
		{`args={--authorization-always-allow-paths=/livez\,/readyz\,/metrics}`,
			nil, flags{"--authorization-always-allow-paths=/livez,/readyz,/metrics"}},
		{"args={--kubelet-client-certificate=/crt}", flags{account}, flags{"--kubelet-client-certificate=/crt"}},
	} {
		t.Run(tt.values, func(t *testing.T) {
			args := render(t, "tls.type=self-signed,events.enabled=false", tt.values).args(t)
			added := slices.DeleteFunc(slices.Clone(args), func(a string) bool { return slices.Contains(defaults, a) })
			removed := slices.DeleteFunc(slices.Clone(defaults), func(a string) bool { return slices.Contains(args, a) })
			if !slices.Equal(added, tt.added) || !slices.Equal(removed, tt.removed) {
				t.Errorf("got  -%q +%q\nwant -%q +%q", removed, added, tt.removed, tt.added)
			}
			if len(args) != len(defaults)-len(removed)+len(added) {
				t.Errorf("got a flag twice: %q", args)
			}
			if strings.Contains(tt.values, "args={") && args[len(args)-1] != tt.added[len(tt.added)-1] {
				t.Errorf("got flags after args, which override it: %q", args)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	for _, tt := range []struct{ values, want string }{
		// The schema.
		{"replcas=2", "additional properties 'replcas' not allowed"},
		{"tls.helm.days=3", "at '/tls/helm': additional properties 'days' not allowed"},
		{"replicas=two", "at '/replicas': 'two' does not match pattern"},
		{"tls.type=none", "at '/tls/type': value must be one of 'kube-vitals', 'helm', 'existingSecret', 'cert-manager', "},
		{"maxSampleAge=5", "at '/maxSampleAge': got number, want string"},
		{"args={verbose}", "args and defaultArgs: verbose is not a flag: set --verbose"},
		{"args.kubelet-insecure-tls=", "args and defaultArgs: kubelet-insecure-tls has no value: set one, or true"},
		{"podLabels.a=1", "at '/podLabels/a': got number, want null or string"},
		{"service.port=0", "at '/service/port': minimum: got 0, want 1"},
		{"terminationGracePeriodSeconds=no", "at '/terminationGracePeriodSeconds': 'no' does not match pattern"},
		{"env[0].value=1", "at '/env/0': missing property 'name'"},
		{"service.ipFamilyPolicy=Dual", "at '/service/ipFamilyPolicy': value must be one of '', 'SingleStack'"},
		{"dnsPolicy=cluster", "at '/dnsPolicy': value must be one of '', 'ClusterFirst'"},
		{"tests.image.digest=1", "at '/tests/image/digest': got number, want string"},
		{"tls.helm.lookup=yes,", "at '/tls/helm/lookup': value must be one of true, false, 'true'"},
		{"imagePullSecrets={secret}", "at '/imagePullSecrets/0': got string, want object"},
		{"prometheusRule.disabled={Unknown}", "at '/prometheusRule/disabled/0': value must be one of 'KubeVitalsAbsent'"},
		{"prometheusRule.runbookURL=runbooks", "at '/prometheusRule/runbookURL': 'runbooks' does not match pattern"},
		{"dashboard.lables.a=b", "at '/dashboard': additional properties 'lables' not allowed"},
		// The templates.
		{"image.repository=mirror.example/metrics-server/metrics-server", "set both to those of kube-vitals"},
		{"image.tag=v0.7.2", "image.tag=v0.7.2 is not a version of kube-vitals that this chart installs"},
		{"image.tag=0.1.0", "image.tag=0.1.0 is not a version of kube-vitals that this chart installs"},
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
		{"hostNetwork.enabled=true", "the kubelet already listens on port 10250 of the node: set another containerPort"},
		{"podDisruptionBudget.enabled=true,podDisruptionBudget.minAvailable=1,podDisruptionBudget.maxUnavailable=1",
			"podDisruptionBudget.maxUnavailable contradict each other"},
		{"kubelet.serviceAccount.name=kube-vitals", "kubelet.serviceAccount.name is the ServiceAccount of the pods"},
		{"args={--secure-port=8443}", "set containerPort instead"},
		{"containerPort=8443,args={--secure-port=8443,--secure-port=8444}", "set containerPort instead"},
		{"defaultArgs={--secure-port=8443}", "set containerPort instead"},
		{"args={--kubelet-service-account=x}", "set kubelet.serviceAccount.name instead"},
		{"kubelet.tls=insecure", "at '/kubelet/tls': value must be one of 'verify', 'pin'"},
		{"args={--kubelet-pins=x}", "set kubelet.tls=pin instead"},
		{"kubelet.tls=pin,kubelet.insecureTLS=true", "kubelet.tls=pin and the option to verify no kubelet contradict"},
		{"kubelet.tls=pin,args={--kubelet-insecure-tls}", "remove kubelet.insecureTLS, --kubelet-insecure-tls"},
		{"kubelet.insecureTLS=true,args={--kubelet-certificate-authority=/x}", "contradict each other: set one of them"},
		{"source.type=prometheus,source.prometheus.url=http://p,args={--kubelet-insecure-tls}", "remove --kubelet-*"},
		{"source.type=prometheus,source.prometheus.url=http://p,defaultArgs={--rate-window=20s}", "remove --kubelet-*"},
		{"args={--tls-secret=x}", "tls.type=kube-vitals sets all of them"},
		{"args={--tls-cert-file=/crt}", "set tls.type=existingSecret"},
		{"args={--deployment=}", "set events.enabled instead"},
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
		{"ephemeralStorage.interval=0s", "at '/ephemeralStorage/interval': '0s' does not match pattern"},
		{"rateWindow=15", "at '/rateWindow': got number, want string"},
		{"devices.exporters[0].preset=dcgm,args={--device-config=/x}", "set one of them"},
		{"devices.exporters[0].preset=rocm", "at '/devices/exporters/0/preset': value must be 'dcgm'"},
		{"devices.exporters[0].prot=1", "at '/devices/exporters/0': additional properties 'prot' not allowed"},
		{"args={--authorization-always-allow-paths=/metrics}", "add /healthz,/readyz,/livez to it"},
		{"tls.type=self-signed,args={--cert-dir=/tmpx}", "no volume is mounted at /tmpx: name a folder below /tmp"},
		{"tls.type=self-signed,args={--cert-dir=/a/b},extraVolumeMounts[0].name=a,extraVolumeMounts[0].mountPath=/a," +
			"extraVolumeMounts[0].readOnly=true", "a read-only volume is mounted at /a/b: name a folder below /tmp"},
		{"tls.type=self-signed,args={--cert-dir=/tmp},extraVolumes[0].name=tmp", "extraVolumes has a volume tmp"},
		{"tmpVolume.hostPath.path=/x,extraVolumes[0].name=tmp", "extraVolumes has a volume tmp"},
		{unknownCA, "tls.existingSecret.lookup=false: the API server cannot verify"},
		{unknownCA + `,apiService.annotations.note=cert-manager.io/inject-ca-from`, "the API server cannot verify"},
		{unknownCA + `,apiService.annotations.cert-manager\.io/inject-ca-from=`, "the API server cannot verify"},
	} {
		t.Run(tt.values, func(t *testing.T) {
			if _, err := helm(t, setValues(tt.values)...); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got error %v, want %s", err, tt.want)
			}
		})
	}
}

// TestForeignNames checks that a value of Bitnami's or another chart is refused with the name that it has here, and
// that the README has both.
func TestForeignNames(t *testing.T) {
	readme := string(mustRead(t, filepath.Join(chart, "README.md")))
	for set, want := range map[string]string{
		"hostNetwork=true": "hostNetwork.enabled", "hostNetwork=false": "hostNetwork.enabled",
		"image.registry=docker.io": "image.repository", "image.pullSecrets={x}": "imagePullSecrets",
		"service.ports.https=443": "service.port", "service.targetPort=4443": "containerPort", "replicaCount=2": "replicas",
		"securePort=4443": "containerPort", "command={metrics-server}": "args", "labels.a=b": "commonLabels",
		"tls.args={--v=2}": "args", "service.metrics=true": "metrics",
		"podSecurityContext.enabled=true": "podSecurityContext", "securityContext.enabled=false": "securityContext",
		"livenessProbe.enabled=false": "the whole livenessProbe", "readinessProbe.enabled=true": "the whole readinessProbe",
		"startupProbe.enabled=false": "the whole startupProbe",
	} {
		path, _, _ := strings.Cut(set, "=")
		path = strings.TrimSuffix(strings.TrimSuffix(path, ".https"), ".a")
		_, err := helm(t, setValues(set)...)
		if want := path + " is a value of another chart: set " + want; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %s", err, want)
		}
		if key, _, _ := strings.Cut(path, ".enabled"); !strings.Contains(readme, "`"+key) {
			t.Errorf("the README does not have %s", key)
		}
	}
	for name, want := range map[string]string{
		"extraArgs": "args", "extraEnvVars": "env", "extraDeploy": "extraObjects", "pdb": "podDisruptionBudget",
		"containerPorts": "containerPort", "containerSecurityContext": "securityContext", "podAffinityPreset": "affinity",
		"podAntiAffinityPreset": "topologySpreadConstraints", "nodeAffinityPreset": "affinity",
		"commonAnnotations": "podAnnotations",
	} {
		_, err := helm(t, setValues(name+".x=y")...)
		if want := name + " is a value of another chart: set " + want; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %s", err, want)
		}
		if !regexp.MustCompile("(?m)^\\|.*`" + name + "\\b.*\\|.*`" + want + "\\b").MatchString(readme) {
			t.Errorf("the README does not have %s and %s in one row", name, want)
		}
	}
}

// TestNotes checks the advice in NOTES.txt. Another template includes it, since helm template omits it.
func TestNotes(t *testing.T) {
	const (
		unverifiedKubelets = "The kubelets' certificates are not verified."
		pin                = "--set kubelet.tls=pin"
		pinned             = "are pinned at first sight"
		selfSigned         = "does not verify the serving certificate. tls.type=kube-vitals verifies it."
		skipped            = "remove apiService.insecureSkipTLSVerify"
		undrainable        = "The PodDisruptionBudget allows no eviction"
		small              = "The limit of memory is too low"
		noCA               = "no CA is known"
		noRoles            = "--show-only templates/rbac.yaml --show-only templates/identity.yaml"
		budget             = "podDisruptionBudget.enabled=true,podDisruptionBudget."
	)
	folder := filepath.Join(t.TempDir(), "kube-vitals")
	must(t, os.CopyFS(folder, os.DirFS(chart)))
	must(t, os.WriteFile(filepath.Join(folder, "templates", "notes.yaml"),
		[]byte(`notes: |{{ include (print .Template.BasePath "/NOTES.txt") . | nindent 2 }}`), 0o600))
	for values, want := range map[string][]string{
		"":                                                             {pin},
		"rbac.create=false":                                            {pin, noRoles},
		"podDisruptionBudget.enabled=true":                             {pin},
		budget + "minAvailable=1":                                      {pin, undrainable},
		budget + "minAvailable=1,replicas=2":                           {pin},
		budget + "minAvailable=50%":                                    {pin, undrainable},
		budget + "minAvailable=51%,replicas=2":                         {pin, undrainable},
		budget + "minAvailable=50%,replicas=2":                         {pin},
		budget + "minAvailable=100%":                                   {pin, undrainable},
		budget + "maxUnavailable=0":                                    {pin, undrainable},
		budget + "maxUnavailable=0%":                                   {pin, undrainable},
		budget + "maxUnavailable=1":                                    {pin},
		"podDisruptionBudget.minAvailable=1":                           {pin},
		"args={--kubelet-insecure-tls}":                                {unverifiedKubelets},
		"defaultArgs={--kubelet-insecure-tls}":                         {unverifiedKubelets},
		"args={--deprecated-kubelet-completely-insecure}":              {unverifiedKubelets},
		"kubelet.insecureTLS=true":                                     {unverifiedKubelets},
		"args={--kubelet-insecure-tls=false}":                          {pin},
		"args={--kubelet-insecure-tls,--kubelet-insecure-tls=false}":   {pin},
		"kubelet.insecureTLS=true,args={--kubelet-insecure-tls=false}": {pin},
		"kubelet.tls=pin,args={--kubelet-insecure-tls=false}":          {pinned},
		"resources.limits.memory=99Mi":                                 {pin, small},
		"resources.limits.memory=100Mi":                                {pin},
		"resources.limits=null":                                        {pin},
		existing:                                                       {pin, noCA},
		existing + `,apiService.annotations.cert-manager\.io/inject-ca-from=a/b`: {pin},
		"tls.type=self-signed":                                                {pin, selfSigned},
		"apiService.insecureSkipTLSVerify=true":                               {pin, skipped},
		"tls.type=self-signed,apiService.insecureSkipTLSVerify=true":          {pin, selfSigned},
		"tls.type=helm,kubelet.tls=pin,apiService.insecureSkipTLSVerify=true": {pinned, skipped},
	} {
		args := append(setValues(values), "--show-only", "templates/notes.yaml")
		args[slices.Index(args, chart)] = folder
		text, err := helm(t, args...)
		must(t, err)
		notes := strings.Join(strings.Fields(string(text)), " ")
		for _, part := range []string{
			unverifiedKubelets, pin, pinned, selfSigned, skipped, undrainable, small, noCA, noRoles,
		} {
			if got, want := strings.Contains(notes, part), slices.Contains(want, part); got != want {
				t.Errorf("%s: got notes with %q: %t, want %t", values, part, got, want)
			}
		}
	}
}

// TestNullSections sets whole sections to null, as some do to empty them. The chart accepts that, or names the
// section.
func TestNullSections(t *testing.T) {
	var values map[string]any
	must(t, yaml.Unmarshal(mustRead(t, chart+"/values.yaml"), &values))
	for name, value := range values {
		if _, isSection := value.(map[string]any); !isSection {
			continue
		}
		_, err := helm(t, setValues(name+"=null")...)
		if err != nil && !strings.Contains(err.Error(), "the values have no "+name+": ") {
			t.Errorf("%s: got error %v, want one that names it", name, err)
		}
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
	objs.want(t, "ConfigMap "+name, fields{"data": nil})
	objs.want(t, "Role "+name, fields{"rules": []any{map[string]any{"apiGroups": []any{""},
		"resources": []any{"configmaps"}, "resourceNames": []any{"kube-vitals-kubelet-pins"},
		"verbs": []any{"list", "watch", "update"}}}})
	objs.want(t, "RoleBinding "+name,
		fields{"roleRef.name": "kube-vitals-kubelet-pins", "subjects.0.name": "kube-vitals"})
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
			objs.want(t, kubeletRole, fields{"rules": kubelets})
			objs.want(t, binding, fields{"subjects.0.name": tt.account})
			objs.want(t, tokenRole, fields{"rules": []any{permissions("create", "serviceaccounts/token", tt.account)}})
			objs.want(t, tokenBinding, fields{"subjects.0.name": objs.value(t, deployment, pod+"serviceAccountName")})
		})
	}
}

// TestEvents checks that the server has the flag and the permissions for events, or neither.
func TestEvents(t *testing.T) {
	const (
		nodeRole       = "Role default/kube-vitals-node-events"
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
			[]string{"--deployment=kube-vitals"}},
		{"namespaceOverride=default", map[string]any{"Role default/kube-vitals-events": []any{events, get}},
			[]string{"--deployment=kube-vitals"}},
		{"rbac.create=false", nil, []string{"--deployment=kube-vitals"}},
		{"events.enabled=false", nil, nil},
		{"source.type=prometheus,source.prometheus.url=http://p",
			map[string]any{nodeRole: []any{events}, deploymentRole: []any{events, get}},
			[]string{"--deployment=kube-vitals"}},
	} {
		t.Run(tt.values, func(t *testing.T) {
			objs := render(t, tt.values)
			roles, bindings := map[string]any{}, 0
			for id := range objs {
				kind, name, _ := strings.Cut(id, "/kube-vitals")
				if name != "-events" && name != "-node-events" {
					continue
				}
				if strings.HasPrefix(kind, "Role ") {
					roles[id] = objs.value(t, id, "rules")
					continue
				}
				bindings++
				objs.want(t, id, fields{"roleRef.name": "kube-vitals" + name, "subjects.0.name": "kube-vitals"})
			}
			if diff := cmp.Diff(tt.roles, roles, cmpopts.EquateEmpty()); diff != "" || bindings != len(roles) {
				t.Errorf("%d bindings, rules of roles (-want +got):\n%s", bindings, diff)
			}
			flags := slices.DeleteFunc(objs.args(t), func(arg string) bool {
				return !strings.HasPrefix(arg, "--deployment")
			})
			if diff := cmp.Diff(tt.flags, flags, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("flags (-want +got):\n%s", diff)
			}
		})
	}
}

// TestReuseValues renders the chart with the default values of v0.1.0 instead of its own, as helm
// upgrade --reuse-values does. The result must be complete, and immutable fields must not change.
func TestReuseValues(t *testing.T) {
	old := filepath.Join(t.TempDir(), "kube-vitals")
	must(t, os.CopyFS(old, os.DirFS(chart)))
	values := mustRead(t, filepath.Join("testdata", "values-0.1.0.yaml"))
	must(t, os.WriteFile(filepath.Join(old, "values.yaml"), values, 0o600))
	args := slices.Clone(helmTemplate)
	args[slices.Index(args, chart)] = old
	objs := mustHelm(t, args...)
	objs.want(t, deployment, fields{
		"spec.selector.matchLabels": map[string]any{
			"app.kubernetes.io/name": "kube-vitals", "app.kubernetes.io/instance": "kube-vitals",
		},
		pod + "serviceAccountName": "kube-vitals",
		pod + "volumes.0.emptyDir": map[string]any{},
		container + "args.1":       "--cert-dir=/tmp",
	})
	for _, id := range []string{
		kubeletRole, service, apiService, servingSecret, servingRole, "ClusterRoleBinding system:kube-vitals",
		"ClusterRoleBinding kube-vitals:system:auth-delegator", "RoleBinding kube-system/kube-vitals-auth-reader",
		"Role default/kube-vitals-node-events", "Role kube-system/kube-vitals-events",
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
	must(t, err)
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

// TestAlertsWithoutAPIServices checks that no alert fires because another server owns metrics.k8s.io where the
// chart leaves it to that one.
func TestAlertsWithoutAPIServices(t *testing.T) {
	for values, want := range map[string]bool{"": true, "apiService.create=false": false} {
		text := fmt.Sprint(render(t, alerts, values)["PrometheusRule kube-system/kube-vitals"])
		got := strings.Contains(text, "KubeVitalsAPIServiceElsewhere")
		if got != want || !strings.Contains(text, "KubeVitalsDown") {
			t.Errorf("%s: got the alert: %t, want %t", values, got, want)
		}
	}
}

// TestNoTokenForKubelets checks that nothing can request tokens for kubelets, or read their metrics, if none are
// sent to them.
func TestNoTokenForKubelets(t *testing.T) {
	for _, values := range []string{
		"args={--kubelet-client-certificate=/crt}", "args={--deprecated-kubelet-completely-insecure}",
		"kubelet.serviceAccount.create=false,args={--kubelet-client-certificate=/crt}",
	} {
		for id, object := range render(t, values) {
			text := fmt.Sprint(object)
			if strings.Contains(text, "nodes/metrics") || strings.Contains(text, "serviceaccounts/token") ||
				strings.HasSuffix(id, "/kube-vitals-kubelet") {
				t.Errorf("%s: got %s:\n%s", values, id, text)
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
	for source, want := range map[string][3]bool{"": {true, true, false}, engine + "http://p": {true, false, true}} {
		text := fmt.Sprint(render(t, alerts, source)[rule])
		for i, name := range []string{"KubeVitalsAbsent", "KubeVitalsNodeStale", "KubeVitalsEngineFailing"} {
			if got := strings.Contains(text, name+" "); got != want[i] {
				t.Errorf("source %q: has %s: %v, want %v", source, name, got, want[i])
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
		{"existing Secret, not verified", existing + ",apiService.insecureSkipTLSVerify=true,metrics.enabled=true",
			map[string]any{"insecureSkipVerify": true}, false},
		{"existing Secret, not verified, token", existing + ",apiService.insecureSkipTLSVerify=true", verified(), true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			values := []string{tt.values, "serviceMonitor.enabled=true", "podMonitor.enabled=true"}
			if tt.token {
				values = append(values, "podMonitor.authorization.credentials.name=t")
			}
			objs := render(t, values...)
			const serviceMonitor = "ServiceMonitor kube-system/kube-vitals"
			objs.want(t, serviceMonitor, fields{"spec.endpoints.0.tlsConfig": tt.tlsConfig})
			objs.want(t, "PodMonitor kube-system/kube-vitals", fields{"spec.podMetricsEndpoints.0.tlsConfig": tt.tlsConfig})
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
			must(t, err)
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
	objs := mustHelm(t, append(args, "--set", "image.repository=registry.example/kube-vitals")...)
	objs.want(t, deployment, fields{
		container + "image":                              "registry.example/kube-vitals:dev",
		container + "args.1":                             "--cert-dir=/tmp",
		container + "securityContext.runAsUser":          1000.0,
		container + "readinessProbe.initialDelaySeconds": 20.0,
		pod + "volumes":                                  []any{map[string]any{"name": "tmp", "emptyDir": map[string]any{}}},
	})
	objs.want(t, apiService, fields{"spec.insecureSkipTLSVerify": true})
	if objs[servingSecret] != nil {
		t.Errorf("%s is rendered, which tls.type=metrics-server does not need", servingSecret)
	}
	open := mustHelm(t, append(setValues(), "--set-string", "metrics.enabled=true")...).args(t)
	if !slices.Contains(open, "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics") {
		t.Errorf("metrics.enabled as a text: got %q", open)
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
		return mustHelm(t, append(args, "--show-only", "templates/tests/top.yaml")...)
	}
	for _, tt := range []struct {
		values, path string
		want         any
	}{
		{"", command, []any{"kubectl", "top", "nodes"}},
		{"", "spec.volumes", nil},
		{"", "spec.containers.0.securityContext.runAsUser", 65532.0},
		{"", "spec.containers.0.resources.limits.memory", "128Mi"},
		{"", `metadata.labels.sidecar\.istio\.io/inject`, "false"},
		{"", `metadata.annotations.linkerd\.io/inject`, "disabled"},
		{"securityContext.runAsUser=null", "spec.containers.0.securityContext.runAsUser", nil},
		{"podSecurityContext.fsGroup=1", "spec.securityContext.fsGroup", 1.0},
		{direct, command,
			[]any{"kubectl", "--kubeconfig=/etc/kube-vitals/kubectl/config", "top", "pods", "--all-namespaces"}},
		{"apiService.versions={v1}", command,
			[]any{"kubectl", "--kubeconfig=/etc/kube-vitals/kubectl/config", "top", "pods", "--all-namespaces"}},
		{"apiService.versions={v1beta1}", command, []any{"kubectl", "top", "nodes"}},
		{direct, ca + ".configMap.name", "kube-vitals-ca"},
		{direct + ",tls.type=cert-manager", ca + ".secret.secretName", "kube-vitals-tls"},
		{direct + ",tls.type=self-signed", ca, nil},
		{direct + "," + existing, ca, nil},
		{direct + "," + existing + "," + caBundle, ca + ".configMap.name", "kube-vitals-ca"},
	} {
		hooks(tt.values).want(t, testPod, fields{tt.path: tt.want})
	}
	for values, want := range map[string]bool{"": true, "tests.enabled=false": false, "rbac.create=false": false} {
		args := slices.DeleteFunc(setValues(values), func(arg string) bool { return arg == "--no-hooks" })
		if got := mustHelm(t, args...)[testPod] != nil; got != want {
			t.Errorf("%s: the pod is rendered: %t", values, got)
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
	objs := hooks(direct)
	const deletePolicy = `metadata.annotations.helm\.sh/hook-delete-policy`
	for id := range objs {
		objs.want(t, id, fields{deletePolicy: "before-hook-creation,hook-succeeded,hook-failed"})
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
			must(t, err)
			if got := parse(t, text).value(t, deployment, container+"image"); got != want {
				t.Errorf("got image %v, want %s", got, want)
			}
		})
	}
}

// TestPackage checks that a release installs its image by digest, unless the values have a tag, and that links of its
// README lead to pages.
func TestPackage(t *testing.T) {
	folder, program := t.TempDir(), "helm"
	digest, tests := "sha256:"+strings.Repeat("1", 64), "sha256:"+strings.Repeat("2", 64)
	own := "sha256:" + strings.Repeat("3", 64)
	program, err := exec.LookPath(program)
	if err != nil {
		t.Skip(err)
	}
	script := `set -e
unset $(git rev-parse --local-env-vars) # of a hook or a rebase that runs this test
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
cp -r ../../charts ../../manifests ../../.github "$FOLDER"
cd "$FOLDER"
git init --quiet . && git -c user.name=a -c user.email=a@b.example commit --quiet --allow-empty -m a
charts/package.sh
cat build/kube-vitals.yaml build/images.txt
tar --extract --to-stdout --file build/kube-vitals-*.tgz kube-vitals/Chart.yaml kube-vitals/README.md`
	packaging := exec.CommandContext(t.Context(), "bash", "-c", script)
	packaging.Env = append(os.Environ(), "FOLDER="+folder, "HELM="+program, "VERSION=v0.2.3-4-gabc", "DIGEST="+digest,
		"TESTS_DIGEST="+tests)
	text, err := packaging.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	const repository = "ghcr.io/kube-vitals/kube-vitals"
	image := repository + "@" + digest
	for _, want := range []string{`image: "` + image + "\"\n", "\n" + image + "\n",
		"registry.k8s.io/kubectl:v1.36.3@" + tests + "\n", `artifacthub.io/prerelease: "true"`,
		"](https://github.com/kube-vitals/kube-vitals/blob/v0.2.3-4-gabc/docs/install.md#sizing)"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("%q is missing in\n%s", want, text)
		}
	}
	archive := filepath.Join(folder, "build", "kube-vitals-0.2.3-4-gabc.tgz")
	for values, want := range map[string]string{
		"":                                    repository + "@" + digest,
		"image.repository=registry.example/v": "registry.example/v@" + digest,
		"image.repository=registry.example/v,image.tag=dev": "registry.example/v:dev",
		"image.tag=dev,image.digest=" + own:                 repository + "@" + own,
		"image.digest=" + own:                               repository + "@" + own,
		"image.tag=v0.7.2":                                  "",
		"image.repository=registry.example/v,image.tag=,tests.image.tag=v1.30.0": "registry.example/v@" + digest,
	} {
		text, err := helm(t, "template", "kube-vitals", archive, "--namespace", "kube-system", "--kube-version", "1.36.0",
			"--set", values)
		if want == "" {
			if err == nil || !strings.Contains(err.Error(), "is not a version of kube-vitals") {
				t.Errorf("%s: got error %v", values, err)
			}
			continue
		}
		must(t, err)
		if got := parse(t, text).value(t, deployment, container+"image"); got != want {
			t.Errorf("%s: got image %v, want %s", values, got, want)
		}
	}
}
