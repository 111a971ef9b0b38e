package main

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-vitals/kube-vitals/internal/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

func TestLoad(t *testing.T) {
	l := load{{0, 0.1}, {10 * time.Second, 0.4}, {15 * time.Second, 0}}
	for at, want := range map[time.Duration][2]float64{
		-time.Second:             {0, 0},
		0:                        {0.1, 0},
		4 * time.Second:          {0.1, 0.4},
		10 * time.Second:         {0.4, 1},
		14900 * time.Millisecond: {0.4, 2.96},
		15 * time.Second:         {0, 3},
		time.Hour:                {0, 3},
	} {
		if got := [2]float64{l.at(at), l.until(at)}; math.Abs(got[0]-want[0])+math.Abs(got[1]-want[1]) > 1e-9 {
			t.Errorf("at %s: got %v cores and core-seconds, want %v", at, got, want)
		}
	}
}

// TestKinds checks the properties of the loads on which the measurement relies.
func TestKinds(t *testing.T) {
	const duration = 5 * time.Minute
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(3, 4))
			mean, highest := 0.0, 0.0
			for range 20 {
				loads := k.generate(random, duration)
				if len(loads) != podsPerAutoscaler {
					t.Fatalf("got loads of %d pods, want %d", len(loads), podsPerAutoscaler)
				}
				for _, l := range loads {
					sorted := slices.IsSortedFunc(l, func(a, b change) int { return int(a.at - b.at) })
					if !sorted || l[0].at != 0 || l[len(l)-1].at >= duration {
						t.Fatalf("not in order, from 0 and within %s: %v", duration, l)
					}
					mean += l.until(duration) / duration.Seconds() / float64(20*len(loads))
					for _, c := range l {
						highest = max(highest, c.cores)
					}
				}
			}
			switch k.name {
			case stepKind:
				want := stepLow + (stepHigh-stepLow)*3*stepDuration.Seconds()/duration.Seconds()
				if math.Abs(mean-want) > 1e-9 || highest != stepHigh || replicasFor(stepHigh) != stepReplicas {
					t.Errorf("got mean %g and maximum %g, want %g and %g", mean, highest, want, stepHigh)
				}
			case rampKind:
				if math.Abs(highest-rampHigh) > 1e-9 || replicasFor(highest) >= maxReplicas {
					t.Errorf("got maximum %g, want %g, for which there are enough replicas", highest, rampHigh)
				}
			case spikeKind:
				// Over a minute, spikes need no more replicas than the minimum.
				if mean > target/1.1 || highest > spikeMax || highest < 2*target {
					t.Errorf("got mean %g and maximum %g", mean, highest)
				}
			case noiseKind:
				if math.Abs(mean-noiseMean) > 0.05*noiseMean || highest < 2*target {
					t.Errorf("got mean %g and maximum %g, want a mean of %g", mean, highest, noiseMean)
				}
			}
		})
	}
}

