package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestManifests builds manifests/base with components and expects the objects that the chart
// renders with the values of these components.
func TestManifests(t *testing.T) {
	for _, components := range [][]string{
		{},
		{"admission-policy"},
		{"cert-manager"},
		{"high-availability"},
		{"insecure-kubelets"},
		{"pinned-kubelets"},
		{"prometheus"},
		{"without-apiservices"},
		{"cert-manager", "high-availability", "insecure-kubelets"},
		{"cert-manager", "pinned-kubelets"},
		{"pinned-kubelets", "cert-manager"},
	} {
		t.Run(strings.Join(components, "+"), func(t *testing.T) {
			var folders []string
			for _, c := range components {
				folders = append(folders, "components/"+c)
			}
			want, got := renderManifests(t, folders...), parse(t, kustomize(t, "base", components))
			compare(t, want, got)
		})
	}
}

// TestPermissionsOfPods checks the chart and the manifests: the container's user is not root and cannot write, those
// who may view a namespace may read its metrics, and the role for the page of nodes has no binding.
func TestPermissionsOfPods(t *testing.T) {
	all := map[string]objects{"chart": render(t), "base": parse(t, kustomize(t, "base", nil))}
	for _, name := range overlays(t) {
		all[name] = parse(t, kustomize(t, "overlays/"+name, nil))
	}
	const security = container + "securityContext."
	const aggregate = `metadata.labels.rbac\.authorization\.k8s\.io/aggregate-to-`
	for name, objs := range all {
		t.Run(name, func(t *testing.T) {
			deployments := 0
			for id := range objs {
				switch kind, _, _ := strings.Cut(id, " "); kind {
				case "Deployment":
					deployments++
					objs.want(t, id, fields{
						security + "readOnlyRootFilesystem": true, security + "runAsNonRoot": true, security + "runAsUser": 65532.0,
						security + "allowPrivilegeEscalation": false, security + "capabilities.drop": []any{"ALL"},
					})
				case "ClusterRoleBinding", "RoleBinding":
					if role := fmt.Sprint(objs.value(t, id, "roleRef.name")); strings.HasSuffix(role, "-nodez-reader") {
						t.Errorf("%s binds %s", id, role)
					}
				}
			}
			if deployments != 1 {
				t.Errorf("got %d Deployments", deployments)
			}
			objs.want(t, "ClusterRole system:kube-vitals-aggregated-reader", fields{
				aggregate + "view": "true", aggregate + "edit": "true", aggregate + "admin": "true",
			})
		})
	}
}

func compare(t *testing.T, want, got objects) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("chart (-) and manifests (+) differ:\n%s", diff)
	}
}

// overlays are the folders of manifests/overlays.
func overlays(t *testing.T) []string {
	t.Helper()
	folders, err := filepath.Glob(filepath.Join(manifests, "overlays", "*"))
	if err != nil || len(folders) == 0 {
		t.Fatalf("got %d overlays, error %v", len(folders), err)
	}
	for i, folder := range folders {
		folders[i] = filepath.Base(folder)
	}
	return folders
}

// renderManifests renders the chart with the values of folders of manifests/, and with the image of
// `make generate`.
func renderManifests(t *testing.T, folders ...string) objects {
	t.Helper()
	files := []string{filepath.Join(manifests, "base", "values.yaml")}
	for _, folder := range folders {
		files = append(files, filepath.Join(manifests, folder, "values.yaml"))
	}
	return mustHelm(t, append(withValues(files...), "--set", "image.tag=v"+readMetadata(t).AppVersion)...)
}

// TestOverlays builds manifests/overlays and expects the objects that the chart renders with their
// values. A move starts with all of them except the APIServices.
func TestOverlays(t *testing.T) {
	for _, name := range overlays(t) {
		t.Run(name, func(t *testing.T) {
			want, got := renderManifests(t, "overlays/"+name), parse(t, kustomize(t, "overlays/"+name, nil))
			compare(t, want, got)
			for id := range want {
				if strings.HasPrefix(id, "APIService ") {
					delete(want, id)
				}
			}
			got = parse(t, kustomize(t, "overlays/"+name, []string{"without-apiservices"}))
			compare(t, want, got)
		})
	}
}

// TestKubePrometheus checks that the overlays for kube-prometheus are in its namespace, that they
// have no object that kube-prometheus has, and that its Prometheus admits the one that queries it.
func TestKubePrometheus(t *testing.T) {
	for _, source := range []string{"kubelet", "prometheus"} {
		t.Run(source, func(t *testing.T) {
			objs := parse(t, kustomize(t, "overlays/kube-prometheus-"+source, nil))
			for id := range objs {
				if strings.Contains(id, "prometheus-adapter") || strings.Contains(id, "aggregated-metrics-reader") ||
					strings.Contains(id, "resource-metrics") {
					t.Errorf("%s has the name of an object of kube-prometheus", id)
				}
			}
			for _, id := range []string{"APIService v1.metrics.k8s.io", "APIService v1beta1.metrics.k8s.io"} {
				if got := objs.value(t, id, "spec.service.namespace"); got != "monitoring" {
					t.Errorf("%s: got namespace %v of the Service", id, got)
				}
			}
			_, readsKubelets := objs["ClusterRole system:kube-vitals-kubelet"]
			if readsKubelets != (source == "kubelet") {
				t.Errorf("permission to read kubelets: got %v", readsKubelets)
			}
			const admits = "NetworkPolicy monitoring/kube-vitals-prometheus"
			if source == "kubelet" {
				insecure := parse(t, kustomize(t, "overlays/kube-prometheus-kubelet", []string{"insecure-kubelets"}))
				args := fmt.Sprint(insecure.value(t, "Deployment monitoring/kube-vitals", "spec.template.spec.containers.0.args"))
				if !strings.Contains(args, "--kubelet-insecure-tls") || strings.Contains(args, "certificate-authority") {
					t.Errorf("with insecure-kubelets: got flags %s", args)
				}
				if objs[admits] != nil {
					t.Errorf("got %s, which is for queries", admits)
				}
				return
			}
			config := fmt.Sprint(objs.value(t, "Secret monitoring/kube-vitals-prometheus", `stringData.config\.yaml`))
			if strings.Count(config, "{") != strings.Count(config, `{job="kubelet",`) ||
				!strings.Contains(config, "matchers:\n  job: kubelet\n") {
				t.Errorf("any pod that Prometheus scrapes can forge metrics: got the configuration\n%s", config)
			}
			client := objs.value(t, admits, "spec.ingress.0.from.0.podSelector.matchLabels").(map[string]any)
			pod := objs.value(t, "Deployment monitoring/kube-vitals", "spec.template.metadata.labels").(map[string]any)
			for name, value := range client {
				if pod[name] != value {
					t.Errorf("Prometheus admits pods with %s=%v, but those of kube-vitals have %v", name, value, pod[name])
				}
			}
		})
	}
}

// kustomize builds a kustomization of manifests/base or an overlay, and components, as a user writes
// it in a folder elsewhere.
func kustomize(t *testing.T, base string, components []string) []byte {
	t.Helper()
	folder, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	source, err := filepath.Abs(manifests)
	must(t, err)
	source, err = filepath.Rel(folder, source) // kustomize rejects absolute paths
	must(t, err)
	text := fmt.Sprintf("resources:\n- %s/%s\ncomponents:\n", source, base)
	for _, c := range components {
		text += fmt.Sprintf("- %s/components/%s\n", source, c)
	}
	must(t, os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte(text), 0o600))
	built, err := run(t, "kubectl", "kustomize", folder)
	must(t, err)
	return built
}
