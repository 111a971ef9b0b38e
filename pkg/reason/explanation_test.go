package reason

import (
	"errors"
	"fmt"
	"io"
	"testing"
)

// TestExplain has errors with and without a cure of their own. The cure is printed once, and never by the error.
func TestExplain(t *testing.T) {
	d := Description{Problem: "no token", Cure: "check it"}
	specific := &Error{Reason: NoToken, Err: io.EOF, Cure: "create it"}
	command := &Error{Reason: TLSKeyChanged, Err: io.EOF, Command: "kubectl patch"}
	for _, test := range []struct {
		description Description
		err         error
		want        string
	}{
		{d, nil, "no token (check it)"},
		{d, io.EOF, "no token: EOF (check it)"},
		{d, Errorf(NoToken, "failed: %w", io.EOF), "no token: failed: EOF (check it)"},
		{d, specific, "no token: EOF (create it)"},
		{d, &Error{Reason: NoToken, Err: fmt.Errorf("failed: %w", specific)}, "no token: failed: EOF (create it)"},
		{d, errors.Join(io.ErrClosedPipe, specific), "no token: io: read/write on closed pipe\nEOF (create it)"},
		{d, command, "no token: EOF (check it; the command: kubectl patch)"},
		{Description{Problem: "it was canceled"}, nil, "it was canceled"},
		{Description{Cure: "check it"}, io.EOF, "EOF (check it)"},
		{Description{}, io.EOF, "EOF"},
		{Description{}, nil, ""},
	} {
		if got := test.description.Explain(test.err).Error(); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
}

// TestFlatten checks that only the text of an error changes, and that what it wraps is gone.
func TestFlatten(t *testing.T) {
	inner := &Error{Reason: NoToken, Err: io.EOF, Cure: "create it", Command: "kubectl create"}
	got := Flatten(fmt.Errorf("failed: %w", inner), "%.3s", "longer")
	want := Error{Reason: NoToken, Err: got.Err, Cure: "create it", Command: "kubectl create"}
	if *got != want || got.Error() != "lon" || errors.Is(got, io.EOF) {
		t.Errorf("got %+v, want %+v", *got, want)
	}
	if got := Flatten(io.EOF, "no"); got.Reason != ConnectionLost || got.Cure != "" {
		t.Errorf("got %+v", got)
	}
}
