package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

const (
	chartFolder = "../../charts/kube-vitals"

	deployment = "Deployment kube-system/kube-vitals"
	account    = "ServiceAccount kube-system/kube-vitals"
	service    = "Service kube-system/kube-vitals"
	apiService = "APIService v1.metrics.k8s.io"
	budget     = "PodDisruptionBudget kube-system/kube-vitals"
	secret     = "Secret kube-system/kube-vitals-tls"
	ownSecret  = "Secret kube-system/kube-vitals-serving"
	ownRole    = "Role kube-system/kube-vitals-serving"

	caConfigMap   = "ConfigMap kube-system/kube-vitals-ca"
	networkPolicy = "NetworkPolicy kube-system/kube-vitals"

	kubeletRole = "ClusterRole system:kube-vitals-kubelet"
	policy      = "ValidatingAdmissionPolicy kube-vitals-apiservices"

	pod       = "spec.template.spec."
	container = pod + "containers.0."
	env       = container + "env.0."
)

// TestValues sets values and looks at what becomes of them.
func TestValues(t *testing.T) {
	tools := lookTools(t)
	digest := "sha256:" + strings.Repeat("0", 64)
	tests := []struct {
		name   string
		values string // as for helm --set
		object string // identity
		path   string // to a value in it; list elements by number
		want   any
	}{
		{"image has a registry", "", deployment, container + "image", "ghcr.io/kube-vitals/kube-vitals:v0.1.0"},
		{"image by tag", "image.tag=v9", deployment, container + "image", "ghcr.io/kube-vitals/kube-vitals:v9"},
		{
			"image by digest", "image.tag=v9,image.digest=" + digest, deployment, container + "image",
			"ghcr.io/kube-vitals/kube-vitals@" + digest,
		},
		{"memory limit by default", "", deployment, container + "resources.limits.memory", "1Gi"},
		{"GOMEMLIMIT is nine tenths of it", "", deployment, env + "value", "921MiB"},
		{"of another one", "resources.limits.memory=500Mi", deployment, env + "value", "450MiB"},
		{"of a decimal fraction", "resources.limits.memory=1.5Gi", deployment, env + "value", "1382MiB"},
		{"of a decimal unit", "resources.limits.memory=2G", deployment, env + "value", "1716MiB"},
		{"of bytes", "resources.limits.memory=2147483648", deployment, env + "value", "1843MiB"},
		{"of bytes as YAML has them", "resources.limits.memory=2.147483648e+09", deployment, env + "value", "1843MiB"},
		{"no memory limit", "resources.limits=null", deployment, container + "env", absent{}},
		{"variable", "env[0].name=GOGC,env[0].value=50", deployment, container + "env.1.name", "GOGC"},
		{"GOMEMLIMIT by hand", "env[0].name=GOMEMLIMIT,env[0].value=1GiB", deployment, container + "env", []any{
			map[string]any{"name": "GOMEMLIMIT", "value": "1GiB"},
		}},
		{"labels of the Deployment", "deploymentLabels.a=b", deployment, "metadata.labels.a", "b"},
		{"time to shut down", "terminationGracePeriodSeconds=60", deployment, pod + "terminationGracePeriodSeconds", 60.0},
		{"time to shut down by default", "", deployment, pod + "terminationGracePeriodSeconds", absent{}},
		{"no variables of Services", "", deployment, pod + "enableServiceLinks", false},
		{"token for the pods", "", deployment, pod + "automountServiceAccountToken", true},
		{"and for no other pods", "", account, "automountServiceAccountToken", false},
		{"nothing to write to", "", deployment, pod + "volumes", absent{}},
		{"unless asked for", "tmpVolume.emptyDir.sizeLimit=1Mi", deployment, pod + "volumes.0.emptyDir.sizeLimit", "1Mi"},
		{"IP family policy", "service.ipFamilyPolicy=PreferDualStack", service, "spec.ipFamilyPolicy", "PreferDualStack"},
		{"IP families", "service.ipFamilies={IPv6,IPv4}", service, "spec.ipFamilies", []any{"IPv6", "IPv4"}},
		{"no IP family policy", "", service, "spec.ipFamilyPolicy", absent{}},
		{
			"additional object", "extraObjects[0].kind=Thing,extraObjects[0].metadata.name=\\{\\{ .Release.Name \\}\\}-x",
			"Thing kube-vitals-x", "kind", "Thing",
		},
		{
			"additional object as text", "extraObjects[0]=kind: Thing\nmetadata: {name: {{ .Release.Namespace }}}",
			"Thing kube-system", "kind", "Thing",
		},
		{"egress to kubelets", "networkPolicy.enabled=true", networkPolicy, "spec.egress.0.ports.0.port", 10250.0},
		{"egress to the API server", "networkPolicy.enabled=true", networkPolicy, "spec.egress.1.ports.1.port", 6443.0},
		{"egress to DNS", "networkPolicy.enabled=true", networkPolicy, "spec.egress.2.ports.0.protocol", "UDP"},
		{"egress is restricted", "networkPolicy.enabled=true", networkPolicy, "spec.policyTypes", []any{"Ingress", "Egress"}},
		{"probe off", "livenessProbe=null", deployment, container + "livenessProbe", absent{}},
		{"one replica", "", deployment, pod + "topologySpreadConstraints", absent{}},
		{"two replicas", "replicas=2", deployment, pod + "topologySpreadConstraints.0.topologyKey", "kubernetes.io/hostname"},
		{"false is a value", "hostUsers=false", deployment, pod + "hostUsers", false},
		{"zero is a value", "revisionHistoryLimit=0", deployment, "spec.revisionHistoryLimit", 0.0},
		{"zero of a budget", "podDisruptionBudget.enabled=true,podDisruptionBudget.maxUnavailable=0", budget, "spec.maxUnavailable", 0.0},
		{"budget without numbers", "podDisruptionBudget.enabled=true", budget, "spec.maxUnavailable", 1.0},
		{"port of the Service", "service.port=8443", service, "spec.ports.0.port", 8443.0},
		{"and where it is dialled", "service.port=8443", apiService, "spec.service.port", 8443.0},
		{"verified by default", "", apiService, "spec.insecureSkipTLSVerify", absent{}},
		{"the server writes the caBundle", "", apiService, "spec.caBundle", absent{}},
		{"and the content of its Secret", "", ownSecret, "data", absent{}},
		{"rights on its Secret", "", ownRole, "rules.0.verbs", []any{"get", "watch", "update"}},
		{"and on no other one", "fullnameOverride=x", "Role kube-system/x-serving", "rules.0.resourceNames", []any{"x-serving"}},
		{
			"to make it, only if asked for", "tls.kubeVitals.recreateSecret=true", ownRole, "rules.0.verbs",
			[]any{"get", "watch", "update", "patch", "create"},
		},
		{
			"rights on APIServices", "", "ClusterRole system:kube-vitals", "rules.2.resourceNames",
			[]any{"v1.metrics.k8s.io", "v1beta1.metrics.k8s.io"},
		},
		{"to change them", "", "ClusterRole system:kube-vitals", "rules.2.verbs", []any{"get", "watch", "patch"}},
		{"in other modes only to check them", "tls.type=cert-manager", "ClusterRole system:kube-vitals", "rules.2.verbs", []any{"get"}},
		{
			"on those two", "tls.type=self-signed", "ClusterRole system:kube-vitals", "rules.2.resourceNames",
			[]any{"v1.metrics.k8s.io", "v1beta1.metrics.k8s.io"},
		},
		{
			"whoever creates them", "tls.type=cert-manager,apiService.create=false", "ClusterRole system:kube-vitals", "rules.2.verbs",
			[]any{"get"},
		},
		{"the server publishes its CAs", "", caConfigMap, "data", absent{}},
		{"rights to publish them", "", ownRole, "rules.1.verbs", []any{"get", "update"}},
		{"and nothing else", "fullnameOverride=x", "Role kube-system/x-serving", "rules.1.resourceNames", []any{"x-ca"}},
		{
			"policy for the ServiceAccount of the pods", "tls.admissionPolicy.enabled=true,serviceAccount.name=x", policy,
			"spec.matchConditions.0.expression", `request.userInfo.username == "system:serviceaccount:kube-system:x"`,
		},
		{"self-signed", "tls.type=self-signed", apiService, "spec.insecureSkipTLSVerify", true},
		{"unverified has no CA", "apiService.insecureSkipTLSVerify=true", apiService, "spec.caBundle", absent{}},
		{
			"CA by value", "tls.type=existingSecret,tls.existingSecret.name=x,apiService.caBundle=-----BEGIN CERTIFICATE-----",
			apiService, "spec.caBundle", "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t",
		},
		{"Secret by name", "tls.type=existingSecret,tls.existingSecret.name=x", deployment, pod + "volumes.0.secret.secretName", "x"},
		{
			"CA for clients, of an existing Secret", "tls.type=existingSecret,tls.existingSecret.name=x,apiService.caBundle=-----BEGIN CERTIFICATE-----",
			caConfigMap, `data.ca\.crt`, "-----BEGIN CERTIFICATE-----\n",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			objs, err := tools.chart(t.Context(), chartFolder, []string{tt.values})
			if err != nil {
				t.Fatal(err)
			}
			if got := lookup(t, objs, tt.object, tt.path); !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%s of %s is %s, want %s", tt.path, tt.object, show(got), show(tt.want))
			}
		})
	}
}

