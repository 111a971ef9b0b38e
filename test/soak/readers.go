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
	readers    = 4
	readPause  = 250 * time.Millisecond // between two requests of a reader
	maxStories = 25                     // how many mistakes are told in full
)

// press asks for figures all the time, as autoscalers and dashboards do, and judges each answer.
type press struct {
	server *cluster.Standalone
	ledger *ledger
	tell   func(format string, args ...any)

	mu   sync.Mutex
	told map[mistake]bool // without how
	pressState
}

// pressState is what has been seen so far.
type pressState struct {
	answers  int
	mistakes int
	pods     int // in the last LIST of all
}

func newPress(s *cluster.Standalone, l *ledger, tell func(string, ...any)) *press {
	return &press{server: s, ledger: l, tell: tell, told: map[mistake]bool{}}
}

// read asks until the context ends.
func (p *press) read(ctx context.Context) {
	var group sync.WaitGroup
	for i := range readers {
		group.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 3))
			for sleep(ctx, readPause) == nil {
				p.ask(ctx, random)
			}
		})
	}
	group.Wait()
}

// ask makes one request, of any kind.
func (p *press) ask(ctx context.Context, random *rand.Rand) {
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	version := pick(cluster.V1, cluster.V1beta1)
	accept := pick(cluster.TypeJSON, cluster.TypeProtobuf)
	namespace := pick(namespaces...)
	switch random.IntN(6) {
	case 0:
		p.listNodes(ctx, version, accept)
	case 1:
		selector := "?labelSelector=" + url.QueryEscape(objects.Selector(appName(random.IntN(appsPerNamespace))))
		p.listPods(ctx, version+"/namespaces/"+namespace+"/pods"+selector, accept, false)
	case 2:
		p.listPods(ctx, version+"/namespaces/"+namespace+"/pods", accept, false)
	case 3:
		p.getPod(ctx, version, accept)
	case 4:
		p.getNode(ctx, version, accept)
	default:
		p.listPods(ctx, version+"/pods", accept, true)
	}
}

func (p *press) listPods(ctx context.Context, path, accept string, all bool) {
	sent := time.Now()
	list, err := p.server.Pods(ctx, path, accept)
	if err != nil {
		p.failed(ctx, path, err)
		return
	}
	p.judged(p.ledger.judgePods(list.Items, exchange{sent, time.Now()}, all))
	if all {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.pods = len(list.Items)
	}
}

func (p *press) listNodes(ctx context.Context, version, accept string) {
	sent := time.Now()
	list, err := p.server.Nodes(ctx, version+"/nodes", accept)
	if err != nil {
		p.failed(ctx, version+"/nodes", err)
		return
	}
	p.judged(p.ledger.judgeNodes(list.Items, exchange{sent, time.Now()}, true))
}

// getPod asks for a pod that exists, or for one that is gone.
func (p *press) getPod(ctx context.Context, version, accept string) {
	sent := time.Now()
	expected := p.ledger.expectedPods(sent)
	name, _ := p.ledger.anyPod()
	namespace, podName, ok := strings.Cut(name, "/")
	if !ok {
		return // there is no pod yet
	}
	path := version + "/namespaces/" + namespace + "/pods/" + podName
	one, err := p.server.Pod(ctx, path, accept)
	e := exchange{sent, time.Now()}
	switch {
	case err == nil:
		p.judged(p.ledger.judgePods([]metricsv1beta1.PodMetrics{*one}, e, false))
	case notFound(err) && (expected[name] == nil || p.ledger.expectedPods(e.answered)[name] == nil):
		p.judged(nil)
	default:
		p.failed(ctx, path, err)
	}
}

// getNode asks for a node that exists, or for one that is gone.
func (p *press) getNode(ctx context.Context, version, accept string) {
	sent := time.Now()
	expected := p.ledger.expectedNodes(sent)
	name, _ := p.ledger.anyNode()
	path := version + "/nodes/" + name
	one, err := p.server.Node(ctx, path, accept)
	e := exchange{sent, time.Now()}
	switch {
	case err == nil:
		p.judged(p.ledger.judgeNodes([]metricsv1beta1.NodeMetrics{*one}, e, false))
	case notFound(err) && (expected[name] == nil || p.ledger.expectedNodes(e.answered)[name] == nil):
		p.judged(nil)
	default:
		p.failed(ctx, path, err)
	}
}

func notFound(err error) bool {
	var status *cluster.StatusError
	return errors.As(err, &status) && status.Code == http.StatusNotFound
}

// failed notes a request that has no answer, unless that is because all is over.
func (p *press) failed(ctx context.Context, path string, err error) {
	if ctx.Err() == nil {
		p.judged([]mistake{{flaw{"fails", err.Error()}, "GET " + path}})
	}
}

// judged notes what is wrong with an answer. Of the same thing, the same mistake is told once.
func (p *press) judged(wrong []mistake) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers++
	for _, m := range wrong {
		p.mistakes++
		once := mistake{flaw{what: m.what}, m.who}
		if p.told[once] || len(p.told) >= maxStories {
			continue
		}
		p.told[once] = true
		p.tell("WRONG: %s", m)
		if len(p.told) == maxStories {
			p.tell("no more mistakes are told")
		}
	}
}

// state says what has been seen so far.
func (p *press) state() pressState {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pressState
}
