package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/process"
)

// Namespace and Release are where Install installs the chart. Its objects have the release's name.
const (
	Namespace = "kube-system"
	Release   = "kube-vitals"
)

// resolution is the --metric-resolution of servers that Install starts: the shortest allowed.
const resolution = 5 * time.Second

// Server is a kube-vitals with the permissions of the chart.
type Server struct {
	*process.Process
	Address string // host and port
	CA      []byte // PEM; verifies the serving certificate
	Host    string // the name in the serving certificate: SERVICE.NAMESPACE.svc

	cluster *Cluster
	binary  string
	args    []string
	env     []string // of the chart's Deployment: connects the server with the chart's other objects
}

// Port returns the port in Address.
func (s *Server) Port() string {
	_, port, _ := strings.Cut(s.Address, ":")
	return port
}

// KubeVitals returns the path of the server: that of the configuration, the value of the environment
// variable KUBE_VITALS, or else bin/kube-vitals of the source tree.
func (c *Cluster) KubeVitals() (string, error) {
	if c.cfg.KubeVitals != "" {
		return c.cfg.KubeVitals, nil
	}
	return c.program("KUBE_VITALS", "kube-vitals", "build")
}

// Plugin returns the path of the built plugin of kubectl, like KubeVitals.
func (c *Cluster) Plugin() (string, error) {
	return c.program("KUBECTL_VITALS", "kubectl-vitals", "plugin")
}

func (c *Cluster) program(variable, name, target string) (string, error) {
	path := os.Getenv(variable)
	if path == "" {
		path = filepath.Join(c.Checkout, "bin", name)
	}
	path, err := filepath.Abs(path)
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		return "", fmt.Errorf("%s is not built: run make %s, or set %s: %w", name, target, variable, err)
	}
	return path, nil
}

// Install installs the chart without pods, starts kube-vitals on this machine, and waits until its
// APIServices are available. The program has the environment variables and flags of the chart's Deployment,
// followed by args, and a token of its ServiceAccount: it can do only what the chart allows.
func (c *Cluster) Install(ctx context.Context, args ...string) (*Server, error) {
	return c.InstallWith(ctx, nil, args...)
}

// InstallWith is Install with values of the chart, such as replicas=0.
func (c *Cluster) InstallWith(ctx context.Context, values []string, args ...string) (*Server, error) {
	fmt.Fprintln(c.cfg.Progress, "installing the chart, and starting kube-vitals with its ServiceAccount and flags")
	s, err := c.prepare(ctx, Namespace, Release, args, func(port int) error {
		return c.Helm(ctx, "install", append([]string{"replicas=0", fmt.Sprintf("service.port=%d", port)}, values...)...)
	})
	if err != nil {
		return nil, err
	}
	if s.Process, err = c.StartProcessWith(s.env, s.binary, s.args...); err != nil {
		return nil, err
	}
	if err := s.Poll(ctx, startTimeout, available, c.areAvailable); err != nil {
		return nil, err
	}
	apiServices, err := c.apiServices(ctx)
	if err != nil {
		return nil, err
	}
	s.CA = apiServices[0].Spec.CABundle
	return s, nil
}

// prepare installs the chart by a function, and returns a server with the flags of its Deployment, which
// is not started yet.
func (c *Cluster) prepare(
	ctx context.Context, namespace, release string, args []string, install func(port int) error,
) (*Server, error) {
	ports, err := FreePorts(1)
	if err != nil {
		return nil, err
	}
	s := &Server{
		Address: fmt.Sprintf("127.0.0.1:%d", ports[0]), Host: fmt.Sprintf("%s.%s.svc", release, namespace), cluster: c,
	}
	if s.binary, err = c.KubeVitals(); err != nil {
		return nil, err
	}
	if err := install(ports[0]); err != nil {
		return nil, err
	}
	if s.env, s.args, err = c.chartFlags(ctx, namespace, release, ports[0]); err != nil {
		return nil, err
	}
	s.args = append(s.args, args...)
	return s, nil
}

// StartReplica starts the program again, as another pod of the Deployment, and returns at once. It
// has its own port and log. Its flags are those of s, followed by args. The Service does not route
// to it, and Cluster.Stop does not end it.
func (s *Server) StartReplica(args ...string) (*Server, error) {
	ports, err := FreePorts(1)
	if err != nil {
		return nil, err
	}
	replica := *s
	replica.Address = fmt.Sprintf("127.0.0.1:%d", ports[0])
	replica.args = append(append([]string(nil), s.args...), fmt.Sprintf("--secure-port=%d", ports[0]))
	replica.args = append(replica.args, args...)
	log := s.cluster.File(fmt.Sprintf("%s-%d.log", Release, ports[0]))
	replica.Process, err = process.Start(process.Config{Path: s.binary, Args: replica.args, Env: s.env, Log: log})
	return &replica, err
}

