package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

const (
	lieExpiry   = 20 * time.Second       // --max-sample-age of the server: four resolutions
	lieInterval = 300 * time.Millisecond // between two reads
	lieMemory   = 100 << 20              // of each container
)

// A lie is what a kubelet or the API server says and is not true. The usage of the containers is constant, so
// that every right number is known.
type lie struct {
	name     string
	replicas int
	usage    map[string]float64 // cores of a pod's containers
	capacity string             // the CPU in the node's status; empty: 8

	// The autoscaler's metric and the value that keeps the replicas. Empty: the pod is not of a Deployment, and
	// has no autoscaler.
	metric, target string

	setup     string        // the name of an init container that has ended; empty: there is none
	bindAfter time.Duration // the pods exist for so long before their node

	always  edit                                    // what the kubelet reports from the beginning; may be nil
	lasts   time.Duration                           // the lie
	tell    func(began time.Time) kubelettest.Fault // the lie; nil: none in addition
	begin   func(*lieTest)                          // is called when it begins; may be nil
	end     func(*lieTest)                          // is called when it has ended; may be nil
	expires bool                                    // the metrics must be missing before it ends
	leaves  string                                  // the container that the lie's pod has lost; empty: none
}

// edit alters a sample of response i of a lie. Responses are counted from 0.
type edit func(i int, s *kubelettest.Sample, now time.Time)

// tell returns a fault that edits samples. The responses of /metrics/resource are counted.
func tell(script edit) func(time.Time) kubelettest.Fault {
	return func(time.Time) kubelettest.Fault {
		var responses atomic.Int64
		return func(r *kubelettest.Response) {
			if r.Request.URL.Path == kubelettest.ResourcePath {
				responses.Add(1)
			}
			i := int(responses.Load()) - 1
			kubelettest.EditSamples(func(s *kubelettest.Sample, now time.Time) { script(i, s, now) })(r)
		}
	}
}

// of restricts an edit to one container, and to responses before one of that number.
func of(container string, before int, change func(*kubelettest.Sample, time.Time)) edit {
	return func(i int, s *kubelettest.Sample, now time.Time) {
		if s.Container == container && i < before {
			change(s, now)
		}
	}
}

const everyResponse = math.MaxInt

func zero(s *kubelettest.Sample, now time.Time) { s.Zero(now) }

func zeroButRate(s *kubelettest.Sample, now time.Time) {
	rate := s.Rate
	s.Zero(now)
	s.Rate = rate
}

func omit(s *kubelettest.Sample, _ time.Time) { s.Omitted = true }

func noRate(s *kubelettest.Sample, _ time.Time) { s.Rate = 0 }

// addCPU makes a counter higher.
func addCPU(coreSeconds float64) func(*kubelettest.Sample, time.Time) {
	return func(s *kubelettest.Sample, _ time.Time) { s.CPU += coreSeconds }
}

// repeated repeats the samples of the first response with another change.
func repeated(responses int, change edit) edit {
	first := map[string]kubelettest.Sample{}
	return func(i int, s *kubelettest.Sample, now time.Time) {
		key := s.Namespace + "/" + s.Pod + "/" + s.Container
		if i >= responses {
			return
		}
		if _, isKnown := first[key]; !isKnown || i == 0 {
			change(i, s, now)
			first[key] = *s
		}
		*s = first[key]
	}
}

// unreachableThen refuses all requests for a time that is longer than metrics are served, and then edits.
func unreachableThen(script edit) func(time.Time) kubelettest.Fault {
	edited := tell(script)
	return func(began time.Time) kubelettest.Fault {
		then := edited(began)
		return func(r *kubelettest.Response) {
			if time.Since(began) < lieExpiry+4*time.Second {
				kubelettest.Refuse(r)
			} else {
				then(r)
			}
		}
	}
}

