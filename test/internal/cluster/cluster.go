// Package cluster runs a real Kubernetes control plane on loopback addresses: etcd, kube-apiserver
// with the aggregation layer, kube-controller-manager with the controllers that autoscaling needs,
// kube-scheduler, and kwok, which leads the lives of nodes and pods that nobody runs. All files of
// a cluster lie in one folder, all its processes end with it, and any number of clusters fit on a
// machine.
package cluster

import (
	"context"
	_ "embed" // for kwok's configuration
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-vitals/kube-vitals/pkg/kubelet/kubelettest"
	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/poll"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// startTimeout is how long one part may take to come up: a second or two, and more where the
// machine has much to do.
const startTimeout = 2 * time.Minute

// stages is kwok's configuration.
//
//go:embed kwok.yaml
var stages []byte

// Config says how to start a cluster.
type Config struct {
	Binaries string    // the folder that binaries.Build returned
	Progress io.Writer // where to write what is being done; nil: nowhere
	Audit    bool      // whether the API server writes down what it is asked, in the file that AuditLog names
}

// Cluster is a running control plane. Stop ends it.
type Cluster struct {
	Dir        string               // everything that belongs to the cluster: certificates, logs, etcd's data
	Kubeconfig string               // the file by which an administrator reaches it
	CA         *kubelettest.CA      // signs every certificate of the cluster, those of kubelets too
	REST       *rest.Config         // an administrator's, without a limit on requests
	Client     kubernetes.Interface // made from REST

	binaries  string
	progress  io.Writer
	audit     bool
	processes []*process.Process // in the order in which they were started
	apiServer apiServer
}

// apiServer is what it takes to start the API server again.
type apiServer struct {
	process     *process.Process
	args        []string
	certificate pair // by which clients know it
}

// Start starts a cluster without nodes. Where a part does not come up, all others are ended, and
// the error has the end of that part's log.
func Start(ctx context.Context, cfg Config) (*Cluster, error) {
	dir, err := os.MkdirTemp("", "kube-vitals-")
	if err != nil {
		return nil, fmt.Errorf("a cluster needs a folder for its files: %w", err)
	}
	c := &Cluster{Dir: dir, CA: kubelettest.NewCA(), binaries: cfg.Binaries, progress: cfg.Progress, audit: cfg.Audit}
	if c.progress == nil {
		c.progress = io.Discard
	}
	if err := c.start(ctx); err != nil {
		c.Stop()
		return nil, fmt.Errorf("the cluster did not start: %w", err)
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	ports, err := FreePorts(2)
	if err != nil {
		return err
	}
	etcd, address := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("https://127.0.0.1:%d", ports[1])
	keys, err := c.writeKeys(address)
	if err != nil {
		return err
	}
	if err := c.connect(keys.admin); err != nil {
		return err
	}
	for _, start := range []func(context.Context) error{
		func(ctx context.Context) error { return c.startEtcd(ctx, etcd) },
		func(ctx context.Context) error { return c.startAPIServer(ctx, etcd, ports[1], keys) },
		func(ctx context.Context) error { return c.startControllers(ctx, keys) },
	} {
		if err := start(ctx); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) connect(kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("the administrator's kubeconfig cannot be used: %w", err)
	}
	config.QPS = -1 // no limit
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("the administrator's kubeconfig cannot be used: %w", err)
	}
	c.Kubeconfig, c.REST, c.Client = kubeconfig, config, client
	return nil
}

func (c *Cluster) startEtcd(ctx context.Context, address string) error {
	fmt.Fprintln(c.progress, "starting etcd")
	p, err := c.StartProcess(binaries.Etcd,
		"--data-dir="+c.File("etcd"),
		"--listen-client-urls="+address,
		"--advertise-client-urls="+address,
		"--listen-peer-urls=http://127.0.0.1:0",
		"--unsafe-no-fsync", // nothing here has to survive a power failure
		"--log-level=warn",
	)
	if err != nil {
		return err
	}
	return c.await(ctx, p, "etcd to answer", func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, address+"/health", http.NoBody)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("etcd says %s", response.Status)
		}
		return nil
	})
}

