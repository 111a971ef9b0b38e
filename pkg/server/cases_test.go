package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	openapinamer "k8s.io/apiserver/pkg/endpoints/openapi"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/kube-vitals/kube-vitals/internal/sim"
	"github.com/kube-vitals/kube-vitals/internal/sim/cases"
	"github.com/kube-vitals/kube-vitals/pkg/api"
	"github.com/kube-vitals/kube-vitals/pkg/health"
	"github.com/kube-vitals/kube-vitals/pkg/kubelet"
	"github.com/kube-vitals/kube-vitals/pkg/scrape"
	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// TestCases plays the cases of pkg/store against the server, in virtual time: watches of an API server, the client of
// kubelets, the decoders, the scraper, the store, and GET and LIST. The listening port, authentication and
// authorization are not in it.
func TestCases(t *testing.T) {
	kubelet := &caseKubelet{}
	// Outside of the bubbles: their time stands still while a request is on the network.
	server := httptest.NewServer(kubelet)
	defer server.Close()
	at := netip.MustParseAddrPort(strings.TrimPrefix(server.URL, "http://"))
	config := newCluster(t).config(t)
	defer config.Serving.Listener.Close()
	cases.Run(t, "../store/testdata/cases", "server", func(t *testing.T, file, text string) {
		synctest.Test(t, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			target := &caseTarget{t: t, ctx: ctx, config: config, kubelet: kubelet, at: at, restarts: map[string]int32{}}
			for _, err := range cases.Play(file, text, target) {
				t.Error(err)
			}
			stop()
			synctest.Wait()
		})
	})
}

// caseKubelet responds as the last step of a case says.
type caseKubelet struct {
	response atomic.Pointer[cases.Response]
}

func (k *caseKubelet) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	response := k.response.Load()
	w.Header()["Date"] = nil
	if response.Date != 0 {
		w.Header().Set("Date", response.Date.Time().UTC().Format(http.TimeFormat))
	}
	if response.Partial { // as if it were cut at the end of a line
		w.Header().Set("Transfer-Encoding", "identity")
	}
	if response.IsSummary {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(response.Summary())
		return
	}
	fmt.Fprint(w, response.Resource())
}

// caseTarget is a server in a bubble.
type caseTarget struct {
	t       *testing.T
	ctx     context.Context
	config  Config
	kubelet *caseKubelet
	at      netip.AddrPort // of the kubelet

	setup    cases.Setup
	api      *sim.API
	assembly *assembly
	gate     *gate
	uid      int              // of the last pod
	restarts map[string]int32 // by POD/CONTAINER
}

// gate is a scrape.Fetcher whose requests wait until a case has a response.
type gate struct {
	*kubelet.Client
	kubelet   *caseKubelet
	responses chan *cases.Response
	isSummary atomic.Bool // of the waiting request
	err       error       // of the last request
}

// Fetch implements scrape.Fetcher.
func (g *gate) Fetch(ctx context.Context, n *corev1.Node, put func(*usage.Scrape)) (usage.Timing, error) {
	return g.fetch(ctx, n, put, g.Client.Fetch, false)
}

// FetchSummary implements scrape.Fetcher.
func (g *gate) FetchSummary(ctx context.Context, n *corev1.Node, put func(*usage.Scrape)) (usage.Timing, error) {
	return g.fetch(ctx, n, put, g.Client.FetchSummary, true)
}

func (g *gate) fetch(
	ctx context.Context, n *corev1.Node, put func(*usage.Scrape),
	method func(context.Context, *corev1.Node, func(*usage.Scrape)) (usage.Timing, error), isSummary bool,
) (usage.Timing, error) {
	g.isSummary.Store(isSummary)
	defer g.isSummary.Store(false)
	select {
	case <-ctx.Done():
		return usage.Timing{}, ctx.Err()
	case r := <-g.responses:
		if r == nil {
			return usage.Timing{}, errors.New("the case has no response")
		}
		g.kubelet.response.Store(r)
		var timing usage.Timing
		timing, g.err = method(ctx, n, func(s *usage.Scrape) {
			s.Sent = r.Sent // as if the kubelet had taken so long
			put(s)
		})
		return timing, g.err
	}
}

// Start implements cases.Target.
func (c *caseTarget) Start(s cases.Setup) {
	time.Sleep(time.Until(s.Now.Time()) - time.Second)
	c.setup, c.api = s, sim.NewAPI()
	c.api.Latency = 0
	c.putNode(s.Capacity)
	for pod := range s.Pods {
		c.api.Put(c.podPath(pod), c.newPod(pod))
	}
	c.config.RateWindow, c.config.MaxSampleAge, c.config.Kubelet.PlainHTTP = s.RateWindow, s.MaxSampleAge, true
	c.must(c.assemble())
	var running sync.WaitGroup
	for _, loop := range c.assembly.loops {
		running.Go(func() { loop(c.ctx) })
	}
	synctest.Wait()
}