// lies has the kinds of issue 41, A. Each would change the replicas, or serve what no container used.
func lies() []lie {
	const long = lieExpiry + 6*time.Second
	idle, busy := map[string]float64{"main": 0.002}, map[string]float64{"main": 0.8}
	two := map[string]float64{"main": 1, "side": 0.01}
	// The container has used 20 core-seconds before it became idle.
	old := of("main", everyResponse, addCPU(20))
	return []lie{
		{
			name: "1-zero-once", replicas: 1, usage: idle, metric: "cpu", target: "100m",
			always: old, tell: tell(of("main", 1, zero)), lasts: 15 * time.Second,
		},
		{
			name: "1-zero-twice", replicas: 1, usage: idle, metric: "cpu", target: "100m",
			always: old, tell: tell(of("main", 2, zero)), lasts: 15 * time.Second,
		},
		{
			name: "1-zero-beside-a-rate", replicas: 1, usage: map[string]float64{"main": 0.4}, metric: "memory", target: "100Mi",
			tell: tell(of("main", 1, zeroButRate)), lasts: 15 * time.Second,
		},
		{
			name: "1-zeros", replicas: 4, usage: busy, metric: "cpu", target: "800m",
			tell: tell(of("main", everyResponse, zero)), lasts: long, expires: true,
		},
		{
			name: "1-zeros-of-memory", replicas: 3, usage: busy, metric: "memory", target: "100Mi",
			tell: tell(of("main", everyResponse, zero)), lasts: long, expires: true,
		},
		{
			name: "3-omitted-once", replicas: 2, usage: two, metric: "cpu", target: "1010m",
			tell: tell(of("main", 1, omit)), lasts: 15 * time.Second,
		},
		{
			name: "3-pod-omitted-once", replicas: 2, usage: busy, metric: "cpu", target: "800m",
			tell: tell(of("main", 1, omit)), lasts: 15 * time.Second,
		},
		{
			name: "3-omitted", replicas: 2, usage: two, metric: "cpu", target: "1010m",
			tell: tell(of("main", everyResponse, omit)), lasts: long, expires: true,
		},
		{
			name: "3-crash-loop", replicas: 2, usage: two, metric: "cpu", target: "1010m",
			tell: tell(of("main", everyResponse, omit)), lasts: 7 * time.Second,
			begin: func(l *lieTest) { l.setState("main", 1, waiting("CrashLoopBackOff")) },
			end: func(l *lieTest) {
				for _, pod := range l.pods() {
					l.kubelet.Restart(l.namespace, pod, "main")
				}
				l.setState("main", 1, running())
			},
		},
		{
			name: "3-ended", replicas: 1, usage: two, leaves: "side",
			tell: tell(of("side", everyResponse, omit)), lasts: 15 * time.Second,
			begin: func(l *lieTest) { l.setState("side", 0, completed()) },
		},
		{
			name: "4-capacity-too-low", replicas: 1, usage: map[string]float64{"main": 6}, metric: "cpu", target: "6",
			capacity: "2", lasts: 15 * time.Second,
		},
		{
			name: "4-capacity-falls", replicas: 1, usage: map[string]float64{"main": 6}, metric: "cpu", target: "6",
			lasts: 2 * lieExpiry, begin: func(l *lieTest) { l.setCapacity("2") },
		},
		{
			name: "4-impossible-once", replicas: 1, usage: busy, metric: "cpu", target: "800m",
			tell: tell(of("main", 1, addCPU(5000))), lasts: 2 * lieExpiry,
		},
		{
			name: "5-start-is-creation", replicas: 1, usage: busy, metric: "cpu", target: "800m",
			bindAfter: 20 * time.Second, lasts: 5 * time.Second,
			always: of("main", everyResponse, func(s *kubelettest.Sample, _ time.Time) {
				s.Start = s.Start.Add(-20 * time.Second)
			}),
		},
		{
			name: "6-rate-0-beside-others", replicas: 2, usage: map[string]float64{"main": 1.5, "side": 0.05},
			metric: "cpu", target: "1550m",
			tell: unreachableThen(of("main", everyResponse, noRate)), lasts: long + 6*time.Second, expires: true,
		},
		{
			name: "7-impossible-repeated", replicas: 1, usage: busy, metric: "cpu", target: "800m",
			tell: tell(repeated(2, of("main", 2, addCPU(5000)))), lasts: 2 * lieExpiry,
		},
		{
			name: "8-ended-init-container", replicas: 1, usage: busy, metric: "cpu", target: "800m",
			setup: "setup", always: of("setup", everyResponse, zero), lasts: 10 * time.Second,
		},
	}
}

