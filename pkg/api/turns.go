package api

import (
	"context"
	"runtime"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/kube-vitals/kube-vitals/pkg/internal/fair"
	"github.com/kube-vitals/kube-vitals/pkg/inventory"
)

// newTurns returns turns for selecting the objects of lists. A selector may compare each object with 1000
// requirements, and a list that finds nothing needs no memory. Without a limit, one user could keep all processors
// busy, and scrapes would be late. A user gets half of them, or one.
func newTurns() *fair.Turns { return fair.NewTurns(max(1, runtime.GOMAXPROCS(0)/2)) }

// maxWait is how long a list waits for its turn. Clients that have to wait longer try again.
const maxWait = 10 * time.Second

// objectsInTurn returns what q selects, when it is the user's turn.
func (c *collection) objectsInTurn(ctx context.Context, q *query) ([]*inventory.Object, error) {
	name := ""
	if user, ok := request.UserFrom(ctx); ok {
		name = fair.UserOf(user)
	}
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	done, err := c.turns.Take(ctx, name)
	if err != nil {
		return nil, apierrors.NewTooManyRequests("objects are selected for other lists of the same user: try again", 1)
	}
	defer done()
	return q.objects(c.resourceType), nil
}
