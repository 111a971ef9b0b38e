package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

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

	responses, violations atomic.Int64
	pods                  atomic.Int64 // in the last list of all
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
		request(ctx, r, version+"/nodes", accept, nodeKind, servedNodes)
	case 1:
		selector := objects.Selector(appName(random.IntN(appsPerNamespace)))
		request(ctx, r, inNamespace+"?labelSelector="+url.QueryEscape(selector), accept, "", servedPods)
	case 2:
		request(ctx, r, inNamespace, accept, "", servedPods)
	case 3: // one that exists or is deleted
		name := r.oracle.anyName(podKind)
		request(ctx, r, version+name, accept, name, servedPod)
	case 4:
		name := r.oracle.anyName(nodeKind)
		request(ctx, r, version+name, accept, name, servedNode)
	default:
		request(ctx, r, version+"/pods", accept, podKind, servedPods)
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
		request(ctx, r, list, cluster.TypeProtobuf, "", servedPods)
	}
}

// request sends a request, and checks the response as oracle.check does. Status 404 counts as a response
// without objects.
func request[T any, P cluster.Object[T]](
	ctx context.Context, r *readers, path, accept, prefix string, convert func(*T) []served,
) {
	sent := time.Now()
	object, err := cluster.GetObject[T, P](ctx, r.server, path, accept)
	var all []served
	if err == nil {
		all = convert(object)
	}
	var status *cluster.StatusError
	isMissing := errors.As(err, &status) && status.Code == http.StatusNotFound && prefix != ""
	switch {
	case err == nil || isMissing:
		r.record(len(all), prefix, r.oracle.check(all, exchange{sent, time.Now()}, prefix))
	case ctx.Err() == nil:
		r.record(0, "", []error{fmt.Errorf("GET %s fails: %w", path, err)})
	}
}

// record counts a response and logs its violations.
func (r *readers) record(objects int, prefix string, violations []error) {
	r.responses.Add(1)
	if prefix == podKind {
		r.pods.Store(int64(objects))
	}
	for _, v := range violations {
		if r.violations.Add(1) <= maxViolations {
			program.Logf("VIOLATION: %v", v)
		}
	}
}