// TestArguments looks at the server's command line, in which the last flag of a name counts.
func TestArguments(t *testing.T) {
	tools := lookTools(t)
	const (
		address    = "--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname"
		kubeletCA  = "--kubelet-certificate-authority=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
		resolution = "--metric-resolution=15s"
		statusPort = "--kubelet-use-node-status-port"
		kubelets   = "--kubelet-service-account=kube-vitals-kubelet"
		securePort = "--secure-port=10250"
		service    = "--service=kube-vitals.kube-system.svc:443"
	)
	tests := []struct {
		name, values string
		want         []string
	}{
		{"default", "", []string{securePort, address, statusPort, resolution, kubeletCA, kubelets, service}},
		{
			"another port", "service.port=8443",
			[]string{securePort, address, statusPort, resolution, kubeletCA, kubelets, "--service=kube-vitals.kube-system.svc:8443"},
		},
		{
			"APIServices that the chart does not create", "apiService.create=false",
			[]string{securePort, address, statusPort, resolution, kubeletCA, kubelets, service},
		},
		{
			"every value that is a flag", "containerPort=1,kubelet.insecureTLS=true,maxSampleAge=2m,metrics.enabled=true,args={-v=2}",
			[]string{
				"--secure-port=1", address, statusPort, resolution, "--kubelet-insecure-tls", kubelets, "--max-sample-age=2m",
				"--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics", service, "-v=2",
			},
		},
		{
			"trust by flag, as with metrics-server", "args={--kubelet-insecure-tls}",
			[]string{securePort, address, statusPort, resolution, kubelets, service, "--kubelet-insecure-tls"},
		},
		{
			"trust by flag among the defaults", "defaultArgs={--kubelet-certificate-authority=/ca}",
			[]string{securePort, "--kubelet-certificate-authority=/ca", kubelets, service},
		},
		{
			"the server's own certificate", "tls.type=kube-vitals",
			[]string{
				securePort, address, statusPort, resolution, kubeletCA, kubelets, service, "--tls-secret=kube-vitals-serving",
				"--tls-names=kube-vitals.kube-system.svc,kube-vitals.kube-system.svc.cluster.local,kube-vitals.kube-system",
				"--tls-ca-configmap=kube-vitals-ca",
			},
		},
		{"no CA", "kubelet.certificateAuthority=", []string{securePort, address, statusPort, resolution, kubelets, service}},
		{
			"one ServiceAccount for all", "kubelet.serviceAccount.create=false",
			[]string{securePort, address, statusPort, resolution, kubeletCA, service},
		},
		{
			"a ServiceAccount of the user's for kubelets", "kubelet.serviceAccount.create=false,kubelet.serviceAccount.name=x",
			[]string{securePort, address, statusPort, resolution, kubeletCA, "--kubelet-service-account=x", service},
		},
		{
			"paths by flag", "args={--authorization-always-allow-paths=/livez\\,/readyz\\,/metrics}",
			[]string{
				securePort, address, statusPort, resolution, kubeletCA, kubelets, service,
				"--authorization-always-allow-paths=/livez,/readyz,/metrics",
			},
		},
		{
			"a client certificate instead of tokens", "args={--kubelet-client-certificate=/crt}",
			[]string{securePort, address, statusPort, resolution, kubeletCA, service, "--kubelet-client-certificate=/crt"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			objs, err := tools.chart(t.Context(), chartFolder, []string{"tls.type=self-signed", tt.values})
			if err != nil {
				t.Fatal(err)
			}
			var want []any
			for _, arg := range tt.want {
				want = append(want, arg)
			}
			if got := lookup(t, objs, deployment, container+"args"); !reflect.DeepEqual(got, want) {
				t.Errorf("got %s\nwant %s", show(got), show(want))
			}
		})
	}
}

