package servingcert

import (
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/pkg/internal/failure"
)

const (
	// DefaultLifetime is how long a certificate is valid. It limits how long a stolen key can be
	// used. A failing renewal can be noticed and fixed during the last third of it.
	DefaultLifetime = 90 * 24 * time.Hour
	// DefaultSettle is how long a CA is in every caBundle before its certificate is served. An API
	// server sees the change within a second by its watch, or within a minute if it has none.
	DefaultSettle = 10 * time.Minute
)

const (
	// fieldManager is the name that the API server records for the fields that are written.
	fieldManager = "kube-vitals"
	// writeBurst is the number of writes that are allowed at once, and then in each Settle, or in each
	// DefaultSettle if that is shorter. A renewal needs a few.
	writeBurst = 20
)

// Config configures a Manager. ConfigMap and Service are optional.
type Config struct {
	Client    *rest.Config // of the API server
	Secret    string       // its name, in the namespace of the Service
	ConfigMap string       // its name, in the same namespace; the CAs are published in it; "": none
	Names     []string     // that the certificate covers; the first is the Service's: NAME.NAMESPACE.svc

	// Service is the Service of this server: NAME.NAMESPACE.svc[:PORT]. Defaults to the first of
	// Names, with any port.
	Service     string
	APIServices []string      // the names of those that lead to the Service
	Lifetime    time.Duration // of a certificate
	Settle      time.Duration // of a CA in every caBundle before its certificate is served
}

// Manager provides a serving certificate and renews it. Run does the work. All methods can be
// called concurrently.
type Manager struct {
	Config
	namespace  string // of the Secret and the ConfigMap
	clock      clock
	secrets    corev1client.SecretInterface
	configMaps corev1client.ConfigMapInterface
	monitor    *Monitor      // of the APIServices
	writes     *rate.Limiter // each that succeeds takes a token

	served      atomic.Pointer[pair]
	notReadyErr atomic.Pointer[error] // points to nil once the Manager is ready
	mu          sync.Mutex
	listeners   []dynamiccertificates.Listener // under mu

	// What Run remembers from one reconciliation to the next.
	firstRead           time.Time         // of the Secret
	state               state             // the last usable state of the Secret
	labels, annotations map[string]string // of the Secret
	settling            settling
	publishing          attempts // of the ConfigMap
}

var _ dynamiccertificates.CertKeyContentProvider = (*Manager)(nil)

// New returns a Manager with a valid Config and a Monitor of the same. It serves a temporary certificate,
// which no client can verify, until Run has one from the Secret. Run keeps the Monitor up to date.
func New(c Config, monitor *Monitor) (*Manager, error) {
	m := &Manager{
		Config:    c,
		namespace: monitor.service.namespace,
		monitor:   monitor,
		writes:    rate.NewLimiter(rate.Every(min(c.Settle, DefaultSettle)/writeBurst), writeBurst),
		publishing: attempts{log: failure.Log{
			Failing:   "Cannot publish the CAs of the serving certificate; retrying",
			Recovered: "Publishing the CAs of the serving certificate succeeds again",
		}},
	}
	m.Client = rest.CopyConfig(c.Client)
	m.Client.Wrap(m.clock.wrap)
	core, err := corev1client.NewForConfig(m.Client)
	if err != nil {
		return nil, fmt.Errorf("cannot create a client for Secrets and ConfigMaps: %w", err)
	}
	m.secrets, m.configMaps = core.Secrets(m.namespace), core.ConfigMaps(m.namespace)
	temporary, err := issue(c.Names, time.Now(), c.Lifetime)
	if err != nil {
		return nil, err
	}
	m.served.Store(temporary)
	m.setReady(fmt.Errorf("the serving certificate has not been read from %s yet", m.secretName()))
	return m, nil
}

// Validate returns the errors in the Service, the names and the times of a Config. Without a Secret,
// the Config is that of a Monitor, which needs only the Service.
func (c Config) Validate() error {
	_, err := c.service()
	if c.Secret != "" && (c.Settle <= 0 || c.Settle > c.Lifetime/6) {
		err = errors.Join(err, fmt.Errorf("the lifetime of a certificate must be at least 6 times "+
			"the settle time of its CA, since it is renewed in its last third: they are %v and %v", c.Lifetime, c.Settle))
	}
	for _, name := range c.Names {
		if (&x509.Certificate{DNSNames: []string{name}}).VerifyHostname(name) != nil {
			err = errors.Join(err, fmt.Errorf("the names of the serving certificate must be DNS names, but one is %q", name))
		}
	}
	return err
}

// secretName returns the Secret's name for messages.
func (m *Manager) secretName() string { return "Secret " + m.namespace + "/" + m.Secret }

// Name implements dynamiccertificates.CertKeyContentProvider.
func (m *Manager) Name() string { return "serving-cert::" + m.namespace + "/" + m.Secret }

// CurrentCertKeyContent implements dynamiccertificates.CertKeyContentProvider. The slices must not
// be changed.
func (m *Manager) CurrentCertKeyContent() (certificate, key []byte) {
	p := m.served.Load()
	return p.certificate(), p.key
}

// AddListener implements dynamiccertificates.CertKeyContentProvider.
func (m *Manager) AddListener(listener dynamiccertificates.Listener) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.listeners = append(m.listeners, listener)
}

// Ready returns why the API server cannot verify this server yet, a reason.Error if it has a cure. Once it
// could, Ready always returns nil: later errors are logged, and the server goes on serving.
func (m *Manager) Ready() error { return *m.notReadyErr.Load() }

// serve makes the pair the one that is served.
func (m *Manager) serve(p *pair) {
	if m.served.Load().leaf.Equal(p.leaf) {
		return
	}
	m.served.Store(p)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, listener := range m.listeners {
		listener.Enqueue()
	}
}

// setReady sets the result of Ready, unless that is already nil.
func (m *Manager) setReady(err error) {
	if before := m.notReadyErr.Load(); before == nil || *before != nil {
		m.notReadyErr.Store(&err)
	}
}
