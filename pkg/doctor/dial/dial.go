// Package dial connects to a server in a cluster from outside.
package dial

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/httpstream" //nolint:staticcheck // client-go's dialers return its types
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
)

// Func connects to a server.
type Func func(context.Context) (net.Conn, error)

// Host returns a function that connects to a host.
func Host(host string, port int32) Func {
	address := net.JoinHostPort(host, strconv.Itoa(int(port)))
	return func(ctx context.Context) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "tcp", address)
	}
}

// Pod returns a function that connects to a port of a pod through the API server and the kubelet, as
// kubectl port-forward does, but without a port on this machine.
func Pod(client *rest.Config, kube kubernetes.Interface, pod *corev1.Pod, port int32) Func {
	return func(ctx context.Context) (net.Conn, error) {
		config := rest.CopyConfig(client)
		config.Timeout = 0 // it would end the connection
		url := kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).
			SubResource("portforward").URL()
		transport, upgrader, err := spdy.RoundTripperFor(config)
		if err != nil {
			return nil, err
		}
		websocket, err := portforward.NewSPDYOverWebsocketDialer(url, config)
		if err != nil {
			return nil, err
		}
		dialer := portforward.NewFallbackDialer(websocket,
			spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url),
			func(err error) bool { return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err) })
		type result struct {
			connection httpstream.Connection
			err        error
		}
		done := make(chan result, 1)
		go func() { // the dialer knows no context
			connection, _, err := dialer.Dial(portforward.PortForwardProtocolV1Name)
			done <- result{connection, err}
		}()
		select {
		case r := <-done:
			if r.err != nil {
				return nil, r.err
			}
			return newPodConn(r.connection, port)
		case <-ctx.Done():
			go func() {
				if r := <-done; r.err == nil {
					_ = r.connection.Close()
				}
			}()
			return nil, ctx.Err()
		}
	}
}

// podConn is a connection to a port of a pod. Its reads and writes end when it is closed.
type podConn struct {
	httpstream.Stream // data
	connection        httpstream.Connection
}

func newPodConn(connection httpstream.Connection, port int32) (net.Conn, error) {
	header := http.Header{}
	header.Set(corev1.PortHeader, strconv.Itoa(int(port)))
	header.Set(corev1.PortForwardRequestIDHeader, "0")
	header.Set(corev1.StreamType, corev1.StreamTypeError)
	problems, err := connection.CreateStream(header)
	if err != nil {
		_ = connection.Close()
		return nil, err
	}
	_ = problems.Close() // for writes
	header.Set(corev1.StreamType, corev1.StreamTypeData)
	data, err := connection.CreateStream(header)
	if err != nil {
		_ = connection.Close()
		return nil, err
	}
	c := &podConn{Stream: data, connection: connection}
	go func() {
		if text, err := io.ReadAll(problems); err != nil || len(text) > 0 {
			_ = connection.Close() // the kubelet cannot connect to the port
		}
	}()
	return c, nil
}

// Close implements net.Conn.
func (c *podConn) Close() error { return c.connection.Close() }

// LocalAddr implements net.Conn.
func (c *podConn) LocalAddr() net.Addr { return &net.TCPAddr{} }

// RemoteAddr implements net.Conn.
func (c *podConn) RemoteAddr() net.Addr { return &net.TCPAddr{} }

// SetDeadline implements net.Conn without effect: contexts close the connection.
func (c *podConn) SetDeadline(time.Time) error { return nil }

// SetReadDeadline implements net.Conn without effect.
func (c *podConn) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn without effect.
func (c *podConn) SetWriteDeadline(time.Time) error { return nil }
