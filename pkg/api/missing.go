package api

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/kube-vitals/kube-vitals/pkg/api/encode"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
)

// authorizeTimeout limits the wait for the access review of mayGetObjects. Without its result there
// is no explanation, and no column with the nodes of pods.
const authorizeTimeout = time.Second

// notFound returns a NotFound error with the reason: for an object that does not exist, users must
// do something else than for one without metrics. known is whether get returns the object.
func (c *collection) notFound(ctx context.Context, name string, known bool, now time.Time) error {
	namespace := request.NamespaceValue(ctx)
	err := apierrors.NewNotFound(metrics.Resource(c.GetSingularName()), name)
	if !c.mayGetObjects(ctx) {
		err.ErrStatus.Message += ": " + c.withoutReason(namespace, name, known)
		return err
	}
	reason, text := c.explainer.Explain(ctx, namespace, name, now)
	err.ErrStatus.Message += ": " + text + "; see " + reason.URL()
	err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: metav1.CauseType(reason), Message: text}}
	return err
}

// withoutReason returns what users are told of an object without metrics if they may not get such objects.
func (c *collection) withoutReason(namespace, name string, known bool) string {
	source := "from its node's kubelet"
	if c.config.FromEngine {
		source = "in the engine that kube-vitals reads"
	}
	switch isPod := c.NamespaceScoped(); {
	case isPod && known:
		return fmt.Sprintf("pod %q is running in namespace %q, but there are no current metrics of it %s",
			name, namespace, source)
	case isPod:
		return fmt.Sprintf("pod %q is not running in namespace %q", name, namespace)
	case known && c.config.FromEngine:
		return fmt.Sprintf("there are no current metrics of node %q %s", name, source)
	case known:
		return fmt.Sprintf("there are no current metrics from the kubelet of node %q", name)
	}
	return fmt.Sprintf("node %q does not exist or is not selected for scraping", name)
}

// mayGetObjects reports whether the user may get the objects themselves, which explanations and the
// column of nodes reveal: any pod of the namespace, or any node. The result does not depend on the
// object, so that it can be cached, and so that the time of a response does not tell whether an
// object exists.
func (c *collection) mayGetObjects(ctx context.Context) bool {
	may, err := c.reviewGet(ctx)
	return may && err == nil
}

// checkNodeSelector returns why the user may not select pods by their node, which the result reveals.
func (c *collection) checkNodeSelector(ctx context.Context) error {
	may, err := c.reviewGet(ctx)
	switch {
	case err != nil:
		return apierrors.NewInternalError(fmt.Errorf("cannot find out whether you may select pods by %q: %w", fieldNode, err))
	case !may:
		return apierrors.NewForbidden(metrics.Resource(c.name()), "",
			fmt.Errorf("the field selector %q needs permission to get pods", fieldNode))
	}
	return nil
}

// reviewGet reports whether the user may get the objects themselves, or why that is unknown.
func (c *collection) reviewGet(ctx context.Context) (bool, error) {
	user, ok := request.UserFrom(ctx)
	if !ok {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, authorizeTimeout)
	defer cancel()
	decision, _, err := c.config.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: user, Verb: "get", APIVersion: "v1", Resource: c.name(), Namespace: request.NamespaceValue(ctx),
		ResourceRequest: true,
	})
	return decision == authorizer.DecisionAllow, err
}

// warnOfMissing adds a Warning header if objects that a list selects have no metrics. The first
// page of a list warns of all its pages.
func (c *collection) warnOfMissing(ctx context.Context, list *encode.List, mayGetObjects func() bool) {
	if !c.config.Warnings || list.Selected <= len(list.Items) {
		return
	}
	now := c.config.Now()
	at := c.config.Clock.At(now)
	selected, err := list.Select()
	if err != nil {
		return
	}
	var missing []*inventory.Object
	for _, item := range c.items(selected, at) {
		if item.Usage == nil {
			missing = append(missing, item.Object)
		}
	}
	if len(missing) == 0 || !mayGetObjects() {
		return
	}
	have := "have"
	if len(missing) == 1 {
		have = "has"
	}
	warning.AddWarning(ctx, "", fmt.Sprintf("%d of %d %s %s no metrics: %s",
		len(missing), len(selected), c.name(), have, c.explainer.Summarize(missing, now)))
}
