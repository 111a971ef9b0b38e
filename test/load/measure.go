package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

const (
	apiPath = "/apis/metrics.k8s.io/v1beta1" // what metrics-server and kube-vitals both serve

	typeJSON     = "application/json"
	typeProtobuf = "application/vnd.kubernetes.protobuf"
	typeTable    = "application/json;as=Table;v=v1;g=meta.k8s.io"
)

// Bounds of one round of one request. At a tenth of a millisecond a request, one and a half seconds give CPU time to 1 %
// or so, which /proc tells to 10 ms.
const (
	roundTime     = 1500 * time.Millisecond // a round goes on for at least so long
	roundRequests = 3                       // and for at least so many requests
	manyLists     = 100                     // after which memory is read again
	manyListsTime = 3 * time.Minute         // or after so long
)

// measurement is one server being measured.
type measurement struct {
	cfg      config
	server   *server
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
func (m *measurement) startup(ctx context.Context) error {
	m.progress("waiting for all figures")
	limit := 2*time.Minute + time.Duration(m.shape.nodes)*20*time.Millisecond
	nodes := request{path: apiPath + "/nodes", accept: typeProtobuf}
	pods := request{path: apiPath + "/pods", accept: typeProtobuf}
	return await(ctx, m.server.process, limit, "all nodes and pods to have figures", func(ctx context.Context) error {
		// Pods are asked for only when all nodes are there: a LIST of all of them would delay what it waits for.
		n, err := nodes.count(ctx, m.server.direct, m.server.url)
		if err != nil {
			return err
		}
		if n > 0 && m.result.FirstFigures == 0 {
			m.result.FirstFigures = time.Since(m.server.started).Seconds()
		}
		if n < m.shape.nodes {
			return fmt.Errorf("%d of %d nodes have", n, m.shape.nodes)
		}
		if n, err = pods.count(ctx, m.server.direct, m.server.url); err != nil {
			return err
		}
		if n < m.shape.pods() {
			return fmt.Errorf("%d of %d pods have", n, m.shape.pods())
		}
		m.result.AllFigures = time.Since(m.server.started).Seconds()
		return nil
	})
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
		resident, err := residentBytes(m.server.process.PID())
		if err != nil {
			return errors.Join(err, m.server.process.Running())
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
	body, _, err := get(ctx, m.server.direct, m.server.url+apiPath+"/nodes", typeJSON)
	if err != nil {
		return err
	}
	var list struct {
		Items []struct{ Timestamp time.Time }
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return fmt.Errorf("the list of nodes cannot be read: %w", err)
	}
	var ages []float64
	for _, node := range list.Items {
		ages = append(ages, time.Since(node.Timestamp).Seconds())
	}
	m.result.AgeMedian, m.result.AgeMax = median(ages), slices.Max(append(ages, 0))
	return nil
}

// during says how much CPU the server has used while f ran, and for how long it did.
func (m *measurement) during(f func() error) (used, elapsed time.Duration, err error) {
	pid := m.server.process.PID()
	before, err := cpuTime(pid)
	if err != nil {
		return 0, 0, errors.Join(err, m.server.process.Running())
	}
	began := time.Now()
	if err := f(); err != nil {
		return 0, 0, errors.Join(err, m.server.process.Running())
	}
	elapsed = time.Since(began)
	after, err := cpuTime(pid)
	if err != nil {
		return 0, 0, errors.Join(err, m.server.process.Running())
	}
	return after - before, elapsed, nil
}

// request is one of the usual requests.
type request struct {
	name, path, accept string
	want               int  // items in the answer
	gzip               bool // by a client that takes compressed answers, as client-go does
	proxied            bool // as the aggregation layer hands on the requests of all others
}

// usualRequests are those of kubectl, the autoscalers and the dashboards.
func (s shape) usualRequests() []request {
	allPods := apiPath + "/pods"
	selected := func(namespace, app string) string {
		return apiPath + "/namespaces/" + namespace + "/pods?labelSelector=" + url.QueryEscape("app.kubernetes.io/name="+app)
	}
	pod := s.pod(s.huge)
	onePath := apiPath + "/namespaces/" + pod.namespace + "/pods/" + pod.name
	hpa := func(r request, of int) request {
		r.name = fmt.Sprintf("LIST by selector, %d of %d pods, protobuf (HPA)", r.want, of)
		r.accept = typeProtobuf
		return r
	}
	return []request{
		{name: "LIST all pods, JSON", path: allPods, accept: typeJSON, want: s.pods()},
		{name: "LIST all pods, protobuf", path: allPods, accept: typeProtobuf, want: s.pods()},
		{name: "LIST all pods, table", path: allPods, accept: typeTable, want: s.pods()},
		{name: "LIST all pods, JSON, gzip", path: allPods, accept: typeJSON, want: s.pods(), gzip: true},
		{name: "LIST all pods, protobuf, gzip", path: allPods, accept: typeProtobuf, want: s.pods(), gzip: true},
		hpa(request{path: selected(shopNamespace, webApp), want: s.web}, s.shop),
		hpa(request{path: selected(hugeNamespace, rareApp), want: s.rare}, s.huge),
		{name: "GET one pod, JSON", path: onePath, accept: typeJSON, want: 1},
		{name: "GET one pod, JSON, aggregation layer's certificate", path: onePath, accept: typeJSON, want: 1, proxied: true},
		{name: "GET one node, JSON", path: apiPath + "/nodes/" + nodeName(0), accept: typeJSON, want: 1},
		{name: "LIST nodes, JSON", path: apiPath + "/nodes", accept: typeJSON, want: s.nodes},
		{name: "LIST nodes, protobuf", path: apiPath + "/nodes", accept: typeProtobuf, want: s.nodes},
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
	client := m.server.direct
	if r.proxied {
		client = m.server.proxied
	}
	items, err := r.count(ctx, m.server.direct, m.server.url)
	if err != nil {
		return requestResult{}, errors.Join(err, m.server.process.Running())
	}
	var cpu, latency []float64 // milliseconds
	var size int64
	for range m.cfg.rounds {
		n := 0
		used, elapsed, err := m.during(func() error {
			for began := time.Now(); n < roundRequests || time.Since(began) < roundTime; n++ {
				sent := time.Now()
				var err error
				if size, err = r.discard(ctx, client, m.server.url); err != nil {
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
		Name: r.name, CPU: median(cpu), Latency: median(latency), Bytes: size, Count: len(latency), Items: items, Want: r.want,
	}, nil
}

// manyLists reads memory again after a hundred LISTs of all pods, half of them in JSON.
func (m *measurement) manyLists(ctx context.Context) error {
	m.progress("listing all pods %d times", manyLists)
	deadline := time.Now().Add(manyListsTime)
	for m.result.Lists < manyLists && time.Now().Before(deadline) {
		r := request{path: apiPath + "/pods", accept: []string{typeJSON, typeProtobuf}[m.result.Lists%2]}
		if _, err := r.discard(ctx, m.server.direct, m.server.url); err != nil {
			return errors.Join(err, m.server.process.Running())
		}
		m.result.Lists++
	}
	resident, err := residentBytes(m.server.process.PID())
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
	if r.proxied {
		request.Header.Set("X-Remote-User", "admin")
		request.Header.Set("X-Remote-Group", "system:masters")
	} else {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	return client.Do(request)
}

// count sends the request, and counts the items in the answer.
func (r request) count(ctx context.Context, client *http.Client, server string) (int, error) {
	body, contentType, err := get(ctx, client, server+r.path, r.accept)
	if err != nil {
		return 0, err
	}
	switch {
	case contentType == typeProtobuf:
		return countProtobuf(body)
	case r.accept == typeTable:
		return strings.Count(string(body), `"cells":`), nil
	default:
		return strings.Count(string(body), `"timestamp":`), nil
	}
}

// get reads an answer whole. The body is returned even with an error, which it may explain.
func get(ctx context.Context, client *http.Client, url, accept string) (body []byte, contentType string, err error) {
	response, err := request{accept: accept}.do(ctx, client, url)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s", url, response.Status)
	}
	return body, response.Header.Get("Content-Type"), err
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

// median is 0 where there is nothing.
func median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}
