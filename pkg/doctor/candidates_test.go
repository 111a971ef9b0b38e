package doctor

import (
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
)

// TestCandidates examines clusters whose APIServices are of kube-vitals but lead to metrics-server, and
// clusters where Services have the label of kube-vitals. Every tenant can create one, and the cure leads the
// API to it.
func TestCandidates(t *testing.T) {
	const (
		installed = "kube-system/kube-vitals"
		tenants   = "team-a/kube-vitals"
	)
	release := binding("system:kube-vitals", ns)
	withUser := binding("system:kube-vitals", "team-a")
	withUser.Subjects[0].Kind = rbacv1.UserKind
	forbiddenBindings := func(w *world) { w.status[bindings] = forbidden(`list resource "clusterrolebindings"`) }
	unlabeled := binding("system:kube-vitals", "team-a")
	unlabeled.Labels = nil
	for name, tt := range map[string]struct {
		candidates []string
		bindings   []rbacv1.ClusterRoleBinding
		prepare    func(*world)
		patched    string // the namespace that the patch leads to
		reason     string
		status     Status
		objects    string
	}{
		"of the release": {candidates: []string{installed}, bindings: []rbacv1.ClusterRoleBinding{release}, patched: ns},
		"of a tenant, and of the release": {candidates: []string{tenants, installed, "z/kube-vitals"},
			bindings: []rbacv1.ClusterRoleBinding{release}, patched: ns},
		"of a tenant": {candidates: []string{tenants}, reason: serverUnconfirmed.Reason, status: Skipped, objects: tenants},
		"of a tenant with a binding of another name": {candidates: []string{tenants},
			bindings: []rbacv1.ClusterRoleBinding{release, binding("kube-vitals-readers", "team-a")},
			reason:   serverUnconfirmed.Reason, status: Skipped, objects: tenants},
		"of a tenant with a binding of others": {candidates: []string{tenants},
			bindings: []rbacv1.ClusterRoleBinding{unlabeled}, reason: serverUnconfirmed.Reason, status: Skipped,
			objects: tenants},
		"of a tenant with the name of a user": {candidates: []string{tenants},
			bindings: []rbacv1.ClusterRoleBinding{withUser}, reason: serverUnconfirmed.Reason, status: Skipped,
			objects: tenants},
		"beside that of the release": {candidates: []string{ns + "/other"}, bindings: []rbacv1.ClusterRoleBinding{release},
			reason: serverUnconfirmed.Reason, status: Skipped, objects: ns + "/other"},
		"of two releases": {candidates: []string{installed, "z/vitals"},
			bindings: []rbacv1.ClusterRoleBinding{release, binding("system:vitals", "z")},
			reason:   serverAmbiguous.Reason, status: Warning, objects: installed + " z/vitals"},
		"bindings cannot be read": {candidates: []string{tenants, installed}, prepare: forbiddenBindings,
			reason: noPermission.Reason, status: Skipped, objects: tenants + " " + installed},
		"--namespace": {candidates: []string{tenants}, patched: "team-a",
			prepare: func(w *world) { forbiddenBindings(w); w.namespace = "team-a" }},
		"--namespace with two": {candidates: []string{tenants, "team-a/other"},
			prepare: func(w *world) { w.namespace = "team-a" }, reason: serverAmbiguous.Reason, status: Warning,
			objects: tenants + " team-a/other"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.takeOver("v1beta1")
			w.takeOver("v1")
			w.candidates(tt.candidates...)
			w.objects[bindings] = &rbacv1.ClusterRoleBindingList{Items: tt.bindings}
			if tt.prepare != nil {
				tt.prepare(w)
			}
			report, text := w.examine(t)
			if got := strings.Contains(text, `"spec":{"service":{"namespace":"`+tt.patched+`"`); got != (tt.patched != "") {
				t.Errorf("want a patch to %q, got\n%s", tt.patched, text)
			}
			if strings.Contains(text, "kubectl patch") != (tt.patched != "") {
				t.Errorf("got a patch, or none:\n%s", text)
			}
			c := find(report, "installation")
			if c.Reason != tt.reason || c.Status != tt.status || strings.Join(c.Objects, " ") != tt.objects {
				t.Errorf("got %+v", c)
			}
		})
	}
}

