package top

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kuberuntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	metricsv1 "k8s.io/metrics/pkg/apis/metrics/v1"
)

// large is an API server with many pods, 10 of each ReplicaSet, in protobuf. It makes each page when it is read.
type large struct{ pods int }

// RoundTrip implements http.RoundTripper.
func (l large) RoundTrip(r *http.Request) (*http.Response, error) {
	first, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	last := min(first+limit, l.pods)
	meta := metav1.ListMeta{}
	if last < l.pods {
		meta.Continue = strconv.Itoa(last)
	}
	usage := list("cpu=12345678n memory=123456Ki")
	var page kuberuntime.Object
	switch r.URL.Path {
	case "/api/v1/pods":
		pods := &corev1.PodList{TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, ListMeta: meta}
		for i := first; i < last; i++ {
			pods.Items = append(pods.Items, largePod(i))
		}
		page = pods
	case metricsV1 + "pods":
		pods := &metricsv1.PodMetricsList{TypeMeta: metav1.TypeMeta{Kind: "PodMetricsList", APIVersion: "metrics.k8s.io/v1"},
			ListMeta: meta}
		for i := first; i < last; i++ {
			p := largePod(i)
			m := metricsv1.PodMetrics{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels},
				Timestamp: metav1.Now()}
			for _, c := range p.Spec.Containers {
				m.Containers = append(m.Containers, metricsv1.ContainerMetrics{Name: c.Name,
					Usage: usage})
			}
			pods.Items = append(pods.Items, m)
		}
		page = pods
	default:
		page = &appsv1.ReplicaSetList{}
	}
	var body bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(page, &body); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(&body), Header: http.Header{
		"Content-Type": {kuberuntime.ContentTypeProtobuf}}}, nil
}

// largePod returns a pod as large as a usual one.
func largePod(i int) corev1.Pod {
	p := corev1.Pod{ObjectMeta: own(fmt.Sprintf("web-with-some-name-%d-6f9c7d5b8d-%05d", i/10, i),
		fmt.Sprintf("apps/v1 ReplicaSet web-with-some-name-%d-6f9c7d5b8d", i/10))}
	p.Namespace, p.Labels = fmt.Sprintf("namespace-%d", i%100), map[string]string{"app": "web", "hash": "6f9c7d5b8d"}
	p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet",
		FieldsV1: metav1.NewFieldsV1(strings.Repeat("x", 4000))}}
	p.Spec.Containers = []corev1.Container{container("app", "cpu=100m memory=128Mi", "memory=256Mi"),
		container("proxy", "cpu=10m memory=32Mi", "")}
	for j := range 20 {
		p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprint("VARIABLE_", j),
			Value: "some value of usual length"})
	}
	p.Spec.NodeName, p.Status.Phase = fmt.Sprintf("node-%d", i%1000), corev1.PodRunning
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", Image: "registry.example/app:v1.2.3"},
		{Name: "proxy", Image: "registry.example/proxy:v1.2.3"}}
	return p
}

// BenchmarkPods reads and prints 30,000 pods. It reports the largest heap, with that of the simulated API server.
func BenchmarkPods(b *testing.B) {
	c := Config{Client: &rest.Config{Host: "http://api", Transport: large{30_000}}, Kind: Pods, SortBy: "cpu",
		Out: io.Discard, ErrOut: io.Discard}
	peak, done := uint64(0), make(chan bool)
	go func() {
		for {
			select {
			case <-done:
				done <- true
				return
			case <-time.After(10 * time.Millisecond):
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				peak = max(peak, m.HeapInuse+m.StackInuse)
			}
		}
	}()
	for b.Loop() {
		if _, err := Run(b.Context(), c); err != nil {
			b.Fatal(err)
		}
	}
	done <- true
	<-done
	b.ReportMetric(float64(peak)/(1<<20), "peak-MiB")
}
