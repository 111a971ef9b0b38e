package api

import (
	"bytes"
	"net/http"
	"testing"

	"github.com/kube-vitals/kube-vitals/pkg/extra"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestObjectsWithoutDevices checks that responses are the same to the byte whether devices are off,
// on without values, or on with values of other pods.
func TestObjectsWithoutDevices(t *testing.T) {
	elsewhere := extra.New(store.New(store.Config{}).Corrected)
	elsewhere.Put("node-a", "dcgm", extra.Report{
		At: usage.At(now), Expires: usage.At(now) + 1e9,
		Containers: []extra.ContainerResource{{
			Namespace: "other", Pod: "web-1", Container: "main", Resource: usage.Resource{Name: "nvidia.com/gpu", Value: 1},
		}},
	})
	off := serve(t, newConfig())
	for name, extra := range map[string]*extra.Store{
		"no values": extra.New(store.New(store.Config{}).Corrected), "values elsewhere": elsewhere,
	} {
		config := newConfig()
		config.View.Extra = extra
		on := serve(t, config)
		for _, path := range []string{
			"/apis/metrics.k8s.io/v1/pods", "/apis/metrics.k8s.io/v1beta1/namespaces/apps/pods/web-1",
			"/apis/metrics.k8s.io/v1beta1/nodes", "/apis/metrics.k8s.io/v1/nodes/node-a",
		} {
			for _, accept := range []string{jsonType, yamlType, protobufType, tableType} {
				want, got := do(off, http.MethodGet, path, accept), do(on, http.MethodGet, path, accept)
				if want.Code != http.StatusOK || got.Code != want.Code || !bytes.Equal(got.Body.Bytes(), want.Body.Bytes()) {
					t.Errorf("%s, %s as %s: got %d\n%s\nwant %d\n%s", name, path, accept, got.Code, got.Body, want.Code, want.Body)
				}
			}
		}
	}
}