// StartRevision starts the program with the flags that the chart's Deployment of that name has now, as
// its next pod after an upgrade. Everything else is as with StartReplica.
func (s *Server) StartRevision(ctx context.Context, deployment string) (*Server, error) {
	revision := *s
	var err error
	if revision.env, revision.args, err = s.cluster.chartFlags(ctx, Namespace, deployment, 0); err != nil {
		return nil, err
	}
	return revision.StartReplica()
}

// unvalidated is a flag of helm, which would load the schemas of all APIs, for most of its CPU. TestDoctor runs
// helm as users do, and TestChartObjects validates what it creates.
const unvalidated = "--disable-openapi-validation"

// Routed returns flags of helm install and upgrade that make the chart's Service an alias of localhost. The port in an
// APIService is that of the Service, which for an alias is the port of the program.
func Routed() []string {
	return []string{"--post-renderer=sed", "--post-renderer-args",
		`/^kind: Service$/,/^---/s/^  type: .*/  type: ExternalName\n  externalName: localhost/`}
}

// Helm runs helm install or upgrade for the chart with values such as replicas=0. An upgrade keeps
// the values that were set before.
func (c *Cluster) Helm(ctx context.Context, command string, values ...string) error {
	args := append([]string{command, Release, c.Chart, "--namespace", Namespace, "--set", "image.tag=dev", unvalidated},
		Routed()...)
	if command == "upgrade" {
		args = append(args, "--reuse-values")
	}
	for _, value := range values {
		args = append(args, "--set", value)
	}
	_, err := c.Run(ctx, binaries.Helm, args...)
	return err
}

// Upgrade upgrades the release with additional values, and waits until the APIServices are
// available again.
func (c *Cluster) Upgrade(ctx context.Context, values ...string) error {
	if err := c.Helm(ctx, "upgrade", values...); err != nil {
		return err
	}
	return process.Poll(ctx, startTimeout, available, c.areAvailable)
}

// available is what areAvailable checks, also by a request: the API server rejects those until it has noticed that the
// APIService has the condition.
const available = "the APIServices to be available"

func (c *Cluster) areAvailable(ctx context.Context) error {
	apiServices, err := c.apiServices(ctx)
	for _, a := range apiServices {
		version, group, _ := strings.Cut(a.Metadata.Name, ".")
		get := c.Client.Discovery().RESTClient().Get().AbsPath("/apis", group, version).MaxRetries(0)
		err = errors.Join(err, get.Do(ctx).Error())
	}
	return err
}

// apiService is the part of an APIService that is read here. Its package is not part of client-go.
type apiService struct {
	Metadata metav1.ObjectMeta
	Spec     struct{ CABundle []byte }
	Status   struct{ Conditions []metav1.Condition }
}

// apiServices returns the APIServices of the release, v1 first if it has that. It returns an error unless all are
// available.
func (c *Cluster) apiServices(ctx context.Context) ([]apiService, error) {
	var list struct{ Items []apiService }
	body, err := c.Client.Discovery().RESTClient().Get().AbsPath("/apis/apiregistration.k8s.io/v1/apiservices").
		Param("labelSelector", "app.kubernetes.io/instance="+Release).DoRaw(ctx)
	if err == nil {
		err = json.Unmarshal(body, &list)
	}
	if err == nil && len(list.Items) == 0 {
		err = errors.New("the release has no APIServices")
	}
	if err != nil {
		return nil, err
	}
	for _, a := range list.Items {
		if !meta.IsStatusConditionTrue(a.Status.Conditions, "Available") {
			return nil, fmt.Errorf("%s is not available: %v", a.Metadata.Name, a.Status.Conditions)
		}
	}
	return list.Items, nil
}