// assemble is New with an API server in memory, the gate, and without a port.
func (c *caseTarget) assemble() (err error) {
	if c.assembly, err = newAssembly(c.config); err != nil {
		return err
	}
	a := c.assembly
	a.client.Host, a.client.Transport = "http://api", c.api
	a.clients = kubernetes.NewForConfigOrDie(a.client)
	a.Kubelet.Clock = a.clock
	fetcher, err := kubelet.NewClient(a.Kubelet)
	if err != nil {
		return err
	}
	c.gate = &gate{Client: fetcher, kubelet: c.kubelet, responses: make(chan *cases.Response)}
	a.source = scrape.New(scrape.Config{
		Fetcher: c.gate, Sink: a.view.Store, Observer: a.instruments, MinWindow: usage.ShortestWindow(a.RateWindow),
		Interval: time.Millisecond, // the case decides when responses arrive
	})
	a.loops = append(a.loops, a.source.Run)
	if err := a.addWatches(); err != nil {
		return err
	}
	scheme := api.NewScheme()
	codecs := serializer.NewCodecFactory(scheme)
	config := genericapiserver.NewConfig(codecs)
	if err := a.configure(config); err != nil {
		return err
	}
	setOpenAPI(config, openapinamer.NewDefinitionNamer(scheme), a.Version)
	config.Authentication.Authenticator = authenticator.RequestFunc(
		func(*http.Request) (*authenticator.Response, bool, error) {
			return &authenticator.Response{User: &user.DefaultInfo{Name: "alice"}}, true, nil
		})
	config.ExternalAddress = "localhost:443"
	config.Authorization.Authorizer = authorizerfactory.NewAlwaysAllowAuthorizer()
	config.BuildHandlerChainFunc = func(handler http.Handler, config *genericapiserver.Config) http.Handler {
		handler = api.WithResponseMemory(handler, codecs, responseMemory(memoryLimit()))
		return genericapiserver.DefaultBuildHandlerChain(handler, config)
	}
	if a.api, err = config.Complete(nil).New(componentName, genericapiserver.NewEmptyDelegate()); err != nil {
		return err
	}
	return a.api.InstallAPIGroup(api.NewGroup(a.apiConfig(config.Authorization.Authorizer), scheme, codecs))
}

func (c *caseTarget) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// Advance implements cases.Target.
func (c *caseTarget) Advance(now usage.Time, step string) {
	if c.gate.isSummary.Load() && step != "summary" {
		c.gate.responses <- nil
	}
	time.Sleep(time.Until(now.Time()))
	synctest.Wait()
}

// Put implements cases.Target. A summary that the server does not request has no effect.
func (c *caseTarget) Put(r *cases.Response) error {
	if r.IsSummary && !c.gate.isSummary.Load() {
		return nil
	}
	c.gate.responses <- r
	synctest.Wait()
	return c.gate.err
}

// SetCapacity implements cases.Target. The scrape that waits for its response fails: it is of the node as it was.
func (c *caseTarget) SetCapacity(nanocores uint64) {
	c.putNode(nanocores)
	synctest.Wait()
	c.gate.responses <- nil
}

func (c *caseTarget) putNode(nanocores uint64) {
	node := nodeAt(cases.NodeName, c.at)
	node.UID = "node"
	if nanocores > 0 {
		capacity := resource.NewScaledQuantity(int64(nanocores), resource.Nano)
		node.Status.Capacity = corev1.ResourceList{corev1.ResourceCPU: *capacity}
	}
	c.api.Put("/api/v1/nodes/node", node)
}

// Delete implements cases.Target.
func (c *caseTarget) Delete(pod string, exists bool) {
	c.api.Put(c.podPath(pod), nil)
	synctest.Wait()
	if exists {
		c.SetState(pod)
	}
}

func (c *caseTarget) podPath(name string) string {
	return "/api/v1/namespaces/" + c.setup.Namespace + "/pods/" + name
}

// SetState implements cases.Target.
func (c *caseTarget) SetState(name string) {
	path := c.podPath(name)
	pod := c.newPod(name)
	if old := c.api.Get(path); old != nil {
		pod.UID = types.UID(sim.Meta(old)["uid"].(string))
	}
	c.api.Put(path, pod)
	synctest.Wait()
}

