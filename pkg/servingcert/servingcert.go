package servingcert

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	// DefaultLifetime is how long a certificate is valid. What a thief of the Secret can do ends
	// with it; and a third of it is left for a renewal that fails to be noticed and put right.
	DefaultLifetime = 90 * 24 * time.Hour
	// DefaultSettle is how long a CA has been in every caBundle before a certificate that it signed
	// is served. An API server hears of the change by a watch, so within a second, or has no watch
	// and tries again within a minute.
	DefaultSettle = 10 * time.Minute
)

const (
	// manager is the name under which the API server records who wrote a field.
	manager = "kube-vitals"
	// burst is how many writes there may be at once; then there may be as many again in a Settle.
	// Regular work needs a few.
	burst = 20
)

// Config says what to keep, and where. All fields are needed but ConfigMap, Service, Lifetime and
// Settle.
type Config struct {
	Client      *rest.Config  // how to reach the API server
	Secret      string        // the name of the Secret, in the namespace of the Service
	ConfigMap   string        // the name of the ConfigMap to publish the CAs in, in the same namespace; "": none
	Names       []string      // that the certificate covers; the first is the Service's: NAME.NAMESPACE.svc
	Service     string        // the Service in front of this server: NAME.NAMESPACE.svc[:PORT]; "": the first of Names, any port
	APIServices []string      // the names of those that lead to the Service
	Lifetime    time.Duration // of a certificate; 0: DefaultLifetime
	Settle      time.Duration // how long a CA is trusted before it is relied on; 0: DefaultSettle
}

// Manager is a serving certificate that renews itself. Run does the work. All methods can be called
// at the same time.
type Manager struct {
	namespace, secret string
	apiServices       []string // names
	policy            policy
	clock             *clock
	secrets           corev1client.SecretInterface
	publisher         publisher
	monitor           *Monitor // of the APIServices
	writes            flowcontrol.RateLimiter

	served    atomic.Pointer[pair]
	missing   atomic.Pointer[error] // why it is not ready; points to nil once it is
	expires   atomic.Int64          // Unix seconds, 0 while the certificate is a temporary one
	mu        sync.Mutex
	listeners []dynamiccertificates.Listener // under mu

	keeper keeper // Run's own
}

// keeper is what Run remembers from one reconciliation to the next.
type keeper struct {
	state               state             // as the Secret last had it, when it could be used
	labels, annotations map[string]string // of the Secret
	settling            settling
	emptySince          time.Time // since when others may put something into the Secret; zero: they need not
}

var _ dynamiccertificates.CertKeyContentProvider = (*Manager)(nil)

// New gives a Manager that serves a temporary certificate, which nobody can verify, until Run has
// found a better one.
func New(c Config) (*Manager, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	c.complete()
	service, err := c.service()
	if err != nil {
		return nil, err
	}
	m := &Manager{
		namespace:   service.namespace,
		secret:      c.Secret,
		apiServices: c.APIServices,
		policy:      policy{names: c.Names, lifetime: c.Lifetime, settle: c.Settle},
		clock:       &clock{},
		writes:      flowcontrol.NewTokenBucketRateLimiter(float32(burst/c.Settle.Seconds()), burst),
	}
	if err := m.connect(c, service); err != nil {
		return nil, err
	}
	temporary, err := issue(c.Names, time.Now(), c.Lifetime)
	if err != nil {
		return nil, err
	}
	m.served.Store(temporary)
	m.notReady(fmt.Errorf("the serving certificate has not come from %s yet", m.secretName()))
	return m, nil
}

// Validate returns all that is wrong with a Config, but for its Client.
func (c Config) Validate() error {
	c.complete()
	var mistakes []error
	if c.Secret == "" {
		mistakes = append(mistakes, errors.New("the name of the Secret for the serving certificate is missing"))
	}
	if len(c.Names) == 0 || !isServiceName(c.Names[0]) {
		mistakes = append(mistakes, fmt.Errorf("the first name of the serving certificate must be its Service's, as in "+
			"kube-vitals.kube-system.svc, but the names are %q", c.Names))
	} else if err := c.ValidateService(); err != nil {
		mistakes = append(mistakes, err)
	}
	if c.Lifetime < 0 || c.Settle < 0 || c.Settle > c.Lifetime/6 {
		mistakes = append(mistakes, fmt.Errorf("a certificate's lifetime must be at least 6 times as long as its CA takes to be trusted, "+
			"since it is renewed in its last third: they are %v and %v", c.Lifetime, c.Settle))
	}
	return errors.Join(mistakes...)
}

