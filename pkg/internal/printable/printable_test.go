package printable

import "testing"

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"web-1": "web-1", "Größe 大": "Größe 大", "a\nb\tc": "a b c", "\x1b]0;title\a": "\uFFFD]0;title\uFFFD",
		"\u202eevil": "\uFFFDevil", "a\x00b\x7f\u009b": "a\uFFFDb\uFFFD\uFFFD", "a\xffb": "a\uFFFDb",
	} {
		if got := Text(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}
