// Package simulation gives a cluster nodes that nobody runs. kwok leads the lives of the nodes and
// pods; here are their kubelets, which tell what they use: each on a loopback address and with a
// certificate of its own, and as particular about whom they answer as real ones.
//
// What a pod uses, annotations say: of the pod, what each of its containers uses, and of a
// Deployment, a load that its pods share, so that an autoscaler has an effect. An example for both:
//
//	kubectl annotate pod web-1 simulation.kube-vitals/memory=64Mi simulation.kube-vitals/cpu=100m,proxy=5m
//	kubectl annotate deployment web simulation.kube-vitals/load=app=2500m
//
// A quantity without a name is for every container that is not named. Of what nothing is said, a
// container uses an amount that its name gives, so that tables have something to show.
package simulation

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
)

// Housekeeping is how often a simulated kubelet takes a sample. Real ones take 10 to 20 s; tests
// would wait for it.
const Housekeeping = 3 * time.Second

// overhead is what a node uses beside its pods.
var overhead = kubelettest.Usage{CPU: 0.1, Memory: 512 << 20}

// Config says where the nodes are.
type Config struct {
	Client kubernetes.Interface // an administrator's
	CA     *kubelettest.CA      // signs the kubelets' certificates
	Log    io.Writer            // where to complain of annotations that cannot be read; nil: nowhere
}

// Simulation is the simulated part of a cluster. Close ends it.
type Simulation struct {
	client kubernetes.Interface
	fleet  *kubelettest.Fleet
	guard  *guard
	log    io.Writer

	pods        corelisters.PodLister
	deployments appslisters.DeploymentLister
	changed     chan struct{} // something may have to be told to the kubelets
	stop        func()
	work        sync.WaitGroup

	mu         sync.Mutex
	addresses  int                 // how many have been given to nodes
	nodes      map[string]*node    // by name
	complaints map[string]struct{} // what has been logged
}

// node is a simulated node.
type node struct {
	kubelet *kubelettest.Kubelet
	swap    bool // whether containers can be swapped out
	usage   kubelettest.Usage
	pods    map[podKey]Containers
}

// podKey tells a pod from another of the same name that came after it.
type podKey struct{ namespace, name, uid string }

// Containers is what the containers of a pod use, by container name.
type Containers map[string]kubelettest.Usage

// Node says what a node is like.
type Node struct {
	Name   string
	Labels map[string]string
	Swap   bool // whether its kubelet tells of swap
	Closed bool // whether it takes only pods that name it
}

// capacity is the same for all nodes.
var capacity = corev1.ResourceList{
	corev1.ResourceCPU:    resource.MustParse("8"),
	corev1.ResourceMemory: resource.MustParse("32Gi"),
	corev1.ResourcePods:   resource.MustParse("110"),
}

const swapCapacity int64 = 8 << 30 // bytes

// New starts a simulation without nodes.
func New(ctx context.Context, cfg Config) (*Simulation, error) {
	ctx, cancel := context.WithCancel(ctx)
	if cfg.Log == nil {
		cfg.Log = io.Discard
	}
	factory := informers.NewSharedInformerFactory(cfg.Client, 0)
	s := &Simulation{
		client:      cfg.Client,
		fleet:       kubelettest.NewFleet(kubelettest.FleetConfig{CA: cfg.CA}),
		guard:       newGuard(cfg.Client),
		log:         cfg.Log,
		pods:        factory.Core().V1().Pods().Lister(),
		deployments: factory.Apps().V1().Deployments().Lister(),
		changed:     make(chan struct{}, 1),
		nodes:       make(map[string]*node),
		complaints:  make(map[string]struct{}),
	}
	s.stop = func() {
		cancel()
		factory.Shutdown()
		s.work.Wait()
		s.fleet.Close()
	}
	changed := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { s.change() },
		UpdateFunc: func(any, any) { s.change() },
		DeleteFunc: func(any) { s.change() },
	}
	for _, informer := range []cache.SharedIndexInformer{
		factory.Core().V1().Pods().Informer(), factory.Apps().V1().Deployments().Informer(),
	} {
		if _, err := informer.AddEventHandler(changed); err != nil {
			s.stop()
			return nil, fmt.Errorf("the simulation cannot follow pods and deployments: %w", err)
		}
	}
	factory.Start(ctx.Done())
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			s.stop()
			return nil, fmt.Errorf("the simulation cannot list %v: %w", kind, context.Cause(ctx))
		}
	}
	s.work.Go(func() { s.follow(ctx) })
	return s, nil
}

