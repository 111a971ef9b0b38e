package conformance

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var valueChecks = []Check{
	{"nodes/complete", Required, "every ready node has metrics, and only nodes have", kubectlTop, nothing,
		checkNodesComplete},
	{"pods/complete", Required, "every running pod on a ready node has metrics, of exactly its running containers",
		autoscaler,
		nothing, checkPodsComplete},
	{"values/usage", Required, "every node and container has cpu and memory, neither negative", definition, nothing,
		checkUsage},
	{"values/format", Recommended, "cpu is a decimal and memory a binary quantity, as kubectl prints them", design,
		nothing, checkQuantityFormat},
	{"values/window", Required, "every window is positive and not longer than the maximum age", definition, nothing,
		checkWindow},
	{"values/timestamp", Required, "timestamps are not in the future, and not older than the maximum age", definition,
		nothing, checkTimestamp},
	{"values/progress", Required, "newer samples replace older ones", recommender, nothing, checkProgress},
	{"values/capacity", Required, "no node uses more than its capacity", design, nothing, checkCapacity},
	{"values/sum", Recommended, "the pods of a node do not use more than the node", pipeline, nothing, checkSum},
	{"metadata/labels", Required, "nodes and pods have the labels of their objects", autoscaler, nothing, checkLabels},
	{"metadata/creation", Recommended, "no creationTimestamp is in the future", conventions, nothing, checkCreation},
	{"extension/swap", Extension, "nodes with swap report its usage", swap, nothing, checkSwap},
	{"extension/table-usage", Extension, "tables have columns of cpu and memory", concepts, nothing, checkTableUsage},
}

// readyNodes returns the ready nodes by name.
func (e *env) readyNodes(ctx context.Context) (all, ready map[string]*corev1.Node, err error) {
	nodes, err := e.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	all, ready = map[string]*corev1.Node{}, map[string]*corev1.Node{}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		all[n.Name] = n
		if slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		}) {
			ready[n.Name] = n
		}
	}
	return all, ready, nil
}

func checkNodesComplete(ctx context.Context, e *env) error {
	return e.eventuallyList(ctx, "nodes", func(l *list) error {
		all, ready, err := e.readyNodes(ctx)
		if err != nil {
			return err
		}
		var errs []error
		for name := range ready {
			if l.find(name) == nil {
				errs = append(errs, mismatch("node "+name, "metrics in "+l.response.request, "none"))
			}
		}
		for _, name := range l.keys() {
			if all[name] == nil {
				errs = append(errs, mismatch("node "+name, "no metrics in "+l.response.request+": there is no such node",
					"metrics"))
			}
		}
		return first(errs)
	})
}

// pods returns all pods by namespace/name.
func (e *env) pods(ctx context.Context) (map[string]*corev1.Pod, error) {
	pods, err := e.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	all := make(map[string]*corev1.Pod, len(pods.Items))
	for i := range pods.Items {
		all[pods.Items[i].Namespace+"/"+pods.Items[i].Name] = &pods.Items[i]
	}
	return all, nil
}

// runningContainers returns the sorted names of the containers that run, including sidecars, which
// are init containers.
func runningContainers(pod *corev1.Pod) []string {
	var names []string
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if c.State.Running != nil {
			names = append(names, c.Name)
		}
	}
	slices.Sort(names)
	return names
}

func checkPodsComplete(ctx context.Context, e *env) error {
	return e.eventuallyList(ctx, "pods", func(l *list) error {
		pods, err := e.pods(ctx)
		if err != nil {
			return err
		}
		_, ready, err := e.readyNodes(ctx)
		if err != nil {
			return err
		}
		var errs []error
		for key, pod := range pods {
			if pod.Status.Phase != corev1.PodRunning || pod.DeletionTimestamp != nil || ready[pod.Spec.NodeName] == nil {
				continue
			}
			want := runningContainers(pod)
			o := l.find(key)
			if o == nil {
				if len(want) > 0 {
					errs = append(errs, mismatch("pod "+key, "metrics in "+l.response.request, "none"))
				}
				continue
			}
			if got := slices.Sorted(maps.Keys(o.usages())); !slices.Equal(got, want) || len(got) != len(o.Containers) {
				errs = append(errs, mismatch("pod "+key, fmt.Sprintf("metrics of its running containers %v", want),
					fmt.Sprintf("those of %v", got)))
			}
		}
		for _, key := range l.keys() {
			if pods[key] == nil {
				errs = append(errs, mismatch("pod "+key, "no metrics in "+l.response.request+": there is no such pod", "metrics"))
			}
		}
		return first(errs)
	})
}