// TestRefusals sets wrong values and expects an error that names them.
func TestRefusals(t *testing.T) {
	tools := lookTools(t)
	for values, want := range map[string]string{
		"replcas=2": "additional properties 'replcas' not allowed",
		"apiService.caBundle=-----BEGIN CERTIFICATE-----": "the server writes the caBundle",
		"tls.helm.days=3":                         "at '/tls/helm': additional properties 'days' not allowed",
		"replicas=two":                            "at '/replicas': got string, want integer",
		"tls.type=none":                           "at '/tls/type': value must be one of 'kube-vitals', 'helm', 'existingSecret', 'cert-manager', 'self-signed'",
		"maxSampleAge=5":                          "at '/maxSampleAge': got number, want string",
		"args={verbose}":                          "at '/args/0': 'verbose' does not match pattern '^-'",
		"podLabels.a=1":                           "at '/podLabels/a': got number, want string",
		"service.port=0":                          "at '/service/port': minimum: got 0, want 1",
		"tls.type=existingSecret":                 "set tls.existingSecret.name",
		"podMonitor.enabled=true":                 "podMonitor.enabled needs metrics.enabled=true",
		"terminationGracePeriodSeconds=no":        "at '/terminationGracePeriodSeconds': got string, want null or integer",
		"env[0].value=1":                          "at '/env/0': missing property 'name'",
		"service.ipFamilyPolicy=Dual":             "at '/service/ipFamilyPolicy': value must be one of '', 'SingleStack'",
		"tests.image.digest=1":                    "at '/tests/image/digest': got number, want string",
		"resources.limits.memory=lots":            "resources.limits.memory=lots: write it as bytes",
		"hostNetwork.enabled=true":                "the kubelet already listens on port 10250 of the node: set another containerPort",
		"updateStrategy.type=Recreate":            "updateStrategy.type=Recreate has no rollingUpdate: set updateStrategy.rollingUpdate=null too",
		"args={--secure-port=8443}":               "set containerPort instead",
		"defaultArgs={--secure-port=8443}":        "set containerPort instead",
		"kubelet.serviceAccount.name=kube-vitals": "kubelet.serviceAccount.name is the ServiceAccount of the pods",
		"tls.type=helm,apiService.caBundle=-----BEGIN CERTIFICATE-----":                                            "tls.type=helm creates the certificate: leave apiService.caBundle empty",
		"tls.type=self-signed,apiService.caBundle=-----BEGIN CERTIFICATE-----":                                     "tls.type=self-signed creates the certificate: leave apiService.caBundle empty",
		"args={--kubelet-service-account=x}":                                                                       "set kubelet.serviceAccount.name instead",
		"args={--tls-secret=x}":                                                                                    "tls.type=kube-vitals sets all of them",
		"args={--tls-cert-file=/crt}":                                                                              "set tls.type=existingSecret",
		"args={--authorization-always-allow-paths=/metrics}":                                                       "add /healthz,/readyz,/livez to it",
		"tls.type=self-signed,args={--cert-dir=/tmp}":                                                              "or set tmpVolume",
		"tls.type=cert-manager,tls.certManager.existingIssuer.enabled=true":                                        "set tls.certManager.existingIssuer.name",
		"podDisruptionBudget.enabled=true,podDisruptionBudget.minAvailable=1,podDisruptionBudget.maxUnavailable=0": "podDisruptionBudget.maxUnavailable contradict each other",
		"tls.type=self-signed,serviceMonitor.enabled=true":                                                         "would send Prometheus' token to a server that it cannot verify",
		"tls.type=self-signed,podMonitor.enabled=true,podMonitor.authorization.type=Bearer":                        "podMonitor.authorization would be sent to a server",
		"tls.type=helm,tls.admissionPolicy.enabled=true":                                                           "restricts a permission that the server only has with tls.type=kube-vitals",
		"tls.helm.lookup=yes,":                                                                                     "at '/tls/helm/lookup': got string, want boolean",
		"imagePullSecrets={secret}":                                                                                "at '/imagePullSecrets/0': got string, want object",
	} {
		t.Run(values, func(t *testing.T) {
			_, err := tools.chart(t.Context(), chartFolder, []string{values})
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v\nwant an error with %s", err, want)
			}
		})
	}
}

