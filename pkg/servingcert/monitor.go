package servingcert

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

// APIServiceState is what the API server does with the requests for one version of the API.
type APIServiceState struct {
	Misdirected           bool // it does not forward them to this server's Service
	InsecureSkipTLSVerify bool // it forwards them to whatever server answers, without verifying it
}

// Monitor reads the APIServices of this server and remembers what the API server does with their
// requests. It logs once what is wrong with one, each time that this changes. All methods can be
// called at the same time.
type Monitor struct {
	client  dynamic.ResourceInterface
	names   []string
	service service

	mu     sync.Mutex
	states map[string]APIServiceState // by name; of those that could be read; under mu
	notes  map[string]string          // by name: what the log has about it; under mu
}

// NewMonitor returns a Monitor of c.APIServices, which should lead to c.Service. It needs the right
// to get them, and nothing else of the Config but the Client.
func NewMonitor(c Config) (*Monitor, error) {
	service, err := c.service()
	if err != nil {
		return nil, err
	}
	return newMonitor(c.Client, c.APIServices, service)
}

func newMonitor(config *rest.Config, names []string, service service) (*Monitor, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client for APIServices: %w", err)
	}
	return &Monitor{
		client:  client.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}),
		names:   names,
		service: service,
		states:  map[string]APIServiceState{},
		notes:   map[string]string{},
	}, nil
}

// States returns what the Monitor knows, by the name of the APIService. An APIService that does not
// exist, or that this server may not read, is missing.
func (m *Monitor) States() map[string]APIServiceState {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.states)
}

// Run reads the APIServices from time to time until the context ends. A Manager reads them itself:
// its Monitor is not to be run. What cannot be read is a matter of verbose logs, since the server
// works without.
func (m *Monitor) Run(ctx context.Context) {
	said := map[string]string{}
	for ctx.Err() == nil {
		delay := resyncPeriod
		for _, name := range m.names {
			text := ""
			if err := m.check(ctx, name); err != nil {
				text = err.Error()
				if apierrors.IsForbidden(err) {
					delay = forbiddenPeriod
				}
			}
			if text != "" && text != said[name] && ctx.Err() == nil {
				klog.FromContext(ctx).V(2).Info("Cannot check where the API server sends requests for metrics; allow this "+
					"server's ServiceAccount to get the APIService", "apiService", name, "error", text)
			}
			said[name] = text
		}
		sleep(ctx, jitter(delay), nil)
	}
}

func (m *Monitor) check(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, requestsTimeout)
	defer cancel()
	if _, err := m.read(ctx, name); !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// apiServiceObject is the part of an APIService that matters here.
type apiServiceObject struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Spec struct {
		Service *struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
			Port      *int32 `json:"port"` // nil: 443
		} `json:"service"` // nil: the API server itself answers
		InsecureSkipTLSVerify bool   `json:"insecureSkipTLSVerify"`
		CABundle              []byte `json:"caBundle"`
	} `json:"spec"`
}

// read reads an APIService and notes its state. A state that is known stays for as long as the API
// server cannot be reached.
func (m *Monitor) read(ctx context.Context, name string) (*apiServiceObject, error) {
	object, err := m.client.Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		m.note(ctx, name, nil, "it does not exist")
		return nil, err
	case apierrors.IsForbidden(err):
		m.forget(name)
		return nil, err
	case err != nil:
		return nil, err
	}
	a := &apiServiceObject{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, a); err != nil {
		return nil, fmt.Errorf("cannot decode APIService %s: %w", name, err)
	}
	state, problem := m.service.judge(a)
	m.note(ctx, name, &state, problem)
	return a, nil
}

func (m *Monitor) forget(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.states, name)
}

// note remembers the state of an APIService, nil if it does not exist, and logs the problem with it
// if that is another one than before.
func (m *Monitor) note(ctx context.Context, name string, state *APIServiceState, problem string) {
	m.mu.Lock()
	before := m.notes[name]
	m.notes[name] = problem
	if state == nil {
		delete(m.states, name)
	} else {
		m.states[name] = *state
	}
	m.mu.Unlock()

	logger := klog.FromContext(ctx).WithValues("apiService", name)
	switch {
	case problem == before:
	case problem == "":
		logger.Info("The APIService is right again: it leads to this server, which the API server verifies")
	case state == nil:
		logger.Info("The APIService is missing: nobody reaches this server by it", "because", problem)
	case state.Misdirected:
		logger.Error(nil, "The APIService leads elsewhere, so clients do not get this server's metrics. Find out who changed it "+
			"(kubectl get apiservice --show-managed-fields), and restore its spec.service, for example by helm upgrade", "because", problem)
	default:
		logger.Error(nil, "The APIService skips verification, so the API server takes metrics from anyone who can answer in this "+
			"server's place. Unset spec.insecureSkipTLSVerify and set a caBundle, for example by helm upgrade with tls.type=kube-vitals",
			"because", problem)
	}
}

// service is this server's Service.
type service struct {
	name, namespace string
	port            int32 // 0: any
}

// defaultPort is the port to which an APIService without one leads.
const defaultPort = 443

// parseService parses NAME.NAMESPACE.svc[:PORT].
func parseService(text string) (service, bool) {
	host, port, hasPort := strings.Cut(text, ":")
	parts := strings.Split(host, ".")
	if len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] != "svc" {
		return service{}, false
	}
	s := service{name: parts[0], namespace: parts[1]}
	if hasPort {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return service{}, false
		}
		s.port = int32(n)
	}
	return s, true
}

// String returns the Service as messages name it.
func (s service) String() string {
	if s.port == 0 {
		return s.namespace + "/" + s.name
	}
	return fmt.Sprintf("%s/%s, port %d", s.namespace, s.name, s.port)
}

// isBackendOf reports whether the APIService leads to the Service, at any port. No other server can
// be reached by the Service's name, so its caBundle is this server's to keep.
func (s service) isBackendOf(a *apiServiceObject) bool {
	return a.Spec.Service != nil && a.Spec.Service.Namespace == s.namespace && a.Spec.Service.Name == s.name
}

// judge returns the state of an APIService, and in words what is wrong with it; no words if nothing
// is.
func (s service) judge(a *apiServiceObject) (state APIServiceState, problem string) {
	state.InsecureSkipTLSVerify = a.Spec.InsecureSkipTLSVerify
	to := a.Spec.Service
	if to == nil {
		state.Misdirected = true
		return state, "spec.service is missing: the API server answers itself"
	}
	port := int32(defaultPort)
	if to.Port != nil {
		port = *to.Port
	}
	state.Misdirected = !s.isBackendOf(a) || s.port != 0 && port != s.port
	switch {
	case state.Misdirected:
		return state, fmt.Sprintf("it leads to Service %s/%s, port %d, instead of %s", to.Namespace, to.Name, port, s)
	case state.InsecureSkipTLSVerify:
		return state, "insecureSkipTLSVerify is true"
	default:
		return state, ""
	}
}
