package main

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

// maxFull is the largest number of nodes whose objects have full size, see shrink.
const maxFull = 5000

// maxDescriptors is enough for two file descriptors of each of 20,000 kubelets. The limit may be lower.
const maxDescriptors = 1 << 16

// bench is a simulated cluster that servers are measured in.
type bench struct {
	config
	shape
	cluster  *cluster.Cluster
	fleet    *kubelettest.Fleet
	kubelets []*kubelettest.Kubelet // by node
}

// newBench starts kubelets, etcd and kube-apiserver with all nodes and pods, also those of autoscalers. See newKubelets
// for the interval.
func newBench(
	ctx context.Context, cfg config, s shape, interval time.Duration, autoscalers ...autoscaler,
) (*bench, error) {
	control := cluster.Config{Progress: os.Stderr}
	if s.nodes > maxFull {
		control.StorageEnv = []string{"GOGC=25"}
	}
	c, err := cluster.New(ctx, control)
	if err != nil {
		return nil, err
	}
	b := &bench{
		config: cfg, shape: s, cluster: c, fleet: kubelettest.NewFleet(kubelettest.FleetConfig{CA: c.CA}),
		kubelets: newKubelets(s, interval),
	}
	if err := b.start(ctx, autoscalers); err != nil {
		b.close()
		return nil, err
	}
	return b, nil
}

func (b *bench) close() {
	b.cluster.Stop()
	b.fleet.Close()
}

func (b *bench) start(ctx context.Context, autoscalers []autoscaler) error {
	program.Logf("starting %d kubelets", b.nodes)
	if 2*b.nodes > maxDescriptors/4 {
		limit := syscall.Rlimit{Cur: maxDescriptors, Max: maxDescriptors}
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			return fmt.Errorf("cannot raise the limit of open files to %d for so many kubelets: %w", maxDescriptors, err)
		}
	}
	var port uint16 // of all kubelets
	for i, k := range b.kubelets {
		at, err := b.fleet.Add(k, kubelettest.Address(i))
		if err != nil {
			return err
		}
		port = at.Port()
	}
	if err := b.cluster.StartEtcd(ctx); err != nil {
		return err
	}
	p := newPopulation(b.shape, port)
	b.addAutoscalers(&p, autoscalers)
	program.Logf("writing %d pods to etcd", b.pods()+len(p.more))
	if err := b.cluster.WriteObjects(ctx, p.size(), p.object); err != nil {
		return err
	}
	return b.cluster.StartAPIServer(ctx, "/api/v1/nodes?resourceVersion=0&limit=1",
		"/api/v1/namespaces/"+shopNamespace+"/pods?resourceVersion=0")
}

// addAutoscalers adds the pods of autoscalers, which have been running for an hour.
func (b *bench) addAutoscalers(p *population, list []autoscaler) {
	for _, a := range list {
		for i, pod := range a.pods {
			p.more = append(p.more, pod)
			usage := kubelettest.Usage{CPU: a.loads[i][0].cores, Memory: 64 << 20}
			b.kubelets[pod.Node].Run(pod.Namespace, pod.Name, objects.ContainerName(0), usage, p.created)
		}
	}
}

// startServer starts a server, waits until it serves all metrics, and returns what watchStart does.
func (b *bench) startServer(
	ctx context.Context, executable string, args ...string,
) (s *cluster.Standalone, start map[string]float64, err error) {
	program.Logf("starting %s", executable)
	if s, err = b.cluster.StartStandalone(executable, b.resolution, args...); err != nil {
		return nil, nil, err
	}
	start, err = watchStart(ctx, s, b.shape)
	return s, start, err
}

func stopServer(s *cluster.Standalone) {
	if err := s.Stop(); err != nil {
		program.Logf("warning: %v", err)
	}
}

// population is all objects of a cluster.
type population struct {
	shape
	namespaces  []string
	more        []objects.Pod // in addition to those of the shape
	kubeletPort uint16
	created     time.Time
	small       bool // see shrink
}

func newPopulation(s shape, kubeletPort uint16) population {
	return population{
		shape: s, namespaces: append(s.namespaces(), reactionNamespace), kubeletPort: kubeletPort,
		created: time.Now().Add(-2 * time.Hour).Truncate(time.Second), small: s.nodes > maxFull,
	}
}

func (p population) size() int { return len(p.namespaces) + p.nodes + p.pods() + len(p.more) }

// object returns object i and its key in etcd.
func (p population) object(i int) (key string, object runtime.Object) {
	if i < len(p.namespaces) {
		return "/registry/namespaces/" + p.namespaces[i], objects.Namespace(p.namespaces[i], p.created)
	}
	if i -= len(p.namespaces); i < p.nodes {
		key, object = "/registry/minions/"+objects.NodeName(i), objects.Node(i, p.kubeletPort, p.created)
	} else {
		var pod objects.Pod
		if i -= p.nodes; i < p.pods() {
			pod = p.pod(i)
		} else {
			pod = p.more[i-p.pods()]
		}
		key, object = "/registry/pods/"+pod.Namespace+"/"+pod.Name, pod.Object(p.created)
	}
	if p.small {
		shrink(object)
	}
	return key, object
}

// shrink removes most of what no metrics server reads. The API server then needs a fraction of the
// memory.
func shrink(object runtime.Object) {
	switch o := object.(type) {
	case *corev1.Node:
		o.ManagedFields, o.Annotations, o.Status.Images, o.Status.NodeInfo = nil, nil, nil, corev1.NodeSystemInfo{}
	case *corev1.Pod:
		o.ManagedFields, o.Annotations, o.OwnerReferences = nil, nil, nil
		o.Status.Conditions = nil
		for i := range o.Spec.Containers {
			o.Spec.Containers[i] = corev1.Container{Name: o.Spec.Containers[i].Name, Image: "app"}
		}
		for i := range o.Status.ContainerStatuses {
			s := &o.Status.ContainerStatuses[i]
			s.Image, s.ImageID, s.ContainerID = "app", "", ""
		}
	}
}