// TestKubeletServiceAccount renders the two ServiceAccounts, the single-account form and a
// ServiceAccount of the user's, and expects the rights on kubelets where the token is that kubelets
// see, and only there.
func TestKubeletServiceAccount(t *testing.T) {
	tools := lookTools(t)
	const (
		ownRole     = "ClusterRole system:kube-vitals"
		binding     = "ClusterRoleBinding system:kube-vitals-kubelet"
		tokenRole   = "Role kube-system/kube-vitals-kubelet"
		tokens      = "RoleBinding kube-system/kube-vitals-kubelet"
		twoAccounts = 2
	)
	rule := func(resource string) any {
		return map[string]any{"apiGroups": []any{""}, "resources": []any{resource}, "verbs": []any{"get"}}
	}
	kubelets := []any{rule("nodes/metrics"), rule("nodes/stats")}
	for _, tt := range []struct {
		name, values string
		account      string // whose tokens kubelets see; empty: the pods'
		accounts     int    // ServiceAccounts of the chart
	}{
		{"two", "", "kube-vitals-kubelet", twoAccounts},
		{"two by other names", "serviceAccount.name=a,kubelet.serviceAccount.name=b", "b", twoAccounts},
		{"one of the user's", "kubelet.serviceAccount.create=false,kubelet.serviceAccount.name=x", "x", 1},
		{"one", "kubelet.serviceAccount.create=false", "", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			objs, err := tools.chart(t.Context(), chartFolder, []string{tt.values})
			if err != nil {
				t.Fatal(err)
			}
			accounts := 0
			for id := range objs {
				if strings.HasPrefix(id, "ServiceAccount ") {
					accounts++
				}
			}
			if accounts != tt.accounts {
				t.Errorf("%d ServiceAccounts, want %d", accounts, tt.accounts)
			}
			rules, _ := lookup(t, objs, ownRole, "rules").([]any)
			if tt.account == "" {
				if len(without(kubelets, rules)) > 0 {
					t.Errorf("the only ServiceAccount lacks rights on kubelets: %s", show(rules))
				}
				for _, id := range []string{kubeletRole, binding, tokenRole, tokens} {
					if _, ok := objs[id]; ok {
						t.Errorf("there is a %s", id)
					}
				}
				return
			}
			if len(without(kubelets, rules)) != len(kubelets) {
				t.Errorf("the pods' ServiceAccount has rights on kubelets: %s", show(rules))
			}
			if got := lookup(t, objs, kubeletRole, "rules"); !reflect.DeepEqual(got, any(kubelets)) {
				t.Errorf("the rights on kubelets are %s", show(got))
			}
			if got := lookup(t, objs, binding, "subjects.0.name"); got != tt.account {
				t.Errorf("they are those of %s, want %s", show(got), tt.account)
			}
			want := []any{map[string]any{
				"apiGroups": []any{""}, "resources": []any{"serviceaccounts/token"}, "resourceNames": []any{tt.account},
				"verbs": []any{"create"},
			}}
			if got := lookup(t, objs, tokenRole, "rules"); !reflect.DeepEqual(got, any(want)) {
				t.Errorf("the rights on tokens are %s, want %s", show(got), show(want))
			}
			if got := lookup(t, objs, tokens, "subjects.0.name"); got == tt.account {
				t.Errorf("%s may request its own tokens", show(got))
			}
		})
	}
}

