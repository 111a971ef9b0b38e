package filter

import (
	"context"
	"hash/maphash"
	"slices"
	"strconv"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/util/flowcontrol"
	"k8s.io/apiserver/pkg/util/flowcontrol/fairqueuing"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"

	"github.com/kube-vitals/kube-vitals/pkg/internal/fair"
)

// inFlight limits the requests that are served at the same time, and how many of them one user has.
// A request above that is rejected at once. It takes the place of the library's priority and fairness,
// whose filter runs after authentication, which finds the user, and before authorization, which may
// wait for the API server.
type inFlight struct {
	flowcontrol.WatchTracker
	flowcontrol.MaxSeatsTracker
	requests *fair.Pool
	seed     maphash.Seed
}

// LimitInFlight sets the limit of --max-requests-inflight. Like the library, it takes 0 for no limit.
func LimitInFlight(config *genericapiserver.Config) {
	if config.MaxRequestsInFlight == 0 {
		return
	}
	config.FlowControl = &inFlight{
		WatchTracker: flowcontrol.NewWatchTracker(), MaxSeatsTracker: flowcontrol.NewMaxSeatsTracker(),
		requests: fair.NewPool(int64(config.MaxRequestsInFlight)), seed: maphash.MakeSeed(),
	}
}

// Handle implements flowcontrol.Interface. If it returns without calling serve, the library sends
// status 429. The probes of kubelets are always served: they cannot be told
// from other requests without credentials. The same is true for administrators, as in the library.
func (f *inFlight) Handle( //nolint:revive // the parameters are those of the interface
	_ context.Context, r flowcontrol.RequestDigest,
	note func(*flowcontrolv1.FlowSchema, *flowcontrolv1.PriorityLevelConfiguration, string),
	_ func() flowcontrolrequest.WorkEstimate, _ fairqueuing.QueueNoteFn, serve func(),
) {
	name := fair.UserOf(r.User)
	switch {
	case isProbe(r.RequestInfo.Path):
	case f.requests.Take(name, 1):
		defer f.requests.Return(name, 1)
	case !slices.Contains(r.User.GetGroups(), user.SystemPrivilegedGroup):
		// The library increases the Retry-After of a level while requests of the level are rejected. With
		// many levels, one user rarely affects others.
		level := strconv.FormatUint(maphash.String(f.seed, name)%1024, 10)
		note(&flowcontrolv1.FlowSchema{},
			&flowcontrolv1.PriorityLevelConfiguration{ObjectMeta: metav1.ObjectMeta{Name: level}}, "")
		return
	}
	serve()
}

func isProbe(path string) bool {
	_, rest, _ := strings.Cut(path, "/")
	root, _, _ := strings.Cut(rest, "/")
	return root == "livez" || root == "readyz" || root == "healthz"
}

// Run implements flowcontrol.Interface. There is nothing to run.
func (f *inFlight) Run(<-chan struct{}) error { return nil }

// Install implements flowcontrol.Interface. There is nothing to show.
func (f *inFlight) Install(*mux.PathRecorderMux) {}
