package doctor

import (
	"cmp"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	certutil "k8s.io/client-go/util/cert"

	"github.com/kube-vitals/kube-vitals/pkg/internal/command"
	"github.com/kube-vitals/kube-vitals/pkg/internal/pages"
)

// Get decodes the JSON of the response to a GET request, whose path may end with ?limit=N. An error has the text of
// a response that is no Status: the API server describes in it why it cannot reach a server.
func Get(ctx context.Context, kube kubernetes.Interface, path string, into any) error {
	var code int
	path, limit, isLimited := strings.Cut(path, "?limit=")
	request := kube.Discovery().RESTClient().Get().AbsPath(path).MaxRetries(0).SetHeader("Accept", "application/json")
	if isLimited {
		request.Param("limit", limit)
	}
	result := request.Do(ctx).StatusCode(&code)
	body, _ := result.Raw() // the error below has the Status of the response
	err := result.Error()
	if err == nil {
		if err = json.Unmarshal(body, into); err != nil {
			err = fmt.Errorf("the response to GET %s is not the expected JSON: %w", path, err)
		}
		return err
	}
	text, status := strings.TrimSpace(string(body[:min(len(body), 500)])), (*apierrors.StatusError)(nil)
	isOther := apierrors.IsUnexpectedServerError(err) && !strings.Contains(err.Error(), text)
	if isOther && text != "" && errors.As(err, &status) {
		status.ErrStatus.Message = fmt.Sprintf("status %d %s: %s", code, http.StatusText(code), text)
	}
	return err
}

func (d *doctor) checkAPIServer(ctx context.Context, c Check) []Check {
	var version struct{ GitVersion string }
	err := Get(ctx, d.kube, "/version", &version)
	if d.Client.ExecProvider != nil && errors.Is(err, context.DeadlineExceeded) { // its login took that long, and is over
		err = Get(ctx, d.kube, "/version", &version)
	}
	if err == nil || apierrors.IsForbidden(err) { // by default, everyone may read that
		err = Get(ctx, d.kube, "/api", &struct{}{})
	}
	switch c.last = true; {
	case apierrors.IsUnauthorized(err), err != nil && strings.Contains(err.Error(), `"system:anonymous"`):
		return c.Fail(unauthorizedUser, "%s does not accept the credentials of the kubeconfig, or it has none", d.host())
	case err != nil && !apierrors.IsForbidden(err) && !apierrors.IsTooManyRequests(err): // they are authenticated
		return c.Fail(apiServerUnreachable, "%s cannot be used: %v", d.host(), err)
	}
	c.last = false
	return c.OK("Kubernetes %s at %s", cmp.Or(version.GitVersion, "of unknown version"), d.host())
}

func (d *doctor) checkAggregation(ctx context.Context, c Check) []Check {
	const name = "extension-apiserver-authentication"
	object, err := d.kube.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return c.Fail(headerCAMissing, "ConfigMap kube-system/%s does not exist", name)
	}
	if err != nil {
		return c.Denied(err)
	}
	front := object.Data["requestheader-client-ca-file"]
	if front == "" {
		return c.Fail(headerCAMissing, "ConfigMap kube-system/%s has no requestheader-client-ca-file: servers "+
			"behind the API server cannot authenticate it", name)
	}
	now := time.Now()
	valid := func(ca *x509.Certificate) bool { return now.After(ca.NotBefore) && now.Before(ca.NotAfter) }
	cas, err := certutil.ParseCertsPEM([]byte(front))
	if err == nil && !slices.ContainsFunc(cas, valid) {
		err = fmt.Errorf("none of %s is valid now", Count(len(cas), "certificate"))
	}
	if err != nil {
		return c.Fail(headerCAInvalid, "requestheader-client-ca-file: %v", err)
	}
	if object.Data["client-ca-file"] == "" {
		return c.Warn(clientCAMissing, "the request-header CA is published, but no client-ca-file")
	}
	return c.OK("the request-header CA and the client CA are published")
}