func (c *Cluster) startAPIServer(ctx context.Context, etcd string, port int, keys *keys) error {
	c.apiServer = apiServer{certificate: keys.server, args: []string{
		"--etcd-servers=" + etcd,
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", port),
		"--endpoint-reconciler-type=none", // an address of loopback cannot be an endpoint
		"--service-cluster-ip-range=10.96.0.0/16",
		"--tls-cert-file=" + keys.server.cert,
		"--tls-private-key-file=" + keys.server.key,
		"--client-ca-file=" + keys.ca,
		"--authorization-mode=RBAC",
		"--disable-admission-plugins=TaintNodesByCondition", // no controller here takes taints away again
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + keys.serviceAccounts.cert,
		"--service-account-signing-key-file=" + keys.serviceAccounts.key,
		// The aggregation layer. Without --enable-aggregator-routing, an APIService may lead to a
		// Service of type ExternalName, and so to a process on this machine.
		"--requestheader-client-ca-file=" + keys.frontProxyCA,
		"--requestheader-allowed-names=" + frontProxyName,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + keys.frontProxy.cert,
		"--proxy-client-key-file=" + keys.frontProxy.key,
		"--profiling=false",
	}}
	if c.audit {
		if err := c.startAudit(); err != nil {
			return err
		}
	}
	return c.runAPIServer(ctx)
}

