package top

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-vitals/kube-vitals/pkg/internal/pages"
)

// Bounds of what tenants can make the plugin read: lists of owners, and owners of owners.
const (
	maxOwnerLists = 20
	maxOwners     = 8
)

// controllerOf returns the controller of an object, or nil. The Node that owns a static pod is none. Users who may
// create the object choose all of it.
func controllerOf(o metav1.Object) *metav1.OwnerReference {
	c := metav1.GetControllerOfNoCopy(o)
	if c != nil && c.Kind == "Node" && c.APIVersion == "v1" {
		return nil
	}
	return c
}

// parents returns the controllers of the pods' controllers, and theirs, by the UID of what they control, as far as the
// user may list them.
func (r *reader) parents(ctx context.Context, pods []*row) map[types.UID]*metav1.OwnerReference {
	parents, wanted := map[types.UID]*metav1.OwnerReference{}, map[types.UID]*metav1.OwnerReference{}
	for _, p := range pods {
		if p.owner != nil {
			wanted[p.owner.UID] = p.owner
		}
	}
	for lists := 0; len(wanted) > 0; {
		kinds, next := map[schema.GroupVersionKind]bool{}, map[types.UID]*metav1.OwnerReference{}
		for _, o := range wanted {
			kinds[schema.FromAPIVersionAndKind(o.APIVersion, o.Kind)] = true
		}
		for _, kind := range slices.SortedFunc(maps.Keys(kinds), func(a, b schema.GroupVersionKind) int {
			return cmp.Compare(a.String(), b.String())
		}) {
			// A kind that no API has is not a part of a path.
			mapping, err := r.mapper.RESTMappingWithContext(ctx, kind.GroupKind(), kind.Version)
			if err != nil && !meta.IsNoMatchError(err) {
				r.note("cannot find out which APIs there are: %v: workloads end at the owners of pods", err)
				return parents
			}
			if err != nil || mapping.Scope.Name() != meta.RESTScopeNameNamespace {
				continue
			}
			if lists++; lists > maxOwnerLists {
				r.note("owners of more than %d kinds are not read", maxOwnerLists)
				return parents
			}
			objects := r.metadata.Resource(mapping.Resource).Namespace(r.Namespace)
			err = pages.Each(ctx, objects.List, metav1.ListOptions{}, func(o *metav1.PartialObjectMetadata) {
				if c := controllerOf(o); c != nil && wanted[o.UID] != nil && parents[o.UID] == nil {
					parents[o.UID], next[c.UID] = c, c
				}
			})
			_ = r.failed(err, mapping.Resource.GroupResource().String(), "workloads end at the last owner that can be read")
		}
		wanted = next
	}
	return parents
}

// workload returns the object at the top of a pod's owners, with its autoscalers. A pod without owner is one.
func workload(p *row, parents map[types.UID]*metav1.OwnerReference, scalers map[id][]autoscaler) *row {
	r := &row{Namespace: p.Namespace, APIVersion: p.APIVersion, Kind: p.Kind, Name: p.Name}
	for o, n := p.owner, 0; o != nil && n < maxOwners; o, n = parents[o.UID], n+1 {
		r.APIVersion, r.Kind, r.Name = o.APIVersion, o.Kind, o.Name
		r.Autoscalers = append(r.Autoscalers, scalers[r.id()]...)
	}
	return r
}

// kindAndName returns the kind and name of a row, such as deployment/web.
func (r *row) kindAndName() string { return strings.ToLower(r.Kind) + "/" + r.Name }

// fullName returns the kind and name of a row as kubectl -o name does, such as deployment.apps/web.
func (r *row) fullName() string { return strings.ToLower(r.id().kind.String()) + "/" + r.Name }

// id identifies an object, which may be of several versions of its kind.
type id struct {
	namespace, name string
	kind            schema.GroupKind
}

func (r *row) id() id {
	return id{r.Namespace, r.Name, schema.FromAPIVersionAndKind(r.APIVersion, r.Kind).GroupKind()}
}

// autoscaler is a metric of a HorizontalPodAutoscaler: what it has seen, and what it wants.
type autoscaler struct {
	Name    string `json:"name"`
	Metric  string `json:"metric"`
	Current string `json:"current,omitempty"` // empty: it has no metrics
	Target  string `json:"target"`
}

// autoscalers returns the HorizontalPodAutoscalers by what they scale, with their metrics of CPU and memory.
func (r *reader) autoscalers(ctx context.Context) map[id][]autoscaler {
	found := map[id][]autoscaler{}
	err := pages.Each(ctx, r.kube.AutoscalingV2().HorizontalPodAutoscalers(r.Namespace).List, metav1.ListOptions{},
		func(h *autoscalingv2.HorizontalPodAutoscaler) {
			to := h.Spec.ScaleTargetRef
			scaled := (&row{Namespace: h.Namespace, APIVersion: to.APIVersion, Kind: to.Kind, Name: to.Name}).id()
			found[scaled] = append(found[scaled], metricsOf(h)...)
		})
	_ = r.failed(err, "horizontalpodautoscalers.autoscaling", "the column HPA is empty")
	return found
}

// metricsOf returns the metrics of an autoscaler. While one fails, the status has an empty one in its place, or none.
func metricsOf(h *autoscalingv2.HorizontalPodAutoscaler) (all []autoscaler) {
	seen := map[string]string{}
	for _, m := range h.Status.CurrentMetrics {
		if c := m.ContainerResource; c != nil {
			seen[c.Name.String()+" of "+c.Container] = average(c.Current.AverageUtilization, c.Current.AverageValue)
		} else if c := m.Resource; c != nil {
			seen[c.Name.String()] = average(c.Current.AverageUtilization, c.Current.AverageValue)
		}
	}
	for _, m := range h.Spec.Metrics {
		var name string
		var want autoscalingv2.MetricTarget
		if c := m.ContainerResource; c != nil {
			name, want = c.Name.String()+" of "+c.Container, c.Target
		} else if c := m.Resource; c != nil {
			name, want = c.Name.String(), c.Target
		} else {
			continue
		}
		all = append(all, autoscaler{h.Name, name, seen[name], average(want.AverageUtilization, want.AverageValue)})
	}
	return all
}

func average(utilization *int32, usage *resource.Quantity) string {
	switch {
	case utilization != nil:
		return fmt.Sprintf("%d%%", *utilization)
	case usage != nil:
		return usage.String()
	}
	return ""
}
