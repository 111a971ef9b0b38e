package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
	"github.com/kube-vitals/kube-vitals/test/internal/program"
)

const (
	readerCount   = 4
	readPause     = 250 * time.Millisecond // between two requests of a reader
	maxViolations = 25                     // that are logged
	autoscalers   = 24                     // readers with constant periods
)

// autoscalerPeriods are the times between two reads of an autoscaler.
var autoscalerPeriods = []time.Duration{
	15 * time.Second, 7 * time.Second, 10 * time.Second, 15 * time.Second, 30 * time.Second,
}

// readers send requests as autoscalers and dashboards do, and have the oracle check the responses.
type readers struct {
	server *cluster.Standalone
	oracle *oracle

	mu     sync.Mutex
	logged map[violation]bool // without details
	readCounts
}

type readCounts struct {
	responses, violations int
	pods                  int // in the last list of all
}

func (r *readers) counts() readCounts {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.readCounts
}

// run sends requests until the context ends.
func (r *readers) run(ctx context.Context) {
	var group sync.WaitGroup
	for i := range autoscalers {
		group.Go(func() { r.autoscale(ctx, i) })
	}
	for i := range readerCount {
		group.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 3))
			for program.Sleep(ctx, readPause) == nil {
				r.read(ctx, random)
			}
		})
	}
	group.Wait()
}

// read sends a random request.
func (r *readers) read(ctx context.Context, random *rand.Rand) {
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	version := pick(cluster.V1, cluster.V1beta1)
	accept := pick(cluster.TypeJSON, cluster.TypeProtobuf)
	inNamespace := version + "/namespaces/" + pick(namespaces...) + "/pods"
	switch random.IntN(6) {
	case 0:
		r.listNodes(ctx, version+"/nodes", accept)
	case 1:
		selector := objects.Selector(appName(random.IntN(appsPerNamespace)))
		r.listPods(ctx, inNamespace+"?labelSelector="+url.QueryEscape(selector), accept, false)
	case 2:
		r.listPods(ctx, inNamespace, accept, false)
	case 3:
		r.getPod(ctx, anyKey(r.oracle, r.oracle.pods), version, accept)
	case 4:
		r.getNode(ctx, version, accept)
	default:
		r.listPods(ctx, version+"/pods", accept, true)
	}
}

// autoscale reads at a constant period, so that scrapes can follow, until the context ends. Every
// third autoscaler reads one pod by name, the others read pods by label selector.
func (r *readers) autoscale(ctx context.Context, i int) {
	period := autoscalerPeriods[i%len(autoscalerPeriods)]
	if program.Sleep(ctx, period*time.Duration(i)/autoscalers) != nil { // their phases differ
		return
	}
	// The random readers use another selector, which makes them other readers to the server.
	selector := fmt.Sprintf("app.kubernetes.io/name in (%s)", appName(i/len(namespaces)))
	list := cluster.V1 + "/namespaces/" + namespaces[i%len(namespaces)] + "/pods?labelSelector=" +
		url.QueryEscape(selector)
	pod := ""
	for next := time.Now(); program.Sleep(ctx, time.Until(next)) == nil; next = next.Add(period) {
		if i%3 > 0 {
			r.listPods(ctx, list, cluster.TypeProtobuf, false)
		} else if pod = r.oracle.samePod(pod); pod != "" {
			r.getPod(ctx, pod, cluster.V1, cluster.TypeProtobuf)
		}
	}
}

// samePod returns the name of a pod that must be served: the same again if possible, or "" if there
// is none.
func (o *oracle) samePod(name string) string {
	expected := o.expectedPods(time.Now())
	if expected[name] == nil {
		name = ""
		for name = range expected { // in random order
			break
		}
	}
	return name
}

func (r *readers) listPods(ctx context.Context, path, accept string, all bool) {
	sent := time.Now()
	list, err := r.server.Pods(ctx, path, accept)
	if err != nil {
		r.recordError(ctx, path, err)
		return
	}
	r.record(r.oracle.checkPods(list.Items, exchange{sent, time.Now()}, all))
	if all {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.pods = len(list.Items)
	}
}

func (r *readers) listNodes(ctx context.Context, path, accept string) {
	sent := time.Now()
	list, err := r.server.Nodes(ctx, path, accept)
	if err != nil {
		r.recordError(ctx, path, err)
		return
	}
	r.record(r.oracle.checkNodes(list.Items, exchange{sent, time.Now()}, true))
}

// getPod requests a pod that exists or is deleted, by its NAMESPACE/NAME.
func (r *readers) getPod(ctx context.Context, name, version, accept string) {
	namespace, podName, _ := strings.Cut(name, "/")
	path := version + "/namespaces/" + namespace + "/pods/" + podName
	isExpected := func(at time.Time) bool { return r.oracle.expectedPods(at)[name] != nil }
	r.get(ctx, path, isExpected, func(sent time.Time) ([]violation, error) {
		one, err := r.server.Pod(ctx, path, accept)
		if err != nil {
			return nil, err
		}
		return r.oracle.checkPods([]metricsv1beta1.PodMetrics{*one}, exchange{sent, time.Now()}, false), nil
	})
}

// getNode requests a node that exists or is deleted.
func (r *readers) getNode(ctx context.Context, version, accept string) {
	name := anyKey(r.oracle, r.oracle.nodes)
	path := version + "/nodes/" + name
	isExpected := func(at time.Time) bool { return r.oracle.expectedNodes(at)[name] != nil }
	r.get(ctx, path, isExpected, func(sent time.Time) ([]violation, error) {
		one, err := r.server.Node(ctx, path, accept)
		if err != nil {
			return nil, err
		}
		return r.oracle.checkNodes([]metricsv1beta1.NodeMetrics{*one}, exchange{sent, time.Now()}, false), nil
	})
}

// get sends a request for one object. Status 404 is an error if the object is expected before and after.
func (r *readers) get(
	ctx context.Context, path string, isExpected func(time.Time) bool, send func(sent time.Time) ([]violation, error),
) {
	sent := time.Now()
	wasExpected := isExpected(sent)
	found, err := send(sent)
	if err == nil || isNotFound(err) && (!wasExpected || !isExpected(time.Now())) {
		r.record(found)
	} else {
		r.recordError(ctx, path, err)
	}
}

func isNotFound(err error) bool {
	var status *cluster.StatusError
	return errors.As(err, &status) && status.Code == http.StatusNotFound
}

// recordError records a failed request, unless it failed because the context ended.
func (r *readers) recordError(ctx context.Context, path string, err error) {
	if ctx.Err() == nil {
		r.record([]violation{{"GET " + path, "fails", err.Error()}})
	}
}

// record counts a response and logs its violations, the same one of an object once.
func (r *readers) record(found []violation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.responses++
	for _, v := range found {
		r.violations++
		key := violation{object: v.object, what: v.what}
		if r.logged[key] || len(r.logged) >= maxViolations {
			continue
		}
		r.logged[key] = true
		program.Logf("VIOLATION: %s", v)
		if len(r.logged) == maxViolations {
			program.Logf("further violations are not logged")
		}
	}
}
