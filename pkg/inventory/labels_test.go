package inventory

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

// TestLabels compares Labels with the library's map.
func TestLabels(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for count := range 100 {
		set := map[string]string{}
		for range count {
			set[strings.Repeat("k", rng.IntN(4))+fmt.Sprint(rng.IntN(300))] = strings.Repeat("v", rng.IntN(3))
		}
		l := NewLabels(set)
		if got := maps.Collect(l.All()); !maps.Equal(got, set) || l.Len() != len(set) || !maps.Equal(l.Map(), set) {
			t.Fatalf("%d labels: got %v, want %v", l.Len(), got, set)
		}
		if again := NewLabels(maps.Clone(set)); again != l {
			t.Fatalf("equal labels have the texts %q and %q", l, again)
		}
		for i := range 300 {
			for _, key := range []string{fmt.Sprint(i), fmt.Sprint("k", i), fmt.Sprint("kkk", i), "", "~"} {
				value, ok := l.Lookup(key)
				want, wantOK := labels.Set(set).Lookup(key)
				if value != want || ok != wantOK || l.Has(key) != wantOK || l.Get(key) != want {
					t.Fatalf("Lookup(%q) = %q, %v; want %q, %v of %v", key, value, ok, want, wantOK, set)
				}
			}
		}
	}
}

// TestInvalidLabels checks that characters which labels cannot have do not make other labels of them.
func TestInvalidLabels(t *testing.T) {
	for _, set := range []map[string]string{
		nil, {}, {"a\x00b": "c"}, {"a": "b\n"}, {"a": "b", "c\nd\x00e": ""}, {"\x00": "", "\n": ""},
	} {
		if l := NewLabels(set); l != "" || l.Map() != nil || l.Has("a") {
			t.Errorf("NewLabels(%q) = %q", set, l)
		}
	}
}
