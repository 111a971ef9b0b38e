// Package healthtest has a source whose health is set, for tests of packages that read it.
package healthtest

import (
	"slices"

	"github.com/kube-vitals/kube-vitals/pkg/health"
)

// Source is a source with this health. It implements health.Source.
type Source struct {
	All  health.Overall
	List []health.Node // sorted by name
}

// Overall implements health.Source.
func (s *Source) Overall() health.Overall { return s.All }

// Node implements health.Source.
func (s *Source) Node(name string) (health.Node, bool) {
	i := slices.IndexFunc(s.List, func(n health.Node) bool { return n.Name == name })
	if i < 0 {
		return health.Node{}, false
	}
	return s.List[i], true
}

// Nodes implements health.Source.
func (s *Source) Nodes() []health.Node { return slices.Clone(s.List) }
