package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

const (
	readerCount   = 4
	readPause     = 250 * time.Millisecond // between two requests of a reader
	maxViolations = 25                     // that are logged
)

// readers send requests as autoscalers and dashboards do, and have the oracle check the responses.
type readers struct {
	server *cluster.Standalone
	oracle *oracle
	// autoscalers is whether some readers read at constant periods.
	autoscalers bool

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
	if r.autoscalers {
		for i := range autoscalers {
			group.Go(func() { r.autoscale(ctx, i) })
		}
	}
	for i := range readerCount {
		group.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 3))
			for sleep(ctx, readPause) == nil {
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
	sent := time.Now()
	expected := r.oracle.expectedPods(sent)
	namespace, podName, _ := strings.Cut(name, "/")
	path := version + "/namespaces/" + namespace + "/pods/" + podName
	one, err := r.server.Pod(ctx, path, accept)
	e := exchange{sent, time.Now()}
	switch {
	case err == nil:
		r.record(r.oracle.checkPods([]metricsv1beta1.PodMetrics{*one}, e, false))
	case isNotFound(err) && (expected[name] == nil || r.oracle.expectedPods(e.received)[name] == nil):
		r.record(nil)
	default:
		r.recordError(ctx, path, err)
	}
}

// getNode requests a node that exists or is deleted.
func (r *readers) getNode(ctx context.Context, version, accept string) {
	sent := time.Now()
	expected := r.oracle.expectedNodes(sent)
	name := anyKey(r.oracle, r.oracle.nodes)
	path := version + "/nodes/" + name
	one, err := r.server.Node(ctx, path, accept)
	e := exchange{sent, time.Now()}
	switch {
	case err == nil:
		r.record(r.oracle.checkNodes([]metricsv1beta1.NodeMetrics{*one}, e, false))
	case isNotFound(err) && (expected[name] == nil || r.oracle.expectedNodes(e.received)[name] == nil):
		r.record(nil)
	default:
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
		logf("VIOLATION: %s", v)
		if len(r.logged) == maxViolations {
			logf("further violations are not logged")
		}
	}
}
