package server

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// oneNode is an API server with the node n1.
type oneNode struct {
	corev1client.NodeInterface

	err error // of a list
}

func (o oneNode) List(_ context.Context, options metav1.ListOptions) (*corev1.NodeList, error) {
	list := &corev1.NodeList{}
	if options.FieldSelector == "metadata.name=n1" && options.ResourceVersion == "" { // the present state
		list.Items = []corev1.Node{{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1"}}}
	}
	return list, o.err
}

func TestReadUID(t *testing.T) {
	failure := errors.New("connection refused")
	for name, test := range map[string]struct {
		node string
		err  error
		want types.UID
	}{
		"exists":      {"n1", nil, "u1"},
		"deleted":     {"n2", nil, ""},
		"unavailable": {"n1", failure, ""},
	} {
		if got, err := readUID(t.Context(), oneNode{err: test.err}, test.node); got != test.want || !errors.Is(err, test.err) {
			t.Errorf("%s: got %q and error %v, want %q and %v", name, got, err, test.want, test.err)
		}
	}
}
