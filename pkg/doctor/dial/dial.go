// Package dial connects to a server in a cluster from outside.
package dial

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"

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
// kubectl port-forward does. While the connection is open, a port of this machine's loopback interface
// leads to the pod as well.
func Pod(client *rest.Config, kube kubernetes.Interface, pod *corev1.Pod, port int32) Func {
	return func(ctx context.Context) (net.Conn, error) {
		dialer, err := newDialer(client, kube, pod)
		if err != nil {
			return nil, err
		}
		stop, ready, failed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
		forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", port)},
			stop, ready, io.Discard, io.Discard)
		if err != nil {
			return nil, err
		}
		go func() { failed <- forwarder.ForwardPorts() }()
		select {
		case <-ready:
		case err := <-failed:
			return nil, err
		case <-ctx.Done():
			close(stop)
			return nil, ctx.Err()
		}
		ports, err := forwarder.GetPorts()
		if err != nil {
			close(stop)
			return nil, err
		}
		conn, err := Host("127.0.0.1", int32(ports[0].Local))(ctx)
		if err != nil {
			close(stop)
			return nil, err
		}
		return &forwardedConn{conn, sync.OnceFunc(func() { close(stop) })}, nil
	}
}

// newDialer returns the library's dialer for the port-forward of a pod.
func newDialer(client *rest.Config, kube kubernetes.Interface, pod *corev1.Pod) (httpstream.Dialer, error) {
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
	return portforward.NewFallbackDialer(websocket,
		spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, url),
		func(err error) bool { return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err) }), nil
}

// forwardedConn is a connection that ends the port-forward when it is closed.
type forwardedConn struct {
	net.Conn
	stop func()
}

// Close implements net.Conn.
func (c *forwardedConn) Close() error {
	defer c.stop()
	return c.Conn.Close()
}
