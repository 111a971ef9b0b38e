package doctor

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"

	"github.com/kube-vitals/kube-vitals/pkg/internal/command"
)

// Get sends a GET request to the API server and returns the body. Errors are those of the API: the
// client decodes no bodies of raw requests.
func Get(ctx context.Context, kube kubernetes.Interface, path string) ([]byte, error) {
	body, err := kube.Discovery().RESTClient().Get().AbsPath(path).MaxRetries(0).
		SetHeader("Accept", "application/json").Do(ctx).Raw()
	if err == nil {
		return body, nil
	}
	var status metav1.Status
	if json.Unmarshal(body, &status) == nil && status.Kind == "Status" {
		return nil, &apierrors.StatusError{ErrStatus: status}
	}
	return nil, withBody(err, body)
}

func (d *doctor) raw(ctx context.Context, path string) ([]byte, error) { return Get(ctx, d.kube, path) }

func (d *doctor) checkAPIServer(ctx context.Context) []Check {
	c := Check{ID: "api-server", Title: "API server", Status: Failed, last: true}
	var version struct {
		GitVersion string `json:"gitVersion"`
	}
	body, err := d.raw(ctx, "/version")
	if err == nil {
		err = json.Unmarshal(body, &version)
	}
	switch {
	case err == nil:
		c.Status, c.last = OK, false
		c.Seen = fmt.Sprintf("Kubernetes %s at %s", version.GitVersion, d.Client.Host)
	case apierrors.IsUnauthorized(err):
		c.Reason, c.Seen = unauthorizedUser, d.Client.Host+" rejects the credentials of the kubeconfig"
	case apierrors.IsForbidden(err): // authenticated, and that is enough
		c.Status, c.last, c.Seen = OK, false, "responds at "+d.Client.Host
	default:
		c.Reason, c.Seen = apiServerUnreachable, fmt.Sprintf("%s cannot be used: %v", d.Client.Host, err)
	}
	return []Check{c}
}

// Denied returns a check that was not possible. The error of the API server names the permission.
func Denied(c Check, err error) Check {
	var status apierrors.APIStatus
	switch {
	case apierrors.IsForbidden(err) && errors.As(err, &status):
		_, permission, found := strings.Cut(status.Status().Message, " cannot ")
		if !found {
			permission = status.Status().Message
		}
		c.Status, c.Reason = Skipped, noPermission
		c.Seen = "you cannot " + strings.TrimSpace(permission)
	case isTimeout(err):
		c.Status, c.Reason, c.Seen = Warning, requestFailed, "the API server does not respond in time"
	default:
		c.Status, c.Reason, c.Seen = Warning, requestFailed, err.Error()
	}
	return c
}

func isTimeout(err error) bool {
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout() || errors.Is(err, context.DeadlineExceeded)
}

func (d *doctor) checkAggregation(ctx context.Context) []Check {
	const name = "extension-apiserver-authentication"
	c := Check{ID: "aggregation", Title: "aggregation", Status: Failed}
	object, err := d.kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		c.Reason, c.Seen = requestHeaderCAMissing, "ConfigMap kube-system/"+name+" does not exist"
		return []Check{c}
	case err != nil:
		return []Check{Denied(c, err)}
	}
	front, client := object.Data["requestheader-client-ca-file"], object.Data["client-ca-file"]
	expired := expiredCA(front)
	switch {
	case front == "":
		c.Reason = requestHeaderCAMissing
		c.Seen = "ConfigMap kube-system/" + name + " has no requestheader-client-ca-file: servers behind the API " +
			"server cannot authenticate it"
	case expired != "":
		c.Reason, c.Seen = requestHeaderCAInvalid, "requestheader-client-ca-file: "+expired
	case client == "":
		c.Status, c.Reason = Warning, clientCAMissing
		c.Seen = "the request-header CA is published, but no client-ca-file"
	default:
		c.Status, c.Seen = OK, "the request-header CA and the client CA are published"
	}
	return []Check{c}
}

