package server

import (
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

func probe(name string, check func() error) healthz.HealthChecker {
	return healthz.NamedCheck(name, func(*http.Request) error { return check() })
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
