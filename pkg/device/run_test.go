package device

import (
	"context"
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
	"k8s.io/client-go/kubernetes"

	"github.com/kube-vitals/kube-vitals/internal/sim"
	"github.com/kube-vitals/kube-vitals/pkg/store"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

const podsPath = "/api/v1/namespaces/n/pods"

// TestRun runs a Source from the file to the store, with an API server and an exporter.
func TestRun(t *testing.T) {
	exporter := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, series("p", 1, 2))
	}))
	defer exporter.Close()
	at := netip.MustParseAddrPort(strings.TrimPrefix(exporter.URL, "http://"))
	api := sim.NewAPI()
	for _, name := range []string{"e", "other"} { // the latter is of another app
		pod := corev1.Pod{
			Spec:   corev1.PodSpec{NodeName: "node"},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: at.Addr().String()},
		}
		if name == "e" {
			pod.Labels = map[string]string{"a": "b"}
		}
		api.Put(podsPath+"/"+name, pod)
	}
	api.RefuseBy(func(_, path string) *sim.Refusal {
		if path != podsPath {
			t.Errorf("got a request for %s", path)
		}
		return nil
	})
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
		File: file, Client: kubernetes.NewForConfigOrDie(api.Config()), Sink: resources, Clock: clock,
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
	api.Put(podsPath+"/e", nil)
	for len(source.Exporters()[0].Pods) != 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	running.Wait()
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
