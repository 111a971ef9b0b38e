package pins

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/kube-vitals/kube-vitals/pkg/internal/fakeapi"
)

// fakeAPI is an API server with at most one ConfigMap.
type fakeAPI struct {
	*fakeapi.API
	client corev1client.ConfigMapInterface
}

const configMapPath = "/api/v1/namespaces/kube-system/configmaps/pins"

// newAPI returns an API server with the empty ConfigMap of the chart.
func newAPI(t *testing.T) *fakeAPI {
	t.Helper()
	a := &fakeAPI{API: fakeapi.New()}
	client, err := corev1client.NewForConfig(a.Config())
	if err != nil {
		t.Fatal(err)
	}
	a.client = client.ConfigMaps("kube-system")
	a.put(&corev1.ConfigMap{})
	return a
}

// put replaces the ConfigMap as another client would; nil deletes it.
func (a *fakeAPI) put(object *corev1.ConfigMap) {
	if object == nil {
		a.Put(configMapPath, nil)
		return
	}
	object.APIVersion, object.Kind, object.Name = "v1", "ConfigMap", "pins"
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		panic(err)
	}
	a.Put(configMapPath, content)
}

// patch changes the entries as another client would; nil removes one.
func (a *fakeAPI) patch(node string, value any) {
	a.Patch(configMapPath, map[string]any{"data": map[string]any{node: value}})
}

// fail makes all requests fail and ends the watches; nil: requests succeed.
func (a *fakeAPI) fail(failure *fakeapi.Refusal) {
	a.RefuseBy(func(string, string) *fakeapi.Refusal { return failure })
	a.EndWatches()
}

// data returns the entries.
func (a *fakeAPI) data() map[string]string {
	data, _ := a.Get(configMapPath)["data"].(map[string]any)
	entries := map[string]string{}
	for node, value := range data {
		entries[node], _ = value.(string)
	}
	return entries
}
