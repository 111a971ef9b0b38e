package server

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
)

// told records what a scraper would be told.
type told []string

func (t *told) Set(node *corev1.Node) {
	*t = append(*t, "set "+node.Name+" "+node.Status.Addresses[0].Address)
}
func (t *told) Delete(name string)      { *t = append(*t, "delete "+name) }
func (t *told) take() (events []string) { events, *t = *t, nil; return events }

func node(name, address string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Address: address}}},
	}
}

func TestNodesAreIndexedAndScraped(t *testing.T) {
	var events told
	s := &nodeStore{Index: inventory.New(), scraper: &events}
	for _, step := range []struct {
		name string
		do   func() error
		told []string // to the scraper
		has  []string // that exist afterwards
	}{
		{"the first list", func() error { return s.Replace([]any{node("a", "1"), node("b", "2")}, "1") },
			[]string{"set a 1", "set b 2"}, []string{"a", "b"}},
		{"a new node", func() error { return s.Add(node("c", "3")) }, []string{"set c 3"}, []string{"a", "b", "c"}},
		{"another address", func() error { return s.Update(node("a", "4")) }, []string{"set a 4"}, []string{"a", "b", "c"}},
		{"a node that goes", func() error { return s.Delete(node("b", "2")) }, []string{"delete b"}, []string{"a", "c"}},
		{"one whose end was missed", func() error { return s.Delete(cache.DeletedFinalStateUnknown{Key: "c", Obj: node("c", "3")}) },
			[]string{"delete c"}, []string{"a"}},
		{"a list after an outage", func() error { return s.Replace([]any{node("d", "5")}, "9") },
			[]string{"delete a", "set d 5"}, []string{"d"}},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := events.take(); !slices.Equal(got, step.told) {
			t.Errorf("%s: the scraper is told %q, want %q", step.name, got, step.told)
		}
		for _, name := range []string{"a", "b", "c", "d"} {
			if has := s.Get("", name) != nil; has != slices.Contains(step.has, name) {
				t.Errorf("%s: the index has %s: %v", step.name, name, has)
			}
		}
	}
	if err := s.Add(&corev1.Pod{}); err == nil {
		t.Error("a pod is taken for a node")
	}
}

// synced is a scraper that notes whether the nodes were taken for synced before it knew one of
// them.
type synced struct {
	store *nodeStore
	early bool
}

func (s *synced) Set(*corev1.Node) { s.early = s.early || s.store.HasSynced() }
func (s *synced) Delete(string)    {}

func TestNodesAreSyncedWhenTheScraperKnowsThem(t *testing.T) {
	var scraper synced
	s := &nodeStore{Index: inventory.New(), scraper: &scraper}
	scraper.store = s
	if s.HasSynced() {
		t.Error("synced before the first list")
	}
	if err := s.Replace([]any{node("a", "1"), node("b", "2")}, "1"); err != nil {
		t.Fatal(err)
	}
	if !s.HasSynced() || scraper.early {
		t.Errorf("after the first list: synced %v, too early %v", s.HasSynced(), scraper.early)
	}
}

func TestSlim(t *testing.T) {
	whole := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:          "a",
			UID:           "u",
			Labels:        map[string]string{"zone": "a"},
			Annotations:   map[string]string{kubelet.PathAnnotation: "/path", "other": "long"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet"}},
		},
		Spec: corev1.NodeSpec{PodCIDR: "10.0.0.0/24"},
		Status: corev1.NodeStatus{
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
			Images:          []corev1.ContainerImage{{Names: []string{"image"}}},
			Capacity: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("4"),
				corev1.ResourceMemory: resource.MustParse("16Gi"),
			},
		},
	}
	before := whole.DeepCopy()
	want := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{
			Name:        "a",
			UID:         "u",
			Labels:      map[string]string{"zone": "a"},
			Annotations: map[string]string{kubelet.PathAnnotation: "/path"},
		},
		Status: corev1.NodeStatus{
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.1"}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}},
			Capacity:        corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4")},
		},
	}
	transformed, err := (&nodeStore{}).Transformer()(whole)
	if err != nil {
		t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(transformed, want) {
		t.Errorf("got %+v\nwant %+v", transformed, want)
	}
	if !equality.Semantic.DeepEqual(whole, before) {
		t.Error("the node itself was changed")
	}
}
