// Package reasontest lists reasons, for tests that there is nothing missing.
package reasontest

import "github.com/kube-vitals/kube-vitals/pkg/reason"

// Scrapes returns the reasons why scrapes fail, in the order of their documentation.
func Scrapes() []reason.Reason {
	return []reason.Reason{
		reason.NoAddress, reason.BadEndpoint, reason.DNS, reason.ConnectRefused, reason.Unreachable,
		reason.ConnectTimeout, reason.Timeout, reason.ConnectionLost, reason.BadHTTP, reason.TLSSelfSigned,
		reason.TLSAuthority, reason.TLSName, reason.TLSExpired, reason.TLSHandshake, reason.TLSKeyChanged,
		reason.TLSNotPinned, reason.NoToken, reason.Unauthorized, reason.Forbidden, reason.NotFound,
		reason.ServerError, reason.BadStatus, reason.BadFormat, reason.BodyTooLarge, reason.Truncated,
		reason.Undecodable, reason.NoSamples, reason.RuntimeNoStats, reason.ClockSkew, reason.Canceled,
		reason.InternalFailure,
	}
}

// Refreshes returns the reasons why a refresh from an engine fails, in the order of their
// documentation.
func Refreshes() []reason.Reason {
	return []reason.Reason{
		reason.DNS, reason.ConnectRefused, reason.Unreachable, reason.ConnectTimeout, reason.Timeout,
		reason.ConnectionLost, reason.BadHTTP, reason.TLSAuthority, reason.TLSName, reason.TLSExpired,
		reason.TLSHandshake, reason.Unauthorized, reason.Forbidden, reason.NotFound, reason.ServerError,
		reason.BadStatus, reason.BadFormat, reason.BodyTooLarge, reason.Truncated, reason.Undecodable,
		reason.NoSamples, reason.Canceled, reason.InternalFailure,
	}
}
