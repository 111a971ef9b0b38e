package server

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/pkg/inventory"
)

// benchmarkPods is the number of pods that BenchmarkPods reads: those of 1000 nodes with 30 each.
const benchmarkPods = 30_000

// BenchmarkPods measures the CPU and the memory that it takes until all pods are known, and the
// time, which depends on what else the machine does. Next to what the server does, it measures the
// ways in which client-go reads whole pods. The API server is a process of its own that has encoded
// all pods before.
func BenchmarkPods(b *testing.B) {
	config := &rest.Config{Host: startPodServer(b), TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	typed := rest.CopyConfig(config)
	typed.ContentType, typed.AcceptContentTypes, typed.DisableCompression = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf, true
	core, err := corev1client.NewForConfig(typed)
	if err != nil {
		b.Fatal(err)
	}
	all := func(*metav1.ListOptions) {}
	for _, test := range []struct {
		name string
		feed func(*inventory.Index) *feed
	}{
		{"server", func(pods *inventory.Index) *feed {
			w, err := newWatches(config, nil, &nodeStore{Index: inventory.New()}, pods)
			if err != nil {
				b.Fatal(err)
			}
			return w.pods
		}},
		{"pages", func(pods *inventory.Index) *feed {
			f := newFeed("pods", wholePages{core.Pods("")}, &corev1.Pod{}, pods, all)
			f.reflector.WatchListPageSize = podsPerPage
			return f
		}},
		{"list", func(pods *inventory.Index) *feed {
			return newFeed("pods", listOnly{core.Pods("")}, &corev1.Pod{}, pods, all)
		}},
		{"watchlist", func(pods *inventory.Index) *feed {
			return newFeed("pods", core.Pods(""), &corev1.Pod{}, pods, all)
		}},
	} {
		b.Run(test.name, func(b *testing.B) {
			defer debug.SetGCPercent(debug.SetGCPercent(minGCPercent))
			var peak uint64
			cpu := cpuTime(b)
			for b.Loop() {
				b.StopTimer()
				debug.FreeOSMemory()
				ctx, cancel := context.WithCancel(b.Context())
				heap := watchHeap(ctx)
				pods := inventory.New()
				f := test.feed(pods)
				ended := make(chan struct{})
				b.StartTimer()
				go func() {
					defer close(ended)
					f.reflector.RunWithContext(ctx)
				}()
				for !pods.HasSynced() {
					time.Sleep(time.Millisecond)
				}
				b.StopTimer()
				if n := pods.Len(); n != benchmarkPods {
					b.Fatalf("%d pods are known", n)
				}
				cancel()
				<-ended
				peak = max(peak, <-heap)
				b.StartTimer()
			}
			b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
			b.ReportMetric((cpuTime(b)-cpu).Seconds()/float64(b.N), "cpu-s/op")
		})
	}
}

// listOnly is a client whose lists are read whole.
type listOnly struct{ lister[*corev1.PodList] }

func (listOnly) IsWatchListSemanticsUnSupported() bool { return true }

// wholePages is a client whose lists are decoded by the library, page by page, and reduced then.
type wholePages struct{ lister[*corev1.PodList] }

func (wholePages) IsWatchListSemanticsUnSupported() bool { return true }

func (p wholePages) List(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	options.ResourceVersion = ""
	page, err := p.lister.List(ctx, options)
	if err != nil {
		return nil, err
	}
	list, batch := &podList{ListMeta: page.ListMeta}, inventory.NewBatch()
	for i := range page.Items {
		list.Items = append(list.Items, must(batch.NewObject(&page.Items[i])))
	}
	return list, nil
}

// watchHeap returns a channel that has, after the context ended, by how much the heap grew at most.
func watchHeap(ctx context.Context) <-chan uint64 {
	size := func() uint64 {
		samples := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"}}
		metrics.Read(samples)
		return samples[0].Value.Uint64() + samples[1].Value.Uint64()
	}
	peak := make(chan uint64, 1)
	before := size()
	go func() {
		most := before
		for ctx.Err() == nil {
			most = max(most, size())
			time.Sleep(2 * time.Millisecond)
		}
		peak <- most - before
	}()
	return peak
}

func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// podServerEnv is set in the process that serves pods for BenchmarkPods.
const podServerEnv = "KUBE_VITALS_SERVE_PODS"

// startPodServer runs TestServePods in a process of its own and returns its address.
func startPodServer(b *testing.B) string {
	executable, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	server := exec.CommandContext(b.Context(), executable, "-test.run=^TestServePods$", "-test.timeout=0")
	server.Env = append(os.Environ(), podServerEnv+"=1")
	server.Stderr = os.Stderr
	in, err := server.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	out, err := server.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := server.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		in.Close()
		server.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(line)
}

// TestServePods is not a test: it is the API server of BenchmarkPods. It prints its address and
// serves until its input ends.
func TestServePods(t *testing.T) {
	if os.Getenv(podServerEnv) == "" {
		t.Skip("only a part of BenchmarkPods")
	}
	pods := make([][]byte, benchmarkPods)
	for i := range pods {
		pods[i] = must(benchmarkPod(i).Marshal())
	}
	server := httptest.NewUnstartedServer(&podServer{pods})
	server.Listener = must(net.Listen("tcp", "127.0.0.1:0"))
	server.EnableHTTP2 = true
	server.StartTLS()
	fmt.Println(server.URL)
	io.Copy(io.Discard, os.Stdin)
	server.CloseClientConnections()
	server.Close()
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// podServer serves encoded pods as an API server does.
type podServer struct{ pods [][]byte }

// ServeHTTP implements http.Handler.
func (s *podServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if query.Get("watch") == "" {
		limit, _ := strconv.Atoi(cmp.Or(query.Get("limit"), "0"))
		from, _ := strconv.Atoi(cmp.Or(query.Get("continue"), "0"))
		s.list(w, from, limit)
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf+";stream=watch")
	w.(http.Flusher).Flush()
	if query.Get("sendInitialEvents") == "true" {
		for _, pod := range s.pods {
			sendEvent(w, "ADDED", pod)
		}
		sendEvent(w, "BOOKMARK", must((&corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			ResourceVersion: "1", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}}).Marshal()))
	}
	<-r.Context().Done()
}

