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
	"github.com/kube-vitals/kube-vitals/test/binaries"
	"github.com/kube-vitals/kube-vitals/test/cluster"
	"github.com/kube-vitals/kube-vitals/test/poll"
	"github.com/kube-vitals/kube-vitals/test/process"
)

// grace is how long a process may take to end.
const grace = 15 * time.Second

// token is the administrator's, who may do everything. Requests carry it because a token is looked up in a cache; a client
// certificate is verified at each request, which costs more than the usual answer.
const token = "administrator"

var loopback = []net.IP{net.IPv4(127, 0, 0, 1)}

// world is what is around the server under test: etcd, kube-apiserver and the kubelets.
type world struct {
	dir        string
	keep       bool
	ca         *kubelettest.CA // of the API server, its clients, and the server under test
	frontProxy tls.Certificate // of the API server's aggregation layer, as a client of the server under test
	apiserver  string          // URL
	kubelets   uint16          // port of all kubelets
	shape      shape
	processes  []*process.Process // in the order in which they were started
}

// newWorld starts everything but the server under test. The world is to be stopped even after an error.
func newWorld(ctx context.Context, cfg config, s shape, progress func(string, ...any)) (*world, error) {
	w := &world{keep: cfg.keep, ca: kubelettest.NewCA(), shape: s}
	var err error
	if w.dir, err = os.MkdirTemp("", "kube-vitals-load-"); err != nil {
		return w, fmt.Errorf("there is no temporary folder: %w", err)
	}
	if cfg.keep {
		progress("logs and certificates are kept in %s", w.dir)
	}
	progress("starting etcd and %d kubelets", s.nodes)
	etcd, err := w.startEtcd(ctx, cfg.bin)
	if err != nil {
		return w, err
	}
	if err := w.startFleet(ctx); err != nil {
		return w, err
	}
	progress("writing %d pods into etcd", s.pods())
	if err := writeObjects(ctx, etcd, s, w.kubelets); err != nil {
		return w, err
	}
	progress("starting kube-apiserver")
	return w, w.startAPIServer(ctx, cfg.bin, etcd)
}

