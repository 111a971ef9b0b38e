// Package world is what is around a metrics server that is measured or worn out: real etcd and
// kube-apiserver, and the certificates by which all trust each other. The kubelets are the
// caller's, in this process or in another one.
//
// Everything listens on loopback and lives in a temporary folder; all of it ends with Stop.
package world

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
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/poll"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// Token is the administrator's, who may do everything. Requests carry it because a token is looked
// up in a cache; a client certificate is verified at each request, which costs more than the usual
// answer.
const Token = "administrator"

// KubeletCAFile is the file in the world's folder by which the server under test trusts the
// kubelets. Who runs the kubelets writes it.
const KubeletCAFile = "kubelet-ca.crt"

// grace is how long a process may take to end.
const grace = 15 * time.Second

var loopback = []net.IP{net.IPv4(127, 0, 0, 1)}

// World is a control plane without nodes. Stop ends it.
type World struct {
	Dir       string // files of all kinds
	Etcd      string // URL
	APIServer string // URL

	bin        string
	keep       bool
	ca         *kubelettest.CA // of the API server, its clients, and the server under test
	frontProxy tls.Certificate // of the API server's aggregation layer, as a client of the server under test
	processes  []*process.Process
}

// Config says how to make a world.
type Config struct {
	Bin  string // the folder with the executables etcd and kube-apiserver
	Keep bool   // keep the folder with logs and certificates
}

// New makes a world in which nothing runs yet.
func New(cfg Config) (*World, error) {
	dir, err := os.MkdirTemp("", "kube-vitals-world-")
	if err != nil {
		return nil, fmt.Errorf("there is no temporary folder: %w", err)
	}
	return &World{Dir: dir, bin: cfg.Bin, keep: cfg.Keep, ca: kubelettest.NewCA()}, nil
}

// Stop ends all processes, the last one first, and removes what they leave.
func (w *World) Stop() {
	for i := len(w.processes) - 1; i >= 0; i-- {
		_ = w.processes[i].Stop(grace) // what it says when it ends is of no interest any more
	}
	if !w.keep {
		_ = os.RemoveAll(w.Dir) // a temporary folder: the worst is that it stays
	}
}

// Path is where a file of the world lies.
func (w *World) Path(name string) string { return filepath.Join(w.Dir, name) }

// Start runs an executable for as long as the world lives.
func (w *World) Start(path string, args ...string) (*process.Process, error) {
	p, err := process.Start(process.Config{Path: path, Args: args, Log: w.Path(filepath.Base(path) + ".log")})
	if err == nil {
		w.processes = append(w.processes, p)
	}
	return p, err
}

// Await waits until try succeeds. It gives up when the process has ended, and tells the end of its
// log.
func Await(ctx context.Context, p *process.Process, limit time.Duration, what string, try func(context.Context) error) error {
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

// StartEtcd starts an etcd that keeps nothing for longer than it runs.
func (w *World) StartEtcd(ctx context.Context) error {
	ports, err := cluster.FreePorts(2)
	if err != nil {
		return err
	}
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	p, err := w.Start(filepath.Join(w.bin, binaries.Etcd), "--data-dir="+w.Path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--quota-backend-bytes="+strconv.Itoa(8<<30), "--max-request-bytes="+strconv.Itoa(8<<20),
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer)
	if err != nil {
		return err
	}
	w.Etcd = client
	return Await(ctx, p, time.Minute, "etcd to be healthy", func(ctx context.Context) error {
		return expectOK(ctx, http.DefaultClient, client+"/health")
	})
}

// StartAPIServer starts kube-apiserver, and waits until it is ready and has these paths in its
// cache.
func (w *World) StartAPIServer(ctx context.Context, cached ...string) error {
	ports, err := cluster.FreePorts(1)
	if err != nil {
		return err
	}
	w.APIServer = fmt.Sprintf("https://127.0.0.1:%d", ports[0])
	frontProxyCA := kubelettest.NewCA()
	w.frontProxy = frontProxyCA.Issue(nil, nil, kubelettest.Subject(pkix.Name{CommonName: "front-proxy"}))
	err = errors.Join(
		w.write("ca.crt", w.ca.PEM()),
		w.write("front-proxy-ca.crt", frontProxyCA.PEM()),
		w.writeCertificate("apiserver", w.ca.Issue([]string{"localhost"}, loopback)),
		w.writeCertificate("front-proxy", w.frontProxy),
		w.writeCertificate("server", w.ca.Issue([]string{"localhost"}, loopback)),
		w.write("tokens.csv", []byte(Token+",admin,admin,system:masters\n")),
		w.writeKubeconfig("kubeconfig"),
	)
	if err != nil {
		return err
	}
	p, err := w.Start(filepath.Join(w.bin, binaries.APIServer), "--etcd-servers="+w.Etcd,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[0]),
		"--endpoint-reconciler-type=none", // an address of loopback cannot be an endpoint
		// No controller here makes ServiceAccounts, or takes taints away again.
		"--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
		"--tls-cert-file="+w.Path("apiserver.crt"), "--tls-private-key-file="+w.Path("apiserver.key"),
		"--token-auth-file="+w.Path("tokens.csv"), "--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16",
		"--requestheader-client-ca-file="+w.Path("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+w.Path("front-proxy.crt"), "--proxy-client-key-file="+w.Path("front-proxy.key"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+w.Path("apiserver.crt"),
		"--service-account-signing-key-file="+w.Path("apiserver.key"))
	if err != nil {
		return err
	}
	client := w.client()
	defer client.CloseIdleConnections()
	return Await(ctx, p, 5*time.Minute, "kube-apiserver to be ready", func(ctx context.Context) error {
		if err := expectOK(ctx, client, w.APIServer+"/readyz"); err != nil {
			return err
		}
		for _, path := range cached { // this fails until the cache has all objects
			if err := expectOK(ctx, client, w.APIServer+path); err != nil {
				return err
			}
		}
		return nil
	})
}

// Kubernetes is an administrator's client of the API server.
func (w *World) Kubernetes() (kubernetes.Interface, error) {
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: w.APIServer, BearerToken: Token, TLSClientConfig: rest.TLSClientConfig{CAData: w.ca.PEM()},
		QPS: -1, // no limit
	})
	if err != nil {
		return nil, fmt.Errorf("there is no client of the API server: %w", err)
	}
	return client, nil
}

