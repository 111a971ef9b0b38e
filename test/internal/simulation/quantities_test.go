package simulation

import (
	"maps"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestParseQuantities(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]quantities{
		"250m":                {"": 0.25},
		"64Mi":                {"": 64 << 20},
		"app=1500m":           {"app": 1.5},
		"app=2, proxy = 5m":   {"app": 2, "proxy": 0.005},
		"100m,proxy=0":        {"": 0.1, "proxy": 0},
		"":                    nil,
		"app":                 nil,
		"app=":                nil,
		"app=1,":              nil,
		"app=-1":              nil,
		"app=1 core,proxy=5m": nil,
	} {
		got, err := parseQuantities(text)
		if !maps.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("parseQuantities(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestQuantitiesOf(t *testing.T) {
	t.Parallel()
	q := quantities{"": 1, "proxy": 0}
	for container, want := range map[string]float64{"app": 1, "proxy": 0} {
		if got, ok := q.of(container); got != want || !ok {
			t.Errorf("of(%q) = %g, %t, want %g", container, got, ok, want)
		}
	}
	if got, ok := quantities(nil).of("app"); ok {
		t.Errorf("of() without quantities = %g, want none", got)
	}
}

func TestDefaultUsage(t *testing.T) {
	t.Parallel()
	first, again, other := defaultUsage("ns", "pod", "a"), defaultUsage("ns", "pod", "a"), defaultUsage("ns", "pod", "b")
	if first != again || first == other {
		t.Errorf("got %v, then %v, and for another container %v", first, again, other)
	}
	if first.CPU < 0.005 || first.CPU > 0.1 || first.Memory < 16<<20 || first.Memory > 143<<20 {
		t.Errorf("got %v, want 5m to 100m and 16 to 143 MiB", first)
	}
}

func TestDeploymentOf(t *testing.T) {
	t.Parallel()
	controlled := func(kind, name string) []metav1.OwnerReference {
		isController := true
		return []metav1.OwnerReference{{Kind: kind, Name: name, Controller: &isController}}
	}
	hash := map[string]string{appsv1.DefaultDeploymentUniqueLabelKey: "5d4bb88c87"}
	for name, test := range map[string]struct {
		meta metav1.ObjectMeta
		want deploymentKey
	}{
		"Deployment": {
			metav1.ObjectMeta{Namespace: "shop", Labels: hash, OwnerReferences: controlled("ReplicaSet", "my-web-5d4bb88c87")},
			deploymentKey{"shop", "my-web"},
		},
		"ReplicaSet without Deployment": {
			metav1.ObjectMeta{Namespace: "shop", OwnerReferences: controlled("ReplicaSet", "web")}, deploymentKey{},
		},
		"Job": {
			metav1.ObjectMeta{Namespace: "shop", Labels: hash, OwnerReferences: controlled("Job", "web-5d4bb88c87")},
			deploymentKey{},
		},
		"no owner": {metav1.ObjectMeta{Namespace: "shop", Labels: hash}, deploymentKey{}},
	} {
		if got := deploymentOf(&corev1.Pod{ObjectMeta: test.meta}); got != test.want {
			t.Errorf("%s: got %v, want %v", name, got, test.want)
		}
	}
}
