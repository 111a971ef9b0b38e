// Package terminal prints what others choose, such as names and messages of a cluster, so that none of it controls a
// terminal, and finds out what a terminal understands.
package terminal

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/term"
)

// maxName bounds a name, which a node or tenant can choose: the longest namespace and name of an object.
const maxName = 253 + 63 + len("/")

// Screen is a terminal that understands control characters. The zero Screen is none.
type Screen struct {
	Size  func() (width, height int) // in characters; nil: there is no such terminal
	Color bool
}

// Of returns the Screen of an output.
func Of(out io.Writer) Screen {
	file, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) || !hasEscapes(runtime.GOOS, os.Getenv) {
		return Screen{}
	}
	return Screen{Color: os.Getenv("NO_COLOR") == "", Size: func() (width, height int) {
		width, height, err := term.GetSize(int(file.Fd()))
		if err != nil || width <= 0 || height <= 0 {
			return 80, 24
		}
		return width, height
	}}
}

// hasEscapes reports whether a terminal understands escape sequences: by default, a console of Windows does not.
func hasEscapes(goos string, getenv func(string) string) bool {
	return getenv("TERM") != "dumb" && (goos != "windows" || getenv("TERM")+getenv("WT_SESSION") != "")
}

// Printable replaces control characters, symbols and invisible letters: messages of the cluster may contain any.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case !unicode.IsPrint(r):
			return ' '
		case r > unicode.MaxASCII && (unicode.IsSymbol(r) || unicode.Is(unicode.Other_Default_Ignorable_Code_Point, r)):
			return '?'
		}
		return r
	}, text)
}

// Name quotes a name that is not as most names of objects are, and shortens it. The result is ASCII.
func Name(name string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-+./:_ "
	if len(name) <= maxName && strings.Trim(name, plain) == "" && strings.TrimSpace(name) == name && name != "" {
		return name
	}
	return fmt.Sprintf("%+.100q", name)
}

// WriteJSON writes a value as indented JSON. Characters that could control a terminal are escaped.
func WriteJSON(out io.Writer, value any) error {
	w := bufio.NewWriter(out)
	encoder := json.NewEncoder(escaper{w})
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return err
	}
	return w.Flush()
}

// escaper escapes characters in JSON that could control a terminal. Each write has whole characters.
type escaper struct{ *bufio.Writer }

// Write implements io.Writer.
func (e escaper) Write(text []byte) (int, error) {
	for i := 0; i < len(text); {
		char, size := utf8.DecodeRune(text[i:])
		if i += size; char == '\n' || unicode.IsPrint(char) {
			_, _ = e.WriteRune(char) // Flush returns the first error
			continue
		}
		for _, unit := range utf16.AppendRune(nil, char) {
			fmt.Fprintf(e.Writer, `\u%04x`, unit)
		}
	}
	return len(text), nil
}