// TestLies plays each lie to the built server, behind a real API server and with a real autoscaler. No pod may
// be served in part, with a number that no container used, or be missing before its last metrics have expired,
// and no autoscaler may scale.
func TestLies(t *testing.T) {
	t.Parallel()
	all := map[string]func(*testing.T){}
	for _, l := range lies() {
		all[l.name] = func(t *testing.T) {
			l.usage = maps.Clone(l.usage)
			test := &lieTest{T: t, lie: l, namespace: "lie-" + l.name, node: "node-lie-" + l.name}
			test.start()
			test.play()
		}
	}
	concurrently(t, all)
}

// lieTest is one case.
type lieTest struct {
	*testing.T
	lie
	namespace, node string
	kubelet         *kubelettest.Kubelet

	last       map[string]time.Time // the timestamp of the last metrics of each pod
	missed     bool                 // whether metrics have been missing
	began      time.Time            // the lie
	violations int                  // responses that were wrong
}

// start creates the node and its pods, waits until all pods have the right metrics, and then creates the
// autoscaler.
func (l *lieTest) start() {
	l.Helper()
	shared.createNamespaces(l.T, l.namespace)
	must(l.T, shared.Apply(l.Context(), l.workload()))
	time.Sleep(l.bindAfter)
	must(l.T, shared.Simulation.AddNode(l.Context(), simulation.Node{
		Name: l.node, Unschedulable: true,
		Edit: func(n *corev1.Node) {
			if l.capacity != "" {
				n.Status.Capacity = capacityOf(n.Status.Capacity, l.capacity)
				n.Status.Allocatable = n.Status.Capacity
			}
		},
	}))
	l.kubelet = shared.Simulation.Kubelet(l.node)
	l.kubelet.SetFaults(l.faults(nil)...)
	if l.setup != "" {
		eventually(l.T, "the pods to run", func(context.Context) error {
			if len(l.pods()) != l.replicas {
				return errors.New("they do not")
			}
			return nil
		})
		for _, pod := range l.pods() {
			l.kubelet.SetContainer(l.namespace, pod, l.setup, kubelettest.Usage{})
		}
	}
	must(l.T, process.Poll(l.Context(), timeout, "the first metrics", func(ctx context.Context) error {
		return l.check(ctx, true)
	}))
	if l.target == "" {
		return
	}
	must(l.T, shared.Apply(l.Context(), l.autoscaler()))
	must(l.T, process.Poll(l.Context(), timeout, "the autoscaler", l.checkAutoscaler))
}

// play plays the lie, and checks everything until it has ended and the right metrics are served again.
func (l *lieTest) play() {
	l.Helper()
	l.began = time.Now()
	if l.begin != nil {
		l.begin(l)
	}
	if l.tell != nil {
		l.kubelet.SetFaults(l.faults(l.tell(l.began))...)
	}
	l.watch(l.began.Add(l.lasts))
	for l.expires && !l.missed && l.violations == 0 {
		if time.Since(l.began) > timeout {
			l.Fatalf("the metrics did not expire in %s", timeout)
		}
		time.Sleep(lieInterval)
		l.watch(time.Now())
	}
	l.stop()
	l.awaitRightMetrics(time.Now())
	if l.target == "" {
		return
	}
	// It has none while metrics have expired, until it reads again.
	must(l.T, process.Poll(l.Context(), timeout, "the autoscaler", l.checkAutoscaler))
	if events := l.rescales(); events != "" {
		l.Errorf("the autoscaler has scaled: %s", events)
	}
}

// stop ends the lie.
func (l *lieTest) stop() {
	l.Helper()
	l.kubelet.SetFaults(l.faults(nil)...)
	if l.leaves != "" { // it has ended for good
		l.kubelet.SetFaults(l.faults(tell(of(l.leaves, everyResponse, omit))(l.began))...)
		delete(l.usage, l.leaves)
	}
	if l.end != nil {
		l.end(l)
	}
}

// awaitRightMetrics waits until all pods have metrics from after a time.
func (l *lieTest) awaitRightMetrics(after time.Time) {
	l.Helper()
	for {
		l.watch(time.Now())
		err := l.check(l.Context(), true)
		switch {
		case err == nil && l.isNewerThan(after.Add(-time.Second)):
			return
		case time.Since(after) > timeout:
			l.Fatalf("%s after the lie: %v", timeout, err)
		case l.violations > 0:
			return
		}
		time.Sleep(lieInterval)
	}
}

