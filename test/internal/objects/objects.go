// Package objects makes nodes and pods that are as large and as varied as those of real clusters,
// for benchmarks and the soak test.
package objects

import (
	_ "embed" // for managedFields
	"encoding/hex"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
)

// Pod is one pod of a simulated cluster.
type Pod struct {
	Namespace, App, Name string
	Hash                 string // pod-template-hash of its ReplicaSet
	Node                 int    // index of its node
	Index                int    // from 0, in the whole cluster
	Containers           int    // number of containers
}

// NewPod returns a pod of an app, with the containers in ContainerNames. Pods with different
// indices have different names.
func NewPod(namespace, app string, node, index int) Pod {
	p := Pod{
		Namespace: namespace, App: app, Node: node, Index: index, Hash: suffix(10, namespace, app),
		Containers: len(ContainerNames),
	}
	p.Name = app + "-" + p.Hash + "-" + spell(5, uint64(index)*7368787) // not a multiple of 3, so that all names differ
	return p
}

// ContainerNames has the names of the containers of a pod.
var ContainerNames = [...]string{"app", "istio-proxy"}

// ContainerName returns the name of container i of a pod, which may have more than the usual ones.
func ContainerName(i int) string {
	if i < len(ContainerNames) {
		return ContainerNames[i]
	}
	return fmt.Sprintf("sidecar-%d", i)
}

// NodeName returns the name of node i, whose kubelet has the address kubelettest.Address(i).
func NodeName(i int) string { return fmt.Sprintf("node-%05d.pool-a.example.internal", i) }

// Selector returns the label selector of an app's pods.
func Selector(app string) string { return "app.kubernetes.io/name=" + app }

// Namespace returns an active namespace.
func Namespace(name string, created time.Time) *corev1.Namespace {
	return &corev1.Namespace{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: meta("", name, created, map[string]string{"kubernetes.io/metadata.name": name}),
		Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
		Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
	}
}

// NodeCores is the number of CPU cores of each node.
const NodeCores = 16

// Node returns node i, with the labels, annotations, conditions and images of a cloud provider's
// nodes. The kubelet's port is the given one.
func Node(i int, port uint16, created time.Time) *corev1.Node {
	name := NodeName(i)
	labels := map[string]string{
		"beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux",
		"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "kubernetes.io/hostname": name,
		"node.kubernetes.io/instance-type": "m7.4xlarge", "topology.kubernetes.io/region": "eu-central-1",
		"topology.kubernetes.io/zone": fmt.Sprintf("eu-central-1%c", 'a'+i%3), "pool": "pool-a",
	}
	node := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: meta("", name, created, labels),
		Spec:       corev1.NodeSpec{ProviderID: "example:///eu-central-1/i-" + suffix(10, name)},
		Status: corev1.NodeStatus{
			Capacity:    resources(strconv.Itoa(NodeCores), "64Gi"),
			Allocatable: resources("15800m", "60Gi"),
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: kubelettest.Address(i).String()},
				{Type: corev1.NodeHostName, Address: name},
			},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(port)}},
			NodeInfo: corev1.NodeSystemInfo{
				KubeletVersion: "v1.36.3", OSImage: "Debian GNU/Linux 13 (trixie)", Architecture: "amd64",
				OperatingSystem: "linux", ContainerRuntimeVersion: "containerd://2.2.1", KernelVersion: "6.12.57",
			},
		},
	}
	node.Annotations = map[string]string{
		"node.alpha.kubernetes.io/ttl":                           "0",
		"volumes.kubernetes.io/controller-managed-attach-detach": "true",
		"csi.volume.kubernetes.io/nodeid":                        `{"ebs.csi.example.com":"i-` + suffix(10, name) + `"}`,
	}
	node.ManagedFields = managedFields("kubelet", created, nodeFields)
	for _, kind := range []corev1.NodeConditionType{"MemoryPressure", "DiskPressure", "PIDPressure", "Ready"} {
		status := corev1.ConditionFalse
		if kind == corev1.NodeReady {
			status = corev1.ConditionTrue
		}
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: kind, Status: status, Reason: "KubeletHasNo" + string(kind), Message: "kubelet has no " + string(kind),
			LastHeartbeatTime: metav1.NewTime(created), LastTransitionTime: metav1.NewTime(created),
		})
	}
	for image := range 40 {
		node.Status.Images = append(node.Status.Images, corev1.ContainerImage{
			Names:     []string{fmt.Sprintf("registry.example.com/team/%s:v1.%d", suffix(8, fmt.Sprint(image)), image)},
			SizeBytes: 50 << 20,
		})
	}
	return node
}

// SetCores sets the CPU in the status of a node.
func SetCores(node *corev1.Node, cores int) {
	if cores != NodeCores {
		node.Status.Capacity[corev1.ResourceCPU] = *resource.NewQuantity(int64(cores), resource.DecimalSI)
		node.Status.Allocatable[corev1.ResourceCPU] = node.Status.Capacity[corev1.ResourceCPU]
	}
}

