package decode

import (
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// TestLongTokens has long strings, which are cut off in each part of an escape sequence, and white
// space, between two values. The decoder must not keep them.
func TestLongTokens(t *testing.T) {
	for _, pattern := range []string{"x", `\\\"`, `\\\u0022`} {
		for shift := range len(pattern) {
			long := `"` + strings.Repeat("y", shift) + strings.Repeat(pattern, 1<<18/len(pattern)) + `"`
			text := `["a"` + strings.Repeat(" ", 1<<18) + `,` + long + `,{` + long + `:` + long + `,"b":1}, ` + long + `, "c"]`
			for _, r := range []io.Reader{strings.NewReader(text), iotest.HalfReader(strings.NewReader(text))} {
				s := newScanner(r)
				got := ""
				for range s.elements {
					if s.decoder.PeekKind() == '{' {
						s.skip()
						continue
					}
					text, isCut := s.str()
					if isCut {
						text = []byte("cut")
					}
					got += string(text) + " "
				}
				if err := s.finish(); err != nil || got != "a cut cut c " {
					t.Errorf("%s, %d: got %s, %v", pattern, shift, got, err)
				}
				if kept := len(s.text) + cap(s.decoder.UnreadBuffer()); kept > 5*maxToken {
					t.Errorf("%s, %d: keeps %d bytes", pattern, shift, kept)
				}
			}
		}
	}
}

// TestLevels skips objects within each other. The decoder keeps the names of all of them.
func TestLevels(t *testing.T) {
	name := `{"` + strings.Repeat("x", maxToken/2) + `":`
	for levels, want := range map[int]reason.Reason{
		maxLevels - 1: "", maxLevels: "", maxLevels + 1: reason.Undecodable, 10 * maxLevels: reason.Undecodable,
	} {
		text := strings.NewReader(strings.Repeat(name, levels) + "1" + strings.Repeat("}", levels))
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s := newScanner(text)
		s.skip()
		err := s.finish()
		runtime.ReadMemStats(&after)
		const most = 10 * maxLevels * maxToken / 2
		if got := after.TotalAlloc - before.TotalAlloc; got > most || reason.Of(err) != want {
			t.Errorf("%d levels: allocates %d bytes, at most %d are allowed; got %v, want %q", levels, got, most, err, want)
		}
	}
}
