package servingcert

import (
	"context"
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// readAPIServices returns the APIServices whose caBundle this server manages, and an error for
// those that it could not read.
func (m *Manager) readAPIServices(ctx context.Context) ([]*apiService, error) {
	services, err := m.monitor.read(ctx)
	services = slices.DeleteFunc(services, func(a *apiService) bool {
		return !m.monitor.service.isBackendOf(a) || a.Spec.InsecureSkipTLSVerify
	})
	return services, requestError(err, "read an APIService", "get, watch and patch")
}

// writeBundle writes the bundle into an APIService. The patch has only the caBundle, so that all
// other fields keep their owners.
func (m *Manager) writeBundle(ctx context.Context, a *apiService, s state) error {
	if err := m.allowWrite("caBundle of APIService " + a.Metadata.Name); err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": a.Metadata.ResourceVersion},
		"spec":     map[string]any{"caBundle": s.bundle},
	})
	if err != nil {
		return err
	}
	options := metav1.PatchOptions{FieldManager: fieldManager}
	if _, err = m.monitor.client.Patch(ctx, a.Metadata.Name, types.MergePatchType, patch, options); err != nil {
		return requestError(err, "write the caBundle of APIService "+a.Metadata.Name, "patch")
	}
	m.writes.Allow()
	klog.FromContext(ctx).Info("Wrote the caBundle of the APIService", "apiService", a.Metadata.Name,
		"trustedCAs", len(s.cas()))
	return nil
}