// list sends the pods from one position on, up to a limit. 0 is no limit.
func (s *podServer) list(w http.ResponseWriter, from, limit int) {
	page := s.pods[from:]
	meta := metav1.ListMeta{ResourceVersion: "1"}
	if limit > 0 && limit < len(page) {
		page, meta.Continue = page[:limit], strconv.Itoa(from+limit)
	}
	list := appendField(nil, 1, must(meta.Marshal()))
	for _, pod := range page {
		list = appendField(list, 2, pod)
	}
	w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
	w.Write(inEnvelope("PodList", list))
}

// sendEvent sends one event of a watch at once, as an API server does whose watcher keeps up with
// it.
func sendEvent(w http.ResponseWriter, kind string, pod []byte) {
	event := must((&metav1.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: inEnvelope("Pod", pod)}}).Marshal())
	w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(event))), event...))
	w.(http.Flusher).Flush()
}

// inEnvelope returns an encoded object as it is sent in protobuf.
func inEnvelope(kind string, object []byte) []byte {
	typeMeta := appendField(appendField(nil, 1, []byte("v1")), 2, []byte(kind))
	return appendField(appendField([]byte(protobufPrefix), 1, typeMeta), 2, object)
}

// appendField appends a field to a message in protobuf.
func appendField(b []byte, number protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), value)
}

