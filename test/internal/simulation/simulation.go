// Package simulation runs the kubelets of simulated nodes: each with its own loopback address and
// certificate, and with the authentication and authorization of a real one. kwok sets the status of
// the nodes and pods.
//
// The usage of pods is in annotations: of a pod, the usage of each of its containers; of a
// Deployment, a load that its pods share, so that autoscaling has an effect. Examples:
//
//	kubectl annotate pod web-1 simulation.kube-vitals/memory=64Mi simulation.kube-vitals/cpu=100m,proxy=5m
//	kubectl annotate deployment web simulation.kube-vitals/load=app=2500m
//	kubectl annotate pod web-1 simulation.kube-vitals/ephemeral-storage=10Mi simulation.kube-vitals/volumes=1Gi
//
// A quantity without a name is for every container that is not named. A container without
// annotations has a usage that depends on its name.
package simulation

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net"
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

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
)

// housekeeping is the time between two samples of a simulated kubelet. With 10 to 20 s, as real
// ones have, tests would take longer.
const housekeeping = 3 * time.Second

// overhead is the usage of a node without its pods.
var overhead = kubelettest.Usage{CPU: 0.1, Memory: 512 << 20}

// Config configures a simulation.
type Config struct {
	Client kubernetes.Interface // with an administrator's permissions
	CA     *kubelettest.CA      // signs the kubelets' certificates
	Log    io.Writer            // for errors in annotations
}

// Simulation is the nodes of a cluster. Close ends it.
type Simulation struct {
	client     kubernetes.Interface
	ca         *kubelettest.CA
	fleet      *kubelettest.Fleet
	authorizer *authorizer
	log        io.Writer

	pods        corelisters.PodLister
	deployments appslisters.DeploymentLister
	changed     chan struct{} // has an element if kubelets may have to change
	stop        func()
	work        sync.WaitGroup

	mu        sync.Mutex
	addresses int              // number of addresses in use
	nodes     map[string]*node // by name
	logged    map[string]bool  // messages
}

// node is a simulated node.
type node struct {
	kubelet     *kubelettest.Kubelet
	certificate tls.Certificate
	swap        bool // whether containers can be swapped out
	usage       kubelettest.Usage
	pods        map[podKey]Containers
}

// podKey distinguishes a pod from its successor of the same name.
type podKey struct{ namespace, name, uid string }

// Containers has the usage of a pod's containers by name.
type Containers map[string]kubelettest.Usage

// Node configures a node.
type Node struct {
	Name          string
	Labels        map[string]string
	Swap          bool   // its kubelet reports swap
	Unschedulable bool   // runs only pods whose spec names it
	Sandbox       string // see kubelettest.Config.SandboxContainer

	// Certificate issues the kubelet's certificate for its address, instead of the simulation's CA.
	Certificate func(address net.IP) tls.Certificate
	// Edit changes the Node object before it is created. It may be nil.
	Edit func(*corev1.Node)
}

// capacity is that of every node.
var capacity = corev1.ResourceList{
	corev1.ResourceCPU:    resource.MustParse("8"),
	corev1.ResourceMemory: resource.MustParse("32Gi"),
	corev1.ResourcePods:   resource.MustParse("110"),
}

const swapCapacity int64 = 8 << 30 // bytes

// New starts a simulation without nodes.
func New(ctx context.Context, cfg Config) (*Simulation, error) {
	ctx, cancel := context.WithCancel(ctx)
	factory := informers.NewSharedInformerFactory(cfg.Client, 0)
	s := &Simulation{
		client:      cfg.Client,
		ca:          cfg.CA,
		authorizer:  &authorizer{client: cfg.Client, cache: make(map[access]time.Time)},
		log:         cfg.Log,
		pods:        factory.Core().V1().Pods().Lister(),
		deployments: factory.Apps().V1().Deployments().Lister(),
		changed:     make(chan struct{}, 1),
		nodes:       make(map[string]*node),
		logged:      make(map[string]bool),
	}
	s.fleet = kubelettest.NewFleet(kubelettest.FleetConfig{Certificate: s.certificate})
	s.stop = func() {
		cancel()
		factory.Shutdown()
		s.work.Wait()
		s.fleet.Close()
	}
	changed := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { s.notify() },
		UpdateFunc: func(any, any) { s.notify() },
		DeleteFunc: func(any) { s.notify() },
	}
	for _, informer := range []cache.SharedIndexInformer{
		factory.Core().V1().Pods().Informer(), factory.Apps().V1().Deployments().Informer(),
	} {
		if _, err := informer.AddEventHandler(changed); err != nil {
			s.stop()
			return nil, fmt.Errorf("simulation: watch pods and deployments: %w", err)
		}
	}
	factory.Start(ctx.Done())
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			s.stop()
			return nil, fmt.Errorf("simulation: list %v: %w", kind, context.Cause(ctx))
		}
	}
	s.work.Go(func() { s.watch(ctx) })
	return s, nil
}