// Server is the server under test.
type Server struct {
	Process *process.Process
	Started time.Time
	URL     string
	Direct  *http.Client // to be used with a token, as Get does
	Proxied *http.Client // with the certificate of the API server's aggregation layer, which speaks for a user
}

// StartServer starts the server under test, without waiting until it serves. The arguments follow
// those that every metrics server needs here.
func (w *World) StartServer(executable string, resolution time.Duration, args ...string) (*Server, error) {
	ports, err := cluster.FreePorts(1)
	if err != nil {
		return nil, err
	}
	kubeconfig := w.Path("kubeconfig")
	allowed, err := loopbackFlags(executable)
	if err != nil {
		return nil, err
	}
	args = append([]string{
		"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[0]),
		"--tls-cert-file=" + w.Path("server.crt"), "--tls-private-key-file=" + w.Path("server.key"),
		"--kubelet-certificate-authority=" + w.Path(KubeletCAFile), "--kubelet-use-node-status-port",
		"--kubelet-preferred-address-types=InternalIP", "--metric-resolution=" + resolution.String(),
	}, append(allowed, args...)...)
	s := &Server{
		Started: time.Now(), URL: fmt.Sprintf("https://127.0.0.1:%d", ports[0]),
		Direct: w.client(), Proxied: w.client(w.frontProxy),
	}
	s.Process, err = w.Start(executable, args...)
	return s, err
}

// loopbackFlags returns the flags that a server needs to scrape kubelets at loopback addresses.
// Other metrics servers, and kube-vitals before it refused them, have no such flag.
func loopbackFlags(executable string) ([]string, error) {
	const flag = "--kubelet-allow-loopback"
	help, err := exec.Command(executable, "--help").CombinedOutput() //nolint:noctx // it does not wait
	if err != nil {
		return nil, fmt.Errorf("%s --help failed: %w", executable, err)
	}
	if strings.Contains(string(help), flag) {
		return []string{flag}, nil
	}
	return nil, nil
}

// Stop ends the server, and returns how it ended: nil for exit status 0.
func (s *Server) Stop() error {
	s.Direct.CloseIdleConnections()
	s.Proxied.CloseIdleConnections()
	return s.Process.Stop(grace)
}

// client makes a client that trusts the servers here.
func (w *World) client(certificates ...tls.Certificate) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig:    &tls.Config{RootCAs: w.ca.Pool(), Certificates: certificates},
			ForceAttemptHTTP2:  true,
			DisableCompression: true,
		},
		Timeout: 2 * time.Minute,
	}
}

// TrustKubelets lets the server under test trust the kubelets whose certificates this authority
// issues.
func (w *World) TrustKubelets(ca *kubelettest.CA) error { return w.write(KubeletCAFile, ca.PEM()) }

func (w *World) write(name string, content []byte) error {
	if err := os.WriteFile(w.Path(name), content, 0o600); err != nil {
		return fmt.Errorf("the cluster's files cannot be written: %w", err)
	}
	return nil
}

func (w *World) writeCertificate(name string, certificate tls.Certificate) error {
	crt, key := kubelettest.PEM(certificate)
	return errors.Join(w.write(name+".crt", crt), w.write(name+".key", key))
}

// writeKubeconfig writes the administrator's kubeconfig, which may be JSON.
func (w *World) writeKubeconfig(name string) error {
	type m = map[string]any
	config, err := json.Marshal(m{
		"apiVersion": "v1", "kind": "Config", "current-context": "default",
		"clusters": []m{{"name": "default", "cluster": m{
			"server": w.APIServer, "certificate-authority-data": base64.StdEncoding.EncodeToString(w.ca.PEM()),
		}}},
		"users":    []m{{"name": "default", "user": m{"token": Token}}},
		"contexts": []m{{"name": "default", "context": m{"cluster": "default", "user": "default"}}},
	})
	if err != nil {
		return err
	}
	return w.write(name, config)
}

// expectOK wants an answer with status 200.
func expectOK(ctx context.Context, client *http.Client, url string) error {
	body, _, err := Get(ctx, client, url, TypeJSON)
	if err != nil && len(body) > 0 {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(body[:min(len(body), 500)])))
	}
	return err
}