// TestPlay plays loads on the containers of a kubelet, and compares its counters.
func TestPlay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const duration = 5 * time.Minute
		random := rand.New(rand.NewPCG(5, 6))
		var loads []load
		for _, k := range kinds() {
			for _, l := range k.generate(random, duration) {
				for i := range l { // counters change at whole milliseconds
					l[i].at = l[i].at.Truncate(time.Millisecond)
				}
				loads = append(loads, l)
			}
		}
		pod := func(i int) string { return "pod-" + strconv.Itoa(i) }
		k := kubelettest.New("n", kubelettest.Config{ContainersOnDemand: true, Housekeeping: housekeeping})
		for i, l := range loads {
			k.SetContainer("ns", pod(i), "app", kubelettest.Usage{CPU: l.at(0)})
		}
		start := time.Now()
		played, err := play(t.Context(), loads, duration, func(i int, cores float64) {
			k.SetContainer("ns", pod(i), "app", kubelettest.Usage{CPU: cores})
			if at := time.Since(start); loads[i].at(at) != cores {
				t.Errorf("load %d after %s: got %g cores, want %g", i, at, cores, loads[i].at(at))
			}
		})
		if err != nil || time.Since(start) != duration || fmt.Sprint(played) != fmt.Sprint(loads) {
			t.Errorf("got %v after %s, want all loads on time in %s", err, time.Since(start), duration)
		}
		w := httptest.NewRecorder()
		k.ServeHTTP(w, httptest.NewRequest(http.MethodGet, kubelettest.ResourcePath, nil))
		for i, l := range loads {
			prefix := fmt.Sprintf("container_cpu_usage_seconds_total{container=%q,namespace=%q,pod=%q} ", "app", "ns", pod(i))
			_, rest, _ := strings.Cut(w.Body.String(), prefix)
			fields := strings.Fields(rest)
			if len(fields) < 2 {
				t.Fatalf("no counter of %s in\n%s", pod(i), w.Body)
			}
			got, err1 := strconv.ParseFloat(fields[0], 64)
			at, err2 := strconv.ParseInt(fields[1], 10, 64)
			if err := errors.Join(err1, err2); err != nil {
				t.Fatal(err)
			}
			if want := l.until(time.UnixMilli(at).Sub(start)); math.Abs(got-want) > 1e-6 {
				t.Errorf("load %d: got %g core-seconds, want %g", i, got, want)
			}
		}
	})
}

func TestPlayEndsWithContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 90*time.Second, io.ErrClosedPipe)
		defer cancel()
		calls := 0
		loads := []load{{{0, 1}, {time.Minute, 2}, {2 * time.Minute, 3}}}
		_, err := play(ctx, loads, time.Hour, func(int, float64) { calls++ })
		if !errors.Is(err, io.ErrClosedPipe) || calls != 2 {
			t.Errorf("got %v after %d calls, want the cause after 2", err, calls)
		}
	})
}

// decide returns decisions at some seconds.
func decide(pairs ...int) (d decisions) {
	for i := 0; i < len(pairs); i += 2 {
		d.add(time.Duration(pairs[i])*time.Second, pairs[i+1])
	}
	return d
}

func TestDecisions(t *testing.T) {
	d := decide(-20, 2, -10, 4, 5, 4, 10, 2, 20, 2, 30, 3)
	if want := decide(-20, 2, -10, 4, 10, 2, 30, 3); !slices.Equal(d, want) {
		t.Errorf("got %v, want %v without repetitions", d, want)
	}
	for second, want := range map[int]int{-30: 2, -20: 2, -10: 4, 0: 4, 9: 4, 10: 2, 29: 2, 30: 3, 99: 3} {
		if got := d.at(time.Duration(second) * time.Second); got != want {
			t.Errorf("after %d s: got %d replicas, want %d", second, got, want)
		}
	}
	if got := d.changes(29 * time.Second); got != 1 {
		t.Errorf("got %d changes in 29 s, want 1: those before the start do not count", got)
	}
	if got := d.changes(30 * time.Second); got != 2 {
		t.Errorf("got %d changes in 30 s, want 2", got)
	}
	if got := d.since(10 * time.Second); got[2].at != 0 || got[3].at != 20*time.Second || d[2].at == 0 {
		t.Errorf("got %v of %v", got, d)
	}
}

func TestDelaysOfSteps(t *testing.T) {
	l := load{
		{0, stepLow},
		{20 * time.Second, stepHigh}, {80 * time.Second, stepLow},
		{120 * time.Second, stepHigh}, {180 * time.Second, stepLow},
		{220 * time.Second, stepHigh}, {280 * time.Second, stepLow},
	}
	var s delays
	// The second step up never leads to the right number, and the third one comes while the
	// autoscaler still wants more than the minimum.
	s.addSteps(l, decide(-60, 2, 30, 4, 45, 6, 100, 2, 150, 5, 230, 6, 290, 2), 300*time.Second)
	inf := math.Inf(1)
	want := delays{first: []float64{10, 30}, right: []float64{25, inf}, down: []float64{20, inf}, skipped: 1}
	if got := fmt.Sprintf("%+v", s); got != fmt.Sprintf("%+v", want) {
		t.Errorf("got\n%s, want\n%+v", got, want)
	}
}

