package servingcert

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// apiService is an APIService that leads to this server and verifies it.
type apiService struct {
	name, version string // version is that of the object
	caBundle      []byte // PEM
}

// trusts reports whether the CA is in the bundle, as encodePEM writes it.
func (a apiService) trusts(ca *x509.Certificate) bool {
	return bytes.Contains(a.caBundle, encodePEM(ca))
}

// readAPIServices returns the APIServices whose caBundle this server keeps, and an error for those
// that it could not read.
func (m *Manager) readAPIServices(ctx context.Context) ([]apiService, error) {
	var services []apiService
	var unread []error
	for _, name := range m.apiServices {
		object, err := m.monitor.read(ctx, name)
		switch {
		case apierrors.IsNotFound(err): // the monitor has said so
		case err != nil:
			unread = append(unread, fmt.Errorf("cannot read APIService %s, by which the API server is to trust this server; its "+
				"ServiceAccount needs the right to get, watch and patch it: %w", name, err))
		case m.monitor.service.isBackendOf(object) && !object.Spec.InsecureSkipTLSVerify:
			services = append(services, apiService{name, object.Metadata.ResourceVersion, object.Spec.CABundle})
		}
	}
	return services, errors.Join(unread...)
}

// writeBundle makes an APIService trust the bundle. The patch has nothing but the caBundle, so that
// everything else stays with its owner.
func (m *Manager) writeBundle(ctx context.Context, a apiService, bundle []byte) error {
	if err := m.allowWrite("caBundle of APIService " + a.name); err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": a.version},
		"spec":     map[string]any{"caBundle": bundle},
	})
	if err != nil {
		return err
	}
	_, err = m.monitor.client.Patch(ctx, a.name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager})
	switch {
	case err == nil:
		klog.FromContext(ctx).Info("Wrote the CAs by which the API server verifies this server", "apiService", a.name,
			"trustedCAs", len(readPEM(bundle)))
		return nil
	case apierrors.IsConflict(err):
		return err
	default:
		return fmt.Errorf("cannot write the caBundle of APIService %s, by which the API server is to trust this server; its "+
			"ServiceAccount needs the right to patch it: %w", a.name, err)
	}
}
