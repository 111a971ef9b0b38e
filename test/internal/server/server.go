// Package server runs the built kube-vitals beside a cluster as the chart runs it inside of one:
// the chart is installed by helm without pods, and then the program runs here with the flags of the
// chart's Deployment, a token of its ServiceAccount, and the certificate in its Secret. What the
// chart does not allow, the program cannot do.
package server

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/poll"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// Namespace and Release are where the chart is installed. Its objects bear the release's name.
const (
	Namespace = "kube-system"
	Release   = "kube-vitals"
)

// Resolution is the time between two scrapes: the shortest that is allowed.
const Resolution = 5 * time.Second

const (
	startTimeout = time.Minute
	stopTimeout  = 30 * time.Second
)

// Where the chart mounts files in its pods.
const (
	mountedServingCertificate = "/etc/kube-vitals/tls/"
	mountedServiceAccount     = "/var/run/secrets/kubernetes.io/serviceaccount/"
)

// Config says what to run.
type Config struct {
	Binary string   // what Binary returns
	Chart  string   // the chart's folder
	Args   []string // flags after those of the chart
}

// Server is a running kube-vitals.
type Server struct {
	Address string // host and port
	CA      []byte // PEM; verifies the serving certificate, which is for the name in Host
	Host    string // SERVICE.NAMESPACE.svc

	cluster *cluster.Cluster
	process *process.Process
	binary  string
	flags   []string
	log     string // a file
}

// Binary is the built program: the one that the variable KUBE_VITALS names, or where make build
// puts it in a checkout.
func Binary(checkout string) (string, error) {
	path := os.Getenv("KUBE_VITALS")
	if path == "" {
		path = filepath.Join(checkout, "bin", "kube-vitals")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("cannot tell where kube-vitals is: %w", err)
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("kube-vitals is not built; run make build, or let KUBE_VITALS name it: %w", err)
	}
	return path, nil
}

// Start installs the chart, runs the binary, and waits until the API server says that
// metrics.k8s.io is available.
func Start(ctx context.Context, c *cluster.Cluster, cfg Config) (*Server, error) {
	ports, err := cluster.FreePorts(1)
	if err != nil {
		return nil, err
	}
	s := &Server{
		Address: fmt.Sprintf("127.0.0.1:%d", ports[0]),
		Host:    fmt.Sprintf("%s.%s.svc", Release, Namespace),
		cluster: c,
		binary:  cfg.Binary,
		log:     c.File(filepath.Base(cfg.Binary) + ".log"),
	}
	if err := s.install(ctx, cfg.Chart, ports[0]); err != nil {
		return nil, fmt.Errorf("the chart cannot be installed: %w", err)
	}
	args, err := s.args(ctx, ports[0])
	if err != nil {
		return nil, fmt.Errorf("kube-vitals cannot be run as the chart would: %w", err)
	}
	s.flags = append(args, cfg.Args...)
	if s.process, err = c.StartProcess(s.binary, s.flags...); err != nil {
		return nil, err
	}
	if err := s.awaitAvailable(ctx); err != nil {
		return nil, err
	}
	if s.CA, err = s.trusted(ctx); err != nil {
		return nil, fmt.Errorf("the API server verifies nothing: %w", err)
	}
	return s, nil
}

// install installs the chart without pods.
func (s *Server) install(ctx context.Context, chart string, port int) error {
	if _, err := s.cluster.Run(ctx, binaries.Helm, "install", Release, chart, "--namespace", Namespace,
		"--set", "replicas=0", "--set", fmt.Sprintf("service.port=%d", port)); err != nil {
		return err
	}
	return s.LeadHere(ctx)
}

// Upgrade upgrades the chart's release with further values, and waits until metrics.k8s.io is
// available again.
func (s *Server) Upgrade(ctx context.Context, chart string, values ...string) error {
	args := []string{"upgrade", Release, chart, "--namespace", Namespace, "--reuse-values"}
	for _, value := range values {
		args = append(args, "--set", value)
	}
	if _, err := s.cluster.Run(ctx, binaries.Helm, args...); err != nil {
		return err
	}
	if err := s.LeadHere(ctx); err != nil {
		return err
	}
	return s.awaitAvailable(ctx)
}

// LeadHere leads the chart's Service to this machine, which helm leads to pods. An APIService names
// the Service's port, which for a Service that is only a name is the port of the program itself.
func (s *Server) LeadHere(ctx context.Context) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{
		"type": corev1.ServiceTypeExternalName, "externalName": "localhost", "clusterIP": nil, "clusterIPs": nil,
	}})
	if err != nil {
		return err
	}
	_, err = s.cluster.Client.CoreV1().Services(Namespace).Patch(ctx, Release, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("the Service cannot be led to this machine: %w", err)
	}
	return nil
}