// ValidateService returns what is wrong with the Service of a Config, which is all that a Monitor
// needs.
func (c Config) ValidateService() error {
	_, err := c.service()
	return err
}

// service returns the Service in front of this server.
func (c Config) service() (service, error) {
	text := c.Service
	if text == "" && len(c.Names) > 0 {
		text = c.Names[0]
	}
	s, ok := parseService(text)
	if !ok {
		return service{}, fmt.Errorf("the Service must be named NAME.NAMESPACE.svc or NAME.NAMESPACE.svc:PORT, but it is %q", text)
	}
	if host, _, _ := strings.Cut(text, ":"); len(c.Names) > 0 && c.Names[0] != host {
		return service{}, fmt.Errorf("the Service is %q, but the first name of the serving certificate is %q", host, c.Names[0])
	}
	return s, nil
}

// isServiceName reports whether the name is NAME.NAMESPACE.svc.
func isServiceName(name string) bool {
	s, ok := parseService(name)
	return ok && s.port == 0
}

func (c *Config) complete() {
	if c.Lifetime == 0 {
		c.Lifetime = DefaultLifetime
	}
	if c.Settle == 0 {
		c.Settle = DefaultSettle
	}
}

func (m *Manager) connect(c Config, service service) error {
	config := rest.CopyConfig(c.Client)
	config.Wrap(m.clock.wrap)
	core, err := corev1client.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot make a client for Secrets and ConfigMaps: %w", err)
	}
	m.secrets = core.Secrets(m.namespace)
	m.publisher = newPublisher(core.ConfigMaps(m.namespace), m.namespace, c.ConfigMap)
	m.monitor, err = newMonitor(config, m.apiServices, service)
	return err
}

// Monitor returns what watches over the APIServices. Run keeps it up to date.
func (m *Manager) Monitor() *Monitor { return m.monitor }

// secretName is how messages name the Secret.
func (m *Manager) secretName() string { return "Secret " + m.namespace + "/" + m.secret }

// Name implements dynamiccertificates.CertKeyContentProvider.
func (m *Manager) Name() string { return "identity::" + m.namespace + "/" + m.secret }

// CurrentCertKeyContent implements dynamiccertificates.CertKeyContentProvider. The slices are not
// to be written to.
func (m *Manager) CurrentCertKeyContent() (certificate, key []byte) {
	p := m.served.Load()
	return p.certificate, p.key
}

// AddListener implements dynamiccertificates.CertKeyContentProvider.
func (m *Manager) AddListener(listener dynamiccertificates.Listener) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listeners = append(m.listeners, listener)
}

// Ready says why the API server cannot verify this server yet, and what to do about it. It returns
// nil from the moment on that it once could: what goes wrong later is for the log, since it is no
// reason to serve nothing.
func (m *Manager) Ready() error { return *m.missing.Load() }

// Expires is until when the served certificate is valid. It is zero as long as that is a temporary
// one.
func (m *Manager) Expires() time.Time {
	if at := m.expires.Load(); at != 0 {
		return time.Unix(at, 0)
	}
	return time.Time{}
}

// serve serves the pair from now on.
func (m *Manager) serve(p *pair) {
	if m.served.Load().leaf.Equal(p.leaf) {
		return
	}
	m.served.Store(p)
	m.expires.Store(p.leaf.NotAfter.Unix())
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, listener := range m.listeners {
		listener.Enqueue()
	}
}

// notReady remembers why the API server cannot verify this server, unless it could before. Nil
// means that it can.
func (m *Manager) notReady(err error) {
	if before := m.missing.Load(); before == nil || *before != nil {
		m.missing.Store(&err)
	}
}
