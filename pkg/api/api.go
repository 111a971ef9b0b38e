// Package api serves the usage of nodes and pods as metrics.k8s.io, v1beta1 and v1, with the API
// server library.
//
// Each request reads the known objects and their usage from a view.View. An Explainer explains why
// an object has no usage. The package keeps no state except the memory that responses have
// reserved. The library provides content types, discovery and OpenAPI; this package adds the two
// resources with their selectors, pages and columns. Package encode writes the responses.
package api

import (
	"context"
	"iter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/metrics/pkg/apis/metrics"
	"k8s.io/metrics/pkg/apis/metrics/install"

	"github.com/kube-vitals/kube-vitals/pkg/api/encode"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
	"github.com/kube-vitals/kube-vitals/pkg/view"
)

// Explainer explains why objects of one kind have no metrics. *explain.Pods and *explain.Nodes
// implement it.
type Explainer interface {
	// Explain returns why an object, which may not exist, has no metrics. The text is for users who
	// may get all objects of the kind, of pods in the namespace.
	Explain(ctx context.Context, namespace, name string, now time.Time) (reason.Reason, string)
	// Summarize returns how many of the known objects have no metrics, by reason, as the end of a
	// sentence. It waits for nothing.
	Summarize(missing []*inventory.Object, now time.Time) string
}

// Config configures the resources.
type Config struct {
	View *view.View

	// ExplainPods and ExplainNodes explain what is missing to users who may get all nodes, or all
	// pods of the namespace, as Authorizer decides. Other users learn only that it is missing, and
	// whether the pod runs or the node is known.
	ExplainPods, ExplainNodes Explainer
	Authorizer                authorizer.Authorizer
	// FromEngine is set if usage is read from an engine: NotFound errors then do not name a kubelet.
	FromEngine bool
	// Warnings enables a Warning header in tables that have no row for some of the objects.
	Warnings bool

	// Now returns the current time with its monotonic reading. Clock converts it to the clock that
	// measures ages.
	Now   func() time.Time
	Clock usage.Clock

	// NoteRead is called for each read of the metrics of nodes, or of pods on them, by name or by label
	// selector. A node may occur several times, or be "". It may be nil.
	NoteRead func(nodes iter.Seq[string])

	// ObserveAnswerAge is called for each response with metrics, with the resource ("nodes" or "pods")
	// and the age of the oldest metrics in the response.
	ObserveAnswerAge func(resource string, age time.Duration)
}

// NewScheme returns a scheme with metrics.k8s.io in both versions, the types that all API servers share, and the
// fields that select pods.
func NewScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, version := range scheme.PrioritizedVersionsForGroup(metrics.GroupName) {
		// It fails only without a function.
		_ = scheme.AddFieldLabelConversionFunc(version.WithKind("PodMetrics"), podField)
	}
	return scheme
}

// NewGroup returns the API group metrics.k8s.io for a generic API server to install.
//
// Both versions share their storage. Responses encode themselves as JSON and protobuf of either
// version. For other formats they create the internal type, which the library converts without
// copying, since the types of the versions differ only in name.
func NewGroup(c Config, scheme *runtime.Scheme, codecs serializer.CodecFactory) *genericapiserver.APIGroupInfo {
	group := genericapiserver.NewDefaultAPIGroupInfo(metrics.GroupName, scheme, metav1.ParameterCodec, codecs)
	encoder := encode.NewEncoder(group.NegotiatedSerializer, group.PrioritizedVersions)
	turns := newTurns()
	nodes := &collection{nodes{c.View}, c.ExplainNodes, encoder, turns, c}
	pods := &collection{pods{c.View}, c.ExplainPods, encoder, turns, c}
	storage := map[string]rest.Storage{"nodes": nodes, "pods": pods}
	for _, version := range group.PrioritizedVersions {
		group.VersionedResourcesStorageMap[version.Version] = storage
	}
	return &group
}
