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

	mu sync.Mutex
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
		r.list(ctx, version+"/nodes", accept, nodeKind)
	case 1:
		selector := objects.Selector(appName(random.IntN(appsPerNamespace)))
		r.list(ctx, inNamespace+"?labelSelector="+url.QueryEscape(selector), accept, "")
	case 2:
		r.list(ctx, inNamespace, accept, "")
	case 3:
		r.get(ctx, r.oracle.anyName(podKind), version, accept)
	case 4:
		r.get(ctx, r.oracle.anyName(nodeKind), version, accept)
	default:
		r.list(ctx, version+"/pods", accept, podKind)
	}
}

// autoscale reads the pods of an app at a constant period, so that scrapes can follow, until the context ends.
func (r *readers) autoscale(ctx context.Context, i int) {
	period := autoscalerPeriods[i%len(autoscalerPeriods)]
	// Their phases differ. The random readers use another selector, which makes them other readers to the server.
	selector := fmt.Sprintf("app.kubernetes.io/name in (%s)", appName(i/len(namespaces)))
	list := cluster.V1 + "/namespaces/" + namespaces[i%len(namespaces)] + "/pods?labelSelector=" +
		url.QueryEscape(selector)
	next := time.Now().Add(period * time.Duration(i) / autoscalers)
	for ; program.Sleep(ctx, time.Until(next)) == nil; next = next.Add(period) {
		r.list(ctx, list, cluster.TypeProtobuf, "")
	}
}

// list requests pods or nodes. If a kind is given, the response must have all of that kind.
func (r *readers) list(ctx context.Context, path, accept, kind string) {
	load := loadPods
	if kind == nodeKind {
		load = loadNodes
	}
	r.request(ctx, load, path, accept, kind)
}

// get requests one object that exists or is deleted.
func (r *readers) get(ctx context.Context, name, version, accept string) {
	load, path := loadNode, version+"/nodes/"+strings.TrimPrefix(name, nodeKind)
	if pod, isPod := strings.CutPrefix(name, podKind); isPod {
		namespace, name, _ := strings.Cut(pod, "/")
		load, path = loadPod, version+"/namespaces/"+namespace+"/pods/"+name
	}
	r.request(ctx, load, path, accept, name)
}

// request sends a request, and checks the response as oracle.check does. Status 404 counts as a response
// without objects.
func (r *readers) request(ctx context.Context, load loadFunc, path, accept, prefix string) {
	sent := time.Now()
	all, err := load(ctx, r.server, path, accept)
	var status *cluster.StatusError
	isMissing := errors.As(err, &status) && status.Code == http.StatusNotFound && prefix != ""
	switch {
	case err == nil || isMissing:
		r.record(len(all), prefix, r.oracle.check(all, exchange{sent, time.Now()}, prefix))
	case ctx.Err() == nil:
		r.record(0, "", []violation{{"GET " + path, "fails", err.Error()}})
	}
}

type loadFunc func(ctx context.Context, s *cluster.Standalone, path, accept string) ([]served, error)

// The functions that request objects, and return what is served of them.
var (
	loadPods = loader(func(l *metricsv1beta1.PodMetricsList) []served { return servedPods(l.Items...) })
	loadPod  = loader(func(m *metricsv1beta1.PodMetrics) []served { return servedPods(*m) })

	loadNodes = loader(func(l *metricsv1beta1.NodeMetricsList) []served { return servedNodes(l.Items...) })
	loadNode  = loader(func(m *metricsv1beta1.NodeMetrics) []served { return servedNodes(*m) })
)

func loader[T any, P cluster.Object[T]](convert func(*T) []served) loadFunc {
	return func(ctx context.Context, s *cluster.Standalone, path, accept string) ([]served, error) {
		object, err := cluster.GetObject[T, P](ctx, s, path, accept)
		if err != nil {
			return nil, err
		}
		return convert(object), nil
	}
}

// record counts a response and logs its violations.
func (r *readers) record(objects int, prefix string, found []violation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.responses++
	if prefix == podKind {
		r.pods = objects
	}
	for _, v := range found {
		if r.violations++; r.violations <= maxViolations {
			program.Logf("VIOLATION: %s", v)
		}
	}
}
