package servingcert

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"

	"github.com/kube-vitals/kube-vitals/pkg/internal/backoff"
	"github.com/kube-vitals/kube-vitals/pkg/internal/failure"
)

// APIServiceState is what is wrong with an APIService.
type APIServiceState struct {
	Misdirected           bool // requests are not forwarded to this server's Service
	InsecureSkipTLSVerify bool // the API server does not verify the server that it forwards them to
}

// Monitor reads the APIServices of this server. It logs the problem with an APIService once, and
// again when the problem changes. States can be called concurrently with Run.
type Monitor struct {
	client  dynamic.ResourceInterface
	names   []string
	service service
	states  atomic.Pointer[map[string]APIServiceState] // by name; of those that could be read; not modified
	logs    map[string]*failure.Log                    // of the problems, by name
}

// NewMonitor returns a Monitor of c.APIServices, which should lead to c.Service. It uses no other
// field of the Config but the Client, and needs permission to get the APIServices.
func NewMonitor(c Config) (*Monitor, error) {
	service, err := c.service()
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(c.Client)
	if err != nil {
		return nil, fmt.Errorf("cannot create a client for APIServices: %w", err)
	}
	resource := schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	m := &Monitor{
		client: client.Resource(resource), names: c.APIServices, service: service, logs: map[string]*failure.Log{},
	}
	for _, name := range m.names {
		m.logs[name] = &failure.Log{
			Recovered: "The APIService is right again: it leads to this server, and the API server verifies it",
		}
	}
	m.states.Store(&map[string]APIServiceState{})
	return m, nil
}

// States returns the states of the APIServices, by name. It omits those that do not exist and those
// that must not be read. The map must not be modified.
func (m *Monitor) States() map[string]APIServiceState { return *m.states.Load() }

// Run reads the APIServices every minute until the context ends. It must not be called for the Monitor of a
// Manager, which reads them itself. Errors are logged only at -v=2: the server works without a Monitor.
func (m *Monitor) Run(ctx context.Context) {
	log := failure.Log{
		Failing: "Cannot check the APIServices", Recovered: "The APIServices can be checked again",
	}
	for ctx.Err() == nil {
		requestCtx, cancel := context.WithTimeout(ctx, reconcileTimeout)
		_, err := m.read(requestCtx)
		cancel()
		if logger := klog.FromContext(ctx); logger.V(2).Enabled() && ctx.Err() == nil {
			log.NoteError(logger, requestError(err, "read an APIService", "get"))
		}
		delay := resyncPeriod
		if apierrors.IsForbidden(err) {
			delay = forbiddenPeriod
		}
		backoff.Sleep(ctx, jitter(delay), nil)
	}
}

// apiService is the part of an APIService that is used. Its package is not part of client-go.
type apiService struct {
	Metadata struct {
		Name            string `json:"name"`
		ResourceVersion string `json:"resourceVersion"`
	} `json:"metadata"`
	Spec struct {
		Service *struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
			Port      *int32 `json:"port"` // nil: 443
		} `json:"service"` // nil: the API server itself serves it
		InsecureSkipTLSVerify bool   `json:"insecureSkipTLSVerify"`
		CABundle              []byte `json:"caBundle"`
	} `json:"spec"`
}

// read returns the APIServices that exist, and an error for those that it could not read. It records
// their states. If the API server cannot be reached, the last states stay.
func (m *Monitor) read(ctx context.Context) (services []*apiService, err error) {
	states := maps.Clone(m.States())
	defer m.states.Store(&states)
	for _, name := range m.names {
		a, getErr := m.get(ctx, name)
		if apierrors.IsNotFound(getErr) || apierrors.IsForbidden(getErr) {
			delete(states, name)
		}
		switch {
		case getErr == nil:
			services = append(services, a)
			state, problem := m.service.check(a)
			states[name] = state
			m.log(ctx, name, state, problem)
		case apierrors.IsNotFound(getErr):
			m.log(ctx, name, APIServiceState{}, notFound)
		default:
			err = errors.Join(err, getErr)
		}
	}
	return services, err
}

func (m *Monitor) get(ctx context.Context, name string) (*apiService, error) {
	object, err := m.client.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("APIService %s: %w", name, err)
	}
	a := &apiService{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, a); err != nil {
		return nil, fmt.Errorf("cannot decode APIService %s: %w", name, err)
	}
	a.Metadata.Name = name
	return a, nil
}

// notFound is the problem with an APIService that does not exist.
const notFound = "not found"

// log logs the problem with an APIService, "" if there is none, if that has changed.
func (m *Monitor) log(ctx context.Context, name string, state APIServiceState, problem string) {
	log := m.logs[name]
	switch {
	case problem == notFound:
		log.Failing = "The APIService does not exist, so clients cannot reach this server by it"
	case state.Misdirected:
		log.Failing = "The APIService leads elsewhere, so clients do not get this server's metrics; " +
			"find out what changed it (kubectl get apiservice --show-managed-fields -o yaml); " +
			"kubectl vitals doctor prints how to restore its spec.service, or why not to"
	default:
		log.Failing = "The APIService skips verification, so the API server accepts metrics from any server " +
			"that responds in place of this one; unset spec.insecureSkipTLSVerify and set a caBundle, " +
			"for example with helm upgrade and tls.type=kube-vitals"
	}
	log.Note(klog.FromContext(ctx).WithValues("apiService", name), problem, nil, "reason", problem)
}

// service is this server's Service.
type service struct {
	name, namespace string
	port            int32 // 0: any
}

// serviceName matches NAME.NAMESPACE.svc.
var serviceName = regexp.MustCompile(`^([^.:]+)\.([^.:]+)\.svc$`)

// service returns the Service of this server.
func (c Config) service() (service, error) {
	text := c.Service
	if text == "" && len(c.Names) > 0 {
		text = c.Names[0]
	}
	host, port, hasPort := strings.Cut(text, ":")
	number, err := strconv.ParseUint(port, 10, 16)
	parts := serviceName.FindStringSubmatch(host)
	if parts == nil || hasPort && (err != nil || number == 0) {
		return service{}, fmt.Errorf("the Service must be named NAME.NAMESPACE.svc or NAME.NAMESPACE.svc:PORT, "+
			"but it is %q", text)
	}
	if len(c.Names) > 0 && c.Names[0] != host {
		return service{}, fmt.Errorf("the Service is %q, but the first name of the serving certificate is %q",
			host, c.Names[0])
	}
	return service{parts[1], parts[2], int32(number)}, nil
}

// String returns the Service for messages.
func (s service) String() string {
	if s.port == 0 {
		return s.namespace + "/" + s.name
	}
	return fmt.Sprintf("%s/%s, port %d", s.namespace, s.name, s.port)
}

// isBackendOf reports whether the APIService leads to the Service, at any port. No other server has
// that name, so this server manages the caBundle.
func (s service) isBackendOf(a *apiService) bool {
	return a.Spec.Service != nil && a.Spec.Service.Namespace == s.namespace && a.Spec.Service.Name == s.name
}

// check returns the state of an APIService and the problem with it, "" if there is none.
func (s service) check(a *apiService) (state APIServiceState, problem string) {
	state.InsecureSkipTLSVerify = a.Spec.InsecureSkipTLSVerify
	to := a.Spec.Service
	if to == nil {
		state.Misdirected = true
		return state, "spec.service is missing: the API server itself serves it"
	}
	port := int32(443) // the default
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