// Count returns a number with a noun.
func Count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// APIService is the part of an APIService that is examined. Its package is not part of client-go.
type APIService struct {
	Metadata metav1.ObjectMeta
	Spec     struct {
		Service *struct { // nil: the API server itself serves it
			Namespace, Name string
			Port            int32 // 0: 443
		}
		InsecureSkipTLSVerify bool
		CABundle              []byte
	}
	Status struct {
		Conditions []struct{ Type, Status, Reason, Message string }
	}
}

// Unavailable returns why the API server sends no requests to the Service; empty: it does.
func (a *APIService) Unavailable() string {
	for _, condition := range a.Status.Conditions {
		switch {
		case condition.Type != "Available":
		case condition.Status == string(metav1.ConditionTrue):
			return ""
		default:
			return condition.Reason + ": " + condition.Message
		}
	}
	return "the API server has not examined it yet"
}

// leadsWith reports whether two APIServices lead to the same Service.
func (a *APIService) leadsWith(other *APIService) bool {
	one, two := a.Spec.Service, other.Spec.Service
	return one != nil && two != nil && one.Namespace == two.Namespace && one.Name == two.Name
}

// GetAPIService reads the APIService of a version of metrics.k8s.io.
func GetAPIService(ctx context.Context, kube kubernetes.Interface, version string) (*APIService, error) {
	a := &APIService{}
	return a, Get(ctx, kube, "/apis/apiregistration.k8s.io/v1/apiservices/"+version+".metrics.k8s.io", a)
}

// versions of metrics.k8s.io; the first one that exists decides which server is examined.
func versions() []string { return []string{"v1beta1", "v1"} }

// serves reports whether an APIService leads to the server.
func (s Server) serves(a *APIService) bool {
	return a != nil && a.Spec.Service != nil && s.is(a.Spec.Service.Namespace, a.Spec.Service.Name)
}

func (s Server) is(namespace, name string) bool { return s.Namespace == namespace && s.Service == name }

func (s Server) String() string { return s.Namespace + "/" + s.Service }

// KindByName recognizes a server by the name of its Service or image.
func KindByName(name string) Kind {
	for _, kind := range []Kind{KubeVitals, MetricsServer} {
		if strings.Contains(name, string(kind)) {
			return kind
		}
	}
	return Other
}

const (
	defaultServicePort = 443
	metricsAPI         = "/apis/metrics.k8s.io/"
	maxClockSkew       = 5 * time.Second           // that kube-vitals reports, too
	chain              = "apiservice service pods" // IDs of the checks that lead to the pods
)

func (d *doctor) checkAPIServices(ctx context.Context, c Check) []Check {
	failed := map[string]error{}
	for _, version := range versions() {
		a, err := GetAPIService(ctx, d.kube, version)
		if failed[version] = err; err == nil {
			d.apiServices[version] = a
		}
	}
	checks := d.findServer(ctx)
	for _, version := range versions() {
		c.Title = "APIService " + version
		switch err := failed[version]; {
		case apierrors.IsNotFound(err):
			checks = append(checks, d.missingAPIService(c, version)...)
		case err != nil:
			checks = append(checks, c.Denied(err)...)
		default:
			checks = append(checks, d.checkAPIService(ctx, c, d.apiServices[version])...)
		}
	}
	return checks
}

// missingAPIService returns no check if the APIService need not exist: metrics-server does not serve v1.
func (d *doctor) missingAPIService(c Check, version string) []Check {
	first := version == versions()[0]
	switch {
	case first && d.target.Kind == None:
		return Check{ID: "installation", Title: "installation", last: true}.Fail(notInstalled,
			"no metrics server is installed: there is no APIService v1beta1.metrics.k8s.io")
	case first:
		return c.Fail(apiServiceMissing, "%s.metrics.k8s.io does not exist", version)
	case d.target.Kind == KubeVitals && !d.beside:
		return c.Warn(apiServiceMissing, "%s.metrics.k8s.io does not exist", version)
	}
	return nil
}

