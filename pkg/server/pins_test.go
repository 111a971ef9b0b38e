package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// pagedNodes is an API server with a node on each of two pages.
type pagedNodes struct {
	corev1client.NodeInterface

	err error // of the second page; nil: none
}

func (p pagedNodes) List(_ context.Context, options metav1.ListOptions) (*corev1.NodeList, error) {
	if options.ResourceVersion != "" || options.Limit == 0 {
		return nil, fmt.Errorf("got options %+v, want pages of the present state", options)
	}
	list, node := &corev1.NodeList{}, corev1.Node{}
	if node.Name, node.UID = "n2", "u2"; options.Continue == "" {
		node.Name, node.UID, list.Continue = "n1", "u1", "n2"
	} else if p.err != nil {
		return nil, p.err
	}
	list.Items = append(list.Items, node)
	return list, nil
}

// TestListNodes checks that the nodes of all pages are returned, or an error: the pins of others are removed.
func TestListNodes(t *testing.T) {
	got, err := listNodes(t.Context(), pagedNodes{})
	if want := map[string]types.UID{"n1": "u1", "n2": "u2"}; err != nil || !maps.Equal(got, want) {
		t.Errorf("got %v and error %v, want %v", got, err, want)
	}
	failure := errors.New("connection refused")
	if _, err = listNodes(t.Context(), pagedNodes{err: failure}); !errors.Is(err, failure) {
		t.Errorf("got error %v, want %v", err, failure)
	}
}
