package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// maxGroups is the number of groups that a summary names. The others are counted together.
const maxGroups = 4

// summary counts objects by what prevents their metrics.
type summary struct{ groups []*group }

// group is the objects without metrics for one reason. The objects on nodes that cannot be read are one group,
// whatever the reasons of the failures are.
type group struct {
	reason  reason.Reason // of the first object
	failing bool
	count   int
	nodes   map[string]bool
	node    string // of the first object
}

func (s *summary) add(f finding, node string) {
	i := slices.IndexFunc(s.groups, func(g *group) bool {
		return g.failing == f.failing && (f.failing || g.reason == f.reason)
	})
	if i < 0 {
		i = len(s.groups)
		s.groups = append(s.groups, &group{reason: f.reason, failing: f.failing, nodes: map[string]bool{}, node: node})
	}
	s.groups[i].count++
	s.groups[i].nodes[node] = true
}

// text returns the largest groups, which describe returns as text, separated by commas.
func (s *summary) text(describe func(*group) string) string {
	slices.SortStableFunc(s.groups, func(a, b *group) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.rank(), b.rank()))
	})
	var parts []string
	others := 0
	for i, g := range s.groups {
		if i < maxGroups {
			parts = append(parts, fmt.Sprintf("%d %s", g.count, describe(g)))
		} else {
			others += g.count
		}
	}
	if others > 0 {
		parts = append(parts, fmt.Sprintf("%d for other reasons", others))
	}
	return strings.Join(parts, ", ")
}

// rank sorts groups of the same size: those that someone must repair come first.
func (g *group) rank() int {
	if g.failing || g.reason == reason.EngineFailing {
		return 0
	}
	return 1
}

// onlyNode returns the name of the failing node and the reason in parentheses if the group has one
// node only.
func (g *group) onlyNode() string {
	if len(g.nodes) != 1 {
		return ""
	}
	return fmt.Sprintf(" (%s: %s)", g.node, g.reason)
}

// onNodes returns "on 1 node that …" or "on 2 nodes that …".
func (g *group) onNodes(one, many string) string {
	if len(g.nodes) == 1 {
		return "on 1 node that " + one
	}
	return fmt.Sprintf("on %d nodes that %s", len(g.nodes), many)
}