// eachUsage calls f with every object and container of every list. The container of a node is "".
func (e *env) eachUsage(ctx context.Context, f func(name string, usage corev1.ResourceList) error) error {
	return e.each(func(version, kind string) error {
		l, err := e.list(ctx, path(version, kind, "", ""))
		if err != nil {
			return err
		}
		return l.each(func(o *object) error {
			var errs []error
			for container, usage := range o.usages() {
				name := fmt.Sprintf("%s %s", version, o.key())
				if container != "" {
					name += ", container " + container
				}
				errs = append(errs, f(name, usage))
			}
			return errors.Join(errs...)
		})
	})
}

func checkUsage(ctx context.Context, e *env) error {
	return e.eachUsage(ctx, func(name string, usage corev1.ResourceList) error {
		var errs []error
		for r := range perResource(0, 0) {
			q, ok := usage[r]
			switch {
			case !ok:
				errs = append(errs, mismatch(name, "usage of "+string(r), "none"))
			case q.Sign() < 0:
				errs = append(errs, mismatch(name, string(r)+" of 0 or more", q.String()))
			}
		}
		return errors.Join(errs...)
	})
}

func checkQuantityFormat(ctx context.Context, e *env) error {
	return e.eachUsage(ctx, func(name string, usage corev1.ResourceList) error {
		var errs []error
		for r, format := range map[corev1.ResourceName]resource.Format{
			corev1.ResourceCPU: resource.DecimalSI, corev1.ResourceMemory: resource.BinarySI,
		} {
			// A value without a suffix, such as 0, has the decimal format.
			if q, ok := usage[r]; ok && q.Format != format && strings.TrimRight(q.String(), "0123456789") != "" {
				errs = append(errs, mismatch(name, string(r)+" as "+string(format), q.String()))
			}
		}
		return errors.Join(errs...)
	})
}

func checkWindow(ctx context.Context, e *env) error {
	return e.eachObject(ctx, func(o *object, _ time.Time) error {
		if w := o.Window.Duration; w <= 0 || w > e.cfg.MaxAge {
			return mismatch(o.key(), "a window of up to "+e.cfg.MaxAge.String(), w)
		}
		return nil
	})
}

func checkTimestamp(ctx context.Context, e *env) error {
	return e.eachObject(ctx, func(o *object, now time.Time) error {
		age := now.Sub(o.Timestamp.Time)
		if age < -clockTolerance || age > e.cfg.MaxAge+clockTolerance {
			return mismatch(o.key(), fmt.Sprintf("a timestamp between %s and %s ago", time.Duration(0), e.cfg.MaxAge),
				fmt.Sprintf("%s, %s ago", o.Timestamp.UTC().Format(time.RFC3339), age))
		}
		return nil
	})
}

// clockTolerance is how far the clocks of a cluster may differ.
const clockTolerance = 5 * time.Second

// eachObject calls f with every object of every list, and the time of the response.
func (e *env) eachObject(ctx context.Context, f func(o *object, now time.Time) error) error {
	return e.each(func(version, kind string) error {
		l, err := e.list(ctx, path(version, kind, "", ""))
		if err != nil {
			return err
		}
		return l.each(func(o *object) error {
			if err := f(o, l.response.now()); err != nil {
				return fmt.Errorf("%s %w", version, err)
			}
			return nil
		})
	})
}

func checkProgress(ctx context.Context, e *env) error {
	at := path(e.versions[0], "nodes", "", "")
	before, err := e.list(ctx, at)
	if err != nil {
		return err
	}
	if len(before.Items) == 0 {
		return mismatch("GET "+at, "nodes with metrics", "none")
	}
	return e.eventually(ctx, func(ctx context.Context) error {
		now, err := e.list(ctx, at)
		if err != nil {
			return err
		}
		return now.each(func(o *object) error {
			if old := before.find(o.key()); old != nil && !o.Timestamp.After(old.Timestamp.Time) {
				return mismatch("node "+o.key(), "a timestamp after "+old.Timestamp.UTC().Format(time.RFC3339), "the same")
			}
			return nil
		})
	})
}

// Rates are means over a window, so that they may exceed what is possible at once by a little.
const rateTolerance = 1.1

func checkCapacity(ctx context.Context, e *env) error {
	return e.eventuallyList(ctx, "nodes", func(l *list) error {
		all, _, err := e.readyNodes(ctx)
		if err != nil {
			return err
		}
		return l.each(func(o *object) error {
			node := all[o.Name]
			if node == nil {
				return nil
			}
			var errs []error
			for name, tolerance := range perResource(rateTolerance, 1) {
				capacity := node.Status.Capacity[name]
				if got := o.sum(name); !capacity.IsZero() && got > capacity.AsApproximateFloat64()*tolerance {
					errs = append(errs, mismatch("node "+o.Name, fmt.Sprintf("%s of up to its capacity %s", name, capacity.String()),
						got))
				}
			}
			return errors.Join(errs...)
		})
	})
}

