// Package cluster runs a real Kubernetes control plane on loopback addresses for tests, benchmarks
// and the demo: etcd, kube-apiserver with the aggregation layer, kube-controller-manager with the
// controllers that autoscaling needs, and kube-scheduler. Nodes are simulated: kwok sets the status
// of nodes and pods, and package simulation runs the kubelets.
//
// Start starts all of that, and Install installs kube-vitals with its chart. New returns a cluster
// that runs nothing yet: the caller starts only etcd and kube-apiserver, and then a metrics server with
// StartStandalone. Benchmarks fill etcd directly, and run other metrics servers too.
//
// The files of a cluster are in one folder and its processes end with it. Any number of clusters
// can run on a machine.
package cluster

import (
	"context"
	_ "embed" // for kwok's configuration
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-vitals/kube-vitals/internal/sim/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
	"github.com/kube-vitals/kube-vitals/test/internal/simulation"
)

// startTimeout bounds the start of one program: it takes seconds, and minutes on a busy machine or
// with a large etcd.
const startTimeout = 15 * time.Minute

// stages is kwok's configuration.
//
//go:embed kwok.yaml
var stages []byte

// Config configures a cluster.
type Config struct {
	Progress      io.Writer         // for messages about what is being started; nil: none
	APIServerArgs []string          // additional flags of kube-apiserver
	StorageEnv    []string          // additional variables of etcd and kube-apiserver
	Nodes         []simulation.Node // for Start
	KubeVitals    string            // the server; empty: see Cluster.KubeVitals
}

// Cluster is a control plane. Stop ends it.
type Cluster struct {
	Dir        string                 // certificates, logs, etcd's data
	Checkout   string                 // the source tree
	Chart      string                 // the chart's folder
	CA         *kubelettest.CA        // signs the certificates of the cluster and of its kubelets
	Etcd       string                 // URL; set by StartEtcd
	Kubeconfig string                 // the administrator's; set by StartAPIServer, as are REST and Client
	REST       *rest.Config           // without a rate limit
	Client     kubernetes.Interface   // made from REST
	Simulation *simulation.Simulation // the nodes; set by Start

	cfg       Config
	programs  string             // a folder, see binaries.Build
	token     string             // the administrator's
	processes []*process.Process // in the order of their starts
	apiServer *process.Process   // one of processes
	apiArgs   []string           // the flags of apiServer
	admission string             // admission plugins that are off
	env       []string           // additional variables of the cluster's programs
}

// New returns a cluster where nothing runs yet.
func New(ctx context.Context, cfg Config) (*Cluster, error) {
	if cfg.Progress == nil {
		cfg.Progress = io.Discard
	}
	checkout, err := binaries.Checkout()
	if err != nil {
		return nil, err
	}
	programs, err := binaries.Build(ctx, binaries.ControlPlane(), cfg.Progress)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "kube-vitals-")
	if err != nil {
		return nil, fmt.Errorf("create the cluster's folder: %w", err)
	}
	return &Cluster{
		Dir:      dir,
		Checkout: checkout,
		Chart:    filepath.Join(checkout, "charts", "kube-vitals"),
		CA:       kubelettest.NewCA(),
		cfg:      cfg,
		programs: programs,
		// Without controllers, no ServiceAccounts are created and no taints removed.
		admission: "ServiceAccount,TaintNodesByCondition",
	}, nil
}

