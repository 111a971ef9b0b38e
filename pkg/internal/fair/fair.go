// Package fair shares something limited among users, such that no user can take all of it.
package fair

import (
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Pool is an amount that users share. A user without a part of it may take whatever is free. After
// that, a user may have as much as stays free: the first one gets half of the pool, the next one half
// of the rest.
type Pool struct {
	size int64

	mu    sync.Mutex
	free  int64
	taken map[string]int64 // by user; never 0
}

// NewPool returns a Pool with everything free.
func NewPool(size int64) *Pool {
	return &Pool{size: size, free: size, taken: map[string]int64{}}
}

// Size returns what a Pool has, free or not.
func (p *Pool) Size() int64 { return p.size }

// Take takes n for the user, and reports whether the user may have it. If so, Return must follow.
func (p *Pool) Take(user string, n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	has, free := p.taken[user], p.free-n
	if free < 0 || has > 0 && has+n > free {
		return false
	}
	p.taken[user], p.free = has+n, free
	return true
}

// Return returns what Take has taken.
func (p *Pool) Return(user string, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free += n
	if p.taken[user] -= n; p.taken[user] == 0 {
		delete(p.taken, user)
	}
}

// UserOf returns the name of a user for a Pool. The ServiceAccounts of a namespace are one user, since
// a user who may create one can create any number. Those of kube-system are not: nodes have the tokens of
// some, and the HPA controller must not share with them.
func UserOf(u user.Info) string {
	if namespace, _, err := serviceaccount.SplitUsername(u.GetName()); err == nil && namespace != metav1.NamespaceSystem {
		return serviceaccount.MakeUsername(namespace, "")
	}
	return u.GetName()
}
