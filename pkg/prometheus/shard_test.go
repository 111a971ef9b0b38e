package prometheus

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// TestShardsAreDisjointAndComplete puts names that end with each byte into shards.
func TestShardsAreDisjointAndComplete(t *testing.T) {
	var names []string
	for c := range 256 {
		for _, start := range []string{"", "web-", "a\nb", "\xff"} {
			names = append(names, start+string([]byte{byte(c)}))
		}
	}
	names = append(names, "", "\n", "web-é", "web-😀", "web-0", "web-7d4b9c6f5-x2x4z", "a\n")
	for n := 2; n <= maxShards; n++ {
		shards := shardsOf("pod", n)
		for _, name := range names {
			var in []int
			for shard, isIn := range shards {
				if isIn(map[string]string{"pod": name}) {
					in = append(in, shard)
				}
			}
			if len(in) != 1 {
				t.Errorf("%q is in the shards %v of %d, want exactly one", name, in, n)
			}
		}
	}
}

// shardsOf returns functions that report whether a series is in a shard.
func shardsOf(label string, n int) []func(map[string]string) bool {
	shards := make([]func(map[string]string) bool, n)
	for shard := range shards {
		shards[shard] = matcher(shardMatcher(label, shard, n))
	}
	return shards
}

// TestShardsAreEven divides names such as those of ReplicaSets and StatefulSets.
func TestShardsAreEven(t *testing.T) {
	const random = "bcdfghjklmnpqrstvwxz2456789" // of k8s.io/apimachinery/pkg/util/rand
	generator := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{2, 4, 8} {
		shards := shardsOf("pod", n)
		for name, last := range map[string]func() byte{
			"random suffixes": func() byte { return random[generator.IntN(len(random))] },
			"digits":          func() byte { return '0' + byte(generator.IntN(10)) },
		} {
			counts := make([]int, n)
			for range 2000 {
				labels := map[string]string{"pod": "web-" + string([]byte{last()})}
				counts[slices.IndexFunc(shards, func(isIn func(map[string]string) bool) bool { return isIn(labels) })]++
			}
			if most := slices.Max(counts); most > 2*2000/n {
				t.Errorf("%d shards of %s have %v pods", n, name, counts)
			}
		}
	}
}

func TestWithMatcher(t *testing.T) {
	for selector, want := range map[string]string{
		"up":               `up{m}`,
		"up{}":             `up{m}`,
		`up{a="}"}`:        `up{a="}",m}`,
		`up { a="b" , } `:  `up { a="b" ,m}`,
		`{__name__="a{"}`:  `{__name__="a{",m}`,
		`cpu{a=~"x{2}"  }`: `cpu{a=~"x{2}",m}`,
	} {
		if got := withMatcher(selector, "m"); got != want {
			t.Errorf("%q: got %q, want %q", selector, got, want)
		}
	}
}

func TestShards(t *testing.T) {
	f := newFixture(t, "shards: 4")
	var want []string
	for i, suffix := range []string{"0", "1", "2", "3", "9", "b", "z", "a", "é"} {
		selector := `{container="app",namespace="ns",node="n1",pod="web-` + suffix + `"}`
		f.set(func() {
			ms := float64(i) / 1000 // kubelets read each counter at a time of its own
			f.series["container_cpu_usage_seconds_total"+selector] = f.samples(-20-ms, 100, -5-ms, 103)
			f.series["container_memory_working_set_bytes"+selector] = f.samples(-5, 7)
		})
		want = append(want, "web-"+suffix)
	}
	result := f.mustRefresh()
	if n := result.Series["containerCPU"]; n != len(want) {
		t.Errorf("got %d series, want %d", n, len(want))
	}
	checkPods := func() {
		t.Helper()
		for _, name := range want {
			if p := f.store.Pod("n1", "ns", name, f.start); p == nil || p.Containers[0].CPUNanocores != 200e6 {
				t.Errorf("%s: got %+v, want 200 millicores", name, p)
			}
		}
	}
	checkPods()
	var containerQueries, nodeQueries int
	for _, r := range f.requests {
		if strings.Contains(r.Form.Get("query"), "container") {
			containerQueries++
		} else {
			nodeQueries++
		}
	}
	if containerQueries != 4*4 || nodeQueries != 3 {
		t.Errorf("sent %d queries for containers and %d for nodes, want 16 and 3", containerQueries, nodeQueries)
	}

	// If one shard fails, the refresh fails, and nothing is removed.
	f.ended["app"] = true
	failing := f.client.config.query(containerMemory, 2, f.client.window)
	f.set(func() {
		clear(f.series)
		f.respond = func(w http.ResponseWriter, r *http.Request) {
			if r.Form.Get("query") == failing {
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"status":"success","data":{"result":[]}}`)
		}
	})
	if result := f.refresh(context.Background()); result.Reason != reason.ServerError {
		t.Errorf("got %v, want %v", result.Err, reason.ServerError)
	}
	checkPods()
}
