package top

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/kube-vitals/kube-vitals/pkg/internal/pages"
)

// reader reads the API server as the user. What the user may not read is unknown, and noted.
type reader struct {
	*Config
	kube     kubernetes.Interface
	metadata metadata.Interface
	mapper   meta.RESTMapperWithContext
	metrics  []rest.Interface // by versions of metrics.k8s.io

	served rest.Interface // of metrics; nil: none could be read
	mu     sync.Mutex
	notes  []string // what could not be read
}

func newReader(c *Config) (*reader, error) {
	config := rest.CopyConfig(c.Client)
	config.QPS, config.Burst, config.WarningHandler = 50, 100, rest.NoWarnings{}
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	found := memory.NewMemCacheClientWithContext(discovery.ToDiscoveryInterfaceWithContext(kube.Discovery()))
	mapper := restmapper.NewDeferredDiscoveryRESTMapperWithContext(found)
	metrics, err := newMetricsClients(config)
	return &reader{Config: c, kube: kube, metadata: objects, mapper: mapper, metrics: metrics}, err
}

// note adds a line for the user.
func (r *reader) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

// where returns the scope of a LIST, as the end of a sentence.
func (c *Config) where(resource string) string {
	switch {
	case strings.HasPrefix(resource, Nodes):
		return ""
	case c.Namespace == "":
		return " in all namespaces"
	}
	return fmt.Sprintf(" in namespace %q", c.Namespace)
}

// failed notes why a LIST has failed, if it has, and what follows from that. It returns the error with what has failed.
func (r *reader) failed(err error, resource, effect string) error {
	if err == nil {
		return nil
	}
	if apierrors.IsForbidden(err) {
		r.note("you cannot list %s%s: %s", resource, r.where(resource), effect)
	} else {
		r.note("cannot list %s%s: %v: %s", resource, r.where(resource), err, effect)
	}
	return fmt.Errorf("cannot list %s%s: %w", resource, r.where(resource), err)
}

// pods returns what is needed of the pods: all or, with an error, none.
func (r *reader) pods(ctx context.Context) (pods []*row, err error) {
	o := metav1.ListOptions{LabelSelector: r.Selector, FieldSelector: r.FieldSelector}
	if r.Kind == Nodes { // their selectors are of nodes
		o = metav1.ListOptions{}
	}
	err = pages.Each(ctx, r.kube.CoreV1().Pods(r.Namespace).List, o, func(p *corev1.Pod) {
		pods = append(pods, newPod(p, r.Containers)...)
	})
	if err != nil {
		pods = nil
	}
	return pods, r.failed(err, Pods, "requests, limits and pods without metrics are unknown")
}

// nodes returns the nodes, which request nothing yet: all or, with an error, none.
func (r *reader) nodes(ctx context.Context) (nodes []*row, err error) {
	o := metav1.ListOptions{LabelSelector: r.Selector, FieldSelector: r.FieldSelector}
	err = pages.Each(ctx, r.kube.CoreV1().Nodes().List, o, func(node *corev1.Node) {
		n := &row{APIVersion: "v1", Kind: "Node", Name: node.Name, Objects: number(1)}
		n.set(allocatable, node.Status.Capacity)
		n.set(allocatable, node.Status.Allocatable)
		nodes = append(nodes, n)
	})
	if err != nil {
		nodes = nil
	}
	return nodes, r.failed(err, Nodes, "allocatable resources and nodes without metrics are unknown")
}