// TestBeside examines kube-vitals without APIServices (apiService.create=false) beside the metrics-server of
// the provider, which restores its APIService.
func TestBeside(t *testing.T) {
	w := newWorld(t)
	delete(w.objects, apiservices+"v1.metrics.k8s.io")
	w.spec("v1beta1")["service"].(map[string]any)["name"] = "metrics-server"
	w.objects[kubeSystem+"configmaps/kube-vitals-ca"] = &corev1.ConfigMap{Data: map[string]string{
		"ca.crt": string(w.ca.PEM())}}
	report, text := w.examine(t)
	if report.Server.Kind != KubeVitals || report.Summary[Failed] > 0 || report.Summary[Warning] != 1 ||
		find(report, "apiservice").Reason != runsBeside.Reason || find(report, "clocks").Status != OK ||
		strings.Contains(text, "kubectl patch") || !strings.Contains(text, "kubectl vitals preflight") ||
		find(report, "certificate").Status != OK {
		t.Errorf("got\n%s", text)
	}
	w.objects[kubeSystem+"configmaps/kube-vitals-ca"] = &corev1.ConfigMap{Data: map[string]string{
		"ca.crt": string(kubelettest.NewCA().PEM())}}
	w.requests = nil
	if report, text = w.examine(t); find(report, "nodez").Reason != noConnection.Reason || len(w.requests) > 0 ||
		find(report, "certificate").Reason != caBundleForeign.Reason || strings.Contains(text, "kubectl get apiservice") {
		t.Errorf("a foreign CA: got requests %q\n%s", w.requests, text)
	}
}

// TestBesideV1 examines kube-vitals with v1 only (apiService.versions=[v1]) beside the provider's v1beta1. What
// v1beta1 serves says nothing of it.
func TestBesideV1(t *testing.T) {
	w := newWorld(t)
	w.spec("v1beta1")["service"].(map[string]any)["name"] = "metrics-server"
	for _, kind := range []string{"nodes", "pods"} {
		w.objects["/apis/metrics.k8s.io/v1/"+kind] = w.objects[metricsV1b1+kind]
		delete(w.objects, metricsV1b1+kind)
	}
	w.addArgs("--tls-apiservices=v1.metrics.k8s.io")
	w.denied = func(s authorizationv1.SubjectAccessReviewSpec) bool {
		return s.ResourceAttributes.Name == "v1beta1.metrics.k8s.io"
	}
	report, text := w.examine(t)
	c := find(report, "metrics-api")
	if report.Server.Kind != KubeVitals || report.Summary[Failed] > 0 || report.Summary[Warning] != 1 ||
		find(report, "apiservice").Reason != runsBeside.Reason || strings.Contains(text, "kubectl patch") ||
		c.Status != OK || !strings.HasPrefix(c.Seen, "v1 serves 2 nodes") {
		t.Errorf("got\n%s", text)
	}
}

