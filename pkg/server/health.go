package server

import (
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/server/healthz"
)

// readiness is what must be there before the server is ready. Figures are part of it for the first
// moments only: that a kubelet does not answer is no reason to take the API away, and with it the
// discovery of the whole cluster.
type readiness []requirement

// requirement is a part of it, with the name that it has in `/readyz?verbose`.
type requirement struct {
	name  string
	check func() error // says what is missing, and why; nil once it is there
}

// missing gives the names of the requirements that are not met, and why they are not.
func (r readiness) missing() (names, reasons []string) {
	for _, requirement := range r {
		if err := requirement.check(); err != nil {
			names = append(names, requirement.name)
			reasons = append(reasons, err.Error())
		}
	}
	return names, reasons
}

// probes gives the requirements as checks of /readyz.
func (r readiness) probes() []healthz.HealthChecker {
	var probes []healthz.HealthChecker
	for _, requirement := range r {
		probes = append(probes, probe(requirement.name, requirement.check))
	}
	return probes
}

// settleTimeout is how long the server may wait for its first figures when all else is there.
// Kubelets read their counters every 10 to 20 seconds, so in this time each has done so twice: it
// has as many figures as it will get by waiting.
const settleTimeout = 30 * time.Second

// settler tells whether waiting would bring more figures. *scrape.Scraper implements it.
type settler interface{ WarmedUp() bool }

// settling is the requirement that a server which has just started has its first figures. Clients
// are not led to it before that, if there is another one: an update must not make lists shorter for
// a while. It is a matter of /readyz only: a request that comes nevertheless is answered, since for
// it there is no better server. Once met, it stays so.
type settling struct {
	needed  readiness // without which no node is asked
	figures settler

	mu    sync.Mutex
	since time.Time // when all that is needed was there; zero: it is not
	met   bool
}

func firstFigures(needed readiness, figures settler) *settling {
	return &settling{needed: needed, figures: figures}
}

func (s *settling) check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.met {
		return nil
	}
	if names, _ := s.needed.missing(); names != nil {
		return errors.New("no node can be asked before " + strings.Join(names, ", "))
	}
	if s.since.IsZero() {
		s.since = time.Now()
	}
	if s.met = s.figures.WarmedUp() || time.Since(s.since) >= settleTimeout; !s.met {
		return errors.New("not every node has been asked yet")
	}
	return nil
}

func probe(name string, check func() error) healthz.HealthChecker {
	return healthz.NamedCheck(name, func(*http.Request) error { return check() })
}

// retryAfter is when clients are asked to come back, in seconds.
const retryAfter = 1

// untilReady answers requests to the API with 503 until it is ready. An empty list would be taken
// for the truth, and a request whose certificate cannot be verified yet for an anonymous one.
func untilReady(handler http.Handler, ready readiness, serializer runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/apis") && !strings.HasPrefix(r.URL.Path, "/openapi") {
			handler.ServeHTTP(w, r)
			return
		}
		if names, _ := ready.missing(); names != nil { // the reasons are for the log: they tell of the inside
			responsewriters.ErrorNegotiated(starting(names), serializer, schema.GroupVersion{}, w, r)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

func starting(waitsFor []string) error {
	err := apierrors.NewServiceUnavailable("kube-vitals is starting; it waits for the cluster's API server to tell: " + strings.Join(waitsFor, ", "))
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	return err
}
