package reason

import (
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"
)

// Error is an error whose reason is known where it occurs. Its text never has the cure: see Explanation.
type Error struct {
	Reason Reason // empty if no metrics are missing for it
	Err    error

	// Cure replaces the usual cure of the reason, where that does not fit. Command is a part of the cure that
	// can be pasted, for this object only. Both are our own: they have no text that a server has sent.
	Cure, Command string
}

// Errorf returns an Error with the text that fmt.Errorf returns.
func Errorf(r Reason, format string, args ...any) error {
	return &Error{Reason: r, Err: fmt.Errorf(format, args...)}
}

// Flatten returns an Error with the reason, cure and command of err and the given text. It wraps nothing.
func Flatten(err error, format string, args ...any) *Error {
	cure, command := cureOf(err)
	return &Error{Reason: Of(err), Err: fmt.Errorf(format, args...), Cure: cure, Command: command}
}

// cureOf returns the cure and the command of the first Error in err that has any.
func cureOf(err error) (cure, command string) {
	for known := (*Error)(nil); errors.As(err, &known); err = known.Err {
		if known.Cure != "" || known.Command != "" {
			return known.Cure, known.Command
		}
	}
	return "", ""
}

// Error implements error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Recover sets the error for a panic, because no response may end the process. It must be deferred itself: a
// deferred function that calls it would recover nothing.
func Recover(err *error, response string) {
	if p := recover(); p != nil {
		*err = Errorf(InternalFailure,
			"%s made kube-vitals panic: %v\n%s", response, p, debug.Stack())
	}
}

// OfStatus returns the reason of a response with a status other than 200.
func OfStatus(code int) Reason {
	switch {
	case code == http.StatusUnauthorized:
		return Unauthorized
	case code == http.StatusForbidden:
		return Forbidden
	case code == http.StatusNotFound:
		return NotFound
	case code >= http.StatusInternalServerError:
		return ServerError
	}
	return BadStatus
}
