package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
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
	service    = "Service kube-system/kube-vitals"
	apiService = "APIService v1.metrics.k8s.io"
	budget     = "PodDisruptionBudget kube-system/kube-vitals"
	secret     = "Secret kube-system/kube-vitals-tls"
	ownSecret  = "Secret kube-system/kube-vitals-serving"
	ownRole    = "Role kube-system/kube-vitals-serving"

	pod       = "spec.template.spec."
	container = pod + "containers.0."
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
		{"image by tag", "image.tag=v9", deployment, container + "image", "kube-vitals/kube-vitals:v9"},
		{"image by digest", "image.tag=v9,image.digest=" + digest, deployment, container + "image", "kube-vitals/kube-vitals@" + digest},
		{"memory limit", "resources.limits.memory=1Gi", deployment, container + "env.0.name", "GOMEMLIMIT"},
		{"no memory limit", "", deployment, container + "env", absent{}},
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
		{"the server's own CA is not the chart's affair", "", apiService, "spec.caBundle", absent{}},
		{"nor is what is in its Secret", "", ownSecret, "data", absent{}},
		{"rights on its Secret", "", ownRole, "rules.0.verbs", []any{"get", "watch", "update"}},
		{"and on no other one", "fullnameOverride=x", "Role kube-system/x-serving", "rules.0.resourceNames", []any{"x-serving"}},
		{
			"to make it, only if asked for", "tls.kubeVitals.recreateSecret=true", ownRole, "rules.0.verbs",
			[]any{"get", "watch", "update", "patch", "create"},
		},
		{
			"rights on APIServices", "", "ClusterRole system:kube-vitals", "rules.4.resourceNames",
			[]any{"v1.metrics.k8s.io", "v1beta1.metrics.k8s.io"},
		},
		{"no rights that other modes do not need", "tls.type=cert-manager", "ClusterRole system:kube-vitals", "rules.4", absent{}},
		{"self-signed", "tls.type=self-signed", apiService, "spec.insecureSkipTLSVerify", true},
		{"unverified has no CA", "apiService.insecureSkipTLSVerify=true", apiService, "spec.caBundle", absent{}},
		{
			"CA by value", "tls.type=existingSecret,tls.existingSecret.name=x,apiService.caBundle=-----BEGIN CERTIFICATE-----",
			apiService, "spec.caBundle", "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t",
		},
		{"Secret by name", "tls.type=existingSecret,tls.existingSecret.name=x", deployment, pod + "volumes.1.secret.secretName", "x"},
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
		certDir    = "--cert-dir=/tmp"
		securePort = "--secure-port=10250"
	)
	tests := []struct {
		name, values string
		want         []string
	}{
		{"default", "", []string{securePort, certDir, address, statusPort, resolution, kubeletCA}},
		{
			"every value that is a flag", "containerPort=1,kubelet.insecureTLS=true,maxSampleAge=2m,metrics.enabled=true,args={-v=2}",
			[]string{
				"--secure-port=1", certDir, address, statusPort, resolution, "--kubelet-insecure-tls", "--max-sample-age=2m",
				"--authorization-always-allow-paths=/metrics", "-v=2",
			},
		},
		{
			"trust by flag, as with metrics-server", "args={--kubelet-insecure-tls}",
			[]string{securePort, certDir, address, statusPort, resolution, "--kubelet-insecure-tls"},
		},
		{
			"trust by flag among the defaults", "defaultArgs={--kubelet-certificate-authority=/ca}",
			[]string{securePort, "--kubelet-certificate-authority=/ca"},
		},
		{
			"the server's own certificate", "tls.type=kube-vitals",
			[]string{
				securePort, certDir, address, statusPort, resolution, kubeletCA, "--tls-secret=kube-vitals-serving",
				"--tls-names=kube-vitals.kube-system.svc,kube-vitals.kube-system.svc.cluster.local,kube-vitals.kube-system",
			},
		},
		{"no CA", "kubelet.certificateAuthority=", []string{securePort, certDir, address, statusPort, resolution}},
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

// TestRefusals sets wrong values and expects to be told in words what is wrong.
func TestRefusals(t *testing.T) {
	tools := lookTools(t)
	for values, want := range map[string]string{
		"replcas=2": "additional properties 'replcas' not allowed",
		"apiService.caBundle=-----BEGIN CERTIFICATE-----": "the server writes the caBundle",
		"tls.helm.days=3":           "at '/tls/helm': additional properties 'days' not allowed",
		"replicas=two":              "at '/replicas': got string, want integer",
		"tls.type=none":             "at '/tls/type': value must be one of 'kube-vitals', 'helm', 'existingSecret', 'cert-manager', 'self-signed'",
		"maxSampleAge=5":            "at '/maxSampleAge': got number, want string",
		"args={verbose}":            "at '/args/0': 'verbose' does not match pattern '^-'",
		"podLabels.a=1":             "at '/podLabels/a': got number, want string",
		"service.port=0":            "at '/service/port': minimum: got 0, want 1",
		"tls.type=existingSecret":   "set tls.existingSecret.name",
		"podMonitor.enabled=true":   "podMonitor.enabled needs metrics.enabled=true",
		"tls.helm.lookup=yes,":      "at '/tls/helm/lookup': got string, want boolean",
		"imagePullSecrets={secret}": "at '/imagePullSecrets/0': got string, want object",
	} {
		t.Run(values, func(t *testing.T) {
			_, err := tools.chart(t.Context(), chartFolder, []string{values})
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v\nwant an error with %s", err, want)
			}
		})
	}
}

// TestCertificate checks that the API server, with the caBundle it is given, accepts the certificate made by helm.
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
	for _, version := range []string{"v1", "v1beta1"} {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(decode("APIService "+version+".metrics.k8s.io", "spec.caBundle")) {
			t.Fatalf("no CA in the caBundle of %s", version)
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

// lookup follows a path through a rendered object: keys parted by dots (a dot in a key is written \\.), list elements by
// number.
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
