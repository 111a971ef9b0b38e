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

// problemsFirst returns the elements of the list, sorted by state, then as in the list.
func problemsFirst[T any](list []T, state func(*T) State) []*T {
	sorted := make([]*T, len(list))
	for i := range list {
		sorted[i] = &list[i]
	}
	slices.SortStableFunc(sorted, func(a, b *T) int { return cmp.Compare(state(a).rank(), state(b).rank()) })
	return sorted
}

// states returns all states, those that people look for first.
func states() []State { return []State{Failing, Stale, Starting, Ready} }

// rank returns the position of the state in states.
func (s State) rank() int { return slices.Index(states(), s) }

// sortedReasons returns the reasons with the most frequent one first.
func (t *Totals) sortedReasons() []reason.Reason {
	return slices.SortedFunc(maps.Keys(t.Reasons), func(a, b reason.Reason) int {
		return cmp.Or(cmp.Compare(t.Reasons[b], t.Reasons[a]), cmp.Compare(a, b))
	})
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

// age returns seconds as in kubectl's tables. Samples from the future have a negative age.
func age(seconds float64) string {
	if seconds < 0 {
		return skew(seconds)
	}
	return duration.HumanDuration(time.Duration(seconds * float64(time.Second)))
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

// skew returns the skew of a clock with its sign.
func skew(seconds float64) string {
	switch size := math.Abs(seconds); {
	case size < 0.05:
		return "0 s"
	case size < 10:
		return fmt.Sprintf("%+.1f s", seconds)
	case size < 120:
		return fmt.Sprintf("%+.0f s", seconds)
	case seconds < 0:
		return "-" + age(-seconds)
	}
	return "+" + age(seconds)
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

// flag returns the value of a flag in seconds as a duration, such as "15s" or "1m30s".
func flag(seconds float64) string {
	text := time.Duration(seconds * float64(time.Second)).String()
	return strings.NewReplacer("h0m0s", "h", "m0s", "m").Replace(text)
}

// count returns a number with commas between thousands.
func count(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// cell returns a value without spaces for a table of text, or "-" if it is empty.
func cell(value any) string { return cmp.Or(strings.ReplaceAll(fmt.Sprint(value), " ", ""), "-") }

// exact returns a time for a title.
func exact(t *time.Time) string { return t.Format("2006-01-02 15:04:05.000 UTC") }

// text returns the state of the engine in one line.
func (e *Engine) text(now time.Time) string {
	text := fmt.Sprintf("%s is %s", e.Host, e.State)
	if e.LastSuccess != nil {
		text += fmt.Sprintf(", last read %s ago", ago(e.LastSuccess, now))
	}
	if e.LastRefresh != nil {
		text += ", took " + took(e.DurationSeconds)
	}
	if e.Failures > 0 {
		text += fmt.Sprintf(", %d failures in %s", e.Failures, ago(e.FailingSince, now))
	}
	return text
}

// seriesText returns the numbers of series by query, such as "containerCPU 60, nodeCPU 3".
func (e *Engine) seriesText() string {
	var parts []string
	for _, query := range slices.Sorted(maps.Keys(e.Series)) {
		parts = append(parts, query+" "+count(e.Series[query]))
	}
	return strings.Join(parts, ", ")
}

// notes returns what is wrong with the engine apart from its reason.
func (e *Engine) notes() (notes []string) {
	if e.Partial {
		notes = append(notes, "the last response was incomplete: "+e.Warning)
	}
	if e.UnknownSeries > 0 {
		notes = append(notes, count(e.UnknownSeries)+" series are of other nodes")
	}
	if e.FileRejected {
		notes = append(notes, "the content of --prometheus-config cannot be used: its previous content stays in use, "+
			"and the log has the error")
	}
	return notes
}