// Close ends all kubelets. The nodes stay in the API.
func (s *Simulation) Close() { s.stop() }

// change asks for a comparison of what runs with what should.
func (s *Simulation) change() {
	select {
	case s.changed <- struct{}{}:
	default: // one is due already
	}
}

func (s *Simulation) follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
			s.sync()
		}
	}
}

// AddNode starts a kubelet and registers its node, as a kubelet does itself.
func (s *Simulation) AddNode(ctx context.Context, n Node) error {
	kubelet := kubelettest.New(n.Name, kubelettest.Config{
		Housekeeping: Housekeeping,
		NoSwap:       !n.Swap,
		Authorize:    s.guard.authorize,
	})
	kubelet.SetNode(overhead)
	at, err := s.addKubelet(&node{kubelet: kubelet, swap: n.Swap, usage: overhead, pods: make(map[podKey]Containers)})
	if err != nil {
		return err
	}
	if _, err := s.client.CoreV1().Nodes().Create(ctx, n.object(at), metav1.CreateOptions{}); err != nil {
		s.removeKubelet(n.Name)
		return fmt.Errorf("node %s cannot be registered: %w", n.Name, err)
	}
	s.change()
	return nil
}

func (s *Simulation) addKubelet(n *node) (netip.AddrPort, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, err := s.fleet.Add(n.kubelet, kubelettest.Address(s.addresses))
	if err != nil {
		return at, err
	}
	s.addresses++
	s.nodes[n.kubelet.Name()] = n
	return at, nil
}

// RemoveNode deletes a node and ends its kubelet.
func (s *Simulation) RemoveNode(ctx context.Context, name string) error {
	s.removeKubelet(name)
	if err := s.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("node %s cannot be deleted: %w", name, err)
	}
	return nil
}

func (s *Simulation) removeKubelet(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fleet.Remove(name)
	delete(s.nodes, name)
}

// object is the node as its kubelet registers it. kwok fills in the rest.
func (n Node) object(at netip.AddrPort) *corev1.Node {
	labels := map[string]string{corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux"}
	maps.Copy(labels, n.Labels)
	object := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: labels},
		Spec:       corev1.NodeSpec{Unschedulable: n.Closed},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: at.Addr().String()},
				{Type: corev1.NodeHostName, Address: n.Name},
			},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{
				KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(at.Port())},
			},
			NodeInfo:    corev1.NodeSystemInfo{KubeletVersion: "v1.36.3", OperatingSystem: "linux", OSImage: "simulated"},
			Capacity:    capacity,
			Allocatable: capacity,
		},
	}
	if n.Swap {
		size := swapCapacity
		object.Status.NodeInfo.Swap = &corev1.NodeSwapStatus{Capacity: &size}
	}
	return object
}

// Kubelet is the kubelet of a node, to make it misbehave; nil where there is no such node.
func (s *Simulation) Kubelet(node string) *kubelettest.Kubelet {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[node]; n != nil {
		return n.kubelet
	}
	return nil
}

// Nodes is what the kubelets have been told that their nodes use, by node name.
func (s *Simulation) Nodes() map[string]kubelettest.Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	usages := make(map[string]kubelettest.Usage, len(s.nodes))
	for name, n := range s.nodes {
		usages[name] = n.usage
	}
	return usages
}

// Pods is what the kubelets have been told that the pods of a namespace use, by pod name. The
// namespace "" is all of them, and pods are then named NAMESPACE/NAME.
func (s *Simulation) Pods(namespace string) map[string]Containers {
	s.mu.Lock()
	defer s.mu.Unlock()
	usages := make(map[string]Containers)
	for _, n := range s.nodes {
		for key, containers := range n.pods {
			switch namespace {
			case "":
				usages[key.namespace+"/"+key.name] = maps.Clone(containers)
			case key.namespace:
				usages[key.name] = maps.Clone(containers)
			}
		}
	}
	return usages
}

// Nodes returns n nodes, node-01 to node-NN, in three zones. Every second one has swap.
func Nodes(n int) []Node {
	nodes := make([]Node, n)
	for i := range nodes {
		nodes[i] = Node{
			Name:   fmt.Sprintf("node-%02d", i+1),
			Labels: map[string]string{corev1.LabelTopologyZone: string(rune('a' + (i+1)%3))},
			Swap:   i%2 == 1,
		}
	}
	return nodes
}
