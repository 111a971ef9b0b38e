package reason

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"syscall"
	"testing"
)

func TestOf(t *testing.T) {
	op := func(name string, err error) error { return &net.OpError{Op: name, Net: "tcp", Err: err} }
	for _, test := range []struct {
		err  error
		want Reason
	}{
		{op("dial", os.ErrDeadlineExceeded), ConnectTimeout},
		{op("read", os.ErrDeadlineExceeded), Timeout},
		{context.DeadlineExceeded, Timeout},
		{io.ErrUnexpectedEOF, Truncated},
		{x509.UnknownAuthorityError{}, TLSAuthority},
		{x509.HostnameError{Certificate: &x509.Certificate{}}, TLSName},
		{x509.CertificateInvalidError{Reason: x509.Expired}, TLSExpired},
		{x509.CertificateInvalidError{Reason: x509.IncompatibleUsage}, TLSHandshake},
		{tls.RecordHeaderError{}, TLSHandshake},
		{op("remote error", tls.AlertError(40)), TLSHandshake},
		{op("dial", &net.DNSError{Err: "no such host"}), DNS},
		{op("dial", &net.DNSError{Err: "timeout", IsTimeout: true}), DNS},
		{Errorf(NoToken, "no token: %w", io.EOF), NoToken},
		{&Error{Reason: NoToken, Err: context.Canceled}, Canceled},
		{op("dial", syscall.ECONNREFUSED), ConnectRefused},
		{op("dial", syscall.EHOSTUNREACH), Unreachable},
		{op("read", syscall.ECONNRESET), ConnectionLost},
		{io.EOF, ConnectionLost},
		{errors.New("malformed HTTP response"), BadHTTP},
	} {
		err := fmt.Errorf("scrape: %w", &url.Error{Op: "Get", URL: "http://10.0.0.1", Err: test.err})
		if got := Of(err); got != test.want {
			t.Errorf("%v: got %s, want %s", err, got, test.want)
		}
	}
	if got := Of(nil); got != "" {
		t.Errorf("got %s without an error", got)
	}
}

func TestOfStatus(t *testing.T) {
	for code, want := range map[int]Reason{
		401: Unauthorized, 403: Forbidden, 404: NotFound, 500: ServerError, 503: ServerError, 302: BadStatus, 418: BadStatus,
	} {
		if got := OfStatus(code); got != want {
			t.Errorf("%d: got %s, want %s", code, got, want)
		}
	}
}
