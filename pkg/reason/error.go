package reason

import (
	"fmt"
	"net/http"
	"runtime/debug"
)

// Error is an error whose reason is known where it occurs.
type Error struct {
	Reason Reason
	Err    error
}

// Errorf returns an Error with the text that fmt.Errorf returns.
func Errorf(r Reason, format string, args ...any) error {
	return &Error{r, fmt.Errorf(format, args...)}
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
			"%s made kube-vitals panic; please report this bug: %v\n%s", response, p, debug.Stack())
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
