package explain

import (
	"cmp"
	"fmt"
	"maps"
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
	nodes   map[string]reason.Reason
}

func (s *summary) add(f finding, node string) {
	i := slices.IndexFunc(s.groups, func(g *group) bool {
		return g.failing == f.failing && (f.failing || g.reason == f.reason)
	})
	if i < 0 {
		i = len(s.groups)
		s.groups = append(s.groups, &group{reason: f.reason, failing: f.failing, nodes: map[string]reason.Reason{}})
	}
	s.groups[i].count++
	s.groups[i].nodes[node] = f.reason
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

// why returns in parentheses the only failing node and its reason, or how many nodes fail for each of the most
// frequent reasons.
func (g *group) why() string {
	counts := map[string]int{}
	for node, r := range g.nodes {
		if len(g.nodes) == 1 {
			return fmt.Sprintf(" (%s: %s)", node, r)
		}
		counts[string(r)]++
	}
	reasons := slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	})
	for i, r := range reasons {
		reasons[i] = fmt.Sprintf("%d %s", counts[r], r)
	}
	return " (" + strings.Join(reasons[:min(len(reasons), maxGroups)], ", ") + ")"
}

// onNodes returns "on 1 node that …" or "on 2 nodes that …".
func (g *group) onNodes(one, many string) string {
	if len(g.nodes) == 1 {
		return "on 1 node that " + one
	}
	return fmt.Sprintf("on %d nodes that %s", len(g.nodes), many)
}