// args are the flags that the chart gives its container, with files of this machine in the place of
// what it mounts.
func (s *Server) args(ctx context.Context, port int) ([]string, error) {
	deployment, err := s.cluster.Client.AppsV1().Deployments(Namespace).Get(ctx, Release, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	dir, err := s.mount(ctx, deployment.Spec.Template.Spec)
	if err != nil {
		return nil, err
	}
	local := strings.NewReplacer(mountedServingCertificate, dir, mountedServiceAccount, dir)
	var args []string
	for _, arg := range deployment.Spec.Template.Spec.Containers[0].Args {
		args = append(args, local.Replace(arg))
	}
	kubeconfig := dir + "kubeconfig"
	return append(args,
		"--kubeconfig="+kubeconfig,
		"--authentication-kubeconfig="+kubeconfig,
		"--authorization-kubeconfig="+kubeconfig,
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", port),
		"--cert-dir="+dir,
		fmt.Sprintf("--metric-resolution=%s", Resolution),
		"--kubelet-allow-loopback",
	), nil
}

// mount writes what pods find in their mounts, and a kubeconfig in the place of the environment
// from which a pod knows where the API server is. The folder's name ends with a slash.
func (s *Server) mount(ctx context.Context, pod corev1.PodSpec) (dir string, err error) {
	dir = s.cluster.File("kube-vitals") + "/"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	lifetime := int64((30 * 24 * time.Hour).Seconds())
	token, err := s.cluster.Client.CoreV1().ServiceAccounts(Namespace).CreateToken(ctx, pod.ServiceAccountName,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &lifetime}}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("ServiceAccount %s gets no token: %w", pod.ServiceAccountName, err)
	}
	files := map[string][]byte{}
	for _, volume := range pod.Volumes {
		if volume.Secret == nil {
			continue
		}
		secret, err := s.cluster.Client.CoreV1().Secrets(Namespace).Get(ctx, volume.Secret.SecretName, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		maps.Copy(files, secret.Data)
	}
	files["ca.crt"], files["token"] = s.cluster.CA.PEM(), []byte(token.Status.Token)
	for name, content := range files {
		if err := os.WriteFile(dir+name, content, 0o600); err != nil {
			return "", err
		}
	}
	// In a pod, the namespace is in a file beside the token.
	return dir, s.cluster.WriteTokenKubeconfig(dir+"kubeconfig", dir+"token", Namespace)
}

// trusted is the CA by which the API server verifies kube-vitals.
func (s *Server) trusted(ctx context.Context) ([]byte, error) {
	text, err := s.cluster.Run(ctx, binaries.Kubectl, "get", "apiservice", "v1.metrics.k8s.io", "--output", "jsonpath={.spec.caBundle}")
	if err != nil {
		return nil, err
	}
	return base64.StdEncoding.DecodeString(text)
}

// awaitAvailable waits until the API server reaches kube-vitals and trusts its certificate.
func (s *Server) awaitAvailable(ctx context.Context) error {
	var ended error
	err := poll.Until(ctx, startTimeout, "the APIServices of metrics.k8s.io to be available", func(ctx context.Context) error {
		if ended = s.process.Running(); ended != nil {
			return nil //nolint:nilerr // ended is what is reported
		}
		return s.available(ctx)
	})
	if ended != nil {
		return ended
	}
	if err != nil {
		return fmt.Errorf("%w%s", err, s.process.Tail())
	}
	return nil
}

// available says why an APIService of the chart is not available.
func (s *Server) available(ctx context.Context) error {
	output, err := s.cluster.Run(ctx, binaries.Kubectl, "get", "apiservices", "--selector", "app.kubernetes.io/instance="+Release,
		"--output", `jsonpath={range .items[*]}{.metadata.name} {.status.conditions[?(@.type=="Available")].status} `+
			`{.status.conditions[?(@.type=="Available")].message}{"\n"}{end}`)
	if err != nil {
		return err
	}
	if output == "" {
		return fmt.Errorf("the chart has no APIServices")
	}
	for line := range strings.Lines(output) {
		if fields := strings.Fields(line); len(fields) < 2 || fields[1] != "True" {
			return fmt.Errorf("APIService %s", strings.TrimSpace(line))
		}
	}
	return nil
}

// PID is the process ID of kube-vitals.
func (s *Server) PID() int { return s.process.PID() }

// Tail is the end of its log, as process.Process has it.
func (s *Server) Tail() string { return s.process.Tail() }

// Stop sends SIGTERM, and returns how the program ended: nil for exit status 0.
func (s *Server) Stop() error { return s.process.Stop(stopTimeout) }