// runAPIServer starts the API server and waits until it is ready.
func (c *Cluster) runAPIServer(ctx context.Context) error {
	fmt.Fprintln(c.progress, "starting kube-apiserver")
	p, err := c.StartProcess(binaries.APIServer, c.apiServer.args...)
	if err != nil {
		return err
	}
	c.apiServer.process = p
	return c.await(ctx, p, "kube-apiserver to be ready", func(ctx context.Context) error {
		return c.Client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// startControllers starts what acts on the API's objects, and waits until the first of its actions
// can be seen.
func (c *Cluster) startControllers(ctx context.Context, keys *keys) error {
	fmt.Fprintln(c.progress, "starting kube-controller-manager, kube-scheduler and kwok")
	manager, err := c.StartProcess(binaries.ControllerManager,
		"--kubeconfig="+keys.controllerManager,
		"--leader-elect=false",
		"--secure-port=0",
		"--service-account-private-key-file="+keys.serviceAccounts.key,
		"--root-ca-file="+keys.ca,
		"--use-service-account-credentials",
		"--controllers=clusterrole-aggregation-controller,deployment-controller,endpointslice-controller,"+
			"garbage-collector-controller,horizontal-pod-autoscaler-controller,namespace-controller,"+
			"pod-garbage-collector-controller,replicaset-controller,root-ca-certificate-publisher-controller,"+
			"serviceaccount-controller,serviceaccount-token-controller",
		// Autoscaling as in production, but soon: a decision every 2 s rather than 15 s, and 15 s
		// rather than 5 minutes before there are fewer pods, which is as long as it takes until
		// figures tell of the last change.
		"--horizontal-pod-autoscaler-sync-period=2s",
		"--horizontal-pod-autoscaler-downscale-stabilization=15s",
	)
	if err != nil {
		return err
	}
	if _, err := c.StartProcess(binaries.Scheduler, "--kubeconfig="+keys.scheduler, "--leader-elect=false", "--secure-port=0"); err != nil {
		return err
	}
	if err := os.WriteFile(c.File("kwok.yaml"), stages, 0o600); err != nil {
		return fmt.Errorf("kwok cannot be told what to do: %w", err)
	}
	if _, err := c.StartProcess(binaries.Kwok, "--kubeconfig="+c.Kubeconfig, "--config="+c.File("kwok.yaml"), "--manage-all-nodes"); err != nil {
		return err
	}
	return c.await(ctx, manager, "kube-controller-manager to make the default ServiceAccount", func(ctx context.Context) error {
		_, err := c.Client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// await waits for what a process is about to do, unless it or another one ends before.
func (c *Cluster) await(ctx context.Context, p *process.Process, what string, try func(context.Context) error) error {
	var ended error
	err := poll.Until(ctx, startTimeout, what, func(ctx context.Context) error {
		if ended = c.Running(); ended != nil {
			return nil //nolint:nilerr // ended is what is reported
		}
		return try(ctx)
	})
	if ended != nil {
		return ended
	}
	if err != nil {
		return fmt.Errorf("%w%s", err, p.Tail())
	}
	return nil
}

// Running returns nil while all processes of the cluster run, and otherwise an error that says
// which do not.
func (c *Cluster) Running() error {
	var ended []error
	for _, p := range c.processes {
		ended = append(ended, p.Running())
	}
	return errors.Join(ended...)
}

// StartProcess runs one of the cluster's binaries, or any program by its path, until the cluster is
// stopped.
func (c *Cluster) StartProcess(program string, args ...string) (*process.Process, error) {
	path := c.Binary(program)
	p, err := process.Start(process.Config{Path: path, Args: args, Log: c.File(filepath.Base(path) + ".log")})
	if err != nil {
		return nil, err
	}
	c.processes = append(c.processes, p)
	return p, nil
}

// Binary is where one of the cluster's binaries lies. A path stays as it is.
func (c *Cluster) Binary(program string) string {
	if filepath.IsAbs(program) {
		return program
	}
	return filepath.Join(c.binaries, program)
}

// File is a file in the cluster's folder.
func (c *Cluster) File(name string) string { return filepath.Join(c.Dir, name) }

// Command is a client of the cluster, such as kubectl or helm, with an administrator's rights. The
// user's own configuration of it plays no part.
func (c *Cluster) Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.Binary(program), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig, "HOME="+c.Dir, "KUBERC=off",
		"HELM_CACHE_HOME="+c.File("helm"), "HELM_CONFIG_HOME="+c.File("helm"), "HELM_DATA_HOME="+c.File("helm"))
	return cmd
}

// Run runs a Command and returns its output. Where it fails, the error has what it said.
func (c *Cluster) Run(ctx context.Context, program string, args ...string) (string, error) {
	cmd := c.Command(ctx, program, args...)
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

// Apply creates the objects of a manifest.
func (c *Cluster) Apply(ctx context.Context, manifest string) error {
	file, err := os.CreateTemp(c.Dir, "manifest-*.yaml")
	if err != nil {
		return fmt.Errorf("a manifest cannot be handed to kubectl: %w", err)
	}
	defer os.Remove(file.Name()) //nolint:errcheck // the whole folder goes in the end
	if _, err := io.WriteString(file, manifest); err != nil {
		return errors.Join(fmt.Errorf("a manifest cannot be handed to kubectl: %w", err), file.Close())
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("a manifest cannot be handed to kubectl: %w", err)
	}
	_, err = c.Run(ctx, binaries.Kubectl, "apply", "-f", file.Name())
	return err
}

// CreateNamespace creates a namespace and waits until pods can be created in it.
func (c *Cluster) CreateNamespace(ctx context.Context, name string) error {
	if _, err := c.Run(ctx, binaries.Kubectl, "create", "namespace", name); err != nil {
		return err
	}
	return poll.Until(ctx, time.Minute, "the ServiceAccount of namespace "+name, func(ctx context.Context) error {
		_, err := c.Client.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("the API server does not say: %w", err)
		}
		return err
	})
}

// Stop ends all processes, the last one first, and removes the cluster's folder. Nothing is asked
// politely: nothing is to be kept.
func (c *Cluster) Stop() {
	for i := len(c.processes) - 1; i >= 0; i-- {
		c.processes[i].Kill()
	}
	c.processes = nil
	if err := os.RemoveAll(c.Dir); err != nil {
		fmt.Fprintf(c.progress, "the cluster's folder stays behind: %v\n", err)
	}
}

// FreePorts returns ports of 127.0.0.1 on which nobody listens.
func FreePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it does not wait
		if err != nil {
			return nil, fmt.Errorf("there is no free port on 127.0.0.1: %w", err)
		}
		defer listener.Close() // held until all are found, so that all differ
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
