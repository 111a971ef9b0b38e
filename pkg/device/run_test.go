package device

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// apiServer serves the pods of exporters. It supports lists and watches, but no streamed lists.
type apiServer struct {
	t      *testing.T
	pod    *corev1.Pod
	events chan metav1.WatchEvent
}

func (a *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if r.URL.Path != "/api/v1/namespaces/n/pods" || query.Get("labelSelector") != "a=b" {
		a.t.Errorf("got a request for %s", r.URL)
	}
	w.Header().Set("Content-Type", "application/json")
	switch {
	case query.Get("sendInitialEvents") != "":
		w.WriteHeader(http.StatusUnprocessableEntity)
		json.NewEncoder(w).Encode(metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity,
		})
	case query.Get("watch") != "":
		w.(http.Flusher).Flush()
		for {
			select {
			case <-r.Context().Done():
				return
			case event := <-a.events:
				json.NewEncoder(w).Encode(event)
				w.(http.Flusher).Flush()
			}
		}
	default:
		list := corev1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.Pod{*a.pod}}
		list.Kind, list.APIVersion = "PodList", "v1"
		json.NewEncoder(w).Encode(list)
	}
}

// TestRun runs a Source from the file to the store, with an API server and an exporter.
func TestRun(t *testing.T) {
	exporter := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, series("p", 1, 2))
	}))
	defer exporter.Close()
	at := netip.MustParseAddrPort(strings.TrimPrefix(exporter.URL, "http://"))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "e", UID: "u", ResourceVersion: "1"},
		Spec:       corev1.PodSpec{NodeName: "node"},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIP: at.Addr().String()},
	}
	pod.Kind, pod.APIVersion = "Pod", "v1"
	api := &apiServer{t: t, pod: pod, events: make(chan metav1.WatchEvent)}
	server := httptest.NewServer(api)
	defer server.Close()
	file := filepath.Join(t.TempDir(), "devices.yaml")
	config := strings.Replace(testConfig, "port: 1", fmt.Sprint("port: ", at.Port()), 1)
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var synced atomic.Bool
	clock := usage.NewClock(time.Now())
	resources := store.NewResources()
	scraped := make(chan Result, 100)
	source, err := New(Config{
		File: file, Client: kubernetes.NewForConfigOrDie(&rest.Config{Host: server.URL}), Sink: resources, Clock: clock,
		Scraped: func(r Result) {
			select {
			case scraped <- r:
			default:
			}
		},
		IsKnown:       func(_, _, _, _ string) bool { return synced.Load() },
		Synced:        synced.Load,
		AllowLoopback: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { source.Run(ctx) })
	synced.Store(true)
	if r := <-scraped; r.Exporter != "test" || r.Reason != "" {
		t.Errorf("got %+v", r)
	}
	values := resources.Pod("node", &usage.Pod{Namespace: "n", Name: "p", Containers: []usage.Container{{Name: "c"}}},
		clock.At(time.Now()))
	want := usage.Resource{Name: "x.org/sum", Value: 3000, Unit: usage.Milli}
	if len(values) != 1 || len(values[0]) != 2 || values[0][1] != want {
		t.Errorf("got %+v", values)
	}
	object, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	event := metav1.WatchEvent{Type: "DELETED"}
	event.Object.Raw = object
	api.events <- event
	for len(source.Exporters()[0].Pods) != 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	running.Wait()
	server.CloseClientConnections()
}

// TestRunEnds checks that Run ends while the pods are not known.
func TestRunEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	source := newSource(Config{Synced: func() bool { return false }})
	source.Run(ctx)
}

func TestNewErrors(t *testing.T) {
	dir := t.TempDir()
	invalid := filepath.Join(dir, "invalid")
	if err := os.WriteFile(invalid, []byte("exporters: []"), 0o600); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		filepath.Join(dir, "none"): "cannot read the configuration of device exporters",
		invalid:                    invalid + ": exporters is empty",
	} {
		if _, err := New(Config{File: file}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