func (d *doctor) checkAPIService(ctx context.Context, c Check, a *APIService) []Check {
	if !d.target.serves(a) {
		return d.checkElsewhere(c, a)
	}
	leads := "leads to Service " + d.target.String()
	if why := a.Unavailable(); why != "" {
		problem := serverSymptoms.of(why, apiServiceUnavailable)
		if problem == serviceMissing {
			problem = d.missingService(ctx)
		}
		return c.Fail(problem, "%s, and is not available: %s", leads, why)
	}
	if a.Spec.InsecureSkipTLSVerify {
		return c.Warn(tlsNotVerified, "%s, and is available; its certificate is not verified (insecureSkipTLSVerify)", leads)
	}
	return c.OK("%s, and is available", leads)
}

// checkElsewhere returns the check of an APIService that does not lead to the server that is examined.
func (d *doctor) checkElsewhere(c Check, a *APIService) []Check {
	p, seen := apiServiceElsewhere, "spec.service is missing: the API server itself is expected to serve it"
	if to := a.Spec.Service; to != nil {
		seen = fmt.Sprintf("leads to Service %s/%s instead of %s, which is %s", to.Namespace, to.Name, d.target,
			d.target.Kind)
	}
	if d.beside || d.isProviders(a) {
		return c.Warn(runsBeside, "%s", seen)
	}
	// A provider that had v1beta1, and registers v1, too, or somebody who led ours there.
	if other := d.apiServices["v1beta1"]; d.isProviders(other) && other.leadsWith(a) && a.Unavailable() == "" {
		if a.Metadata.Annotations["helm.sh/resource-policy"] == "keep" { // the cure below was followed
			return c.Warn(runsBeside, "%s", seen)
		}
		p = elsewhereWithProvider
		p.Cure += "\nkubectl annotate apiservice " + command.Name(a.Metadata.Name, "NAME") + " helm.sh/resource-policy=keep"
		return c.Fail(p, "%s", seen)
	}
	if d.target.Kind == KubeVitals {
		p.Cure += fmt.Sprintf("; then run\nkubectl patch apiservice %s --type=merge "+
			"--patch='{\"spec\":{\"service\":{\"namespace\":%q,\"name\":%q,\"port\":%d}}}'",
			command.Name(a.Metadata.Name, "NAME"), command.Name(d.target.Namespace, "NAMESPACE"),
			command.Name(d.target.Service, "SERVICE"), d.target.port)
	}
	return c.Fail(p, "%s", seen)
}

// IsOurs reports whether an object is of a release of kube-vitals, whose names may be other ones.
func IsOurs(o *metav1.ObjectMeta) bool {
	return o.Labels["app.kubernetes.io/name"] == string(KubeVitals) ||
		strings.HasPrefix(o.Labels["helm.sh/chart"], string(KubeVitals)+"-")
}

// isProviders reports whether an APIService is of another server beside kube-vitals: no release of it has it.
func (d *doctor) isProviders(a *APIService) bool {
	return a != nil && d.target.Kind == KubeVitals && !d.target.serves(a) && !IsOurs(&a.Metadata)
}

// version returns the one to read metrics from: that of autoscalers, unless a provider has it.
func (d *doctor) version() string {
	list := versions()
	if d.isProviders(d.apiServices[list[0]]) && d.target.serves(d.apiServices[list[1]]) {
		return list[1]
	}
	return list[0]
}