// Close ends all kubelets. The Node objects remain.
func (s *Simulation) Close() { s.stop() }

// notify makes watch call sync.
func (s *Simulation) notify() {
	select {
	case s.changed <- struct{}{}:
	default: // it will be called already
	}
}

func (s *Simulation) watch(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
			s.sync()
		}
	}
}

// AddNode starts a kubelet and creates its Node object.
func (s *Simulation) AddNode(ctx context.Context, n Node) error {
	kubelet := kubelettest.New(n.Name, kubelettest.Config{
		StartCPU:         0.02, // a counter that stays 0 is a kubelet's "unknown"
		Housekeeping:     housekeeping,
		NoSwap:           !n.Swap,
		SandboxContainer: n.Sandbox,
		Authorize:        s.authorizer.authorize,
	})
	kubelet.SetNode(overhead)
	issue := n.Certificate
	if issue == nil {
		issue = func(ip net.IP) tls.Certificate { return s.ca.Issue([]string{n.Name}, []net.IP{ip}) }
	}
	at, err := s.addKubelet(&node{
		kubelet: kubelet, swap: n.Swap, usage: overhead, pods: make(map[podKey]Containers),
	}, issue)
	if err != nil {
		return err
	}
	object := n.object(at)
	if n.Edit != nil {
		n.Edit(object)
	}
	if _, err := s.client.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{}); err != nil {
		s.removeKubelet(n.Name)
		return fmt.Errorf("create node %s: %w", n.Name, err)
	}
	s.notify()
	return nil
}

func (s *Simulation) addKubelet(n *node, issue func(net.IP) tls.Certificate) (netip.AddrPort, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	address := kubelettest.Address(s.addresses)
	n.certificate = issue(address.AsSlice())
	at, err := s.fleet.Add(n.kubelet, address)
	if err != nil {
		return at, err
	}
	s.addresses++
	s.nodes[n.kubelet.Name()] = n
	return at, nil
}

// certificate returns the certificate of a kubelet.
func (s *Simulation) certificate(k *kubelettest.Kubelet, _ netip.Addr) (*tls.Certificate, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[k.Name()]; n != nil {
		return &n.certificate, nil
	}
	return nil, fmt.Errorf("there is no node %s", k.Name())
}

// RemoveNode deletes a node and ends its kubelet.
func (s *Simulation) RemoveNode(ctx context.Context, name string) error {
	s.removeKubelet(name)
	if err := s.client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete node %s: %w", name, err)
	}
	return nil
}

func (s *Simulation) removeKubelet(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fleet.Remove(name)
	delete(s.nodes, name)
}

// object returns the node as its kubelet registers it. kwok sets the conditions.
func (n Node) object(at netip.AddrPort) *corev1.Node {
	labels := map[string]string{corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux"}
	maps.Copy(labels, n.Labels)
	object := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: labels},
		Spec:       corev1.NodeSpec{Unschedulable: n.Unschedulable},
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

// Kubelet returns the kubelet of a node, or nil if there is no such node.
func (s *Simulation) Kubelet(node string) *kubelettest.Kubelet {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.nodes[node]; n != nil {
		return n.kubelet
	}
	return nil
}

// ForgetPermissions makes the kubelets ask the API server again what their clients may do.
// Otherwise, they notice a removed permission after minutes.
func (s *Simulation) ForgetPermissions() { s.authorizer.forget() }

// Nodes returns the usage that the kubelets report of their nodes, by name.
func (s *Simulation) Nodes() map[string]kubelettest.Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	usages := make(map[string]kubelettest.Usage, len(s.nodes))
	for name, n := range s.nodes {
		usages[name] = n.usage
	}
	return usages
}

// Pods returns the usage that the kubelets report of the pods in a namespace, by name.
func (s *Simulation) Pods(namespace string) map[string]Containers {
	s.mu.Lock()
	defer s.mu.Unlock()
	usages := make(map[string]Containers)
	for _, n := range s.nodes {
		for key, containers := range n.pods {
			if key.namespace == namespace {
				usages[key.name] = maps.Clone(containers)
			}
		}
	}
	return usages
}

// Nodes returns n nodes, node-01 to node-NN, in three zones. Every second one has swap, and every
// third one another container runtime.
func Nodes(n int) []Node {
	nodes := make([]Node, n)
	for i := range nodes {
		nodes[i] = Node{
			Name:   fmt.Sprintf("node-%02d", i+1),
			Labels: map[string]string{corev1.LabelTopologyZone: string(rune('a' + (i+1)%3))},
			Swap:   i%2 == 1,
		}
		if i%3 == 1 {
			nodes[i].Sandbox = "POD"
		}
	}
	return nodes
}
