package prometheus

import (
	"fmt"
	"strings"
)

// maxShards limits the number of queries. The last characters of pod names cannot be divided much
// further.
const maxShards = 16

// lastCharacters are those of almost all names of pods: digits of StatefulSets and static pods, and
// the letters and digits of the random suffixes of other pods. Each group is divided evenly.
const lastCharacters = "0123456789bcdfghjklmnpqrstvwxz"

// shardMatcher returns the matcher that selects one of n parts of all series, by the last character
// of a label. Selectors have no hash function, but all engines have regular expressions. Each series
// is in exactly one part, because the last part has all series that the others do not match,
// including those without the label.
func shardMatcher(label string, shard, n int) string {
	var characters strings.Builder
	for i := range lastCharacters {
		if isLast := i%n == n-1; shard < n-1 && i%n == shard || shard == n-1 && !isLast {
			characters.WriteByte(lastCharacters[i])
		}
	}
	operator := "=~"
	if shard == n-1 {
		operator = "!~"
	}
	return fmt.Sprintf(`%s%s".*[%s]"`, label, operator, characters.String())
}

// withMatcher returns a selector with another matcher.
func withMatcher(selector, matcher string) string {
	selector = strings.TrimSpace(selector)
	if !strings.HasSuffix(selector, "}") {
		return selector + "{" + matcher + "}"
	}
	matchers := strings.TrimSpace(strings.TrimSuffix(selector, "}"))
	if !strings.HasSuffix(matchers, "{") && !strings.HasSuffix(matchers, ",") {
		matchers += ","
	}
	return matchers + matcher + "}"
}
