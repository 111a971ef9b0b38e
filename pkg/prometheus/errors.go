package prometheus

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// queryError is an error whose reason is known where it occurs.
type queryError struct {
	reason reason.Reason
	error
}

func (e *queryError) Unwrap() error { return e.error }

func newError(r reason.Reason, format string, args ...any) error {
	return &queryError{r, fmt.Errorf(format, args...)}
}

// Reason returns the reason of an error of this package. It is empty if there is no error.
func Reason(err error) reason.Reason {
	var (
		known   *queryError
		invalid *invalidJSON
		tooMany *http.MaxBytesError
	)
	switch {
	case err == nil:
		return ""
	case errors.As(err, &known):
		return known.reason
	case errors.Is(err, context.Canceled):
		return reason.Canceled
	case errors.As(err, &tooMany):
		return reason.BodyTooLarge
	case errors.As(err, &invalid):
		return reason.Undecodable
	}
	return reason.OfRequest(err)
}

// statusReason returns the reason of a response with a status other than 200.
func statusReason(code int) reason.Reason {
	switch {
	case code == http.StatusUnauthorized:
		return reason.Unauthorized
	case code == http.StatusForbidden:
		return reason.Forbidden
	case code == http.StatusNotFound:
		return reason.NotFound
	case code >= http.StatusInternalServerError:
		return reason.ServerError
	}
	return reason.BadStatus
}

// explain adds to an error which query failed and what to do. It removes the URLs that libraries
// put in front of the cause: those of the configuration may have passwords.
func explain(err error, k kind, engine string) error {
	for request := (*url.Error)(nil); errors.As(err, &request); {
		err = request.Err
	}
	r := Reason(err)
	text := ""
	if c := r.DescribeEngine().Cure; c != "" {
		text = " (" + c + ")"
	}
	return &queryError{r, fmt.Errorf("query %v at %s: %w%s", k, engine, err, text)}
}
