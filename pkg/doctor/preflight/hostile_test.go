package preflight

import (
	"strings"
	"testing"
	"unicode"

	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/pkg/internal/command/commandtest"
)

// TestHostileText checks that no text that others choose is a part of a printed command, and that none
// controls the terminal.
func TestHostileText(t *testing.T) {
	meta := func(text string) metav1.ObjectMeta {
		labels := map[string]string{"helm.sh/chart": "kube-vitals-" + text}
		return metav1.ObjectMeta{Labels: labels, Annotations: map[string]string{
			"meta.helm.sh/release-name": text, "meta.helm.sh/release-namespace": text, "addonmanager.kubernetes.io/mode": text,
		}}
	}
	for name, prepare := range map[string]func(w *world, text string){
		"CertificateSigningRequests": func(w *world, text string) {
			w.objects[csrs] = &certificatesv1.CertificateSigningRequestList{Items: []certificatesv1.CertificateSigningRequest{
				{ObjectMeta: metav1.ObjectMeta{Name: text},
					Spec: certificatesv1.CertificateSigningRequestSpec{Username: text, SignerName: text}}}}
		},
		"kube-vitals": func(w *world, text string) { w.metricsServer("kube-system", "kube-vitals", meta(text)) },
		"metrics-server": func(w *world, text string) {
			w.metricsServer("kube-system", "metrics-server", meta(text))
		},
		"namespace of the release": func(w *world, text string) {
			m := meta(text)
			m.Annotations["meta.helm.sh/release-name"] = "ms"
			w.metricsServer("kube-system", "metrics-server", m)
		},
		"GKE": func(w *world, text string) {
			w.nodes[0].Status.NodeInfo.KubeletVersion = "v1.36.3-gke.1" + text
			w.metricsServer(text, text, meta(text))
		},
		"beside": func(w *world, text string) { w.bind(text, text, meta(text)) },
		"nodes": func(w *world, text string) {
			n := &w.nodes[0]
			n.Name, n.Spec.ProviderID = text, "kind://"+text
			n.Spec.Taints = []corev1.Taint{{Key: text, Effect: corev1.TaintEffectNoSchedule}}
		},
		"Cilium": func(w *world, text string) {
			w.objects[daemonSets] = &appsv1.DaemonSetList{Items: []appsv1.DaemonSet{{ObjectMeta: metav1.ObjectMeta{
				Namespace: text, Name: text, Labels: map[string]string{"k8s-app": "cilium"}}}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.signed("a")
			for _, text := range commandtest.Hostile() {
				prepare(w, text)
				r := w.examine()
				for _, c := range r.Checks {
					unsafe := commandtest.Unsafe(strings.NewReplacer(beside, "", both, "").Replace(c.Cure)) // they have quotes
					if unsafe != nil || strings.Contains(c.Cure, "kubectl certificate approve") {
						t.Errorf("%.50q: got %s", text, c.Cure)
					}
				}
				if i := strings.IndexFunc(r.text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
					t.Errorf("%.50q: the output has a control character at %d", text, i)
				}
			}
		})
	}
}

// TestMarksOfTenant checks that only the APIService shows who installed the server. Where it leads to a
// namespace of a tenant, the tenant could otherwise choose the release that the command upgrades, or
// which advice is printed.
func TestMarksOfTenant(t *testing.T) {
	for _, service := range []string{"kube-vitals", "metrics-server"} {
		w := newWorld(t)
		w.signed("a")
		w.metricsServer("team-a", service, metav1.ObjectMeta{})
		for mark, value := range map[string]string{
			"meta.helm.sh/release-name": "evil", "meta.helm.sh/release-namespace": "team-a",
			"addonmanager.kubernetes.io/mode": "Reconcile", "kubernetes.io/minikube-addons": "evil",
			"objectset.rio.cattle.io/hash": "evil", "app.kubernetes.io/managed-by": "cluster-monitoring-operator",
		} {
			meta := metav1.ObjectMeta{
				Name: service, Namespace: "team-a",
				Labels: map[string]string{mark: value}, Annotations: map[string]string{mark: value},
				ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "eks"}},
			}
			w.objects["/api/v1/namespaces/team-a/services/"+service] = &corev1.Service{ObjectMeta: meta}
			w.objects["/apis/apps/v1/namespaces/team-a/deployments/"+service] = &appsv1.Deployment{ObjectMeta: meta}
			c := w.examine().check(t, "owner")
			want := "kube-vitals"
			if service == "metrics-server" {
				want = "metrics-server, not installed by helm or a known addon manager"
			}
			if !strings.Contains(c.Seen, ": "+want) || strings.Contains(c.Seen+c.Cure, "evil") {
				t.Errorf("%s, %s: got %+v", service, mark, c)
			}
		}
	}
}