// expiredCA returns what is wrong with all CAs of a bundle, or "" if one is valid.
func expiredCA(bundle string) string {
	if bundle == "" {
		return ""
	}
	cas, err := certutil.ParseCertsPEM([]byte(bundle))
	if err != nil {
		return err.Error()
	}
	now := time.Now()
	for _, ca := range cas {
		if now.Before(ca.NotAfter) && now.After(ca.NotBefore) {
			return ""
		}
	}
	return fmt.Sprintf("the CA %s is valid from %s to %s", commonName(cas[0]),
		cas[0].NotBefore.Format(time.RFC3339), cas[0].NotAfter.Format(time.RFC3339))
}

func commonName(certificate *x509.Certificate) string {
	if name := certificate.Subject.CommonName; name != "" {
		return fmt.Sprintf("%q", name)
	}
	return fmt.Sprintf("%q", certificate.Subject.String())
}

// apiService is the part of an APIService that is examined. Its package is not part of client-go.
type apiService struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Service *struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
			Port      *int32 `json:"port"` // nil: 443
		} `json:"service"` // nil: the API server itself serves it
		InsecureSkipTLSVerify bool   `json:"insecureSkipTLSVerify"`
		CABundle              []byte `json:"caBundle"`
	} `json:"spec"`
	Status struct {
		Conditions []struct {
			Type, Status, Reason, Message string
		} `json:"conditions"`
	} `json:"status"`
}

func (a *apiService) port() int32 {
	if a.Spec.Service.Port != nil {
		return *a.Spec.Service.Port
	}
	return defaultServicePort
}

const defaultServicePort = 443

// versions of metrics.k8s.io; the first one that exists decides which server is examined. kubectl
// and autoscalers read v1beta1.
func versions() []string { return []string{"v1beta1", "v1"} }

func (d *doctor) checkAPIServices(ctx context.Context) []Check {
	failed := map[string]error{}
	for _, version := range versions() {
		body, err := d.raw(ctx, "/apis/apiregistration.k8s.io/v1/apiservices/"+version+".metrics.k8s.io")
		a := &apiService{}
		if err == nil {
			err = json.Unmarshal(body, a)
		}
		if err == nil {
			d.apiServices[version] = a
		} else {
			failed[version] = err
		}
	}
	checks := d.findServer(ctx)
	for _, version := range versions() {
		c := Check{ID: "apiservice", Title: "APIService " + version}
		switch err := failed[version]; {
		case apierrors.IsNotFound(err):
			if c = d.missingAPIService(c, version); c.Status == "" {
				continue
			}
		case err != nil:
			c = Denied(c, err)
		default:
			c = d.checkAPIService(c, d.apiServices[version])
		}
		checks = append(checks, c)
	}
	return checks
}

// missingAPIService returns a check without a status if the APIService need not exist.
func (d *doctor) missingAPIService(c Check, version string) Check {
	c.Reason, c.Seen = apiServiceMissing, version+".metrics.k8s.io does not exist"
	switch first := version == versions()[0]; {
	case d.target.kind == None && first && !d.target.hidden:
		return Check{ID: "installation", Title: "installation", Status: Failed, Reason: notInstalled, last: true,
			Seen: "no metrics server is installed: there is no APIService v1beta1.metrics.k8s.io"}
	case first:
		c.Status = Failed
	case d.target.kind == KubeVitals:
		c.Status = Warning
	}
	return c // metrics-server does not serve v1
}