// TestReusedValues renders the chart with the values of the first release in the place of its
// defaults, as helm upgrade
// --reuse-values does. What is immutable must not change.
func TestReusedValues(t *testing.T) {
	tools := lookTools(t)
	root := copyTree(t, "../..", "charts")
	chart := filepath.Join(root, "charts", "kube-vitals")
	values, err := os.ReadFile(filepath.Join("testdata", "values-0.1.0.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(chart, "values.yaml"), values, 0o600); err != nil {
		t.Fatal(err)
	}
	objs, err := tools.chart(t.Context(), chart, nil)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]any{
		"spec.selector.matchLabels": map[string]any{"app.kubernetes.io/name": "kube-vitals", "app.kubernetes.io/instance": "kube-vitals"},
		pod + "serviceAccountName":  "kube-vitals",
		pod + "volumes.0.emptyDir":  map[string]any{},
		container + "args.1":        "--cert-dir=/tmp",
		container + "env":           absent{},
	} {
		if got := lookup(t, objs, deployment, path); !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %s, want %s", path, show(got), show(want))
		}
	}
	for _, id := range []string{
		kubeletRole, service, apiService, ownSecret, ownRole, "ClusterRoleBinding system:kube-vitals",
		"ClusterRoleBinding kube-vitals:system:auth-delegator", "RoleBinding kube-system/kube-vitals-auth-reader",
	} {
		if _, ok := objs[id]; !ok {
			t.Errorf("there is no %s", id)
		}
	}
}

