package prometheus

import (
	"errors"
	"net/url"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// Reason returns the reason of an error of this package. It is empty if there is no error.
func Reason(err error) reason.Reason {
	var invalid *invalidJSON
	if errors.As(err, &invalid) {
		return reason.Undecodable
	}
	return reason.Of(err)
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
	return reason.Errorf(r, "query %v at %s: %w%s", k, engine, err, text)
}