func (d *doctor) checkAPIService(c Check, a *apiService) Check {
	c.Status = Failed
	to := a.Spec.Service
	if to == nil {
		c.Cure = d.redirect(a)
		c.Reason, c.Seen = apiServiceElsewhere, "spec.service is missing: the API server itself is expected to serve it"
		return c
	}
	leads := "leads to Service " + to.Namespace + "/" + to.Name
	if !d.target.is(to.Namespace, to.Name) {
		c.Reason, c.Cure = apiServiceElsewhere, d.redirect(a)
		c.Seen = fmt.Sprintf("%s instead of %s, which is %s", leads, d.target, d.target.kind)
		return c
	}
	for _, condition := range a.Status.Conditions {
		if condition.Type == "Available" && condition.Status != string(metav1.ConditionTrue) {
			c.Reason = availableReason(condition.Reason, condition.Message)
			c.Seen = fmt.Sprintf("%s, and is not available: %s: %s", leads, condition.Reason, condition.Message)
			return c
		}
	}
	if a.Spec.InsecureSkipTLSVerify {
		c.Status, c.Reason = Warning, tlsNotVerified
		c.Seen = leads + ", and is available; its certificate is not verified (insecureSkipTLSVerify)"
		return c
	}
	c.Status, c.Seen = OK, leads+", and is available"
	return c
}

// redirect returns how to lead an APIService to the server that is examined.
func (d *doctor) redirect(a *apiService) string {
	cure := "switch the other server off, or take the APIService from its release: kubectl vitals preflight names who " +
		"installed it, and whether it comes back"
	if d.target.kind != KubeVitals {
		return cure
	}
	return fmt.Sprintf("%s; then run\nkubectl patch apiservice %s --type=merge "+
		"--patch='{\"spec\":{\"service\":{\"namespace\":%q,\"name\":%q,\"port\":%d}}}'", cure,
		command.Name(a.Metadata.Name, "NAME"), command.Name(d.target.namespace, "NAMESPACE"),
		command.Name(d.target.name, "SERVICE"), d.target.port)
}

// apiUsage is what the metrics API has served.
type apiUsage struct {
	nodes, pods map[string]bool // with metrics; nil: could not be read
}

func (d *doctor) checkMetricsAPI(ctx context.Context) []Check {
	c := Check{ID: "metrics-api", Title: "metrics API", Status: Failed}
	version := d.version()
	var durations [2]time.Duration
	for i, resource := range []string{"nodes", "pods"} {
		start := time.Now()
		names, err := d.metrics(ctx, "/apis/metrics.k8s.io/"+version+"/"+resource)
		if apierrors.IsForbidden(err) && strings.Contains(err.Error(), " cannot ") {
			return []Check{Denied(c, err)}
		}
		if err != nil {
			c.Reason, c.Seen = metricsReason(err.Error()), fmt.Sprintf("GET %s: %v", resource, err)
			return []Check{c}
		}
		durations[i] = time.Since(start).Round(time.Millisecond)
		if i == 0 {
			d.api.nodes = names
		} else {
			d.api.pods = names
		}
	}
	c.Status = OK
	c.Seen = fmt.Sprintf("%s serves %s in %v and %s in %v", version, count(len(d.api.nodes), "node"), durations[0],
		count(len(d.api.pods), "pod"), durations[1])
	if len(d.api.nodes) == 0 {
		c.Status, c.Reason, c.Cure = Failed, noMetrics, "see nodes"
		c.Seen = version + " responds, but has no metrics of any node"
	}
	return []Check{c}
}

// metrics returns the names of the objects in a LIST, as NAMESPACE/NAME or NAME.
func (d *doctor) metrics(ctx context.Context, path string) (map[string]bool, error) {
	body, err := d.raw(ctx, path)
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Metadata struct{ Name, Namespace string } `json:"metadata"`
		} `json:"items"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("the response is not JSON of a LIST: %w", err)
	}
	names := map[string]bool{}
	for _, item := range list.Items {
		names[objectName(item.Metadata.Namespace, item.Metadata.Name)] = true
	}
	return names, nil
}

// withBody adds the text of a response that is no Status: the API server describes in it why it
// cannot reach a server.
func withBody(err error, body []byte) error {
	text := strings.TrimSpace(string(body[:min(len(body), 500)]))
	if text == "" || strings.Contains(err.Error(), text) {
		return err
	}
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Code != 0 {
		code := int(status.Status().Code)
		return fmt.Errorf("status %d %s: %s", code, http.StatusText(code), text)
	}
	return fmt.Errorf("%w: %s", err, text)
}

func objectName(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// count returns a number with a noun.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
