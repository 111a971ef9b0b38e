package encode

import (
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/internal/testenv"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// BenchmarkList encodes a list of all pods of 5000 nodes, without their lookup and without a
// network. The objects lie in memory in another order than they are encoded in.
func BenchmarkList(b *testing.B) {
	const pods, nodes = 150_000, 5000
	apps := [10]inventory.Labels{}
	for i := range apps {
		apps[i] = inventory.NewLabels(map[string]string{
			"app.kubernetes.io/name": fmt.Sprintf("app-%d", i), "pod-template-hash": "7d4b9c6f5d", "team": "shop",
		})
	}
	random, at := rand.New(rand.NewPCG(1, 2)), usage.NodeAt(now)
	amount := func() usage.Amount {
		return usage.Amount{
			CPUNanocores: random.Uint64N(2e9), Memory: random.Uint64N(1<<18) << 12, At: at, Window: 15 * time.Second,
		}
	}
	items := make([]Item, pods)
	for _, i := range random.Perm(pods) {
		items[i].Object = &inventory.Object{
			Namespace: fmt.Sprintf("team-%d", i/1500), Name: fmt.Sprintf("app-%d-7d4b9c6f5d-%05d", i%10, i), Labels: apps[i%10],
		}
	}
	for _, i := range random.Perm(pods) {
		items[i].Usage = &Pod{
			Name: items[i].Object.Name, At: at.Add(time.Duration(i%nodes) * time.Millisecond), Window: 15 * time.Second,
			Containers: []usage.Container{{Name: "main", Amount: amount()}, {Name: "proxy", Amount: amount()}},
		}
	}
	runtime.GC()
	list := encoder.NewList(PodMetrics, now, pods)
	for i := range items {
		list.Add(&items[i])
	}
	for id, format := range encoder.formats {
		if !strings.HasSuffix(format.apiVersion, "/v1") {
			continue
		}
		name := "json"
		if format.protobuf {
			name = "protobuf"
		}
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			start := testenv.CPUTime(b)
			for b.Loop() {
				if err := list.CacheEncode(id, nil, io.Discard); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(testenv.CPUTime(b)-start)/float64(b.N), "cpu-ns/op")
		})
	}
}