// TestBesideBothVersions examines kube-vitals after another server has taken a version of its release. If a provider
// that had v1beta1 has registered v1, too, no advice takes either from it.
func TestBesideBothVersions(t *testing.T) {
	const keep, patch = "kubectl annotate apiservice v1.metrics.k8s.io helm.sh/resource-policy=keep",
		"kubectl patch apiservice "
	theirs := func(w *world, version string) {
		w.spec(version)["service"].(map[string]any)["name"] = "metrics-server"
	}
	for name, tt := range map[string]struct {
		change func(*world)
		want   string // a command
	}{
		"v1, which a provider serves": {func(w *world) {
			theirs(w, "v1beta1")
			w.takeOver("v1")
		}, keep},
		"v1, which the release has left to a provider": {func(w *world) {
			theirs(w, "v1beta1")
			w.takeOver("v1")
			w.objects[apiservices+"v1.metrics.k8s.io"].(map[string]any)["metadata"] = metav1.ObjectMeta{
				Name: "v1.metrics.k8s.io", Labels: map[string]string{"app.kubernetes.io/name": "kube-vitals"},
				Annotations: map[string]string{"helm.sh/resource-policy": "keep"}}
		}, ""},
		"v1, with the port of the release": {func(w *world) {
			theirs(w, "v1beta1")
			w.takeOver("v1")
			w.spec("v1")["service"].(map[string]any)["port"] = 8443
		}, keep},
		"v1, which metrics-server does not serve": {func(w *world) {
			theirs(w, "v1beta1")
			w.takeOver("v1")
			delete(w.objects[apiservices+"v1.metrics.k8s.io"].(map[string]any), "status")
		}, patch + "v1.metrics.k8s.io"},
		"v1 only": {func(w *world) { w.takeOver("v1") }, patch + "v1.metrics.k8s.io"},
		"v1beta1, by one that added v1": {func(w *world) {
			theirs(w, "v1")
			w.takeOver("v1beta1")
		}, patch + "v1beta1.metrics.k8s.io"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			tt.change(w)
			report, text := w.examine(t)
			commands := strings.Count(text, "kubectl patch") + strings.Count(text, "kubectl annotate")
			isTaken := tt.want != ""
			for _, c := range report.Checks {
				if strings.HasPrefix(c.Cure, "kubectl ") {
					t.Errorf("a sentence looks like a command: %s", c.Cure)
				}
			}
			if report.Server.Kind != KubeVitals || (commands == 1) != isTaken || !strings.Contains(text, tt.want) ||
				(report.Summary[Failed] > 0) != isTaken {
				t.Errorf("want %s, got\n%s", tt.want, text)
			}
		})
	}
}

// TestNamespace checks that --namespace selects a release without APIServices, although those of another one
// lead to kube-vitals.
func TestNamespace(t *testing.T) {
	w := newWorld(t)
	for _, version := range versions() {
		w.objects[apiservices+version+".metrics.k8s.io"].(map[string]any)["metadata"] = metav1.ObjectMeta{
			Name: version + ".metrics.k8s.io", Labels: map[string]string{"app.kubernetes.io/name": "kube-vitals"}}
	}
	w.namespace = "team-a"
	w.candidates("team-a/second")
	report, text := w.examine(t)
	if report.Server.String() != "team-a/second" || find(report, "apiservice").Reason != runsBeside.Reason ||
		find(report, "apiservice").Status != Warning || strings.Contains(text, "kubectl patch") {
		t.Errorf("got %s\n%s", report.Server, text)
	}
	w.namespace = ns
	if report, text = w.examine(t); report.Server.String() != ns+"/kube-vitals" || report.Summary[Failed] > 0 {
		t.Errorf("got %s\n%s", report.Server, text)
	}
}

// TestOtherNamespace checks that no other server is examined silently if --namespace has no kube-vitals.
func TestOtherNamespace(t *testing.T) {
	const list = "/api/v1/namespaces/team-a/services"
	for _, service := range []string{"kube-vitals", "metrics-server"} {
		w := newWorld(t)
		w.namespace = "team-a"
		w.objects[list] = &corev1.ServiceList{Items: []corev1.Service{{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}}}
		for _, version := range versions() {
			w.spec(version)["service"].(map[string]any)["name"] = service
		}
		report, text := w.examine(t)
		c := find(report, "installation")
		if c.Status != Failed || c.Reason != notInstalled.Reason || find(report, "service").ID != "" ||
			!strings.Contains(c.Seen, "team-a has no Service of kube-vitals; the APIServices lead to kube-system/"+service) {
			t.Errorf("%s: got\n%s", service, text)
		}
		w.status[list] = forbidden(`list resource "services"`)
		report, text = w.examine(t)
		if c = find(report, "installation"); c.Status != Skipped || c.Reason != noPermission.Reason {
			t.Errorf("%s, forbidden: got\n%s", service, text)
		}
	}
}