// stop ends all processes, the last one first, and removes what they leave.
func (w *world) stop() {
	for i := len(w.processes) - 1; i >= 0; i-- {
		_ = w.processes[i].Stop(grace) // what it says when it ends is of no interest any more
	}
	if !w.keep && w.dir != "" {
		_ = os.RemoveAll(w.dir) // a temporary folder: the worst is that it stays
	}
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

// start runs an executable for as long as the world lives.
func (w *world) start(path string, args ...string) (*process.Process, error) {
	p, err := process.Start(process.Config{Path: path, Args: args, Log: w.path(filepath.Base(path) + ".log")})
	if err == nil {
		w.processes = append(w.processes, p)
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
func (w *world) startEtcd(ctx context.Context, bin string) (string, error) {
	ports, err := cluster.FreePorts(2)
	if err != nil {
		return "", err
	}
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	p, err := w.start(filepath.Join(bin, binaries.Etcd), "--data-dir="+w.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
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
func (w *world) startFleet(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("this program does not know where it is: %w", err)
	}
	p, err := w.start(self, "fleet", "--nodes="+strconv.Itoa(w.shape.nodes), "--dir="+w.dir)
	if err != nil {
		return err
	}
	return await(ctx, p, 2*time.Minute, "the kubelets to answer", func(context.Context) error {
		text, err := os.ReadFile(w.path(portFile))
		if err != nil {
			return err
		}
		port, err := strconv.ParseUint(string(text), 10, 16)
		w.kubelets = uint16(port)
		return err
	})
}

func (w *world) startAPIServer(ctx context.Context, bin, etcd string) error {
	ports, err := cluster.FreePorts(1)
	if err != nil {
		return err
	}
	w.apiserver = fmt.Sprintf("https://127.0.0.1:%d", ports[0])
	frontProxyCA := kubelettest.NewCA()
	w.frontProxy = frontProxyCA.Issue(nil, nil, kubelettest.Subject(pkix.Name{CommonName: "front-proxy"}))
	err = errors.Join(
		w.write("ca.crt", w.ca.PEM()),
		w.write("front-proxy-ca.crt", frontProxyCA.PEM()),
		w.writeCertificate("apiserver", w.ca.Issue([]string{"localhost"}, loopback)),
		w.writeCertificate("front-proxy", w.frontProxy),
		w.write("tokens.csv", []byte(token+",admin,admin,system:masters\n")),
		w.writeKubeconfig("kubeconfig"),
	)
	if err != nil {
		return err
	}
	p, err := w.start(filepath.Join(bin, binaries.APIServer), "--etcd-servers="+etcd,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[0]),
		"--tls-cert-file="+w.path("apiserver.crt"), "--tls-private-key-file="+w.path("apiserver.key"),
		"--token-auth-file="+w.path("tokens.csv"), "--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16",
		"--requestheader-client-ca-file="+w.path("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+w.path("front-proxy.crt"), "--proxy-client-key-file="+w.path("front-proxy.key"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+w.path("apiserver.crt"),
		"--service-account-signing-key-file="+w.path("apiserver.key"))
	if err != nil {
		return err
	}
	client := w.client()
	defer client.CloseIdleConnections()
	return await(ctx, p, 5*time.Minute, "kube-apiserver to be ready", func(ctx context.Context) error {
		// From its cache: this fails until the cache has all pods.
		if err := expectOK(ctx, client, w.apiserver+"/readyz"); err != nil {
			return err
		}
		if err := expectOK(ctx, client, w.apiserver+"/api/v1/nodes?resourceVersion=0&limit=1"); err != nil {
			return err
		}
		return expectOK(ctx, client, w.apiserver+"/api/v1/namespaces/"+shopNamespace+"/pods?resourceVersion=0")
	})
}

// server is the server under test.
type server struct {
	process *process.Process
	started time.Time
	url     string
	direct  *http.Client // with a token
	proxied *http.Client // with the certificate of the API server's aggregation layer, which speaks for a user
}

// startServer starts the server under test, without waiting for anything.
func (w *world) startServer(cfg config) (*server, error) {
	ports, err := cluster.FreePorts(1)
	if err != nil {
		return nil, err
	}
	if err := w.writeCertificate("server", w.ca.Issue([]string{"localhost"}, loopback)); err != nil {
		return nil, err
	}
	kubeconfig := w.path("kubeconfig")
	args := append([]string{
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[0]),
		"--tls-cert-file=" + w.path("server.crt"), "--tls-private-key-file=" + w.path("server.key"),
		"--kubelet-certificate-authority=" + w.path(kubeletCAFile), "--kubelet-use-node-status-port",
		"--kubelet-preferred-address-types=InternalIP", "--metric-resolution=" + cfg.resolution.String(),
	}, cfg.serverArgs...)
	s := &server{started: time.Now(), url: fmt.Sprintf("https://127.0.0.1:%d", ports[0]), direct: w.client(), proxied: w.client(w.frontProxy)}
	s.process, err = w.start(cfg.server, args...)
	return s, err
}

// client makes a client that trusts the servers here.
func (w *world) client(certificates ...tls.Certificate) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig:    &tls.Config{RootCAs: w.ca.Pool(), Certificates: certificates},
			ForceAttemptHTTP2:  true,
			DisableCompression: true,
		},
		Timeout: 2 * time.Minute,
	}
}

func (w *world) write(name string, content []byte) error {
	if err := os.WriteFile(w.path(name), content, 0o600); err != nil {
		return fmt.Errorf("the cluster's files cannot be written: %w", err)
	}
	return nil
}

func (w *world) writeCertificate(name string, certificate tls.Certificate) error {
	crt, key := kubelettest.PEM(certificate)
	return errors.Join(w.write(name+".crt", crt), w.write(name+".key", key))
}

// writeKubeconfig writes the administrator's kubeconfig, which may be JSON.
func (w *world) writeKubeconfig(name string) error {
	type m = map[string]any
	config, err := json.Marshal(m{
		"apiVersion": "v1", "kind": "Config", "current-context": "default",
		"clusters": []m{{"name": "default", "cluster": m{
			"server": w.apiserver, "certificate-authority-data": base64.StdEncoding.EncodeToString(w.ca.PEM()),
		}}},
		"users":    []m{{"name": "default", "user": m{"token": token}}},
		"contexts": []m{{"name": "default", "context": m{"cluster": "default", "user": "default"}}},
	})
	if err != nil {
		return err
	}
	return w.write(name, config)
}

// expectOK wants an answer with status 200.
func expectOK(ctx context.Context, client *http.Client, url string) error {
	body, _, err := get(ctx, client, url, "application/json")
	if err != nil && len(body) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(body[:min(len(body), 500)])))
	}
	return err
}
