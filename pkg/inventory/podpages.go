package inventory

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/util/retry"
)

// podsPerPage is the maximum number of pods in one response. Listing keeps only one page of whole
// pods in memory.
const podsPerPage = 500

// maxPageBytes is the maximum size of a response with more than one pod. Usual pods take 3 to 10 KB,
// but tenants can create pods of 1.5 MB, which take several times that once they are decoded.
const maxPageBytes = 8 << 20

// errLargePage means that a response is larger than maxPageBytes.
var errLargePage = errors.New("the page is too large")

// A page is requested again if the connection was lost, as client-go does for responses that it decodes
// itself. The Reflector would begin with the first page.
const (
	maxTries   = 10
	retryDelay = time.Second
)

// podPages is a client for pods that reduces each page of a list to Objects. A Reflector would keep
// the whole pods of all pages until the last one arrived.
//
// The responses of one list share a buffer, which would be much of the garbage of a start otherwise.
// List must not be called concurrently.
type podPages struct {
	corev1client.PodInterface
	core corev1client.CoreV1Interface
	page *podPage // of the last response; nil between lists
}

// podPage is the memory of a response.
type podPage struct {
	limit int64 // of pods, for this page and, unless it is small, the next one
	body  bytes.Buffer
	pods  corev1.PodList
}

func newPodPages(core corev1client.CoreV1Interface) *podPages {
	return &podPages{PodInterface: core.Pods(metav1.NamespaceAll), core: core}
}

// List returns a page.
func (p *podPages) List(ctx context.Context, options metav1.ListOptions) (*metav1.List, error) {
	// API servers ignore the limit, or return old pods, with any other version, such as the
	// Reflector's "0".
	options.ResourceVersion = ""
	allowed := options.Limit
	if p.page == nil {
		p.page = &podPage{limit: allowed}
	}
	options.Limit = p.page.limit
	err := retry.OnError(wait.Backoff{Steps: maxTries, Duration: retryDelay, Factor: 1}, isConnectionLost,
		func() error { return p.request(ctx, options) })
	if errors.Is(err, errLargePage) {
		p.page = &podPage{limit: max(1, options.Limit/4)} // without the memory of the large one
		options.Limit = allowed
		return p.List(ctx, options)
	}
	if err != nil {
		p.page = nil // the next list starts with the first page
	}
	if apierrors.IsResourceExpired(err) && options.Continue != "" {
		// The Reflector starts again. With the error itself, it would list all pods in one response.
		return nil, errors.New("the list of pods expired before its last page: " + err.Error())
	}
	if err != nil {
		return nil, err
	}
	if p.page.body.Len() < maxPageBytes/8 { // usual pods follow large ones
		p.page.limit = min(4*p.page.limit, allowed)
	}
	pods := &p.page.pods
	if pods.Continue == "" { // the last page
		p.page = nil
	}
	batch := sharing{}
	list := &metav1.List{ListMeta: pods.ListMeta, Items: make([]runtime.RawExtension, len(pods.Items))}
	for i := range pods.Items {
		o, err := NewObject(&pods.Items[i])
		if err != nil {
			return nil, err
		}
		batch.adopt(o)
		list.Items[i].Object = o
	}
	return list, nil
}

// isConnectionLost reports whether a request failed because its connection was lost.
func isConnectionLost(err error) bool {
	return utilnet.IsConnectionReset(err) || utilnet.IsProbableEOF(err) || utilnet.IsHTTP2ConnectionLost(err)
}

// request reads one response into p.page.
func (p *podPages) request(ctx context.Context, options metav1.ListOptions) error {
	body, err := p.core.RESTClient().Get().Resource("pods").
		VersionedParams(&options, scheme.ParameterCodec).Stream(ctx)
	if err != nil {
		return err
	}
	defer body.Close()
	var page io.Reader = body
	if options.Limit > 1 {
		page = io.LimitReader(body, maxPageBytes+1)
	}
	p.page.body.Reset()
	if _, err := p.page.body.ReadFrom(page); err != nil {
		return fmt.Errorf("cannot read the response: %w", err)
	}
	if options.Limit > 1 && p.page.body.Len() > maxPageBytes {
		return errLargePage
	}
	return p.page.decode()
}

// decode decodes the body. Its type was requested: protobuf, or JSON if the server has no protobuf.
func (p *podPage) decode() error {
	p.pods = corev1.PodList{} // JSON would leave what the page before had
	object, kind, err := scheme.Codecs.UniversalDeserializer().Decode(p.body.Bytes(), nil, &p.pods)
	if err != nil {
		return fmt.Errorf("the response is not a list of pods: %w", err)
	}
	if object != &p.pods {
		return fmt.Errorf("the response is not a list of pods, but of the kind %s in %s", kind.Kind, kind.GroupVersion())
	}
	return nil
}

// IsWatchListSemanticsUnSupported makes a Reflector list in pages. Streaming the list as events of
// the watch takes more CPU. The name is the library's.
func (*podPages) IsWatchListSemanticsUnSupported() bool { return true }