// TestCertificate checks that the API server, with the caBundle it is given, accepts the
// certificate made by helm.
func TestCertificate(t *testing.T) {
	objs, err := lookTools(t).chart(t.Context(), chartFolder, []string{"tls.type=helm"})
	if err != nil {
		t.Fatal(err)
	}
	decode := func(object, path string) []byte {
		text, _ := lookup(t, objs, object, path).(string)
		data, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(data) == 0 {
			t.Fatalf("%s of %s is %q: %v", path, object, text, err)
		}
		return data
	}
	pair, err := tls.X509KeyPair(decode(secret, `data.tls\.crt`), decode(secret, `data.tls\.key`))
	if err != nil {
		t.Fatal(err)
	}
	published, _ := lookup(t, objs, caConfigMap, `data.ca\.crt`).(string)
	for version, ca := range map[string][]byte{
		"v1":            decode("APIService v1.metrics.k8s.io", "spec.caBundle"),
		"v1beta1":       decode("APIService v1beta1.metrics.k8s.io", "spec.caBundle"),
		"the ConfigMap": []byte(published),
	} {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(ca) {
			t.Fatalf("no CA for %s", version)
		}
		for _, name := range []string{"kube-vitals.kube-system.svc", "kube-vitals.kube-system.svc.cluster.local"} {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
				t.Errorf("%s as seen through %s: %v", name, version, err)
			}
		}
	}
}

// TestExamples lints and renders every ci/*-values.yaml, and expects some.
func TestExamples(t *testing.T) {
	tools := lookTools(t)
	files, err := filepath.Glob(filepath.Join(chartFolder, "ci", "*-values.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, error %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			lint := exec.CommandContext(t.Context(), tools.helm, "lint", chartFolder, "--strict", "--kube-version", kubeVersion, "--values", file)
			if text, err := lint.CombinedOutput(); err != nil {
				t.Errorf("%v:\n%s", err, text)
			}
		})
	}
}

// lookup follows a path through a rendered object: keys parted by dots (a dot in a key is written
// \\.), list elements by number.
func lookup(t *testing.T, objs objects, id, path string) any {
	t.Helper()
	obj, ok := objs[id]
	if !ok {
		t.Fatalf("there is no %s", id)
	}
	var at any = obj
	for key := range strings.SplitSeq(strings.ReplaceAll(path, `\.`, "\x00"), ".") {
		switch v := at.(type) {
		case map[string]any:
			at = value(v, strings.ReplaceAll(key, "\x00", "."))
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i >= len(v) {
				return absent{}
			}
			at = v[i]
		default:
			return absent{}
		}
	}
	return at
}
