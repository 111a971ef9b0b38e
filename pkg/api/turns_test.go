package api

import (
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/kube-vitals/kube-vitals/pkg/internal/fair"
)

// TestSelectionsTakeTurns checks that lists of a user wait for others of the same user, and no one else.
func TestSelectionsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		group := NewGroup(newConfig(), NewScheme(), serializer.NewCodecFactory(NewScheme()))
		pods, ok := group.VersionedResourcesStorageMap["v1"]["pods"].(*collection)
		if !ok {
			t.Fatal("the storage of pods is not a collection")
		}
		list := func(name string) error {
			ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: name})
			_, err := pods.List(ctx, &metainternalversion.ListOptions{})
			return err
		}
		pods.turns = fair.NewTurns(1)
		done, err := pods.turns.Take(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		if err := list("b"); err != nil {
			t.Errorf("another user: got %v", err)
		}
		if err := list("a"); !apierrors.IsTooManyRequests(err) {
			t.Errorf("the same user: got %v, want 429", err)
		}
		done()
		if err := list("a"); err != nil {
			t.Errorf("after the other list: got %v", err)
		}
	})
}
