// Package pages reads LISTs in pages.
package pages

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/pager"
)

// Each calls f for each object of a LIST, which is read in pages of 500. While f needs nothing of an object afterwards,
// two pages are in memory at most.
func Each[List runtime.Object, Item any](ctx context.Context,
	list func(context.Context, metav1.ListOptions) (List, error), o metav1.ListOptions, f func(Item)) error {
	pages := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) })
	pages.PageBufferSize = 0
	return pages.EachListItem(ctx, o, func(item runtime.Object) error {
		f(any(item).(Item))
		return nil
	})
}
