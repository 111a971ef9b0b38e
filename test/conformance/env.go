package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	metricsscheme "k8s.io/metrics/pkg/client/clientset/versioned/scheme"
)

const group = "metrics.k8s.io"

// Content types.
const (
	typeJSON     = "application/json"
	typeYAML     = "application/yaml"
	typeProtobuf = "application/vnd.kubernetes.protobuf"
	typeCBOR     = "application/cbor"
	typeTable    = "application/json;as=Table;v=v1;g=meta.k8s.io"
	typePartial  = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
)

var codecs = serializer.NewCodecFactory(metricsscheme.Scheme, serializer.WithSerializer(cbor.NewSerializerInfo))

// env is what checks work with.
type env struct {
	cfg        Config
	client     kubernetes.Interface
	admin      *client
	kubernetes string   // version of the API server
	versions   []string // served versions of metrics.k8s.io, v1 first
	namespace  string   // of the workload
}

func newEnv(ctx context.Context, cfg Config) (*env, error) {
	cfg.REST = rest.CopyConfig(cfg.REST)
	cfg.REST.QPS = -1 // no limit: the checks send one request at a time
	e := &env{cfg: cfg, client: cfg.client}
	var err error
	if e.client == nil {
		if e.client, err = kubernetes.NewForConfig(cfg.REST); err != nil {
			return nil, err
		}
	}
	if e.admin, err = newClient(cfg.REST); err != nil {
		return nil, err
	}
	version, err := e.client.Discovery().ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("read the version of the API server: %w", err)
	}
	e.kubernetes = version.GitVersion
	for _, v := range []string{"v1", "v1beta1"} {
		r, err := e.admin.get(ctx, "/apis/"+group+"/"+v, typeJSON)
		if err != nil {
			return nil, err
		}
		if r.status == http.StatusOK {
			e.versions = append(e.versions, v)
		}
	}
	return e, nil
}

// served reports whether there is an API to judge.
func (e *env) served() bool { return len(e.versions) > 0 }

// client sends plain requests.
type client struct {
	http *http.Client
	base string // URL of the API server
}

func newClient(config *rest.Config) (*client, error) {
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	return &client{http: c, base: strings.TrimSuffix(base.String(), "/")}, nil
}

// withToken returns a client whose only credentials are a token.
func (e *env) withToken(token string) (*client, error) {
	config := rest.AnonymousClientConfig(e.cfg.REST)
	config.BearerToken, config.Transport = token, e.cfg.REST.Transport
	return newClient(config)
}

// response is a whole response.
type response struct {
	request string // METHOD PATH (TYPE), for messages
	status  int
	header  http.Header
	body    []byte
}

func (c *client) get(ctx context.Context, path, accept string) (*response, error) {
	return c.do(ctx, http.MethodGet, path, accept, "")
}

// expect sends a GET request, and returns an error unless the response has the status.
func (c *client) expect(ctx context.Context, path, accept string, status int) (*response, error) {
	r, err := c.get(ctx, path, accept)
	if err != nil {
		return nil, err
	}
	return r, r.expect(status)
}

func (c *client) do(ctx context.Context, method, path, accept, body string) (*response, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", accept)
	if body != "" {
		request.Header.Set("Content-Type", typeJSON)
		if method == http.MethodPatch {
			request.Header.Set("Content-Type", "application/merge-patch+json")
		}
	}
	r := &response{request: fmt.Sprintf("%s %s (%s)", method, path, accept)}
	got, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer got.Body.Close()
	const limit = 512 << 20
	if r.body, err = io.ReadAll(io.LimitReader(got.Body, limit)); err != nil {
		return nil, fmt.Errorf("%s: %w", r.request, err)
	}
	r.status, r.header = got.StatusCode, got.Header
	return r, nil
}

// expect returns an error unless the response has the status.
func (r *response) expect(status int) error {
	if r.status == status {
		return nil
	}
	return mismatch(r.request, fmt.Sprintf("status %d", status), fmt.Sprintf("%d: %s", r.status, abbreviate(r.body)))
}

// now returns the time of the response by the API server's clock: this machine's may be wrong.
func (r *response) now() time.Time {
	if t, err := http.ParseTime(r.header.Get("Date")); err == nil {
		return t.Add(time.Second) // the header has whole seconds
	}
	return time.Now()
}

func abbreviate(body []byte) string {
	const most = 300
	if len(body) > most {
		return fmt.Sprintf("%q…", body[:most])
	}
	return fmt.Sprintf("%q", body)
}