func perResource(cpu, memory float64) map[corev1.ResourceName]float64 {
	return map[corev1.ResourceName]float64{corev1.ResourceCPU: cpu, corev1.ResourceMemory: memory}
}

func checkSum(ctx context.Context, e *env) error {
	version := e.versions[0]
	return e.eventually(ctx, func(ctx context.Context) error {
		nodes, err := e.list(ctx, path(version, "nodes", "", ""))
		if err != nil {
			return err
		}
		pods, err := e.list(ctx, path(version, "pods", "", ""))
		if err != nil {
			return err
		}
		known, err := e.pods(ctx)
		if err != nil {
			return err
		}
		sums := map[string]map[corev1.ResourceName]float64{}
		for i := range pods.Items {
			o := &pods.Items[i]
			if pod := known[o.key()]; pod != nil {
				if sums[pod.Spec.NodeName] == nil {
					sums[pod.Spec.NodeName] = map[corev1.ResourceName]float64{}
				}
				for name := range perResource(0, 0) {
					sums[pod.Spec.NodeName][name] += o.sum(name)
				}
			}
		}
		return nodes.each(func(o *object) error {
			var errs []error
			// The windows of a node and its pods differ, and shared pages are counted once.
			for name, absolute := range perResource(0.1, 64<<20) {
				if node, sum := o.sum(name), sums[o.Name][name]; sum > 1.2*node+absolute {
					errs = append(errs, mismatch("node "+o.Name, fmt.Sprintf("pods that use no more %s than its %g", name, node), sum))
				}
			}
			return errors.Join(errs...)
		})
	})
}

func checkLabels(ctx context.Context, e *env) error {
	return e.eachList(ctx, func(l *list, _, kind string) error {
		want := map[string]map[string]string{}
		if kind == "nodes" {
			all, _, err := e.readyNodes(ctx)
			if err != nil {
				return err
			}
			for name, node := range all {
				want[name] = node.Labels
			}
		} else {
			all, err := e.pods(ctx)
			if err != nil {
				return err
			}
			for key, pod := range all {
				want[key] = pod.Labels
			}
		}
		return l.each(func(o *object) error {
			if labels, ok := want[o.key()]; ok && !maps.Equal(labels, o.Labels) {
				return mismatch(o.key()+" in "+l.response.request, fmt.Sprintf("labels %v", labels), o.Labels)
			}
			return nil
		})
	})
}

func checkCreation(ctx context.Context, e *env) error {
	return e.eachObject(ctx, func(o *object, now time.Time) error {
		if o.CreationTimestamp.After(now.Add(clockTolerance)) {
			return mismatch(o.key(), "a creationTimestamp that is not in the future",
				o.CreationTimestamp.UTC().Format(time.RFC3339))
		}
		return nil
	})
}

func checkSwap(ctx context.Context, e *env) error {
	all, _, err := e.readyNodes(ctx)
	if err != nil {
		return err
	}
	withSwap := map[string]bool{}
	for name, node := range all {
		if s := node.Status.NodeInfo.Swap; s != nil && s.Capacity != nil && *s.Capacity > 0 {
			withSwap[name] = true
		}
	}
	if len(withSwap) == 0 {
		return skip("no node has swap")
	}
	return e.eachList(ctx, func(l *list, _, kind string) error {
		if kind != "nodes" {
			return nil
		}
		return l.each(func(o *object) error {
			if _, ok := o.Usage["swap"]; !ok && withSwap[o.Name] {
				return mismatch("node "+o.Name+", which has swap,", "usage of swap", "none")
			}
			return nil
		})
	})
}

func checkTableUsage(ctx context.Context, e *env) error {
	return e.each(func(version, kind string) error {
		at := path(version, kind, "", "")
		table, err := e.table(ctx, at)
		if err != nil {
			return err
		}
		var columns []string
		for _, c := range table.ColumnDefinitions {
			columns = append(columns, strings.ToLower(c.Name))
		}
		for _, want := range []string{"cpu", "memory"} {
			if !slices.ContainsFunc(columns, func(c string) bool { return strings.HasPrefix(c, want) }) {
				return mismatch("GET "+at+" as Table", "a column "+want, columns)
			}
		}
		return nil
	})
}
