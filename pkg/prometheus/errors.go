package prometheus

import (
	"errors"
	"net/url"

	"github.com/kube-vitals/kube-vitals/pkg/reason"
)

// explain adds to an error which query failed and what to do. It removes the URLs that libraries
// put in front of the cause: those of the configuration may have passwords.
func explain(err error, k kind, engine string) error {
	for request := (*url.Error)(nil); errors.As(err, &request); {
		err = request.Err
	}
	r := reason.Of(err)
	text := ""
	if c := r.DescribeEngine().Cure; c != "" {
		text = " (" + c + ")"
	}
	return reason.Errorf(r, "query %v at %s: %w%s", k, engine, err, text)
}
