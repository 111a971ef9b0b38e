package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// pagedNodes is an API server with this number of nodes.
type pagedNodes struct {
	corev1client.NodeInterface

	count int
	err   error // of the second page; nil: none
}

func (p *pagedNodes) List(_ context.Context, options metav1.ListOptions) (*corev1.NodeList, error) {
	if options.ResourceVersion != "" || options.Limit == 0 {
		return nil, fmt.Errorf("got options %+v, want pages of the present state", options)
	}
	first := 0
	if options.Continue != "" {
		var err error
		if first, err = strconv.Atoi(options.Continue); err != nil {
			return nil, err
		}
		if p.err != nil {
			return nil, p.err
		}
	}
	list := &corev1.NodeList{}
	for i := first; i < p.count; i++ {
		if len(list.Items) == int(options.Limit) {
			list.Continue = strconv.Itoa(i)
			break
		}
		list.Items = append(list.Items, corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprint("n", i), UID: types.UID(fmt.Sprint("u", i)),
		}})
	}
	return list, nil
}

// TestListNodes checks that the nodes of all pages are returned, or none.
func TestListNodes(t *testing.T) {
	const count = 1234
	want := map[string]types.UID{}
	for i := range count {
		want[fmt.Sprint("n", i)] = types.UID(fmt.Sprint("u", i))
	}
	got, err := listNodes(t.Context(), &pagedNodes{count: count})
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("got %d nodes and error %v, want %d", len(got), err, count)
	}
	failure := errors.New("connection refused")
	got, err = listNodes(t.Context(), &pagedNodes{count: count, err: failure})
	if !errors.Is(err, failure) || got != nil {
		t.Errorf("got %d nodes and error %v, want no nodes and %v", len(got), err, failure)
	}
}
