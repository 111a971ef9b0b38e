package inventory

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// podsPerPage is the maximum number of pods in one response. Listing keeps only one page of whole
// pods in memory.
const podsPerPage = 500

// podPages is a client for pods that reduces each page of a list to Objects. A Reflector would keep
// the whole pods of all pages until the last one arrived.
type podPages struct{ corev1client.PodInterface }

// List returns a page.
func (p podPages) List(ctx context.Context, options metav1.ListOptions) (*metav1.List, error) {
	// API servers ignore the limit, or return old pods, with any other version, such as the
	// Reflector's "0".
	options.ResourceVersion = ""
	page, err := p.PodInterface.List(ctx, options)
	if apierrors.IsResourceExpired(err) && options.Continue != "" {
		// The Reflector starts again. With the error itself, it would list all pods in one response.
		return nil, errors.New("the list of pods expired before its last page: " + err.Error())
	}
	if err != nil {
		return nil, err
	}
	batch := newSharing()
	list := &metav1.List{ListMeta: page.ListMeta, Items: make([]runtime.RawExtension, len(page.Items))}
	for i := range page.Items {
		o, err := NewObject(&page.Items[i])
		if err != nil {
			return nil, err
		}
		batch.adopt(o)
		list.Items[i].Object = o
	}
	return list, nil
}

// IsWatchListSemanticsUnSupported makes a Reflector list in pages. Streaming the list as events of
// the watch takes more CPU. The name is the library's.
func (podPages) IsWatchListSemanticsUnSupported() bool { return true }
