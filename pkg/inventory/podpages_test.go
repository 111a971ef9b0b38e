package inventory

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// encode encodes an object in protobuf, as the API server does.
func encode(t testing.TB, object runtime.Object) []byte {
	t.Helper()
	body, err := runtime.Encode(protobuf.NewSerializer(scheme.Scheme, scheme.Scheme), object)
	must(t, err)
	return body
}

func podList(pods ...*corev1.Pod) *corev1.PodList {
	list := &corev1.PodList{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"},
		ListMeta: metav1.ListMeta{ResourceVersion: "9", Continue: "next"},
	}
	for _, pod := range pods {
		list.Items = append(list.Items, *pod)
	}
	return list
}

// wholePod is a pod as API servers have it. Field managers take a third of it.
func wholePod(i int) *corev1.Pod {
	p := storedPod(i, 3, 2, 0, shortLabel)
	p.ManagedFields = slices.Repeat([]metav1.ManagedFieldsEntry{{
		Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(strings.Repeat("f", 500)),
	}}, 3)
	for c := range p.Spec.Containers {
		p.Spec.Containers[c].Env = slices.Repeat([]corev1.EnvVar{{Name: "NAME", Value: "value"}}, 5)
	}
	return p
}

func TestOtherResponses(t *testing.T) {
	whole := encode(t, podList(wholePod(0)))
	nodes := &corev1.NodeList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "NodeList"}}
	for name, test := range map[string]struct {
		body []byte
		want string
	}{
		"truncated":  {whole[:len(whole)-1], "the response is not a list of pods: unexpected EOF"},
		"prefix":     {[]byte("k8s\x00"), "the response is not a list of pods: empty body"},
		"other list": {encode(t, nodes), "but of the kind NodeList in v1"},
		"other JSON": {[]byte(`{"kind":"NodeList","apiVersion":"v1"}`), "but of the kind NodeList in v1"},
		"HTML":       {[]byte("<html>"), "the response is not a list of pods: "},
	} {
		var page podPage
		page.body.Write(test.body)
		if err := page.decode(); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

// TestLostConnections closes the connection before a response. The page is requested again.
func TestLostConnections(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%v", http2), func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			var api *httptest.Server
			api = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if requests.Add(1) == 1 {
					go api.CloseClientConnections()
					<-r.Context().Done()
					return
				}
				w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
				w.Write(encode(t, podList(running("n", "a"))))
			}))
			api.EnableHTTP2 = http2
			api.StartTLS()
			defer api.Close()
			pages := pagesOf(t, &rest.Config{Host: api.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
			list, err := pages.List(t.Context(), metav1.ListOptions{Continue: "next"})
			must(t, err)
			if len(list.Items) != 1 || requests.Load() != 2 {
				t.Errorf("got %d pods after %d requests, want 1 after 2", len(list.Items), requests.Load())
			}
		})
	}
}

// TestLargePages lists large pods. A page that is too large is requested again with fewer pods, down
// to one, and small pages are followed by larger ones. The objects of a page must not change when the next one is
// read into the same memory.
func TestLargePages(t *testing.T) {
	for _, test := range []struct {
		pods, large, bytes int   // the first ones are large
		want               []int // limits of the requests
	}{
		{20, 20, 600 << 10, []int{31, 7, 7, 7}},
		{2, 2, maxPageBytes + 1, []int{31, 7, 1, 1}},
		{7, 0, 0, []int{3, 3, 3}},
		{40, 3, 3 << 20, []int{31, 7, 1, 1, 1, 1, 4, 16, 31}},
	} {
		pods := test.pods
		var limits []int
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			limit, err := strconv.Atoi(r.FormValue("limit"))
			first, _ := strconv.Atoi(r.FormValue("continue"))
			if err != nil {
				t.Error(err)
			}
			limits = append(limits, limit)
			page := podList()
			for i := first; i < min(first+limit, pods); i++ {
				p := wholePod(i)
				if i < test.large {
					p.Annotations = map[string]string{"large": strings.Repeat("x", test.bytes)}
				}
				page.Items = append(page.Items, *p)
			}
			page.Continue = ""
			if next := first + limit; next < pods {
				page.Continue = strconv.Itoa(next)
			}
			w.Header().Set("Content-Type", runtime.ContentTypeProtobuf)
			w.Write(encode(t, page))
		}))
		defer api.Close()
		pages := pagesOf(t, &rest.Config{Host: api.URL})
		var found []runtime.RawExtension
		for next := ""; len(found) == 0 || next != ""; {
			list, err := pages.List(t.Context(), metav1.ListOptions{Limit: int64(test.want[0]), Continue: next})
			must(t, err)
			next = list.Continue
			found = append(found, list.Items...)
		}
		for i := range found {
			want, err := NewObject(wholePod(i))
			must(t, err)
			if !reflect.DeepEqual(found[i].Object, runtime.Object(want)) {
				t.Errorf("pod %d: got %+v, want %+v", i, found[i].Object, want)
			}
		}
		if len(found) != pods || !slices.Equal(limits, test.want) || pages.page != nil {
			t.Errorf("pods of %d bytes: got %d pods, limits %v, memory %p; want %d, %v, none",
				test.bytes, len(found), limits, pages.page, pods, test.want)
		}
	}
}

func pagesOf(t *testing.T, config *rest.Config) *podPages {
	t.Helper()
	core, err := corev1client.NewForConfig(config)
	must(t, err)
	return newPodPages(core)
}

// BenchmarkPages decodes a page of 500 pods, as a list of all pods does and as client-go does.
func BenchmarkPages(b *testing.B) {
	var pods []*corev1.Pod
	for i := range podsPerPage {
		pods = append(pods, wholePod(i))
	}
	encoded := encode(b, podList(pods...))
	b.Run("shared", func(b *testing.B) {
		b.ReportAllocs()
		var page podPage
		for b.Loop() {
			page.body.Reset()
			_, err := page.body.ReadFrom(bytes.NewReader(encoded))
			must(b, err)
			must(b, page.decode())
		}
	})
	b.Run("library", func(b *testing.B) {
		b.ReportAllocs()
		decoder := scheme.Codecs.UniversalDeserializer()
		for b.Loop() {
			body, err := io.ReadAll(bytes.NewReader(encoded))
			must(b, err)
			_, _, err = decoder.Decode(body, nil, nil)
			must(b, err)
		}
	})
}
