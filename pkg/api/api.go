// Package api serves what nodes and pods use as metrics.k8s.io, v1beta1 and v1, through the API
// server library.
//
// It joins two sides when it is asked: what exists (Inventory) and what is used (Usage). An object
// is served when both sides have it; nothing is written, watched or kept here. Content types,
// discovery and OpenAPI are the library's; what this package adds are the two resources, their
// selectors and pages, and their columns. And, because making typed objects and encoding them by
// reflection is nearly all that a long list costs, answers write themselves as JSON, protobuf and
// tables.
package api

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/metrics/pkg/apis/metrics"
	"k8s.io/metrics/pkg/apis/metrics/install"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// Usage knows what is used. *store.Store implements it.
type Usage interface {
	// Pod returns the usage of a pod, as the node to which it is bound reports it, or nil if there
	// is none that may be served at that moment.
	Pod(node, namespace, name string, now usage.Time) *usage.Pod
	// Node returns the usage of a node, or nil if there is none that may be served at that moment.
	Node(name string, now usage.Time) *usage.Node
}

// Inventory knows what exists of one kind. *inventory.Index implements it.
type Inventory interface {
	// Get gives the object of that name, or nil. Nodes have the namespace "".
	Get(namespace, name string) *inventory.Object
	// List returns the objects of a namespace (of all if it is "") that the selector matches,
	// sorted by namespace, name. The slice is the caller's.
	List(namespace string, selector labels.Selector) []*inventory.Object
}

// Config is what the resources are served from.
type Config struct {
	Usage Usage
	Pods  Inventory // of any phase; those that run are served
	Nodes Inventory

	// Now returns the time of a request, with its monotonic reading; Clock converts it to the clock
	// that ages are measured by.
	Now   func() time.Time
	Clock usage.Clock

	// Answered, when set, is told of every answer that has figures: the resource ("nodes" or
	// "pods") and the age of the oldest figure in it.
	Answered func(resource string, oldest time.Duration)
}

// NewScheme gives a scheme with metrics.k8s.io in both versions and the types that every API server
// speaks.
func NewScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	return scheme
}

// NewGroup gives the group metrics.k8s.io for a generic API server to install.
//
// Both versions share their storage. What it answers writes itself as JSON and protobuf of either
// version; for other encodings it makes the internal type, which the library converts to either
// version without copying: the types differ in name only.
func NewGroup(c Config, scheme *runtime.Scheme, codecs serializer.CodecFactory) *genericapiserver.APIGroupInfo {
	group := genericapiserver.NewDefaultAPIGroupInfo(metrics.GroupName, scheme, metav1.ParameterCodec, codecs)
	encodings := newEncodings(&group)
	resources := map[string]rest.Storage{"nodes": newNodes(c, encodings), "pods": newPods(c, encodings)}
	for _, version := range group.PrioritizedVersions {
		group.VersionedResourcesStorageMap[version.Version] = resources
	}
	return &group
}