// findServer sets the target. It returns a check if no Service of kube-vitals can be chosen where there should be one.
func (d *doctor) findServer(ctx context.Context) []Check {
	for _, version := range versions() {
		a := d.apiServices[version]
		if a == nil || a.Spec.Service == nil {
			continue
		}
		to := Server{Namespace: a.Spec.Service.Namespace, Service: a.Spec.Service.Name,
			port: cmp.Or(a.Spec.Service.Port, defaultServicePort)}
		to.Kind = KindByName(to.Service)
		service, err := d.kube.CoreV1().Services(to.Namespace).Get(ctx, to.Service, metav1.GetOptions{})
		if err == nil && IsOurs(&service.ObjectMeta) {
			to.Kind = KubeVitals
		}
		if d.target.Kind == None || d.target.Kind != KubeVitals && to.Kind == KubeVitals {
			*d.target = to
		}
	}
	if d.target.Kind == KubeVitals && (d.Namespace == "" || d.Namespace == d.target.Namespace) {
		return nil
	}
	var ours []corev1.Service
	err := pages.Each(ctx, d.kube.CoreV1().Services(d.Namespace).List, metav1.ListOptions{}, func(s *corev1.Service) {
		if IsOurs(&s.ObjectMeta) {
			ours = append(ours, *s)
		}
	})
	switch c := (Check{ID: "installation", Title: "installation"}); {
	case len(ours) > 0:
		return d.chooseServer(ctx, c, ours)
	case d.target.Kind == None || d.Namespace == "" || d.Namespace == d.target.Namespace:
		return nil // without permission to list them, there are none
	case err != nil:
		return c.Denied(err)
	default:
		c.last = true
		return c.Fail(noServerThere, "namespace %s has no Service of kube-vitals; the APIServices lead to %s", d.Namespace,
			d.target)
	}
}

// chooseServer sets the target to the Service of kube-vitals if no APIService leads to it. A cure may
// lead the metrics API to it, so it must not be one that a tenant has created: outside of the
// configured namespace, its release must have a ClusterRoleBinding.
func (d *doctor) chooseServer(ctx context.Context, c Check, ours []corev1.Service) []Check {
	installed, bindings := ours, &rbacv1.ClusterRoleBindingList{}
	var err error
	if d.Namespace == "" {
		bindings, err = d.kube.RbacV1().ClusterRoleBindings().List(ctx, metav1.ListOptions{})
		installed = slices.DeleteFunc(slices.Clone(ours), func(s corev1.Service) bool { return !bound(bindings, s) })
	}
	named := installed
	if len(named) == 0 {
		named = ours
	}
	for _, s := range named {
		c.Objects = append(c.Objects, s.Namespace+"/"+s.Name)
	}
	switch {
	case err != nil:
		denied := c.Denied(err)[0]
		return c.With(denied.Status, Problem{denied.Reason, serverUnconfirmed.Cure}, "not examined: Services with labels "+
			"of kube-vitals, because it is not known whether a release has installed them: %s", denied.Seen)
	case len(installed) == 0:
		return c.Skip(serverUnconfirmed, "not examined: Services with labels of kube-vitals, because no "+
			"ClusterRoleBinding system:SERVICE with these labels has a ServiceAccount of their namespace")
	case len(installed) > 1:
		return c.Warn(serverAmbiguous,
			"not examined: several Services of kube-vitals, because no APIService leads to one of them")
	}
	another := d.target.Kind == KubeVitals
	d.beside = true
	for _, a := range d.apiServices { // one of its own release leads elsewhere by mistake
		d.beside = d.beside && (another || !IsOurs(&a.Metadata))
	}
	s := installed[0]
	*d.target = Server{Kind: KubeVitals, Namespace: s.Namespace, Service: s.Name, port: defaultServicePort}
	if len(s.Spec.Ports) > 0 {
		d.target.port = s.Spec.Ports[0].Port
	}
	return nil
}

// bound reports whether the release of a Service has a ClusterRoleBinding, which no tenant can create.
func bound(list *rbacv1.ClusterRoleBindingList, s corev1.Service) bool {
	return slices.ContainsFunc(list.Items, func(b rbacv1.ClusterRoleBinding) bool {
		isSubject := func(subject rbacv1.Subject) bool {
			return subject.Kind == rbacv1.ServiceAccountKind && subject.Namespace == s.Namespace
		}
		return b.Name == "system:"+s.Name && IsOurs(&b.ObjectMeta) && slices.ContainsFunc(b.Subjects, isSubject)
	})
}
