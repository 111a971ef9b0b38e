package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

const podPath = "/api/v1/namespaces/shop/pods/"

// pod returns a pod with the label app and in the phase.
func pod(app string, phase corev1.PodPhase) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}}, Status: corev1.PodStatus{Phase: phase},
	}
}

// TestInformer compares what an informer of client-go knows with the selected objects, in JSON and in protobuf, while
// they change and while watches end.
func TestInformer(t *testing.T) {
	for _, contentType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		synctest.Test(t, func(t *testing.T) {
			api := NewAPI()
			api.Put(podPath+"first", pod("web", corev1.PodRunning))
			api.Put("/api/v1/nodes/web", corev1.Node{})
			config := api.Config()
			config.ContentType = contentType
			factory := informers.NewSharedInformerFactoryWithOptions(kubernetes.NewForConfigOrDie(config), 0,
				informers.WithNamespace("shop"), informers.WithTweakListOptions(func(o *metav1.ListOptions) {
					o.LabelSelector, o.FieldSelector = "app=web", "status.phase=Running"
				}))
			pods := factory.Core().V1().Pods().Informer()
			ctx, cancel := context.WithCancel(t.Context())
			defer factory.Shutdown()
			defer cancel()
			factory.Start(ctx.Done())
			if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced) {
				t.Fatal("not synced")
			}
			check := func(what string, want ...string) {
				t.Helper()
				time.Sleep(time.Minute)
				got := pods.GetStore().ListKeys()
				if slices.Sort(got); !slices.Equal(got, want) {
					t.Errorf("%s, %s: got %q, want %q", contentType, what, got, want)
				}
			}
			check("list", "shop/first")
			api.Put(podPath+"second", pod("web", corev1.PodRunning))
			api.Put(podPath+"other", pod("db", corev1.PodRunning))
			api.Put("/api/v1/namespaces/bank/pods/web", pod("web", corev1.PodRunning))
			check("added", "shop/first", "shop/second")
			api.Patch(podPath+"first", map[string]any{"status": map[string]any{"phase": "Succeeded"}})
			check("not selected any more", "shop/second")
			api.EndWatches()
			api.Put(podPath+"third", pod("web", corev1.PodRunning))
			api.Put(podPath+"second", nil)
			check("changed while watches end", "shop/third")
		})
	}
}

// TestWrites checks creation, conflicts and deletion.
func TestWrites(t *testing.T) {
	api := NewAPI()
	pods := kubernetes.NewForConfigOrDie(api.Config()).CoreV1().Pods("shop")
	web := pod("web", corev1.PodRunning)
	web.GenerateName = "web-"
	created, err := pods.Create(t.Context(), &web, metav1.CreateOptions{})
	if err != nil || !strings.HasPrefix(created.Name, "web-") {
		t.Fatalf("got %q, %v", created.Name, err)
	}
	if _, err := pods.Create(t.Context(), created, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("got %v for a name that exists", err)
	}
	if _, err := pods.Update(t.Context(), created, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
	api.Patch(podPath+created.Name, map[string]any{"spec": map[string]any{"nodeName": "n1"}})
	if _, err := pods.Update(t.Context(), created, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("got %v for an old version", err)
	}
	if err := pods.Delete(t.Context(), created.Name, metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := pods.Get(t.Context(), created.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("got %v for a deleted pod", err)
	}
	if n := api.Written(); n != 3 {
		t.Errorf("got %d writes, want 3", n)
	}
}

// TestReviews checks that reviews call the functions, in JSON and in protobuf.
func TestReviews(t *testing.T) {
	api := NewAPI()
	api.Authenticate = func(token string) *authenticationv1.UserInfo {
		if token == "invalid" {
			return nil
		}
		return &authenticationv1.UserInfo{Username: token}
	}
	api.Authorize = func(_ context.Context, spec *authorizationv1.SubjectAccessReviewSpec) bool {
		return spec.User == "alice" && spec.ResourceAttributes.Verb == "get"
	}
	for _, contentType := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		config := api.Config()
		config.ContentType = contentType
		c := kubernetes.NewForConfigOrDie(config)
		for _, token := range []string{"invalid", "alice", "bob"} {
			r, err := c.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
				Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
			if err != nil || r.Status.Authenticated != (token != "invalid") {
				t.Errorf("%s, %s: got %+v, %v", contentType, token, r, err)
			}
			a, err := c.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), &authorizationv1.SubjectAccessReview{
				Spec: authorizationv1.SubjectAccessReviewSpec{User: token,
					ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get"}}}, metav1.CreateOptions{})
			if err != nil || a.Status.Allowed != (token == "alice") {
				t.Errorf("%s, %s: got %+v, %v", contentType, token, a, err)
			}
		}
	}
}

// TestRefusals checks error responses and refused connections.
func TestRefusals(t *testing.T) {
	api := NewAPI()
	nodes := kubernetes.NewForConfigOrDie(api.Config()).CoreV1().Nodes()
	for _, c := range []struct {
		refuse  func()
		isRight func(error) bool
	}{
		{func() { api.Forbid("get", "/api/v1/nodes") }, apierrors.IsForbidden},
		{func() { api.Forbid("patch", "") }, func(err error) bool { return err == nil }},
		{func() { api.RefuseBy(func(string, string) *Refusal { return &Refusal{} }) },
			func(err error) bool { return errors.Is(err, errRefused) }},
		{func() { api.RefuseBy(nil) }, func(err error) bool { return err == nil }},
	} {
		c.refuse()
		if _, err := nodes.List(t.Context(), metav1.ListOptions{}); !c.isRight(err) {
			t.Error(fmt.Errorf("unexpected: %w", err))
		}
	}
}
