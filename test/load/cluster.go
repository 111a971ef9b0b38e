package main

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/poll"
	"github.com/kube-vitals/kube-vitals/test/process"
)

// grace is how long a process may take to end.
const grace = 15 * time.Second

var loopback = []net.IP{net.IPv4(127, 0, 0, 1)}

// cluster is the world around the server under test: etcd, kube-apiserver and the kubelets.
type cluster struct {
	dir       string
	keep      bool
	ca        *kubelettest.CA // of the API server, its clients, and the server under test
	apiserver string          // URL
	kubelets  uint16          // port of all kubelets
	shape     shape
	processes []*process.Process // in the order in which they were started
}

// newCluster starts everything but the server under test. The cluster is to be stopped even after an error.
func newCluster(ctx context.Context, cfg config, s shape, progress func(string, ...any)) (*cluster, error) {
	c := &cluster{keep: cfg.keep, ca: kubelettest.NewCA(), shape: s}
	var err error
	if c.dir, err = os.MkdirTemp("", "kube-vitals-load-"); err != nil {
		return c, fmt.Errorf("there is no temporary folder: %w", err)
	}
	if cfg.keep {
		progress("logs and certificates are kept in %s", c.dir)
	}
	progress("starting etcd and %d kubelets", s.nodes)
	etcd, err := c.startEtcd(ctx, cfg.bin)
	if err != nil {
		return c, err
	}
	if err := c.startFleet(ctx); err != nil {
		return c, err
	}
	progress("writing %d pods into etcd", s.pods())
	if err := writeObjects(ctx, etcd, s, c.kubelets); err != nil {
		return c, err
	}
	progress("starting kube-apiserver")
	return c, c.startAPIServer(ctx, cfg.bin, etcd)
}

// stop ends all processes, the last one first, and removes what they leave.
func (c *cluster) stop() {
	for i := len(c.processes) - 1; i >= 0; i-- {
		_ = c.processes[i].Stop(grace) // what it says when it ends is of no interest any more
	}
	if !c.keep && c.dir != "" {
		_ = os.RemoveAll(c.dir) // a temporary folder: the worst is that it stays
	}
}

func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

// start runs an executable for as long as the cluster lives.
func (c *cluster) start(path string, args ...string) (*process.Process, error) {
	p, err := process.Start(process.Config{Path: path, Args: args, Log: c.path(filepath.Base(path) + ".log")})
	if err == nil {
		c.processes = append(c.processes, p)
	}
	return p, err
}

// await waits until try succeeds. It gives up when the process has ended, and tells the end of its log.
func await(ctx context.Context, p *process.Process, limit time.Duration, what string, try func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := poll.Until(ctx, limit, what, func(ctx context.Context) error {
		err := try(ctx)
		if p.Running() != nil {
			cancel()
		}
		return err
	})
	switch {
	case err == nil:
		return nil
	case p.Running() != nil:
		return p.Running()
	default:
		return fmt.Errorf("%w%s", err, p.Tail())
	}
}

// startEtcd starts an etcd that keeps nothing for longer than it runs, and returns its URL.
func (c *cluster) startEtcd(ctx context.Context, bin string) (string, error) {
	ports, err := freePorts(2)
	if err != nil {
		return "", err
	}
	client, peer := "http://127.0.0.1:"+ports[0], "http://127.0.0.1:"+ports[1]
	p, err := c.start(filepath.Join(bin, "etcd"), "--data-dir="+c.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--quota-backend-bytes="+strconv.Itoa(8<<30), "--max-request-bytes="+strconv.Itoa(8<<20),
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer)
	if err != nil {
		return "", err
	}
	return client, await(ctx, p, time.Minute, "etcd to be healthy", func(ctx context.Context) error {
		return expectOK(ctx, http.DefaultClient, client+"/health")
	})
}

// startFleet starts this executable again, as the kubelets.
func (c *cluster) startFleet(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("this program does not know where it is: %w", err)
	}
	p, err := c.start(self, "fleet", "--nodes="+strconv.Itoa(c.shape.nodes), "--dir="+c.dir)
	if err != nil {
		return err
	}
	return await(ctx, p, 2*time.Minute, "the kubelets to answer", func(context.Context) error {
		text, err := os.ReadFile(c.path(portFile))
		if err != nil {
			return err
		}
		port, err := strconv.ParseUint(string(text), 10, 16)
		c.kubelets = uint16(port)
		return err
	})
}

