package kubelet

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestScrapesShareNoMemory scrapes many kubelets at the same time: what each scrape has must be of
// its own node, although the buffers are reused.
func TestScrapesShareNoMemory(t *testing.T) {
	const nodes, rounds, containers = 8, 30, 50
	c := newTestClient(t, Config{PlainHTTP: true})
	var all sync.WaitGroup
	for n := range nodes {
		var text, summary strings.Builder
		own := strings.Repeat(string(rune('a'+n)), 20) // as long as the names of the others
		fmt.Fprintf(&summary, `{"node":{"nodeName":%q},"pods":[{"podRef":{"namespace":%q,"name":%q},"containers":[`, own, own, own)
		for i := range containers {
			fmt.Fprintf(&text, "container_cpu_usage_seconds_total{container=\"%s%d\",namespace=\"%s\",pod=\"%s\"} 1\n", own, i, own, own)
			if i > 0 {
				summary.WriteByte(',')
			}
			fmt.Fprintf(&summary, `{"name":"%s%d","cpu":{"time":"2026-11-22T00:00:00Z","usageNanoCores":1,"usageCoreNanoSeconds":1}}`, own, i)
		}
		summary.WriteString("]}]}")
		k := newKubelet(t, nil, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == summaryPath {
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write([]byte(summary.String()))
				return
			}
			answer(w, []byte(text.String()))
		})
		node := k.node(own)
		all.Go(func() {
			for range rounds {
				for name, fetch := range map[string]func(context.Context, *corev1.Node, *usage.Scrape) error{
					"Fetch": c.Fetch, "FetchSummary": c.FetchSummary,
				} {
					var s usage.Scrape
					if err := fetch(t.Context(), node, &s); err != nil {
						t.Errorf("%s: %v", name, err)
						return
					}
					if len(s.Containers) != containers {
						t.Errorf("%s: %d containers, want %d", name, len(s.Containers), containers)
						return
					}
					for i := range s.Containers {
						got := &s.Containers[i]
						if string(got.Namespace) != own || string(got.Pod) != own || !strings.HasPrefix(string(got.Name), own) {
							t.Errorf("%s of %s has container %s/%s/%s", name, own, got.Namespace, got.Pod, got.Name)
							return
						}
					}
				}
			}
		})
	}
	all.Wait()
}