// benchmarkPod returns a pod of two containers with what pods of Deployments usually have, some 8
// KB of it.
func benchmarkPod(i int) *corev1.Pod {
	app := fmt.Sprintf("application-%d", i/10)
	namespace := fmt.Sprintf("namespace-%d", i/600)
	name := fmt.Sprintf("%s-7d4b9c6f5d-%05d", app, i)
	uid := fmt.Sprintf("0b1a4c1e-9d0e-4a6c-8d0b-%012d", i)
	at := metav1.Unix(1_700_000_000+int64(i), 0)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, GenerateName: app + "-7d4b9c6f5d-", UID: types.UID(uid),
			ResourceVersion: strconv.Itoa(1_000_000 + i), CreationTimestamp: at,
			Labels: map[string]string{
				"app.kubernetes.io/name": app, "app.kubernetes.io/part-of": "shop", "pod-template-hash": "7d4b9c6f5d",
			},
			Annotations: map[string]string{
				"checksum/config": strings.Repeat("0", 64), "cni.projectcalico.org/podIP": "10.64.0.1/32", "prometheus.io/scrape": "true",
			},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: app + "-7d4b9c6f5d", UID: types.UID(uid)}},
			ManagedFields: []metav1.ManagedFieldsEntry{
				{Manager: "kube-controller-manager", Operation: "Update", APIVersion: "v1", Time: &at, FieldsType: "FieldsV1",
					FieldsV1: metav1.NewFieldsV1(strings.Repeat(`{"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{".":{}`, 40))},
				{Manager: "kubelet", Operation: "Update", APIVersion: "v1", Time: &at, FieldsType: "FieldsV1", Subresource: "status",
					FieldsV1: metav1.NewFieldsV1(strings.Repeat(`{"f:status":{"f:conditions":{"k:{\"type\":\"Ready\"}":{".":{}`, 20))},
			},
		},
		Spec: corev1.PodSpec{
			NodeName: fmt.Sprintf("node-%d.example.com", i%1000), ServiceAccountName: app, RestartPolicy: corev1.RestartPolicyAlways,
			SchedulerName: "default-scheduler", DNSPolicy: corev1.DNSClusterFirst,
			Tolerations: []corev1.Toleration{
				{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute"},
				{Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute"},
			},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, HostIP: "10.0.0.1", PodIP: "10.64.0.1", StartTime: &at, QOSClass: corev1.PodQOSBurstable,
			PodIPs: []corev1.PodIP{{IP: "10.64.0.1"}}, HostIPs: []corev1.HostIP{{IP: "10.0.0.1"}},
		},
	}
	for _, condition := range []corev1.PodConditionType{"PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"} {
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: condition, Status: "True", LastTransitionTime: at})
	}
	for _, volume := range []string{"config", "data", "tmp", "kube-api-access-x8k2p"} {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: volume, VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: app + "-" + volume}},
		}})
	}
	for _, container := range []string{"main", "proxy"} {
		amounts := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m"), corev1.ResourceMemory: resource.MustParse("256Mi")}
		c := corev1.Container{
			Name: container, Image: "registry.example.com/shop/" + app + ":1.4.2", ImagePullPolicy: corev1.PullIfNotPresent,
			Resources:              corev1.ResourceRequirements{Requests: amounts, Limits: amounts},
			Ports:                  []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
			TerminationMessagePath: "/dev/termination-log",
			LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
				Exec: &corev1.ExecAction{Command: []string{"/bin/check", "--timeout=1s", "http://127.0.0.1:8080/livez"}},
			}},
		}
		for e := range 15 {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("APPLICATION_SETTING_%d", e), Value: "some value of a usual length"})
		}
		for _, volume := range pod.Spec.Volumes {
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: volume.Name, MountPath: "/var/run/" + volume.Name})
		}
		pod.Spec.Containers = append(pod.Spec.Containers, c)
		started := true
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, corev1.ContainerStatus{
			Name: container, Image: c.Image, ImageID: c.Image + "@sha256:" + strings.Repeat("0", 64), Ready: true, Started: &started,
			ContainerID: "containerd://" + strings.Repeat("0", 64),
			State:       corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}},
		})
	}
	return pod
}