// mismatch returns the error of a check that failed.
func mismatch(object string, expected, got any) error {
	return fmt.Errorf("%s: expected %v, got %v", object, expected, got)
}

// object is a PodMetrics or a NodeMetrics of any version.
type object struct {
	metav1.ObjectMeta `json:"metadata"`
	Timestamp         metav1.Time         `json:"timestamp"`
	Window            metav1.Duration     `json:"window"`
	Usage             corev1.ResourceList `json:"usage"` // of a node
	Containers        []containerUsage    `json:"containers"`
}

type containerUsage struct {
	Name  string              `json:"name"`
	Usage corev1.ResourceList `json:"usage"`
}

func (o *object) key() string {
	if o.Namespace == "" {
		return o.Name
	}
	return o.Namespace + "/" + o.Name
}

// usages returns the usage of a pod's containers by name, or that of a node as "".
func (o *object) usages() map[string]corev1.ResourceList {
	if o.Containers == nil {
		return map[string]corev1.ResourceList{"": o.Usage}
	}
	usages := make(map[string]corev1.ResourceList, len(o.Containers))
	for _, c := range o.Containers {
		usages[c.Name] = c.Usage
	}
	return usages
}

// sum returns the usage of all containers.
func (o *object) sum(name corev1.ResourceName) float64 {
	var sum float64
	for _, usage := range o.usages() {
		q := usage[name]
		sum += q.AsApproximateFloat64()
	}
	return sum
}

// list is a PodMetricsList or a NodeMetricsList of any version; or one object, as its only item.
type list struct {
	metav1.ListMeta `json:"metadata"`
	Items           []object `json:"items"`

	response *response
	kind     string
}

func (l *list) keys() []string {
	keys := make([]string, len(l.Items))
	for i := range l.Items {
		keys[i] = l.Items[i].key()
	}
	return keys
}

// find returns an item, or nil.
func (l *list) find(key string) *object {
	i := slices.IndexFunc(l.Items, func(o object) bool { return o.key() == key })
	if i < 0 {
		return nil
	}
	return &l.Items[i]
}

// each calls f with every item, and returns the first errors.
func (l *list) each(f func(*object) error) error {
	var errs []error
	for i := range l.Items {
		errs = append(errs, f(&l.Items[i]))
	}
	return first(errs)
}

// filter returns the items that keep returns true for.
func (l *list) filter(keep func(*object) bool) *list {
	kept := *l
	kept.Items = nil
	for i := range l.Items {
		if keep(&l.Items[i]) {
			kept.Items = append(kept.Items, l.Items[i])
		}
	}
	return &kept
}

// resources are those of the API, with their kinds.
var resources = map[string]string{"nodes": "NodeMetrics", "pods": "PodMetrics"}

// path returns a path of the API. The namespace "" is all.
func path(version, resource, namespace, name string) string {
	p := "/apis/" + group + "/" + version + "/"
	if namespace != "" {
		p += "namespaces/" + namespace + "/"
	}
	p += resource
	if name != "" {
		p += "/" + name
	}
	return p
}

// list requests JSON.
func (e *env) list(ctx context.Context, path string) (*list, error) {
	return e.admin.list(ctx, path, typeJSON)
}

// list requests a list or an object, and decodes it as its content type says.
func (c *client) list(ctx context.Context, path, accept string) (*list, error) {
	r, err := c.expect(ctx, path, accept, http.StatusOK)
	if err != nil {
		return nil, err
	}
	mediaType, _, err := mime.ParseMediaType(r.header.Get("Content-Type"))
	if err != nil || mediaType != accept {
		return nil, mismatch(r.request, "Content-Type "+accept, fmt.Sprintf("%q", r.header.Get("Content-Type")))
	}
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), mediaType)
	if !ok {
		return nil, fmt.Errorf("%s: no decoder", r.request)
	}
	decoded, gvk, err := info.Serializer.Decode(r.body, nil, nil)
	if err != nil {
		return nil, mismatch(r.request, "a PodMetrics or NodeMetrics, or a list of them", err)
	}
	body, err := json.Marshal(decoded)
	if err != nil {
		return nil, err
	}
	l := &list{response: r, kind: gvk.Kind}
	if version := gvk.GroupVersion().String(); !strings.HasPrefix(path, "/apis/"+version+"/") {
		return nil, mismatch(r.request, "the apiVersion of the path", version)
	}
	if strings.HasSuffix(gvk.Kind, "List") {
		return l, json.Unmarshal(body, l)
	}
	l.Items = make([]object, 1)
	return l, json.Unmarshal(body, &l.Items[0])
}

