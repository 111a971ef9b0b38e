package simulation

import (
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
)

// sync sets the containers of every kubelet and their usage. It handles all pods at each change: a
// simulation is small, and unchanged containers are not set again.
func (s *Simulation) sync() {
	s.mu.Lock()
	defer s.mu.Unlock()
	wanted := make(map[string]map[podKey]Containers, len(s.nodes)) // by node name
	for name := range s.nodes {
		wanted[name] = make(map[podKey]Containers)
	}
	running := s.running()
	loads := s.loads(running)
	for _, pod := range running {
		if pods, ok := wanted[pod.Spec.NodeName]; ok {
			pods[keyOf(pod)] = s.usageOf(pod, loads[deploymentOf(pod)])
		}
	}
	for name, n := range s.nodes {
		n.run(wanted[name])
	}
	for _, pod := range running {
		if n := s.nodes[pod.Spec.NodeName]; n != nil {
			s.setStorage(n.kubelet, pod)
		}
	}
}

// setStorage sets the ephemeral storage of a pod with annotations.
func (s *Simulation) setStorage(kubelet *kubelettest.Kubelet, pod *corev1.Pod) {
	storage := s.quantities("pod", pod, storageAnnotation)
	for _, name := range containersOf(pod) {
		if bytes, ok := storage.of(name); ok {
			kubelet.SetStorage(pod.Namespace, pod.Name, name, uint64(bytes))
		}
	}
	if bytes, ok := s.quantities("pod", pod, volumesAnnotation).of(""); ok {
		kubelet.SetStorage(pod.Namespace, pod.Name, "", uint64(bytes))
	}
}

// running returns the pods that run on any node.
func (s *Simulation) running() []*corev1.Pod {
	all, _ := s.pods.List(labels.Everything()) // a lister of a cache returns no error
	running := all[:0:0]
	for _, pod := range all {
		if pod.Spec.NodeName != "" && pod.Status.Phase == corev1.PodRunning {
			running = append(running, pod)
		}
	}
	return running
}

// deploymentKey names a Deployment; the zero value is none.
type deploymentKey struct{ namespace, name string }

// loads returns the CPU usage of each running pod of a Deployment that has a load.
func (s *Simulation) loads(running []*corev1.Pod) map[deploymentKey]quantities {
	deployments, _ := s.deployments.List(labels.Everything())
	loads := make(map[deploymentKey]quantities)
	for _, d := range deployments {
		if load := s.quantities("deployment", d, loadAnnotation); load != nil {
			loads[deploymentKey{d.Namespace, d.Name}] = load
		}
	}
	pods := make(map[deploymentKey]int)
	for _, pod := range running {
		pods[deploymentOf(pod)]++
	}
	for key, load := range loads {
		for container, cores := range load {
			load[container] = cores / float64(max(1, pods[key]))
		}
	}
	return loads
}

// deploymentOf returns the Deployment of a pod, which follows from the name of its ReplicaSet.
func deploymentOf(pod *corev1.Pod) deploymentKey {
	owner := metav1.GetControllerOf(pod)
	hash := pod.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	if owner == nil || owner.Kind != "ReplicaSet" || hash == "" {
		return deploymentKey{}
	}
	return deploymentKey{namespace: pod.Namespace, name: strings.TrimSuffix(owner.Name, "-"+hash)}
}

func keyOf(pod *corev1.Pod) podKey {
	return podKey{namespace: pod.Namespace, name: pod.Name, uid: string(pod.UID)}
}

// run makes the node's kubelet run these pods and no others.
func (n *node) run(pods map[podKey]Containers) {
	for key := range n.pods {
		if _, stays := pods[key]; !stays {
			n.kubelet.RemovePod(key.namespace, key.name)
			delete(n.pods, key)
		}
	}
	sum := overhead
	for key, containers := range pods {
		old := n.pods[key]
		for name, usage := range containers {
			if !n.swap {
				usage.Swap = 0
				containers[name] = usage
			}
			if before, runs := old[name]; !runs || before != usage {
				n.kubelet.SetContainer(key.namespace, key.name, name, usage)
				n.kubelet.SetUID(key.namespace, key.name, key.uid)
			}
			sum.CPU += usage.CPU
			sum.Memory += usage.Memory
			sum.Swap += usage.Swap
		}
		n.pods[key] = containers
	}
	if sum != n.usage {
		n.usage = sum
		n.kubelet.SetNode(sum)
	}
}

// usageOf returns the usage of a pod's containers. The load of its Deployment takes precedence over
// the pod's own annotation.
func (s *Simulation) usageOf(pod *corev1.Pod, load quantities) Containers {
	cpu := s.quantities("pod", pod, CPUAnnotation)
	memory := s.quantities("pod", pod, MemoryAnnotation)
	swap := s.quantities("pod", pod, swapAnnotation)
	usages := make(Containers)
	for _, name := range containersOf(pod) {
		usage := defaultUsage(pod.Namespace, pod.Name, name)
		if bytes, ok := memory.of(name); ok {
			usage.Memory = uint64(bytes)
		}
		if bytes, ok := swap.of(name); ok {
			usage.Swap = uint64(bytes)
		}
		if cores, ok := cpu.of(name); ok {
			usage.CPU = cores
		}
		if cores, ok := load.of(name); ok {
			usage.CPU = cores
		}
		usages[name] = usage
	}
	return usages
}

// containersOf returns the names of the containers that run as long as the pod does, with the
// sidecars, which are init containers.
func containersOf(pod *corev1.Pod) []string {
	var names []string
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			names = append(names, c.Name)
		}
	}
	for i := range pod.Spec.Containers {
		names = append(names, pod.Spec.Containers[i].Name)
	}
	return names
}

// quantities parses an annotation. It returns nil if the annotation is missing or invalid.
func (s *Simulation) quantities(kind string, object metav1.Object, annotation string) quantities {
	text, ok := object.GetAnnotations()[annotation]
	if !ok {
		return nil
	}
	q, err := parseQuantities(text)
	if err != nil {
		s.logOnce(fmt.Sprintf("%s %s/%s: annotation %s: %v", kind, object.GetNamespace(), object.GetName(), annotation, err))
		return nil
	}
	return q
}

// logOnce logs a message unless it has been logged before.
func (s *Simulation) logOnce(message string) {
	if !s.logged[message] {
		s.logged[message] = true
		fmt.Fprintln(s.log, message)
	}
}