func (c *cluster) startAPIServer(ctx context.Context, bin, etcd string) error {
	ports, err := freePorts(1)
	if err != nil {
		return err
	}
	c.apiserver = "https://127.0.0.1:" + ports[0]
	frontProxy := kubelettest.NewCA()
	err = errors.Join(
		c.write("ca.crt", c.ca.PEM()),
		c.write("front-proxy-ca.crt", frontProxy.PEM()),
		c.writeCertificate("apiserver", c.ca.Issue([]string{"localhost"}, loopback)),
		c.writeCertificate("front-proxy", frontProxy.Issue(nil, nil, kubelettest.Subject(pkix.Name{CommonName: "front-proxy"}))),
		c.writeCertificate("admin", c.admin()),
		c.writeKubeconfig("kubeconfig", "admin"),
	)
	if err != nil {
		return err
	}
	p, err := c.start(filepath.Join(bin, "kube-apiserver"), "--etcd-servers="+etcd,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port="+ports[0],
		"--tls-cert-file="+c.path("apiserver.crt"), "--tls-private-key-file="+c.path("apiserver.key"),
		"--client-ca-file="+c.path("ca.crt"), "--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16",
		"--requestheader-client-ca-file="+c.path("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+c.path("front-proxy.crt"), "--proxy-client-key-file="+c.path("front-proxy.key"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+c.path("apiserver.crt"),
		"--service-account-signing-key-file="+c.path("apiserver.key"))
	if err != nil {
		return err
	}
	client := c.client(false)
	defer client.CloseIdleConnections()
	return await(ctx, p, 5*time.Minute, "kube-apiserver to be ready", func(ctx context.Context) error {
		// From its cache: this fails until the cache has all pods.
		if err := expectOK(ctx, client, c.apiserver+"/readyz"); err != nil {
			return err
		}
		if err := expectOK(ctx, client, c.apiserver+"/api/v1/nodes?resourceVersion=0&limit=1"); err != nil {
			return err
		}
		return expectOK(ctx, client, c.apiserver+"/api/v1/namespaces/"+shopNamespace+"/pods?resourceVersion=0")
	})
}

// server is the server under test.
type server struct {
	process *process.Process
	started time.Time
	url     string
	client  *http.Client // without compression
	gzip    *http.Client // takes compressed answers, as client-go does
}

// startServer starts the server under test, without waiting for anything.
func (c *cluster) startServer(cfg config) (*server, error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	if err := c.writeCertificate("server", c.ca.Issue([]string{"localhost"}, loopback)); err != nil {
		return nil, err
	}
	kubeconfig := c.path("kubeconfig")
	args := append([]string{
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1", "--secure-port=" + ports[0],
		"--tls-cert-file=" + c.path("server.crt"), "--tls-private-key-file=" + c.path("server.key"),
		"--kubelet-certificate-authority=" + c.path(kubeletCAFile), "--kubelet-use-node-status-port",
		"--kubelet-preferred-address-types=InternalIP", "--metric-resolution=" + cfg.resolution.String(),
	}, cfg.serverArgs...)
	s := &server{started: time.Now(), url: "https://127.0.0.1:" + ports[0], client: c.client(false), gzip: c.client(true)}
	s.process, err = c.start(cfg.server, args...)
	return s, err
}

// client makes a client with a certificate that may do everything.
func (c *cluster) client(gzip bool) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig:    &tls.Config{RootCAs: c.ca.Pool(), Certificates: []tls.Certificate{c.admin()}},
			ForceAttemptHTTP2:  true,
			DisableCompression: !gzip,
		},
		Timeout: 2 * time.Minute,
	}
}

func (c *cluster) admin() tls.Certificate {
	return c.ca.Issue(nil, nil, kubelettest.Subject(pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}))
}

func (c *cluster) write(name string, content []byte) error {
	if err := os.WriteFile(c.path(name), content, 0o600); err != nil {
		return fmt.Errorf("the cluster's files cannot be written: %w", err)
	}
	return nil
}

func (c *cluster) writeCertificate(name string, certificate tls.Certificate) error {
	crt, key := kubelettest.PEM(certificate)
	return errors.Join(c.write(name+".crt", crt), c.write(name+".key", key))
}

// writeKubeconfig writes a kubeconfig, which may be JSON, for the holder of a certificate.
func (c *cluster) writeKubeconfig(name, user string) error {
	type m = map[string]any
	config, err := json.Marshal(m{
		"apiVersion": "v1", "kind": "Config", "current-context": "default",
		"clusters": []m{{"name": "default", "cluster": m{
			"server": c.apiserver, "certificate-authority-data": base64.StdEncoding.EncodeToString(c.ca.PEM()),
		}}},
		"users": []m{{"name": "default", "user": m{
			"client-certificate": c.path(user + ".crt"), "client-key": c.path(user + ".key"),
		}}},
		"contexts": []m{{"name": "default", "context": m{"cluster": "default", "user": "default"}}},
	})
	if err != nil {
		return err
	}
	return c.write(name, config)
}

// freePorts finds ports of 127.0.0.1 that nobody uses, all different.
func freePorts(n int) (ports []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("there is no free port: %w", err)
		}
		defer l.Close() // only now, or the next one could be the same
		ports = append(ports, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
	}
	return ports, nil
}

// expectOK wants an answer with status 200.
func expectOK(ctx context.Context, client *http.Client, url string) error {
	body, _, err := get(ctx, client, url, "application/json")
	if err != nil && len(body) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(body[:min(len(body), 500)])))
	}
	return err
}