// each calls f for every version and resource.
func (e *env) each(f func(version, resource string) error) error {
	var errs []error
	for _, version := range e.versions {
		for _, resource := range slices.Sorted(maps.Keys(resources)) {
			errs = append(errs, f(version, resource))
		}
	}
	return errors.Join(errs...)
}

// eachList calls f with every list of the whole cluster. It tries a few times, since objects come and
// go between two requests.
func (e *env) eachList(ctx context.Context, f func(l *list, version, resource string) error) error {
	const tries = 5
	return e.each(func(version, resource string) error {
		for n := 1; ; n++ {
			l, err := e.list(ctx, path(version, resource, "", ""))
			if err == nil {
				err = f(l, version, resource)
			}
			if isFinal(err) || n == tries {
				return err
			}
			if err := e.pause(ctx); err != nil {
				return err
			}
		}
	})
}

// eventuallyList calls f with the list of a resource in every version until it returns nil, or for
// as long as new objects may be without metrics.
func (e *env) eventuallyList(ctx context.Context, resource string, f func(*list) error) error {
	return e.eachVersion(func(version string) error {
		return e.eventually(ctx, func(ctx context.Context) error {
			l, err := e.list(ctx, path(version, resource, "", ""))
			if err != nil {
				return err
			}
			return f(l)
		})
	})
}

// eachVersion calls f with every version.
func (e *env) eachVersion(f func(version string) error) error {
	var errs []error
	for _, version := range e.versions {
		if err := f(version); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", version, err))
		}
	}
	return errors.Join(errs...)
}

// conclusive is an error that ends all waiting: no later response can correct it.
type conclusive struct{ error }

func (c conclusive) Unwrap() error { return c.error }

// isFinal reports whether the result of a try ends all waiting: nil, a skip or a conclusive error.
func isFinal(err error) bool {
	return err == nil || errors.As(err, new(skip)) || errors.As(err, new(conclusive))
}

// eventually calls try until it returns nil, a skip or a conclusive error. It returns the last error
// when the timeout expires.
func (e *env) eventually(ctx context.Context, try func(context.Context) error) error {
	return e.until(ctx, e.cfg.Timeout, try)
}

func (e *env) until(ctx context.Context, timeout time.Duration, try func(context.Context) error) error {
	deadline := time.Now().Add(timeout)
	for {
		err := try(ctx)
		if isFinal(err) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("after %s: %w", timeout, err)
		}
		if err := e.pause(ctx); err != nil {
			return err
		}
	}
}

// pause waits for the interval between two requests.
func (e *env) pause(ctx context.Context) error {
	timer := time.NewTimer(e.cfg.Interval)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// first returns at most five errors as one.
func first(errs []error) error {
	const most = 5
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if extra := len(errs) - most; extra > 0 {
		errs = append(errs[:most:most], fmt.Errorf("and %d more", extra))
	}
	return errors.Join(errs...)
}

// equal compares two lists of the same objects. Usage must be equal only if it is of the same time.
func equal(a, b *list) error {
	var errs []error
	for i := range a.Items {
		x := &a.Items[i]
		y := b.find(x.key())
		if y == nil {
			errs = append(errs, mismatch(b.response.request, x.key()+" as in "+a.response.request, "nothing"))
			continue
		}
		if !maps.Equal(x.Labels, y.Labels) {
			errs = append(errs, mismatch(y.key()+" in "+b.response.request, x.Labels, y.Labels))
		}
		if !x.Timestamp.Equal(&y.Timestamp) {
			continue
		}
		want, got := describe(x), describe(y)
		if !bytes.Equal(want, got) {
			errs = append(errs, mismatch(y.key()+" in "+b.response.request, string(want), string(got)))
		}
	}
	for i := range b.Items {
		if key := b.Items[i].key(); a.find(key) == nil {
			errs = append(errs, mismatch(a.response.request, key+" as in "+b.response.request, "nothing"))
		}
	}
	return first(errs)
}

// describe returns window and usage.
func describe(o *object) []byte {
	text, err := json.Marshal(map[string]any{"window": o.Window.Duration.String(), "usage": o.usages()})
	if err != nil {
		return []byte(err.Error())
	}
	return text
}

// query returns a path with a parameter.
func query(path, key, value string) string { return path + "?" + url.Values{key: {value}}.Encode() }