// watch checks the metrics until a time, at least once.
func (l *lieTest) watch(until time.Time) {
	l.Helper()
	for {
		if err := l.check(l.Context(), false); err != nil {
			if l.violations++; l.violations <= 3 {
				l.Errorf("%s into the lie: %v", time.Since(l.began).Round(100*time.Millisecond), err)
			}
		}
		if !time.Now().Before(until) {
			return
		}
		time.Sleep(lieInterval)
	}
}

// check checks the metrics of all pods. Unless all must be served, those whose last metrics have expired may be
// missing.
func (l *lieTest) check(ctx context.Context, mustServe bool) error {
	sent := time.Now()
	body, err := shared.get(ctx, "/apis/metrics.k8s.io/v1beta1/namespaces/"+l.namespace+"/pods")
	if err != nil {
		return err
	}
	now := time.Now()
	var list metricsv1beta1.PodMetricsList
	if err := json.Unmarshal(body, &list); err != nil {
		return err
	}
	served := map[string]time.Time{}
	var errs []error
	for i := range list.Items {
		m := &list.Items[i]
		served[m.Name] = m.Timestamp.Time
		errs = append(errs, l.checkUsage(m))
		if age := sent.Sub(m.Timestamp.Time); l.expires && age > lieExpiry+2*time.Second {
			errs = append(errs, fmt.Errorf("%s is served %s after its sample", m.Name, age))
		}
	}
	for pod, last := range l.last {
		_, isServed := served[pod]
		l.missed = l.missed || !isServed
		// Timestamps have whole seconds.
		if age := now.Sub(last); !isServed && age < lieExpiry-time.Second {
			errs = append(errs, fmt.Errorf("%s is missing, but its last metrics are %s old", pod, age))
		}
	}
	if mustServe && len(served) != l.replicas {
		errs = append(errs, fmt.Errorf("%d of %d pods have metrics", len(served), l.replicas))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if l.last == nil {
		l.last = map[string]time.Time{}
	}
	for pod, at := range served {
		l.last[pod] = at
	}
	return nil
}

// checkUsage checks that a pod has all its containers, with what they use. At first and after a lie, the rate may
// be that of a start.
func (l *lieTest) checkUsage(m *metricsv1beta1.PodMetrics) error {
	var got []string
	isWrong, left := len(m.Containers) != len(l.usage), 0
	for _, c := range m.Containers {
		cores, bytes := c.Usage.Cpu().AsApproximateFloat64(), c.Usage.Memory().Value()
		want, isKnown := l.usage[c.Name]
		isWrong = isWrong || !isKnown || math.Abs(cores-want) > 0.05*want+1e-6 || bytes != lieMemory
		got = append(got, fmt.Sprintf("%s %s %s", c.Name, c.Usage.Cpu(), c.Usage.Memory()))
		if c.Name != l.leaves {
			left++
		}
	}
	if l.leaves != "" && left == len(m.Containers) && left == len(l.usage)-1 {
		return nil // the container that ended is gone
	}
	if isWrong {
		return fmt.Errorf("%s is served with %q over %s, want %v and 100Mi each", m.Name, got, m.Window.Duration, l.usage)
	}
	return nil
}

func (l *lieTest) isNewerThan(t time.Time) bool {
	for _, at := range l.last {
		if at.Before(t) {
			return false
		}
	}
	return true
}

// checkAutoscaler checks that the autoscaler has current metrics, and wants the replicas that there are.
func (l *lieTest) checkAutoscaler(ctx context.Context) error {
	hpa, err := shared.Client.AutoscalingV2().HorizontalPodAutoscalers(l.namespace).Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		return err
	}
	s, n := hpa.Status, int32(l.replicas)
	hasMetrics := len(s.CurrentMetrics) == 1 && s.CurrentMetrics[0].Resource != nil
	if !hasMetrics || s.DesiredReplicas != n || s.CurrentReplicas != n {
		return fmt.Errorf("the autoscaler has %d replicas, wants %d, and has metrics %v",
			s.CurrentReplicas, s.DesiredReplicas, s.CurrentMetrics)
	}
	return nil
}

