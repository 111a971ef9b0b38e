package server

import (
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/server/healthz"
)

// readiness is what must be there before requests can be answered. Figures are not part of it: that a kubelet does not
// answer is no reason to take the API away, and with it the discovery of the whole cluster.
type readiness []requirement

// requirement is a part of it, with the name that it has in `/readyz?verbose`.
type requirement struct {
	name  string
	check func() error // says what is missing; nil once it is there
}

// check says all that is missing.
func (r readiness) check() error {
	var missing []error
	for _, requirement := range r {
		missing = append(missing, requirement.check())
	}
	return errors.Join(missing...)
}

// probes gives the requirements as checks of /readyz.
func (r readiness) probes() []healthz.HealthChecker {
	var probes []healthz.HealthChecker
	for _, requirement := range r {
		probes = append(probes, probe(requirement.name, requirement.check))
	}
	return probes
}

func probe(name string, check func() error) healthz.HealthChecker {
	return healthz.NamedCheck(name, func(*http.Request) error { return check() })
}

// synced requires that the whole of what exists was told once.
func synced(index interface{ HasSynced() bool }, missing string) func() error {
	return func() error {
		if index.HasSynced() {
			return nil
		}
		return errors.New(missing)
	}
}

// retryAfter is when clients are asked to come back, in seconds.
const retryAfter = 1

// untilReady answers requests to the API with 503 until it is ready. An empty list would be taken for the truth, and a
// request whose certificate cannot be verified yet for an anonymous one.
func untilReady(handler http.Handler, ready readiness, serializer runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.URL.Path, "/apis") && !strings.HasPrefix(r.URL.Path, "/openapi") {
			handler.ServeHTTP(w, r)
			return
		}
		if err := ready.check(); err != nil {
			responsewriters.ErrorNegotiated(starting(err), serializer, schema.GroupVersion{}, w, r)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

func starting(err error) error {
	unavailable := apierrors.NewServiceUnavailable("kube-vitals is starting: " + err.Error())
	unavailable.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	return unavailable
}