// TestNameOverride examines a release with the names of metrics-server, after other servers have taken APIServices.
func TestNameOverride(t *testing.T) {
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: ns, Labels: map[string]string{
			"app.kubernetes.io/name": "metrics-server", "helm.sh/chart": "kube-vitals-0.2.0"}}
	}
	for _, taken := range [][]string{nil, {"v1beta1"}, {"v1"}, {"v1beta1", "v1"}} {
		w := newWorld(t)
		service := w.service()
		delete(w.objects, kubeSystem+"services/kube-vitals")
		service.ObjectMeta = meta("metrics-server")
		w.objects[kubeSystem+"services/metrics-server"] = service
		release := binding("system:metrics-server", ns)
		release.ObjectMeta = meta("system:metrics-server")
		w.objects[bindings+"/system:metrics-server"] = release
		delete(w.objects, services) // the API server lists what there is
		delete(w.objects, bindings)
		for _, version := range versions() {
			a := w.apiService("metrics-server")
			a["metadata"] = meta(version + ".metrics.k8s.io")
			if slices.Contains(taken, version) {
				a = w.apiService("other")
				a["metadata"] = meta(version + ".metrics.k8s.io")
			}
			w.objects[apiservices+version+".metrics.k8s.io"] = a
		}
		w.served = w.ca.Issue([]string{"metrics-server.kube-system.svc"}, nil)
		report, text := w.examine(t)
		if report.Server.String() != ns+"/metrics-server" || report.Server.Kind != KubeVitals ||
			report.Summary[Failed] != len(taken) || strings.Count(text, "kubectl patch apiservice ") != len(taken) {
			t.Errorf("%q: got %+v\n%s", taken, report.Server, text)
		}
		for _, version := range taken {
			if !strings.Contains(text, "kubectl patch apiservice "+version+".metrics.k8s.io ") {
				t.Errorf("%q: got no patch of %s:\n%s", taken, version, text)
			}
		}
	}
}

// TestOtherName examines kube-vitals behind a Service with the name of metrics-server: only its image shows what
// it is.
func TestOtherName(t *testing.T) {
	w := newWorld(t)
	w.objects[services] = &corev1.ServiceList{}
	for _, version := range versions() {
		w.objects[apiservices+version+".metrics.k8s.io"] = w.apiService("metrics-server")
	}
	w.objects[kubeSystem+"services/metrics-server"] = w.service()
	w.service().Labels = nil
	w.served = w.ca.Issue([]string{"metrics-server.kube-system.svc"}, nil)
	report, text := w.examine(t)
	if report.Server.Kind != KubeVitals || find(report, "clocks").Status != OK || report.Summary[Failed] > 0 {
		t.Errorf("got %+v\n%s", report.Server, text)
	}
}

// candidates adds Services with the label of kube-vitals.
func (w *world) candidates(names ...string) {
	list := &corev1.ServiceList{}
	for _, name := range names {
		namespace, name, _ := strings.Cut(name, "/")
		list.Items = append(list.Items, corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
			Labels: map[string]string{"app.kubernetes.io/name": "kube-vitals"}},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}}})
	}
	w.objects[services] = list
	w.objects["/api/v1/namespaces/team-a/services"] = list
}

// TestCandidateWithoutAPIServices checks that a Service of a tenant is not examined where no server
// is installed.
func TestCandidateWithoutAPIServices(t *testing.T) {
	w := newWorld(t)
	w.candidates("team-a/kube-vitals")
	w.objects[bindings] = &rbacv1.ClusterRoleBindingList{}
	for _, version := range versions() {
		delete(w.objects, apiservices+version+".metrics.k8s.io")
	}
	report, text := w.examine(t)
	last := report.Checks[len(report.Checks)-1]
	if report.Server.Kind != None || last.Reason != notInstalled.Reason || !strings.Contains(text, "team-a/kube-vitals") {
		t.Errorf("got %+v\n%s", report.Server, text)
	}
}