// InstallPreset installs the chart with the values of a preset, without pods and APIServices, in a
// namespace and with a release of its own, and starts kube-vitals as Install does. Cluster.Stop does
// not end it.
func (c *Cluster) InstallPreset(ctx context.Context, preset string, args ...string) (*Server, error) {
	release := Release + "-" + preset
	s, err := c.prepare(ctx, preset, release, args, func(int) error {
		_, err := c.Run(ctx, binaries.Helm, "install", release, c.Chart, "--namespace", preset,
			"--values", filepath.Join(c.Chart, "presets", preset+".yaml"),
			"--set", "image.tag=dev,replicas=0,apiService.create=false", unvalidated)
		return err
	})
	if err != nil {
		return nil, err
	}
	s.Process, err = process.Start(process.Config{
		Path: s.binary, Args: s.args, Env: s.env, Log: c.File(release + ".log"),
	})
	if err != nil {
		return nil, err
	}
	err = s.Poll(ctx, startTimeout, "the CA of the serving certificate", func(ctx context.Context) error {
		object, err := c.Client.CoreV1().ConfigMaps(preset).Get(ctx, release+"-ca", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s.CA = []byte(object.Data["ca.crt"]); len(s.CA) == 0 {
			return errors.New("it is empty")
		}
		return nil
	})
	return s, err
}

// chartFlags returns the environment variables that set flags and the flags in the chart's Deployment,
// adapted to a process outside of the cluster.
func (c *Cluster) chartFlags(
	ctx context.Context, namespace, release string, port int,
) (env, args []string, err error) {
	deployment, err := c.Client.AppsV1().Deployments(namespace).Get(ctx, release, metav1.GetOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("read the flags of the chart's Deployment: %w", err)
	}
	pod := deployment.Spec.Template.Spec
	kubeconfig, err := c.WriteAccountKubeconfig(ctx, namespace, pod.ServiceAccountName)
	if err != nil {
		return nil, nil, err
	}
	paths, err := c.mount(ctx, namespace, release, &pod)
	if err != nil {
		return nil, nil, err
	}
	mounted := strings.NewReplacer(append(paths,
		"/var/run/secrets/kubernetes.io/serviceaccount/", c.Dir+"/")...) // ca.crt
	for _, variable := range Environment(pod.Containers[0].Env) {
		env = append(env, mounted.Replace(variable))
	}
	for _, arg := range pod.Containers[0].Args {
		args = append(args, mounted.Replace(arg))
	}
	if !slices.Contains(args, "--source=prometheus") {
		args = append(args, "--kubelet-allow-loopback")
	}
	return env, append(args,
		"--kubeconfig="+kubeconfig,
		"--authentication-kubeconfig="+kubeconfig,
		"--authorization-kubeconfig="+kubeconfig,
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", port),
		"--cert-dir="+c.Dir,
		fmt.Sprintf("--metric-resolution=%s", resolution),
	), nil
}

// Environment returns the environment variables of a container that set flags, as NAME=VALUE.
func Environment(variables []corev1.EnvVar) (env []string) {
	for _, variable := range variables {
		if strings.HasPrefix(variable.Name, "KUBE_VITALS_") {
			env = append(env, variable.Name+"="+variable.Value)
		}
	}
	return env
}

// mount writes the files of the ConfigMaps and Secrets that the container mounts, as the kubelet does, and
// returns pairs of their paths in the container and here. A Secret may be created later.
func (c *Cluster) mount(ctx context.Context, namespace, release string, pod *corev1.PodSpec) ([]string, error) {
	var paths []string
	for _, volume := range pod.Volumes {
		folder := release + "-" + volume.Name + "-"
		switch {
		case volume.ConfigMap != nil:
			object, err := c.Client.CoreV1().ConfigMaps(namespace).Get(ctx, volume.ConfigMap.Name, metav1.GetOptions{})
			if err != nil {
				return nil, err
			}
			for name, content := range object.Data {
				if err := c.write(folder+name, []byte(content)); err != nil {
					return nil, err
				}
			}
		case volume.Secret != nil:
			name := volume.Secret.SecretName
			err := process.Poll(ctx, startTimeout, "Secret "+name, func(ctx context.Context) error {
				object, err := c.Client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				return c.WriteSecret(folder, object)
			})
			if err != nil {
				return nil, err
			}
		default:
			continue
		}
		for _, mount := range pod.Containers[0].VolumeMounts {
			if mount.Name == volume.Name {
				paths = append(paths, mount.MountPath+"/", c.File(folder))
			}
		}
	}
	return paths, nil
}

// WriteSecret writes files with the contents of a Secret, whose names begin with a prefix.
func (c *Cluster) WriteSecret(prefix string, secret *corev1.Secret) error {
	for name, content := range secret.Data {
		if err := c.write(prefix+name, content); err != nil {
			return err
		}
	}
	return nil
}
