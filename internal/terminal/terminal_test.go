package terminal

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"unicode"
)

func TestEscapes(t *testing.T) {
	for _, tt := range []struct {
		goos, terminal, windowsTerminal string
		want                            bool
	}{
		{"linux", "xterm", "", true}, {"linux", "", "", true}, {"linux", "dumb", "", false},
		{"windows", "", "", false}, {"windows", "", "0123", true}, {"windows", "xterm", "", true},
	} {
		getenv := func(name string) string {
			return map[string]string{"TERM": tt.terminal, "WT_SESSION": tt.windowsTerminal}[name]
		}
		if got := hasEscapes(tt.goos, getenv); got != tt.want {
			t.Errorf("%+v: got %t", tt, got)
		}
	}
	if got := Of(&bytes.Buffer{}); got.Size != nil || got.Color {
		t.Errorf("a buffer is a terminal: %+v", got)
	}
}

func TestHostileText(t *testing.T) {
	for _, text := range []string{
		"", "web-1", "a b", " a", "a\nb",
		"a\r\n\x1b[2J\x1b]0;a\x07\u009b2J\t\x00\x7f\u202eb\u2066\u2028\U000e0061\xff", "→ x", "\u3164",
		strings.Repeat("a", 10<<10), strings.Repeat("\U000e0061", 10<<10),
	} {
		name, message := Name(text), Printable(text)
		var encoded bytes.Buffer
		if err := WriteJSON(&encoded, text); err != nil {
			t.Fatal(err)
		}
		var decoded string
		if err := json.Unmarshal(encoded.Bytes(), &decoded); err != nil || decoded != strings.ToValidUTF8(text, "\ufffd") {
			t.Errorf("%.50q: the JSON has %.50q, error %v", text, decoded, err)
		}
		for _, output := range []string{name, message, strings.TrimSuffix(encoded.String(), "\n")} {
			if strings.ContainsFunc(output, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("%.50q: got %.50q", text, output)
			}
		}
		if strings.ContainsFunc(name, func(r rune) bool { return r > unicode.MaxASCII }) || len(name) > 1100 {
			t.Errorf("%.50q: got the name %.50q", text, name)
		}
	}
}