// read returns the report of this moment. It returns an error only if there is nothing to report.
func (r *reader) read(ctx context.Context) (*report, error) {
	r.notes, r.served = nil, nil
	var pods, nodes []*row
	var used map[key]*measured
	var scalers map[id][]autoscaler
	var podsErr, nodesErr, usedErr error
	var reading sync.WaitGroup
	reading.Go(func() { pods, podsErr = r.pods(ctx) })
	reading.Go(func() { used, usedErr = r.usage(ctx) })
	switch r.Kind {
	case Nodes:
		reading.Go(func() { nodes, nodesErr = r.nodes(ctx) })
	case Workloads:
		reading.Go(func() { scalers = r.autoscalers(ctx) })
	}
	reading.Wait()
	rows, err := pods, podsErr
	if r.Kind == Nodes {
		rows, err = nodes, nodesErr
	}
	if err != nil { // metrics have the names of the others
		if usedErr != nil || !apierrors.IsForbidden(err) || r.FieldSelector != "" {
			return nil, errors.Join(err, usedErr)
		}
		rows = onlyNames(used, r.Kind)
	}
	of := func(o *row) *row { return o } // what is shown of a pod or node
	switch r.Kind {
	case Workloads:
		parents := r.parents(ctx, rows)
		of = func(p *row) *row { return workload(p, parents, scalers) }
	case Namespaces:
		of = func(p *row) *row { return &row{APIVersion: "v1", Kind: "Namespace", Name: p.Namespace} }
	}
	rows = r.named(rows, of)
	r.join(ctx, rows, used)
	switch r.Kind {
	case Nodes:
		if podsErr == nil {
			addRequests(rows, pods)
		}
	case Workloads, Namespaces:
		rows = group(rows, of)
	}
	made := r.report(rows)
	if err == nil { // the number of objects is known, also without rows
		made.Total.Objects = made.Total.Objects.plus(number(0))
	}
	return made, nil
}

// named returns the rows of what the user has named, as it is shown or as kubectl names it, or all rows without names.
func (r *reader) named(rows []*row, of func(*row) *row) []*row {
	if len(r.Names) == 0 {
		return rows
	}
	found := map[string]bool{}
	rows = slices.DeleteFunc(rows, func(o *row) bool {
		shown := of(o)
		for _, name := range []string{shown.Name, shown.kindAndName(), shown.fullName()} {
			if slices.Contains(r.Names, name) {
				found[name] = true
				return false
			}
		}
		return true
	})
	for _, name := range r.Names {
		if !found[name] {
			what := r.Kind
			if what != r.resource() { // rows of what has no pods do not exist
				what = "pods of " + strings.TrimSuffix(what, "s")
			}
			r.note("found no %s %q%s", what, name, r.where(r.resource()))
		}
	}
	return rows
}

// onlyNames returns rows of what has metrics, in the order of their names.
func onlyNames(used map[key]*measured, of string) (rows []*row) {
	kind := "Pod"
	if of == Nodes {
		kind = "Node"
	}
	for k := range used {
		rows = append(rows, &row{Namespace: k.namespace, APIVersion: "v1", Kind: kind, Name: k.name, Container: k.container})
	}
	order(rows, "name")
	return rows
}

// join adds the usage to pods or nodes, or why there is none.
func (r *reader) join(ctx context.Context, rows []*row, used map[key]*measured) {
	var missing []*row
	for _, o := range rows {
		if m := used[key{o.Namespace, o.Name, o.Container}]; m != nil && !o.ended {
			o.use(m)
		} else if o.Missing == nil && o.Container == "" {
			missing = append(missing, o)
		}
	}
	r.explain(ctx, missing)
}

// addRequests adds what pods request to their nodes.
func addRequests(nodes, pods []*row) {
	sums := map[string]*row{}
	for _, p := range group(pods, func(p *row) *row { return &row{Name: p.Node} }) {
		sums[p.Name] = p
	}
	for _, n := range nodes {
		sum := cmp.Or(sums[n.Name], &row{})
		for i, a := range n.amounts() {
			of := sum.amounts()[i]
			a[request], a[limit] = of[request].plus(number(0)), of[limit].plus(number(0))
		}
	}
}

// report returns the report with these rows.
func (r *reader) report(rows []*row) *report {
	slices.Sort(r.notes)
	made := &report{Version: "v1", Kind: r.Kind, Time: time.Now().UTC().Truncate(time.Second), Unread: r.notes}
	for _, row := range rows {
		if row.Container == "" {
			made.Total.add(row)
		}
		row.finish()
	}
	made.Total.finish()
	if made.Items = rows; r.Containers {
		made.Items = containers(rows)
	}
	made.Items = append([]*row{}, made.Items...) // in JSON never null
	order(made.Items, r.SortBy)
	return made
}
