package nodez

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// problemsFirst returns the nodes, sorted by state, then by name.
func problemsFirst(nodes []Node) []*Node {
	sorted := make([]*Node, len(nodes))
	for i := range nodes {
		sorted[i] = &nodes[i]
	}
	slices.SortStableFunc(sorted, func(a, b *Node) int { return cmp.Compare(a.State.rank(), b.State.rank()) })
	return sorted
}

// states returns all states, in the order in which people look for nodes.
func states() []State { return []State{Failing, Stale, Starting, Ready} }

// rank returns the position of the state in states.
func (s State) rank() int { return slices.Index(states(), s) }

// reasonCount is the number of nodes with a reason.
type reasonCount struct {
	Reason reason.Reason
	Nodes  int
}

// sortedReasons returns the reasons with the most frequent one first.
func (t *Totals) sortedReasons() []reasonCount {
	var counts []reasonCount
	for _, r := range slices.Sorted(maps.Keys(t.Reasons)) {
		counts = append(counts, reasonCount{r, t.Reasons[r]})
	}
	slices.SortStableFunc(counts, func(a, b reasonCount) int { return cmp.Compare(b.Nodes, a.Nodes) })
	return counts
}

// ago returns the time from t to now as in kubectl's tables, such as "2m10s", or "" if t is nil.
func ago(t *time.Time, now time.Time) string {
	if t == nil {
		return ""
	}
	return duration.HumanDuration(max(now.Sub(*t), 0))
}

// until returns the time from now to t, or "now".
func until(t *time.Time, now time.Time) string {
	if t == nil || !t.After(now) {
		return "now"
	}
	return duration.HumanDuration(t.Sub(now).Round(time.Second))
}

// age returns seconds as in kubectl's tables, or "" if they are nil.
func age(seconds *float64) string {
	if seconds == nil {
		return ""
	}
	return duration.HumanDuration(time.Duration(*seconds * float64(time.Second)))
}

// signedAge returns the age of a sample. Samples from the future have a negative age.
func signedAge(seconds *float64) string {
	if seconds != nil && *seconds < 0 {
		return skew(seconds)
	}
	return age(seconds)
}

// took returns a duration of up to seconds with 3 digits, such as "12.3 ms".
func took(seconds float64) string {
	switch ms := seconds * 1000; {
	case ms < 9.995:
		return fmt.Sprintf("%.2f ms", ms)
	case ms < 99.95:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 999.5:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.2f s", seconds)
}

// skew returns the skew of a clock with its sign, or "" if it is nil.
func skew(seconds *float64) string {
	switch {
	case seconds == nil:
		return ""
	case math.Abs(*seconds) < 0.05:
		return "0 s"
	case math.Abs(*seconds) < 10:
		return fmt.Sprintf("%+.1f s", *seconds)
	case math.Abs(*seconds) < 120:
		return fmt.Sprintf("%+.0f s", *seconds)
	case *seconds < 0:
		return "-" + duration.HumanDuration(time.Duration(-*seconds*float64(time.Second)))
	}
	return "+" + duration.HumanDuration(time.Duration(*seconds*float64(time.Second)))
}

// bytesOf returns a number of bytes with a binary prefix, such as "312 MiB".
func bytesOf(n uint64) string {
	const unit = 1 << 10
	value, prefixes := float64(n)/unit/unit, []string{"MiB", "GiB", "TiB"}
	for value >= 10*unit && len(prefixes) > 1 {
		value, prefixes = value/unit, prefixes[1:]
	}
	return fmt.Sprintf("%.0f %s", value, prefixes[0])
}

// memoryText describes the memory of this process.
func memoryText(m *Memory) string {
	text := bytesOf(m.ResidentBytes) + " resident"
	if m.LimitBytes != 0 {
		return text + ", limit " + bytesOf(m.LimitBytes)
	}
	return text + ", no limit"
}

// flag returns seconds as the value of a flag, such as "15s".
func flag(seconds float64) string {
	text := time.Duration(seconds * float64(time.Second)).String()
	if s, ok := strings.CutSuffix(text, "m0s"); ok {
		text = s + "m"
	}
	if s, ok := strings.CutSuffix(text, "h0m"); ok {
		text = s + "h"
	}
	return text
}

// count returns a number with commas between thousands.
func count(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func fraction(n, of int) string { return fmt.Sprintf("%d/%d", n, of) }