func TestDelaysOfRamp(t *testing.T) {
	l := load{
		{0, 0.05}, {10 * time.Second, 0.15}, {20 * time.Second, 0.16}, {30 * time.Second, 0.30}, {60 * time.Second, 0.05},
	}
	var s delays
	s.addRamp(l, decide(-60, 2, 15, 3, 35, 5, 55, 6, 70, 2), 100*time.Second)
	// Four replicas are needed after 20 s, five and six after 30 s.
	if want := []float64{15, 5, 25}; !slices.Equal(s.ramp, want) {
		t.Errorf("got %v, want %v", s.ramp, want)
	}
}

func TestReplicasFor(t *testing.T) {
	for cores, want := range map[float64]int{0: 0, 0.05: 1, 0.1: 2, 0.1001: 3, 0.15: 3, 0.151: 4, 0.29: 6, 0.5: 10} {
		if got := replicasFor(cores); got != want {
			t.Errorf("replicasFor(%g) = %d, want %d", cores, got, want)
		}
	}
}

// TestNewAutoscalers checks on which nodes the pods are, and that all modes get the same loads.
func TestNewAutoscalers(t *testing.T) {
	for _, ownPhases := range []bool{false, true} {
		cfg := config{
			reactionOptions: reactionOptions{autoscalers: 16, watched: 0.25, ownPhases: ownPhases},
			duration:        minReactionDuration,
		}
		s := newShape(32, podsPerNode, containersPerPod)
		list := newAutoscalers(cfg, s)
		if got := fmt.Sprint(newAutoscalers(cfg, s)); got != fmt.Sprint(list) {
			t.Error("got other autoscalers the second time")
		}
		onNode, names := map[int]int{}, map[string]bool{}
		phases := map[int]map[time.Duration]bool{}
		for _, a := range list {
			for _, pod := range a.pods {
				onNode[pod.Node]++
				names[pod.Name] = true
				if phases[pod.Node] == nil {
					phases[pod.Node] = map[time.Duration]bool{}
				}
				phases[pod.Node][a.phase] = true
			}
			if a.pods[0].Node == a.pods[1].Node {
				t.Errorf("%s has both pods on node %d", a.name, a.pods[0].Node)
			}
			if a.phase < 0 || a.phase >= syncPeriod {
				t.Errorf("%s has phase %s", a.name, a.phase)
			}
		}
		if len(list) != 64 || len(names) != 128 || len(onNode) != 8 {
			t.Errorf("got %d autoscalers with %d pods on %d nodes, want 64, 128, 8", len(list), len(names), len(onNode))
		}
		for node, n := range onNode {
			if one := len(phases[node]) == 1; n != 16 || node >= 8 || one == ownPhases {
				t.Errorf("node %d has %d pods of autoscalers, which read at %v", node, n, phases[node])
			}
		}
	}
}

func TestSelectModes(t *testing.T) {
	names := func(modes []mode) (list []string) {
		for _, m := range modes {
			list = append(list, m.name)
		}
		return list
	}
	all, err := config{}.selectModes()
	if err != nil || slices.Contains(names(all), "metrics-server") || !slices.Contains(names(all), "plain") {
		t.Errorf("got %v, %v, want all modes that need no other server", names(all), err)
	}
	some, err := config{beside: "x", reactionOptions: reactionOptions{modes: "plain,metrics-server"}}.selectModes()
	if want := []string{"plain", "metrics-server"}; err != nil || !slices.Equal(names(some), want) {
		t.Errorf("got %v, %v, want %v", names(some), err, want)
	}
	for _, modes := range []string{"other", "plain,", "metrics-server"} {
		if got, err := (config{reactionOptions: reactionOptions{modes: modes}}).selectModes(); err == nil {
			t.Errorf("-modes=%s: got %v, want an error", modes, names(got))
		}
	}
}