// Start starts a cluster with controllers and simulated nodes.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	c, err := New(ctx, cfg)
	if err != nil {
		return nil, err
	}
	c.admission = "TaintNodesByCondition" // the controller that removes taints is not started
	// Garbage collection of small heaps took an eighth of the CPU of tests.
	c.env = []string{"GOGC=400"}
	if err := c.start(ctx); err != nil {
		c.Stop()
		return nil, fmt.Errorf("start cluster: %w", err)
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	if err := c.StartEtcd(ctx); err != nil {
		return err
	}
	if err := c.StartAPIServer(ctx); err != nil {
		return err
	}
	if err := c.startControllers(ctx); err != nil {
		return err
	}
	fmt.Fprintf(c.cfg.Progress, "starting %d simulated nodes, each with a kubelet at its own address\n", len(c.cfg.Nodes))
	var err error
	c.Simulation, err = simulation.New(ctx, simulation.Config{Client: c.Client, CA: c.CA, Log: c.cfg.Progress})
	if err != nil {
		return err
	}
	for _, node := range c.cfg.Nodes {
		if err := c.Simulation.AddNode(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

// StartEtcd starts etcd, without durability.
func (c *Cluster) StartEtcd(ctx context.Context) error {
	ports, err := FreePorts(1)
	if err != nil {
		return err
	}
	fmt.Fprintln(c.cfg.Progress, "starting etcd")
	c.Etcd = fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	p, err := c.StartProcessWith(c.cfg.StorageEnv, binaries.Etcd,
		"--data-dir="+c.File("etcd"),
		"--listen-client-urls="+c.Etcd,
		"--advertise-client-urls="+c.Etcd,
		"--listen-peer-urls=http://127.0.0.1:0",
		"--quota-backend-bytes="+strconv.Itoa(8<<30),
		"--max-request-bytes="+strconv.Itoa(8<<20),
		"--unsafe-no-fsync",
		"--log-level=warn",
	)
	if err != nil {
		return err
	}
	return p.Poll(ctx, startTimeout, "etcd to be healthy", func(ctx context.Context) error {
		_, _, err := Get(ctx, http.DefaultClient, c.Etcd+"/health", TypeJSON)
		return err
	})
}

// StartAPIServer starts kube-apiserver, and waits until it is ready and responds to GET requests
// for the paths, for example because its cache has been filled.
func (c *Cluster) StartAPIServer(ctx context.Context, paths ...string) error {
	ports, err := FreePorts(1)
	if err != nil {
		return err
	}
	if err := c.writeFiles(fmt.Sprintf("https://127.0.0.1:%d", ports[0])); err != nil {
		return err
	}
	c.apiArgs = append([]string{
		"--etcd-servers=" + c.Etcd,
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", ports[0]),
		"--endpoint-reconciler-type=none", // a loopback address cannot be an endpoint
		"--service-cluster-ip-range=10.96.0.0/16",
		"--tls-cert-file=" + c.File("kube-apiserver.crt"),
		"--tls-private-key-file=" + c.File("kube-apiserver.key"),
		"--client-ca-file=" + c.File("ca.crt"),
		"--token-auth-file=" + c.File("tokens.csv"),
		"--authorization-mode=RBAC",
		"--disable-admission-plugins=" + c.admission,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.File("service-accounts.crt"),
		"--service-account-signing-key-file=" + c.File("service-accounts.key"),
		// The aggregation layer. Without --enable-aggregator-routing, an APIService may refer to a
		// Service of type ExternalName, and so to a process on this machine.
		"--requestheader-client-ca-file=" + c.File("front-proxy-ca.crt"),
		"--requestheader-allowed-names=" + frontProxyName,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + c.File("front-proxy.crt"),
		"--proxy-client-key-file=" + c.File("front-proxy.key"),
		"--profiling=false",
	}, c.cfg.APIServerArgs...)
	return c.runAPIServer(ctx, paths...)
}

func (c *Cluster) runAPIServer(ctx context.Context, paths ...string) (err error) {
	fmt.Fprintln(c.cfg.Progress, "starting kube-apiserver")
	if c.apiServer, err = c.StartProcessWith(c.cfg.StorageEnv, binaries.APIServer, c.apiArgs...); err != nil {
		return err
	}
	return c.apiServer.Poll(ctx, startTimeout, "kube-apiserver to be ready", func(ctx context.Context) error {
		for _, path := range append([]string{"/readyz"}, paths...) {
			if err := c.Client.Discovery().RESTClient().Get().RequestURI(path).Do(ctx).Error(); err != nil {
				return err
			}
		}
		return nil
	})
}

// StopAPIServer kills the API server. The other programs keep trying to reach it.
func (c *Cluster) StopAPIServer() {
	c.processes = slices.DeleteFunc(c.processes, func(p *process.Process) bool { return p == c.apiServer })
	c.apiServer.Kill()
}

// RestartAPIServer starts the API server again at the same address, with a new serving certificate
// of the cluster's CA, and waits until it is ready. The flags override those it had.
func (c *Cluster) RestartAPIServer(ctx context.Context, flags ...string) error {
	c.apiArgs = append(c.apiArgs, flags...)
	if err := c.writePair("kube-apiserver", c.issue("kube-apiserver", "")); err != nil {
		return err
	}
	return c.runAPIServer(ctx)
}

// PauseAPIServer makes the API server accept connections without responding, until
// ResumeAPIServer.
func (c *Cluster) PauseAPIServer() { c.apiServer.Signal(syscall.SIGSTOP) }

// ResumeAPIServer ends a pause.
func (c *Cluster) ResumeAPIServer() { c.apiServer.Signal(syscall.SIGCONT) }

// startControllers starts kube-controller-manager, kube-scheduler and kwok.
func (c *Cluster) startControllers(ctx context.Context) error {
	fmt.Fprintln(c.cfg.Progress, "starting kube-controller-manager, kube-scheduler and kwok")
	manager, err := c.StartProcess(binaries.ControllerManager,
		"--kubeconfig="+c.File("kube-controller-manager.kubeconfig"),
		"--leader-elect=false",
		"--secure-port=0",
		"--service-account-private-key-file="+c.File("service-accounts.key"),
		"--root-ca-file="+c.File("ca.crt"),
		"--use-service-account-credentials",
		"--kube-api-qps=100", // the demo creates 200 pods
		"--kube-api-burst=200",
		// API servers of 1.31 look up the Endpoints of an APIService's Service, newer ones its EndpointSlices.
		"--controllers=clusterrole-aggregation-controller,deployment-controller,endpoints-controller,"+
			"endpointslice-controller,garbage-collector-controller,horizontal-pod-autoscaler-controller,namespace-controller,"+
			"pod-garbage-collector-controller,replicaset-controller,root-ca-certificate-publisher-controller,"+
			"serviceaccount-controller,serviceaccount-token-controller",
		// Autoscaling as in production, but faster: a decision every 2 s instead of 15 s, and 15 s
		// instead of 5 minutes before it scales down, which is how long metrics take to reflect the
		// last change.
		"--horizontal-pod-autoscaler-sync-period=2s",
		"--horizontal-pod-autoscaler-downscale-stabilization=15s",
	)
	if err != nil {
		return err
	}
	if _, err := c.StartProcess(binaries.Scheduler,
		"--kubeconfig="+c.File("kube-scheduler.kubeconfig"), "--leader-elect=false", "--secure-port=0"); err != nil {
		return err
	}
	if err := c.write("kwok.yaml", stages); err != nil {
		return err
	}
	if _, err := c.StartProcess(binaries.Kwok,
		"--kubeconfig="+c.Kubeconfig, "--config="+c.File("kwok.yaml"), "--manage-all-nodes"); err != nil {
		return err
	}
	return manager.Poll(ctx, startTimeout, "the default ServiceAccount", func(ctx context.Context) error {
		_, err := c.Client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// Running returns nil while all processes of the cluster run, and otherwise an error that names
// those that have ended.
func (c *Cluster) Running() error {
	var errs []error
	for _, p := range c.processes {
		errs = append(errs, p.Running())
	}
	return errors.Join(errs...)
}

// StartProcess starts a program that runs until Stop: one of the cluster's programs, by its name,
// or any other, by its path. Its log is NAME.log in the cluster's folder.
func (c *Cluster) StartProcess(program string, args ...string) (*process.Process, error) {
	return c.StartProcessWith(nil, program, args...)
}

// StartProcessWith is StartProcess with additional environment variables.
func (c *Cluster) StartProcessWith(env []string, program string, args ...string) (*process.Process, error) {
	path := c.Binary(program)
	if path != program {
		env = append(slices.Clone(c.env), env...)
	}
	log := c.File(filepath.Base(path) + ".log")
	p, err := process.Start(process.Config{Path: path, Args: args, Env: env, Log: log})
	if err == nil {
		c.processes = append(c.processes, p)
	}
	return p, err
}

// Binary returns the path of one of the cluster's programs. It returns paths unchanged.
func (c *Cluster) Binary(program string) string {
	if strings.Contains(program, "/") {
		return program
	}
	return filepath.Join(c.programs, program)
}

// File returns the path of a file in the cluster's folder.
func (c *Cluster) File(name string) string { return filepath.Join(c.Dir, name) }

// Run runs a client such as kubectl or helm as the administrator, and returns its standard output.
// The error has what it printed.
func (c *Cluster) Run(ctx context.Context, program string, args ...string) (string, error) {
	return c.run(ctx, nil, program, args...)
}

func (c *Cluster) run(ctx context.Context, stdin io.Reader, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.Binary(program), args...)
	if c.Binary(program) != program {
		cmd.Env = append(cmd.Env, c.env...)
	}
	// HOME and the other variables hide the user's own configuration.
	cmd.Env = append(append(os.Environ(), cmd.Env...), "KUBECONFIG="+c.Kubeconfig, "HOME="+c.Dir, "KUBERC=off",
		"HELM_CACHE_HOME="+c.File("helm"), "HELM_CONFIG_HOME="+c.File("helm"), "HELM_DATA_HOME="+c.File("helm"))
	cmd.Stdin = stdin
	output, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s%s", err, exit.Stderr, output)
		}
		return "", fmt.Errorf("%s: %w", cmd, err)
	}
	return string(output), nil
}

// Kubectl runs kubectl as Run does.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.Run(ctx, binaries.Kubectl, args...)
}

// YAML is a line that marks a manifest as YAML. Without it, kubectl 1.31 takes one that begins with { for JSON.
const YAML = "---\n"

// Apply applies a manifest with kubectl.
func (c *Cluster) Apply(ctx context.Context, manifest string) error {
	return c.RunWith(ctx, strings.NewReader(YAML+manifest), binaries.Kubectl, "apply", "-f", "-")
}

// RunWith is Run with a standard input, and without the output.
func (c *Cluster) RunWith(ctx context.Context, stdin io.Reader, program string, args ...string) error {
	_, err := c.run(ctx, stdin, program, args...)
	return err
}

// CreateNamespace creates a namespace and waits until pods can be created in it.
func (c *Cluster) CreateNamespace(ctx context.Context, name string) error {
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.Client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil {
		return err
	}
	what := "the default ServiceAccount of namespace " + name
	return process.Poll(ctx, startTimeout, what, func(ctx context.Context) error {
		_, err := c.Client.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// Stop kills all processes, the last one first, and removes the cluster's folder.
func (c *Cluster) Stop() {
	if c.Simulation != nil {
		c.Simulation.Close() // first: it would log that the API server is unreachable
	}
	for _, p := range slices.Backward(c.processes) {
		p.Kill()
	}
	c.processes = nil
	if err := os.RemoveAll(c.Dir); err != nil {
		fmt.Fprintf(c.cfg.Progress, "remove the cluster's folder: %v\n", err)
	}
}

// returnedPorts has the ports that FreePorts has returned.
var returnedPorts sync.Map

// FreePorts returns n TCP ports of 127.0.0.1 that are free. They are below those that Linux uses for
// outgoing connections: such a connection of another test could take the port before the caller does. No port is
// returned twice: the program of another test may not listen yet.
func FreePorts(n int) ([]int, error) {
	const first, last = 10_000, 32_767
	ports := make([]int, 0, n)
	for len(ports) < n {
		port := first + rand.IntN(last-first+1)
		listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)) //nolint:noctx // it does not block
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("find a free port on 127.0.0.1: %w", err)
		}
		if err := listener.Close(); err != nil {
			return nil, fmt.Errorf("close the free port %d: %w", port, err)
		}
		if _, isTaken := returnedPorts.LoadOrStore(port, true); !isTaken {
			ports = append(ports, port)
		}
	}
	return ports, nil
}
