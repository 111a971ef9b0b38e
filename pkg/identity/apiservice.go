package identity

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// apiService is an APIService that leads to this server and verifies it.
type apiService struct {
	name, version string // version is that of the object
	caBundle      []byte // PEM
}

// trusts tells whether the CA is in the bundle, as encodePEM writes it.
func (a apiService) trusts(ca *x509.Certificate) bool {
	return bytes.Contains(a.caBundle, encodePEM(ca))
}

// apiServiceObject is the part of an APIService that matters here.
type apiServiceObject struct {
	Spec struct {
		Service *struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"service"`
		InsecureSkipTLSVerify bool   `json:"insecureSkipTLSVerify"`
		CABundle              []byte `json:"caBundle"`
	} `json:"spec"`
}

// readAPIServices gives the APIServices that are this server's affair, and says which could not be read.
func (i *Identity) readAPIServices(ctx context.Context) ([]apiService, error) {
	var services []apiService
	var unread []error
	for _, name := range i.apiServices {
		object, err := i.services.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			i.leaveAlone(ctx, name, "it is not there")
			continue
		}
		if err != nil {
			unread = append(unread, fmt.Errorf("cannot read APIService %s, by which the API server is to trust this server; its "+
				"ServiceAccount needs the right to get, watch and patch it: %w", name, err))
			continue
		}
		var a apiServiceObject
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &a); err != nil {
			unread = append(unread, fmt.Errorf("APIService %s cannot be understood: %w", name, err))
			continue
		}
		why := i.notOurs(a)
		i.leaveAlone(ctx, name, why)
		if why == "" {
			services = append(services, apiService{name, object.GetResourceVersion(), a.Spec.CABundle})
		}
	}
	return services, errors.Join(unread...)
}

// notOurs says why the caBundle of an APIService is not this server's affair.
func (i *Identity) notOurs(a apiServiceObject) string {
	switch {
	case a.Spec.Service == nil:
		return "the API server answers for it itself"
	case a.Spec.Service.Namespace != i.namespace || a.Spec.Service.Name != i.service:
		return "it leads to Service " + a.Spec.Service.Namespace + "/" + a.Spec.Service.Name
	case a.Spec.InsecureSkipTLSVerify:
		return "insecureSkipTLSVerify is true: the API server is to trust anyone"
	default:
		return ""
	}
}

// leaveAlone lets the log say, once, that an APIService is left alone.
func (i *Identity) leaveAlone(ctx context.Context, name, why string) {
	if i.keeper.notes[name] == why {
		return
	}
	i.keeper.notes[name] = why
	if why != "" {
		klog.FromContext(ctx).Info("Leaves the caBundle of an APIService alone", "apiService", name, "because", why)
	}
}

// writeBundle lets an APIService trust the bundle. The patch has nothing but the caBundle, so that everything else stays
// who ever's it is.
func (i *Identity) writeBundle(ctx context.Context, a apiService, bundle []byte) error {
	if err := i.mayWrite("caBundle of APIService " + a.name); err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": a.version},
		"spec":     map[string]any{"caBundle": bundle},
	})
	if err != nil {
		return err
	}
	_, err = i.services.Patch(ctx, a.name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager})
	switch {
	case err == nil:
		klog.FromContext(ctx).Info("Told the API server whom to trust", "apiService", a.name, "trustedCAs", len(readPEM(bundle)))
		return nil
	case apierrors.IsConflict(err):
		return err
	default:
		return fmt.Errorf("cannot write the caBundle of APIService %s, by which the API server is to trust this server; its "+
			"ServiceAccount needs the right to patch it: %w", a.name, err)
	}
}