func TestPrintReaction(t *testing.T) {
	r := &reactionResult{
		mode: mode{name: "plain", resolution: 15 * time.Second, args: []string{"--x=1"}},
		delays: delays{
			first: []float64{1, 2, 3}, right: []float64{4, 5, math.Inf(1)}, down: []float64{6}, ramp: []float64{7, 9},
			skipped: 2,
		},
		spikes: 10, noise: 20.5, scrapes: 4, scrapesWatched: 6, millicores: 3.25,
	}
	var b strings.Builder
	printReaction(&b, config{kubeletOptions: kubeletOptions{onDemand: "all"}}, 32, []*reactionResult{r})
	for _, want := range []string{
		"sample containers for each request", "2.0 s", "3.0 s", "5.0 s", "never", "6.0 s", "8.0 s", "10.0", "20.5",
		"2 steps skipped", "--metric-resolution=15s --x=1",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("%q is missing in\n%s", want, &b)
		}
	}
}

func TestTicks(t *testing.T) {
	for end, want := range map[float64]string{
		1: "[0 0.2 0.4 0.6 0.8 1]", 60: "[0 10 20 30 40 50 60]", 100: "[0 20 40 60 80 100]", 2.5: "[0 0.5 1 1.5 2 2.5]",
		5400: "[0 1000 2000 3000 4000 5000]", 0: "[0]", math.Inf(1): "[0]", math.NaN(): "[0]",
	} {
		got := ticks(end)
		for i := range got {
			got[i] = math.Round(got[i]*1e9) / 1e9
		}
		if fmt.Sprint(got) != want {
			t.Errorf("ticks(%g) = %v, want %s", end, got, want)
		}
	}
}

func TestDistribution(t *testing.T) {
	got := distribution("x", []float64{5, 10, 10, math.Inf(1)}, 60)
	want := [][2]float64{{0, 0}, {5, 0}, {5, 25}, {10, 25}, {10, 50}, {10, 50}, {10, 75}, {60, 75}}
	if !slices.Equal(got.points, want) {
		t.Errorf("got %v, want %v", got.points, want)
	}
}

// TestCurvePlot checks that the file is valid XML, and where a line is in it.
func TestCurvePlot(t *testing.T) {
	var b bytes.Buffer
	p := curvePlot{
		title: "a < b", x: "s", y: "%",
		curves: []curve{{name: "one & two", points: [][2]float64{{0, 0}, {10, 50}, {20, 100}}}},
	}
	if err := p.write(&b); err != nil {
		t.Fatal(err)
	}
	var points, texts []string
	for d := xml.NewDecoder(&b); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			for _, a := range token.Attr {
				if a.Name.Local == "points" {
					points = append(points, a.Value)
				}
			}
		case xml.CharData:
			texts = append(texts, string(token))
		}
	}
	bottom, right := curveTop+curveHeight, curveLeft+curveWidth
	want := fmt.Sprintf("%.1f,%.1f %.1f,%.1f %.1f,%.1f",
		curveLeft, bottom, (curveLeft+right)/2, (curveTop+bottom)/2, right, curveTop)
	if len(points) != 2 || points[0] != want { // the second one is in the legend
		t.Errorf("got lines %q, want %q", points, want)
	}
	for _, want := range []string{"a < b", "one & two", "20", "100", "s", "%"} {
		if !slices.Contains(texts, want) {
			t.Errorf("%q is missing in %q", want, texts)
		}
	}
}

// TestReactionPopulation checks that the pods of autoscalers follow the others.
func TestReactionPopulation(t *testing.T) {
	p := newPopulation(newShape(2, 5, 1), 1234, false)
	more := []objects.Pod{objects.NewPod(reactionNamespace, "web", 1, 10)}
	r := reactionPopulation{population: p, more: more}
	if r.size() != p.size()+1 {
		t.Fatalf("got %d objects, want %d", r.size(), p.size()+1)
	}
	for i, want := range map[int]string{
		0: "/registry/namespaces/batch", p.size() - 1: "/registry/pods/",
		p.size(): "/registry/pods/autoscaled/" + more[0].Name,
	} {
		if key, object := r.object(i); !strings.HasPrefix(key, want) || object == nil {
			t.Errorf("object %d: got %s, want %s", i, key, want)
		}
	}
}
