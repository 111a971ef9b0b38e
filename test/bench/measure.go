package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// Bounds of one round of one request. At a tenth of a millisecond a request, one and a half seconds
// give CPU time to 1 % or so, which /proc tells to 10 ms.
const (
	roundTime     = 1500 * time.Millisecond // a round goes on for at least so long
	roundRequests = 3                       // and for at least so many requests
	manyLists     = 100                     // after which memory is read again
	manyListsTime = 3 * time.Minute         // or after so long
)

// measurement is one server being measured.
type measurement struct {
	cfg      config
	server   *cluster.Standalone
	shape    shape
	result   *result
	progress func(string, ...any)
}

func (m *measurement) run(ctx context.Context) error {
	for _, step := range []func(context.Context) error{m.startup, m.steady, m.requests, m.manyLists} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// startup waits for the first and for all figures.
func (m *measurement) startup(ctx context.Context) (err error) {
	m.progress("waiting for all figures")
	m.result.Start, err = startWatch{server: m.server, shape: m.shape}.watch(ctx)
	return err
}

// steady measures what goes on while nobody asks anything.
func (m *measurement) steady(ctx context.Context) error {
	m.progress("waiting for a steady state")
	if err := sleep(ctx, 2*m.cfg.resolution); err != nil {
		return err
	}
	m.progress("measuring the steady state over %d intervals", m.cfg.rounds)
	var cores, rss []float64
	for range m.cfg.rounds {
		used, elapsed, err := m.during(func() error { return sleep(ctx, m.cfg.resolution) })
		if err != nil {
			return err
		}
		resident, err := process.Resident(m.server.Process.PID())
		if err != nil {
			return errors.Join(err, m.server.Process.Running())
		}
		cores = append(cores, used.Seconds()/elapsed.Seconds())
		rss = append(rss, float64(resident))
	}
	m.result.Cores = median(cores)
	m.result.ScrapeCPU = m.result.Cores * m.cfg.resolution.Seconds() / float64(m.shape.nodes) * 1e3
	m.result.RSS = median(rss) / (1 << 20)
	return m.ages(ctx)
}

// ages looks at how old the nodes' figures are.
func (m *measurement) ages(ctx context.Context) error {
	list, err := m.server.Nodes(ctx, cluster.V1beta1+"/nodes", cluster.TypeProtobuf)
	if err != nil {
		return err
	}
	var ages []float64
	for _, node := range list.Items {
		ages = append(ages, time.Since(node.Timestamp.Time).Seconds())
	}
	m.result.AgeMedian, m.result.AgeMax = median(ages), slices.Max(append(ages, 0))
	return nil
}

// during says how much CPU the server has used while f ran, and for how long it did.
func (m *measurement) during(f func() error) (used, elapsed time.Duration, err error) {
	pid := m.server.Process.PID()
	before, err := process.CPUTime(pid)
	if err != nil {
		return 0, 0, errors.Join(err, m.server.Process.Running())
	}
	began := time.Now()
	if err := f(); err != nil {
		return 0, 0, errors.Join(err, m.server.Process.Running())
	}
	elapsed = time.Since(began)
	after, err := process.CPUTime(pid)
	if err != nil {
		return 0, 0, errors.Join(err, m.server.Process.Running())
	}
	return after - before, elapsed, nil
}

// request is one of the usual requests.
type request struct {
	name, path, accept string
	want               int  // items in the answer
	gzip               bool // by a client that takes compressed answers, as client-go does
	proxied            bool // as the aggregation layer hands on the requests of all others

	goal float64 // milliseconds of CPU; 0: there is none
}

// usualRequests are those of kubectl, the autoscalers and the dashboards.
func (s shape) usualRequests() []request {
	allPods := cluster.V1beta1 + "/pods"
	pod := s.pod(s.huge)
	onePath := cluster.V1beta1 + "/namespaces/" + pod.Namespace + "/pods/" + pod.Name
	thousands := float64(s.nodes) / 1000 // the goals for lists of all are for 1000 nodes
	hpa := func(r request, of int) request {
		r.name = fmt.Sprintf("LIST by selector, %d of %d pods, protobuf (HPA)", r.want, of)
		r.accept = cluster.TypeProtobuf
		return r
	}
	return []request{
		{name: "LIST all pods, JSON", path: allPods, accept: cluster.TypeJSON, want: s.pods(), goal: 50 * thousands},
		{name: "LIST all pods, protobuf", path: allPods, accept: cluster.TypeProtobuf, want: s.pods(), goal: 30 * thousands},
		{name: "LIST all pods, table", path: allPods, accept: cluster.TypeTable, want: s.pods(), goal: 80 * thousands},
		{name: "LIST all pods, JSON, gzip", path: allPods, accept: cluster.TypeJSON, want: s.pods(), gzip: true},
		{name: "LIST all pods, protobuf, gzip", path: allPods, accept: cluster.TypeProtobuf, want: s.pods(), gzip: true},
		hpa(request{path: selected(shopNamespace, webApp), want: s.web, goal: 0.4}, s.shop),
		hpa(request{path: selected(hugeNamespace, rareApp), want: s.rare, goal: 0.3}, s.huge),
		{name: "GET one pod, JSON", path: onePath, accept: cluster.TypeJSON, want: 1, goal: 0.15},
		{name: "GET one pod, JSON, aggregation layer's certificate", path: onePath, accept: cluster.TypeJSON, want: 1, proxied: true},
		{name: "GET one node, JSON", path: cluster.V1beta1 + "/nodes/" + objects.NodeName(0), accept: cluster.TypeJSON, want: 1, goal: 0.15},
		{name: "LIST nodes, JSON", path: cluster.V1beta1 + "/nodes", accept: cluster.TypeJSON, want: s.nodes},
		{name: "LIST nodes, protobuf", path: cluster.V1beta1 + "/nodes", accept: cluster.TypeProtobuf, want: s.nodes},
	}
}

// requests measures each of the usual requests.
func (m *measurement) requests(ctx context.Context) error {
	for _, r := range m.shape.usualRequests() {
		m.progress("measuring %s", r.name)
		one, err := m.measureRequest(ctx, r)
		if err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		m.result.Requests = append(m.result.Requests, one)
	}
	return nil
}

func (m *measurement) measureRequest(ctx context.Context, r request) (requestResult, error) {
	client := m.server.Direct
	if r.proxied {
		client = m.server.Proxied
	}
	items, _, err := r.count(ctx, m.server.Direct, m.server.URL)
	if err != nil {
		return requestResult{}, errors.Join(err, m.server.Process.Running())
	}
	var cpu, latency []float64 // milliseconds
	var size int64
	for range m.cfg.rounds {
		n := 0
		used, elapsed, err := m.during(func() error {
			for began := time.Now(); n < roundRequests || time.Since(began) < roundTime; n++ {
				sent := time.Now()
				var err error
				if size, err = r.discard(ctx, client, m.server.URL); err != nil {
					return err
				}
				latency = append(latency, milliseconds(time.Since(sent)))
			}
			return nil
		})
		if err != nil {
			return requestResult{}, err
		}
		scraping := m.result.Cores * elapsed.Seconds() // seconds of CPU that the request did not cause
		cpu = append(cpu, max(0, used.Seconds()-scraping)*1e3/float64(n))
	}
	return requestResult{
		Name: r.name, CPU: median(cpu), Goal: r.goal, Latency: median(latency), Bytes: size, Count: len(latency), Items: items, Want: r.want,
	}, nil
}

// manyLists reads memory again after a hundred LISTs of all pods, half of them in JSON.
func (m *measurement) manyLists(ctx context.Context) error {
	m.progress("listing all pods %d times", manyLists)
	deadline := time.Now().Add(manyListsTime)
	for m.result.Lists < manyLists && time.Now().Before(deadline) {
		r := request{path: cluster.V1beta1 + "/pods", accept: []string{cluster.TypeJSON, cluster.TypeProtobuf}[m.result.Lists%2]}
		if _, err := r.discard(ctx, m.server.Direct, m.server.URL); err != nil {
			return errors.Join(err, m.server.Process.Running())
		}
		m.result.Lists++
	}
	resident, err := process.Resident(m.server.Process.PID())
	m.result.RSSAfterLists = float64(resident) / (1 << 20)
	return err
}

// discard sends the request, and throws the answer away; its size is that of the bytes on the wire.
func (r request) discard(ctx context.Context, client *http.Client, server string) (size int64, err error) {
	response, err := r.do(ctx, client, server+r.path)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	size, err = io.Copy(io.Discard, response.Body)
	if err != nil {
		return 0, err
	}
	if response.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("%s answers %s", r.path, response.Status)
	}
	return size, nil
}

func (r request) do(ctx context.Context, client *http.Client, url string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", r.accept)
	if r.gzip { // asked for by hand, so that decompressing is not measured as latency
		request.Header.Set("Accept-Encoding", "gzip")
	}
	return client.Do(request)
}

// count sends the request, and counts the items in the answer. What is in it was there when it
// began.
func (r request) count(ctx context.Context, client *http.Client, server string) (items int, began time.Time, err error) {
	r.gzip, r.proxied = false, false // how it is asked for does not change what it holds
	response, err := r.do(ctx, client, server+r.path)
	if err != nil {
		return 0, began, err
	}
	defer response.Body.Close()
	began = time.Now()
	body, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return 0, began, err
	case response.StatusCode != http.StatusOK:
		return 0, began, &cluster.StatusError{URL: server + r.path, Code: response.StatusCode}
	case response.Header.Get("Content-Type") == cluster.TypeProtobuf:
		items, err = countProtobuf(body)
		return items, began, err
	case r.accept == cluster.TypeTable:
		return strings.Count(string(body), `"cells":`), began, nil
	default:
		return strings.Count(string(body), `"timestamp":`), began, nil
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1e3 }
