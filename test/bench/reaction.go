package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

const (
	reactionNamespace = "autoscaled"
	// syncPeriod is the controller's default for the interval between two reads of an autoscaler.
	syncPeriod = 15 * time.Second
	// fastPeriod is the shortest one that Kubernetes plans to allow (enhancement 6003).
	fastPeriod = 3 * time.Second
	// reactionDuration has room for steps and ramps in numbers that tell the modes apart: with 3 minutes, changes by
	// noise scattered from 14 to 27 an hour.
	reactionDuration = 10 * time.Minute
	// perKind is the number of autoscalers for each kind of load.
	perKind = 24
	// activeShare is the share of nodes with pods of autoscalers.
	activeShare = 0.25
	// warmUp is how long autoscalers read before the measurement, after their first read.
	warmUp = 4 * syncPeriod
)

// mode is a server with flags, which is measured in a cluster of its own.
type mode struct {
	name     string
	beside   bool // the server is the one that -beside names
	args     []string
	interval time.Duration // between two samples of a kubelet; 0: on demand
	period   time.Duration // between two reads of an autoscaler
}

// newModes returns the modes in the order of the table.
func newModes() []mode {
	modes := []mode{
		{name: "metrics-server", beside: true},
		{name: "plain", args: []string{"--active-resolution=0"}},
		{name: "active-7.5s", args: []string{"--active-resolution=7.5s"}},
		{name: "default"},
		{name: "window-5s", args: []string{"--rate-window=5s"}},
	}
	for i := range modes {
		modes[i].period = syncPeriod
	}
	for _, interval := range []time.Duration{10 * time.Second, 15 * time.Second} {
		suffix := fmt.Sprintf(", samples every %s", interval)
		modes = append(modes, mode{name: "metrics-server" + suffix, beside: true, interval: interval, period: syncPeriod},
			mode{name: "default" + suffix, interval: interval, period: syncPeriod})
	}
	suffix := fmt.Sprintf(", reads every %s", fastPeriod)
	return append(modes, mode{name: "metrics-server" + suffix, beside: true, period: fastPeriod},
		mode{name: "default" + suffix, period: fastPeriod})
}

// reaction is the measurement of one mode.
type reaction struct {
	*bench
	mode
	server      *cluster.Standalone
	autoscalers []autoscaler

	mu        sync.Mutex
	start     time.Time            // of the measurement
	decisions map[string]decisions // by autoscaler
}

// reactionResult is the row of a mode.
type reactionResult struct {
	mode
	delays
	changes map[string]float64 // per autoscaler and hour, by kind of load
	scrapes float64            // per node and minute
}

// measureReaction measures all modes, three at the same time, and prints a table.
func measureReaction(ctx context.Context, cfg config, s shape) error {
	modes := slices.DeleteFunc(newModes(), func(m mode) bool {
		return m.beside && cfg.beside == "" || !strings.Contains(m.name, cfg.match)
	})
	results, errs := make([]*reactionResult, len(modes)), make([]error, len(modes))
	slots := make(chan struct{}, 3)
	var group sync.WaitGroup
	for i, m := range modes {
		group.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if results[i], errs[i] = measureMode(ctx, cfg, m, s); errs[i] != nil {
				errs[i] = fmt.Errorf("mode %s: %w", m.name, errs[i])
				program.Logf("%v", errs[i])
			}
		})
	}
	group.Wait()
	results = slices.DeleteFunc(results, func(r *reactionResult) bool { return r == nil })
	printReaction(s.nodes, results)
	return errors.Join(errs...)
}

func measureMode(ctx context.Context, cfg config, m mode, s shape) (result *reactionResult, err error) {
	program.Logf("%s: starting a cluster", m.name)
	r := &reaction{mode: m, autoscalers: newAutoscalers(s, m.period), decisions: map[string]decisions{}}
	if r.bench, err = newBench(ctx, cfg, s, m.interval, r.autoscalers...); err != nil {
		return nil, err
	}
	defer r.close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := r.startAll(ctx); err != nil {
		return nil, err
	}
	if err := r.createAutoscalers(ctx, r.autoscalers); err != nil {
		return nil, err
	}
	if result, err = r.measure(ctx); err != nil {
		return nil, errors.Join(err, r.cluster.Running())
	}
	return result, nil
}

// startAll starts the server and the controller. Both end with the cluster, the records of decisions with the context.
func (r *reaction) startAll(ctx context.Context) (err error) {
	executable, args := r.config.server, slices.Concat(r.args, r.serverArgs)
	if r.beside {
		executable, args = r.config.beside, nil
	}
	if r.server, _, err = r.startServer(ctx, executable, args...); err != nil {
		return err
	}
	return errors.Join(r.register(ctx), r.startController(ctx))
}

// register makes the API server forward requests to the metrics server, and waits until it does.
func (r *reaction) register(ctx context.Context) error {
	_, port, _ := strings.Cut(strings.TrimPrefix(r.server.URL, "https://"), ":")
	// An APIService may refer to an alias, whose port is that of the program.
	manifest := strings.ReplaceAll(`
apiVersion: v1
kind: Service
metadata: {name: metrics, namespace: default}
spec: {type: ExternalName, externalName: localhost, ports: [{port: PORT}]}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  group: metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  insecureSkipTLSVerify: true
  service: {name: metrics, namespace: default, port: PORT}
`, "PORT", port)
	if err := r.cluster.Apply(ctx, manifest); err != nil {
		return err
	}
	return r.server.Process.Poll(ctx, time.Minute, "the APIService to be available", func(ctx context.Context) error {
		return r.cluster.Client.Discovery().RESTClient().Get().RequestURI(allNodes).Do(ctx).Error()
	})
}

