package server

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// readiness is the list of requirements of a ready server.
type readiness []requirement

// requirement is a named check of /readyz or /livez.
type requirement struct {
	name  string
	check func() error // returns why the requirement is not met
}

// missing returns the names of the requirements that are not met, and the reasons.
func (r readiness) missing() (names, reasons []string) {
	for _, requirement := range r {
		if err := requirement.check(); err != nil {
			names = append(names, requirement.name)
			reasons = append(reasons, reason.WithCure(err).Error())
		}
	}
	return names, reasons
}

// probe returns the requirement as a health check. Its own path, such as /readyz/nodes, would show the
// reason of a failure, which may have internal addresses, to clients without credentials. Other paths
// only name the check, and the library logs the reason.
func (r requirement) probe() healthz.HealthChecker {
	return healthz.NamedCheck(r.name, func(request *http.Request) error {
		err := r.check()
		switch {
		case err == nil:
			return nil
		case strings.HasSuffix(request.URL.Path, "/"+r.name):
			return errors.New("reason withheld")
		}
		return reason.WithCure(err)
	})
}

// firstMetricsTimeout is the maximum time to wait for the first metrics once requests can be served: nodes, pods and
// the request-header CA are known. Kubelets take samples every 10 to 20 seconds, so later scrapes would not add
// metrics.
const firstMetricsTimeout = 30 * time.Second

// firstMetrics is the requirement that a server has its first metrics, or has waited long enough.
// It keeps a Service from sending requests to a new replica while an old one has more metrics. It
// affects /readyz only; requests that arrive earlier get what there is. Once met, it stays met: an
// unready server would make kubelet failures an outage of the API.
type firstMetrics struct {
	toServe  readiness   // for requests to be served
	warmedUp func() bool // reports whether the nodes have the first metrics that can be had

	mu    sync.Mutex
	since time.Time // when a check first found toServe met; zero: none has
	met   bool
}

func (f *firstMetrics) check() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.met {
		return nil
	}
	if names, _ := f.toServe.missing(); names != nil {
		return errors.New("the API cannot be served yet; missing: " + strings.Join(names, ", "))
	}
	if f.since.IsZero() {
		f.since = time.Now()
	}
	if f.met = f.warmedUp() || time.Since(f.since) >= firstMetricsTimeout; !f.met {
		return errors.New("the first metrics have not been read yet")
	}
	return nil
}

// rejectUntilServing rejects API requests with status 503 until the requirements to serve them are
// met: nodes, pods and authentication. Clients would believe an empty list, and client certificates
// cannot be verified yet.
func rejectUntilServing(handler http.Handler, toServe readiness, codecs serializer.CodecFactory) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		isAPI := strings.HasPrefix(r.URL.Path, "/apis") || strings.HasPrefix(r.URL.Path, "/openapi")
		names, _ := toServe.missing() // the reasons may have internal addresses
		if !isAPI || names == nil {
			handler.ServeHTTP(w, r)
			return
		}
		err := apierrors.NewServiceUnavailable(
			"kube-vitals is starting and waits for the cluster's API server; missing: " + strings.Join(names, ", "))
		err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
		responsewriters.ErrorNegotiated(err, codecs, schema.GroupVersion{}, w, r)
	})
}
