package top

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"

	"github.com/kube-vitals/kube-vitals/pkg/internal/pages"
	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// newMetricsClients returns clients of the versions of metrics.k8s.io, which differ in nothing but their name.
// metrics-server has the second one only. Beside the server of a provider, kube-vitals has the first one only.
func newMetricsClients(config *rest.Config) (clients []rest.Interface, err error) {
	for _, version := range []string{"v1", "v1beta1"} {
		group, scheme := schema.GroupVersion{Group: metricsv1.GroupName, Version: version}, runtime.NewScheme()
		metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"}) // for errors
		metav1.AddToGroupVersion(scheme, group)
		scheme.AddKnownTypes(group, &metricsv1.PodMetricsList{}, &metricsv1.NodeMetricsList{})
		c := rest.CopyConfig(config)
		c.GroupVersion, c.APIPath = &group, "/apis"
		c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
		client, err := rest.RESTClientFor(c)
		if err != nil {
			return nil, err
		}
		clients = append(clients, client)
	}
	return clients, nil
}

// key is the namespace and name of an object, and with --containers the name of a container.
type key struct{ namespace, name, container string }

// measured is the usage of a pod, node or container.
type measured struct {
	usage   [len(resources)]value
	at      time.Time
	further map[string]resource.Quantity
}

// resource returns the name of what has metrics.
func (c *Config) resource() string {
	if c.Kind == Nodes {
		return Nodes
	}
	return Pods
}

func (r *reader) get(client rest.Interface, namespace string) *rest.Request {
	return client.Get().NamespaceIfScoped(namespace, namespace != "").Resource(r.resource())
}

// usage returns what metrics.k8s.io has of pods or nodes.
func (r *reader) usage(ctx context.Context) (used map[key]*measured, err error) {
	for i, client := range r.metrics {
		used = map[key]*measured{}
		failure := pages.Each(ctx, func(ctx context.Context, o metav1.ListOptions) (list runtime.Object, err error) {
			list = &metricsv1.PodMetricsList{}
			if r.Kind == Nodes {
				list = &metricsv1.NodeMetricsList{}
			}
			return list, r.get(client, r.Namespace).VersionedParams(&o, metav1.ParameterCodec).Do(ctx).Into(list)
		}, metav1.ListOptions{LabelSelector: r.Selector}, func(item runtime.Object) { r.measure(item, used) })
		if failure == nil {
			r.served = client
			return used, nil
		}
		if i == 0 || apierrors.IsNotFound(err) { // the error of the version that exists
			err = failure
		}
	}
	if apierrors.IsNotFound(err) {
		err = errors.New("no server has this API")
	}
	return nil, r.failed(err, r.resource()+"."+metricsv1.GroupName, "there is no usage; see kubectl vitals doctor")
}

// measure adds the usage of a pod or node. That of a pod is known only if that of each container is.
func (r *reader) measure(item runtime.Object, used map[key]*measured) {
	pod, _ := item.(*metricsv1.PodMetrics)
	if n, ok := item.(*metricsv1.NodeMetrics); ok {
		pod = &metricsv1.PodMetrics{ObjectMeta: n.ObjectMeta, Timestamp: n.Timestamp,
			Containers: []metricsv1.ContainerMetrics{{Usage: n.Usage}}}
	}
	total := &row{}
	sum := &measured{}
	if _, err := pod.Timestamp.MarshalText(); err == nil { // it has no JSON in the year 10,000 and later
		sum.at = pod.Timestamp.Time
	}
	used[key{pod.Namespace, pod.Name, ""}] = sum
	for i, c := range pod.Containers {
		of := &measured{at: sum.at}
		if r.Output != "" {
			of.further = map[string]resource.Quantity{}
		}
		for j, name := range resources {
			of.usage[j] = in(c.Usage, j)
			if delete(c.Usage, name); i > 0 && (!of.usage[j].known() || !sum.usage[j].known()) {
				sum.usage[j] = 0
			} else {
				sum.usage[j] = sum.usage[j].plus(of.usage[j])
			}
		}
		for name, q := range c.Usage {
			if r.Output != "" {
				of.further[string(name)] = q
			}
		}
		total.add(&row{Further: of.further})
		if r.Containers {
			used[key{pod.Namespace, pod.Name, c.Name}] = of
		}
	}
	sum.further = total.Further
}

// Bounds of the requests for reasons.
const (
	maxReasons      = 100
	parallelReasons = 10
	noMetrics       = "no metrics" // where the server has no reason
)

// explain sets why objects have no metrics: kube-vitals has a reason of the closed set in the 404 of each.
func (r *reader) explain(ctx context.Context, missing []*row) {
	var requests errgroup.Group
	requests.SetLimit(parallelReasons)
	for i, o := range missing {
		o.Missing = map[string]int{noMetrics: 1}
		if i >= maxReasons || r.served == nil {
			continue
		}
		requests.Go(func() error {
			var status apierrors.APIStatus
			err := r.get(r.served, o.Namespace).Name(o.Name).Do(ctx).Error()
			if err != nil && !apierrors.IsNotFound(err) {
				return err
			}
			if !errors.As(err, &status) || status.Status().Details == nil {
				return nil
			}
			for _, cause := range status.Status().Details.Causes {
				if reason.Reason(cause.Type).Describe().Problem != "" {
					o.Missing, o.Message = map[string]int{string(cause.Type): 1}, cause.Message
				}
			}
			return nil
		})
	}
	if err := requests.Wait(); err != nil { // the first one
		r.note("cannot get %s.%s: %v: reasons are unknown", r.resource(), metricsv1.GroupName, err)
	}
	hasReason := func(o *row) bool { return o.Missing[noMetrics] == 0 } // metrics-server has none
	if len(missing) > maxReasons && slices.ContainsFunc(missing[:maxReasons], hasReason) {
		r.note("%d %s have no metrics: the reasons of %d were read", len(missing), r.resource(), maxReasons)
	}
}