// rescales returns the messages of the autoscaler's events of scaling.
func (l *lieTest) rescales() string {
	l.Helper()
	return strings.TrimSpace(shared.kubectl(l.T, "get", "events", "--namespace", l.namespace,
		"--field-selector=reason=SuccessfulRescale", "--output", `jsonpath={range .items[*]}{.message}{"\n"}{end}`))
}

// faults returns what the kubelet always reports, and then a lie.
func (l *lieTest) faults(lie kubelettest.Fault) (all []kubelettest.Fault) {
	if l.always != nil {
		all = append(all, tell(l.always)(time.Now()))
	}
	if lie != nil {
		all = append(all, lie)
	}
	return all
}

// pods returns the names of the pods that run.
func (l *lieTest) pods() (names []string) {
	for name := range shared.Simulation.Pods(l.namespace) {
		names = append(names, name)
	}
	return names
}

// setState sets the state of a container of each pod in the API server.
func (l *lieTest) setState(container string, restarts int32, state corev1.ContainerState) {
	l.Helper()
	pods := shared.Client.CoreV1().Pods(l.namespace)
	for _, name := range l.pods() {
		eventually(l.T, "the status of "+name, func(ctx context.Context) error {
			pod, err := pods.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for i := range pod.Status.ContainerStatuses {
				if s := &pod.Status.ContainerStatuses[i]; s.Name == container {
					s.State, s.RestartCount, s.Ready = state, restarts, state.Running != nil
				}
			}
			_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
			return err
		})
	}
}

func waiting(reason string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
}

func running() corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
}

func completed() corev1.ContainerState {
	return corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: metav1.Now()},
	}
}

// setCapacity sets the node's CPU in the API server.
func (l *lieTest) setCapacity(cpu string) {
	l.Helper()
	nodes := shared.Client.CoreV1().Nodes()
	eventually(l.T, "the status of "+l.node, func(ctx context.Context) error {
		node, err := nodes.Get(ctx, l.node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		node.Status.Capacity = capacityOf(node.Status.Capacity, cpu)
		node.Status.Allocatable = node.Status.Capacity
		_, err = nodes.UpdateStatus(ctx, node, metav1.UpdateOptions{})
		return err
	})
}

func capacityOf(list corev1.ResourceList, cpu string) corev1.ResourceList {
	list = list.DeepCopy()
	list[corev1.ResourceCPU] = resource.MustParse(cpu)
	return list
}

// workload returns the Deployment, or the pod without one.
func (l *lieTest) workload() string {
	var usage, containers, setup []string
	for name, cores := range l.usage {
		usage = append(usage, fmt.Sprintf("%s=%dm", name, int(math.Round(cores*1000))))
		containers = append(containers, fmt.Sprintf("{name: %s, image: simulated}", name))
	}
	if l.setup != "" {
		setup = append(setup, fmt.Sprintf("{name: %s, image: simulated}", l.setup))
	}
	annotations := fmt.Sprintf(`{simulation.kube-vitals/cpu: "%s", simulation.kube-vitals/memory: 100Mi}`,
		strings.Join(usage, ","))
	spec := fmt.Sprintf(`{nodeSelector: {kubernetes.io/hostname: %s}, tolerations: [{operator: Exists}], `+
		`initContainers: [%s], containers: [%s]`, l.node, strings.Join(setup, ", "), strings.Join(containers, ", "))
	if l.target == "" {
		return fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: web, namespace: %s, annotations: %s}, "+
			"spec: %s, restartPolicy: Never}}", l.namespace, annotations, spec)
	}
	return fmt.Sprintf(`apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: %s}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}, annotations: %s}
    spec: %s}
`, l.namespace, l.replicas, annotations, spec)
}

// autoscaler returns an autoscaler that scales down at once.
func (l *lieTest) autoscaler() string {
	return fmt.Sprintf(`apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: %s}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  minReplicas: 1
  maxReplicas: 10
  metrics: [{type: Resource, resource: {name: %s, target: {type: AverageValue, averageValue: %s}}}]
  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
`, l.namespace, l.metric, l.target)
}