// newPod returns a pod with the states of its containers. Those that have ended are not restarted.
func (c *caseTarget) newPod(name string) *corev1.Pod {
	at := func(t usage.NodeTime) metav1.Time { return metav1.NewTime(t.Time()) }
	c.uid++
	pod := runningPod(c.setup.Namespace, name, cases.NodeName)
	pod.UID, pod.Spec.RestartPolicy = types.UID(fmt.Sprint(c.uid)), corev1.RestartPolicyOnFailure
	for _, container := range c.setup.Pods[name] {
		s := c.setup.State(name, container)
		start := at(s.EarliestStart)
		if pod.Status.StartTime == nil || start.Before(pod.Status.StartTime) {
			pod.Status.StartTime = &start
		}
		pod.CreationTimestamp = metav1.NewTime(s.PodCreatedAt.Time())
		ended := &corev1.ContainerStateTerminated{StartedAt: start}
		status := corev1.ContainerStatus{Name: container}
		switch {
		case s.Running:
			status.State.Running = &corev1.ContainerStateRunning{StartedAt: start}
		case s.Alive:
			status.State.Waiting, status.LastTerminationState.Terminated = &corev1.ContainerStateWaiting{}, ended
			c.restarts[name+"/"+container]++
		default:
			status.State.Terminated = ended
		}
		status.RestartCount = c.restarts[name+"/"+container]
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: container})
		pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, status)
	}
	return pod
}

// item is the metrics of a pod or of a node.
type item struct {
	metav1.ObjectMeta `json:"metadata"`
	metricsv1beta1.NodeMetrics
	Containers []metricsv1beta1.ContainerMetrics
}

// Served implements cases.Target.
func (c *caseTarget) Served(object string) []cases.Served {
	var one item
	var all struct{ Items []item }
	path := c.metricsPath(object)
	get, list := cases.Served{By: "GET", InSecond: true}, cases.Served{By: "LIST", InSecond: true}
	if c.get(path, &one) {
		get.Pod = one.amounts()
	}
	c.get(strings.TrimSuffix(path, "/"+object), &all)
	for i := range all.Items {
		if all.Items[i].Name == object {
			list.Pod = all.Items[i].amounts()
		}
	}
	return []cases.Served{get, list}
}

// metricsPath returns the path of the metrics of a pod or of the node.
func (c *caseTarget) metricsPath(object string) string {
	const prefix = "/apis/metrics.k8s.io/v1beta1/"
	if object == cases.NodeName {
		return prefix + "nodes/" + object
	}
	return prefix + "namespaces/" + c.setup.Namespace + "/pods/" + object
}

// get decodes the response to a GET. It reports false if there are no metrics.
func (c *caseTarget) get(path string, into any) bool {
	w := httptest.NewRecorder()
	c.assembly.api.Handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	if w.Code != http.StatusOK && w.Code != http.StatusNotFound {
		c.t.Fatalf("GET %s: status %d: %s", path, w.Code, w.Body)
	}
	c.must(json.Unmarshal(w.Body.Bytes(), into))
	return w.Code == http.StatusOK
}

func (m *item) amounts() *usage.Pod {
	if m.Containers == nil { // of a node
		m.Containers = []metricsv1beta1.ContainerMetrics{{Usage: m.Usage}}
	}
	p := &usage.Pod{At: usage.NodeAt(m.Timestamp.Time), Window: m.Window.Duration}
	for _, c := range m.Containers {
		p.Containers = append(p.Containers, usage.Container{Name: c.Name, Amount: usage.Amount{
			CPUNanocores: uint64(c.Usage.Cpu().ScaledValue(resource.Nano)), Memory: uint64(c.Usage.Memory().Value())}})
	}
	return p
}

// Lost implements cases.Target. It is the reason in the response to a GET without metrics, if that is of a sample, and
// the container in its text.
func (c *caseTarget) Lost(object string) (loss usage.Loss, container string, ok bool) {
	var status metav1.Status
	if c.get(c.metricsPath(object), &status) {
		return 0, "", false
	}
	for loss = usage.LostZero; loss <= usage.LostOwner; loss++ {
		if causesOf(status) != string(health.ReasonOf(loss)) {
			continue
		}
		for _, container = range c.setup.Pods[object] {
			if strings.Contains(status.Message, fmt.Sprintf("%q", container)) {
				return loss, container, true
			}
		}
		return loss, "", true
	}
	return 0, "", false
}

// Err implements cases.Target.
func (c *caseTarget) Err() error { return nil }