// startController starts the controller, and records its decisions until the context ends. The controller has its
// defaults, but the mode's period, and as many workers and writes as it needs.
func (r *reaction) startController(ctx context.Context) error {
	_, err := r.cluster.StartProcess(binaries.ControllerManager,
		"--kubeconfig="+r.cluster.Kubeconfig, "--leader-elect=false", "--secure-port=0",
		"--controllers=horizontal-pod-autoscaler-controller", "--kube-api-qps=500", "--kube-api-burst=1000",
		"--horizontal-pod-autoscaler-sync-period="+r.period.String(), "--concurrent-horizontal-pod-autoscaler-syncs=20")
	if err != nil {
		return err
	}
	r.start = time.Now()
	factory := informers.NewSharedInformerFactory(r.cluster.Client, 0)
	record := cache.ResourceEventHandlerFuncs{UpdateFunc: func(_, object any) {
		h, isAutoscaler := object.(*autoscalingv2.HorizontalPodAutoscaler)
		if !isAutoscaler || h.Status.LastScaleTime == nil && h.Status.DesiredReplicas == 0 {
			return // not read yet
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		list := r.decisions[h.Name]
		list.add(time.Since(r.start), int(h.Status.DesiredReplicas))
		r.decisions[h.Name] = list
	}}
	if _, err = factory.Autoscaling().V2().HorizontalPodAutoscalers().Informer().AddEventHandler(record); err == nil {
		factory.Start(ctx.Done())
		factory.WaitForCacheSync(ctx.Done())
	}
	return err
}

// createAutoscalers creates autoscalers with their Deployments, each at its phase.
func (r *reaction) createAutoscalers(ctx context.Context, list []autoscaler) error {
	// The controller reads at once, and then a period after the last read. It is given a second to start.
	program.Logf("%s: creating %d autoscalers", r.name, len(list))
	deployments, autoscalers := r.cluster.Client.AppsV1().RESTClient(), r.cluster.Client.AutoscalingV2().RESTClient()
	create := func(client rest.Interface, resource, manifest string) error {
		post := client.Post().Namespace(reactionNamespace).Resource(resource).Body([]byte(manifest))
		return post.SetHeader("Content-Type", "application/yaml").Do(ctx).Error()
	}
	start := time.Now().Add(time.Second)
	for _, a := range list {
		if err := program.Sleep(ctx, time.Until(start.Add(a.phase))); err != nil {
			return err
		}
		deployment := fmt.Sprintf(deploymentManifest, a.name, podsPerAutoscaler)
		if err := create(deployments, "deployments", deployment); err != nil {
			return err
		}
		manifest := fmt.Sprintf(autoscalerManifest, a.name, podsPerAutoscaler, maxReplicas, 1000*target)
		if err := create(autoscalers, "horizontalpodautoscalers", manifest); err != nil {
			return err
		}
	}
	return nil
}

// deploymentManifest has a fixed number of pods: its controller does not run. So the right decision
// depends on the load only. autoscalerManifest has the default behavior, but no stabilization when it
// scales down, so that it can be wrong again soon.
const (
	deploymentManifest = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app.kubernetes.io/name: %[1]s}}
  template:
    metadata: {labels: {app.kubernetes.io/name: %[1]s}}
    spec: {containers: [{name: app, image: simulated}]}
`
	autoscalerManifest = `
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: %[1]s}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: %[1]s}
  minReplicas: %[2]d
  maxReplicas: %[3]d
  metrics: [{type: Resource, resource: {name: cpu, target: {type: AverageValue, averageValue: %[4]gm}}}]
  behavior: {scaleDown: {stabilizationWindowSeconds: 0}}
`
)

// measure plays the loads, and returns the result.
func (r *reaction) measure(ctx context.Context) (*reactionResult, error) {
	program.Logf("%s: warming up", r.name)
	if err := program.Sleep(ctx, syncPeriod+warmUp); err != nil {
		return nil, err
	}
	program.Logf("%s: measuring for %s", r.name, reactionDuration)
	var loads []load
	var pods []objects.Pod
	for _, a := range r.autoscalers {
		loads, pods = append(loads, a.loads...), append(pods, a.pods...)
	}
	begin, before := time.Now(), r.countRequests()
	played, err := play(ctx, loads, reactionDuration, func(i int, cores float64) {
		usage := kubelettest.Usage{CPU: cores, Memory: 64 << 20}
		r.kubelets[pods[i].Node].SetContainer(pods[i].Namespace, pods[i].Name, objects.ContainerName(0), usage)
	})
	if err != nil {
		return nil, err
	}
	result := &reactionResult{mode: r.mode, changes: map[string]float64{}}
	result.scrapes = float64(r.countRequests()-before) / float64(r.nodes) / time.Since(begin).Minutes()
	r.mu.Lock()
	defer r.mu.Unlock()
	offset := begin.Sub(r.start)
	for i, a := range r.autoscalers {
		d := r.decisions[a.name].since(offset)
		result.changes[a.kind.name] += float64(d.changes(reactionDuration)) / perKind / reactionDuration.Hours()
		if a.kind.add != nil {
			a.kind.add(&result.delays, played[podsPerAutoscaler*i], d, reactionDuration)
		}
	}
	return result, nil
}

// countRequests returns the number of requests for metrics to all kubelets.
func (r *reaction) countRequests() (n int) {
	for _, k := range r.kubelets {
		n += k.Requests(kubelettest.ResourcePath) + k.Requests(kubelettest.SummaryPath)
	}
	return n
}
