package usage

import (
	"strings"
	"testing"
)

func TestCheckNames(t *testing.T) {
	longest := strings.Repeat("x", MaxNameBytes)
	for _, name := range []string{longest, "web-1", "Größe 大"} {
		if r, ok := CheckNames([]byte("app"), []byte(name)); !ok {
			t.Errorf("%.50q: got %v", name, r)
		}
	}
	for name, want := range map[string]SkipReason{
		"": NoIdentity, longest + "x": OverLimit, "a\nb\tc": Malformed, "\x1b]0;title\a": Malformed, "a\x00b": Malformed,
		"\u202eevil": Malformed, "a\x7f": Malformed, "a\u009b": Malformed, "a\xffb": Malformed,
	} {
		if got, ok := CheckNames([]byte("app"), []byte(name)); got != want || ok {
			t.Errorf("%.50q: got %v, %t, want %v", name, got, ok, want)
		}
	}
}
