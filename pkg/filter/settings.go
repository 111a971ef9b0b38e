package filter

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/time/rate"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/klog/v2"
)

const (
	// maxRequest is the maximum size of the headers and the target of a request for the library.
	maxRequest = maxListTarget + maxHeaders
	// frameSize is the smallest limit of frames that HTTP/2 allows. bodyWindow is how much of a body clients send
	// before the server has read any.
	frameSize, bodyWindow = 16 << 10, 1 << 10
	// connectionWindow is the smallest window for all bodies of a connection that HTTP/2 allows. maxStreams is the
	// library's default.
	connectionWindow, maxStreams = 64<<10 - 1, 100
	// ownTimeout is how long a request of this process may take, and ownPause the time until the next one if it fails.
	ownTimeout, ownPause = 5 * time.Second, 100 * time.Millisecond
)

// NewConfiguring returns a listener that accepts a request of this process before any connection of a client. The
// library's http.Server can only be found in a request. WithRequestLimits recognizes that one by its connection, and
// changes the settings of the server. The request is repeated until it succeeds: the library
// may not have loaded the certificate yet, or the machine may be too busy.
func NewConfiguring(l net.Listener) net.Listener {
	return &configuring{Listener: l, logFailed: rate.Sometimes{Interval: logInterval}}
}

type configuring struct {
	net.Listener
	configured bool
	own        chan error // the result of the last request; nil: there is none
	closed     atomic.Bool
	logFailed  rate.Sometimes
}

// ownConn is the server's end of a connection of this process.
type ownConn struct{ net.Conn }

// Accept implements net.Listener. The server calls it in one goroutine.
func (l *configuring) Accept() (net.Conn, error) {
	for !l.configured && !l.closed.Load() {
		if l.own == nil {
			client, server := net.Pipe()
			l.own = make(chan error, 1)
			go func() { l.own <- requestOwn(client) }()
			return ownConn{server}, nil
		}
		err := <-l.own
		l.configured, l.own = err == nil, nil
		if err != nil && !l.closed.Load() {
			l.logFailed.Do(func() { klog.ErrorS(err, "No client is accepted yet: the first request of this process failed") })
			time.Sleep(ownPause)
		}
	}
	return l.Listener.Accept()
}

// Close implements net.Listener.
func (l *configuring) Close() error {
	l.closed.Store(true)
	return l.Listener.Close()
}

// requestOwn sends a request over a connection to this process, and waits for the response.
func requestOwn(conn net.Conn) error {
	defer conn.Close() //nolint:errcheck // it is in memory
	if err := conn.SetDeadline(time.Now().Add(ownTimeout)); err != nil {
		return err
	}
	client := tls.Client(conn, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // it is this process
	if _, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
		return err
	}
	response, err := http.ReadResponse(bufio.NewReader(client), nil)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("got status %d", response.StatusCode)
	}
	return response.Body.Close()
}

// configureServer changes the settings of the library's server, which are for requests with large bodies. Idle
// connections of HTTP/2 are not closed: the library would keep the memory of every connection that ends during a
// request until they would be (TestClosedConnectionsAreFreed). They are the first to be closed if memory is needed.
func configureServer(server *http.Server, config *genericapiserver.Config) {
	server.MaxHeaderBytes = maxRequest
	server.DisableGeneralOptionsHandler = true // net/http would serve OPTIONS * without any limit
	if server.ErrorLog != nil {
		server.ErrorLog.SetOutput(&limitedWriter{server.ErrorLog.Writer(), rate.Sometimes{Interval: time.Second}})
	}
	if server.TLSNextProto[http2.NextProtoTLS] == nil {
		return // disabled by a flag
	}
	streams := uint32(maxStreams)
	if config.SecureServing != nil && config.SecureServing.HTTP2MaxStreamsPerConnection > 0 {
		streams = uint32(config.SecureServing.HTTP2MaxStreamsPerConnection)
	}
	var settings http.Server // the library's TLS settings are in use
	//nolint:staticcheck // the library uses it
	utilruntime.Must(http2.ConfigureServer(&settings, &http2.Server{
		MaxConcurrentStreams: streams, MaxReadFrameSize: frameSize, MaxUploadBufferPerStream: bodyWindow,
		MaxUploadBufferPerConnection: connectionWindow, IdleTimeout: -1,
	}))
	server.TLSNextProto[http2.NextProtoTLS] = settings.TLSNextProto[http2.NextProtoTLS]
	server.RegisterOnShutdown(func() { _ = settings.Shutdown(context.Background()) }) // this sends GOAWAY
}