// Object returns the pod as the API server has it: a running pod of a Deployment.
func (p Pod) Object(created time.Time) *corev1.Pod {
	object := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: meta(p.Namespace, p.Name, created, map[string]string{
			"app.kubernetes.io/name": p.App, "app.kubernetes.io/instance": p.App, "app.kubernetes.io/part-of": p.Namespace,
			"app.kubernetes.io/version": "1.4.2", "pod-template-hash": p.Hash, "security.istio.io/tlsMode": "istio",
		}),
		Spec: corev1.PodSpec{
			NodeName: NodeName(p.Node), ServiceAccountName: p.App, RestartPolicy: corev1.RestartPolicyAlways,
			DNSPolicy: corev1.DNSClusterFirst, SchedulerName: "default-scheduler",
			TerminationGracePeriodSeconds: new(int64(30)), SecurityContext: &corev1.PodSecurityContext{},
			EnableServiceLinks: new(true), PreemptionPolicy: new(corev1.PreemptLowerPriority), Priority: new(int32(0)),
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, QOSClass: corev1.PodQOSBurstable, StartTime: new(metav1.NewTime(created)),
			HostIP: kubelettest.Address(p.Node).String(), PodIP: podIP(p.Index), PodIPs: []corev1.PodIP{{IP: podIP(p.Index)}},
		},
	}
	object.GenerateName = p.App + "-" + p.Hash + "-"
	object.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "apps/v1", Kind: "ReplicaSet", Name: p.App + "-" + p.Hash, UID: uid(p.Namespace, p.App, p.Hash),
		Controller: new(true), BlockOwnerDeletion: new(true),
	}}
	object.Annotations = map[string]string{
		"checksum/config":                   hex.EncodeToString([]byte(uid(p.Namespace, p.App))),
		"kubectl.kubernetes.io/restartedAt": created.Format(time.RFC3339),
		"prometheus.io/scrape":              "true",
		"sidecar.istio.io/status": `{"initContainers":["istio-init"],"containers":["istio-proxy"],` +
			`"revision":"default"}`,
		"cni.projectcalico.org/podIP":                    podIP(p.Index) + "/32",
		"cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
	}
	object.ManagedFields = append(managedFields("kube-controller-manager", created, podFields),
		managedFields("kubelet", created, podStatusFields)...)
	for _, kind := range []corev1.PodConditionType{
		"PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled",
	} {
		object.Status.Conditions = append(object.Status.Conditions, corev1.PodCondition{
			Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(created),
		})
	}
	for i := range p.Containers {
		addContainer(object, p, ContainerName(i), created)
	}
	return object
}

func addContainer(object *corev1.Pod, p Pod, name string, created time.Time) {
	image := "registry.example.com/" + p.Namespace + "/" + name + ":1.4.2"
	object.Spec.Containers = append(object.Spec.Containers, corev1.Container{
		Name: name, Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
		Resources: corev1.ResourceRequirements{
			Requests: resources("250m", "256Mi"), Limits: resources("1", "512Mi"),
		},
		TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		Env: []corev1.EnvVar{
			{Name: "LOG_LEVEL", Value: "info"}, {Name: "DATABASE_URL", Value: "postgres://db." + p.Namespace},
		},
	})
	started := true
	object.Status.ContainerStatuses = append(object.Status.ContainerStatuses, corev1.ContainerStatus{
		Name: name, Image: image, Ready: true, Started: &started,
		ImageID:     image + "@sha256:" + hex.EncodeToString([]byte(uid(name, p.Namespace)))[:64],
		ContainerID: "containerd://" + hex.EncodeToString([]byte(uid(name, p.Namespace, p.Name)))[:64],
		State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.NewTime(created)}},
	})
}

func meta(namespace, name string, created time.Time, labels map[string]string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: uid(namespace, name), Generation: 1,
		CreationTimestamp: metav1.NewTime(created), Labels: labels,
	}
}

func resources(cpu, memory string) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
	}
}

func podIP(index int) string {
	return fmt.Sprintf("10.%d.%d.%d", 64+index>>16, index>>8&255, index&255)
}

func uid(names ...string) types.UID {
	h := fnv.New128a()
	for _, name := range names {
		h.Write([]byte(name))
		h.Write([]byte{0})
	}
	s := hex.EncodeToString(h.Sum(nil))
	return types.UID(s[:8] + "-" + s[8:12] + "-4" + s[13:16] + "-a" + s[17:20] + "-" + s[20:])
}

func managedFields(manager string, at time.Time, fields string) []metav1.ManagedFieldsEntry {
	return []metav1.ManagedFieldsEntry{{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
		Time: new(metav1.NewTime(at)), FieldsV1: metav1.NewFieldsV1(strings.TrimSpace(fields)),
	}}
}

// managedFields of such objects, as the API server has them.
var (
	//go:embed pod.json
	podFields string
	//go:embed pod-status.json
	podStatusFields string
	//go:embed node.json
	nodeFields string
)

// suffix returns a random-looking part of a name that depends on the strings.
func suffix(length int, from ...string) string {
	h := fnv.New64a()
	for _, s := range from {
		h.Write([]byte(s))
		h.Write([]byte{0})
	}
	return spell(length, h.Sum64())
}

// spell encodes a number with the letters of Kubernetes' generated names.
func spell(length int, n uint64) string {
	const letters = "bcdfghjklmnpqrstvwxz2456789"
	b := make([]byte, length)
	for i := range b {
		b[i] = letters[n%uint64(len(letters))]
		n /= uint64(len(letters))
	}
	return string(b)
}
