package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

const (
	allPods  = cluster.V1beta1 + "/pods"
	allNodes = cluster.V1beta1 + "/nodes"
)

// request is a request to the metrics server.
type request struct {
	name, path, accept string
	want               int  // items in the response
	gzip               bool // the client accepts compression, as client-go does
}

// typicalRequests are those of kubectl, autoscalers and dashboards.
func (s shape) typicalRequests() []request {
	pod := s.pod(s.huge())
	onePod := namespacePods(pod.Namespace) + "/" + pod.Name
	return []request{
		s.listPods("JSON", cluster.TypeJSON),
		s.listPods("protobuf", cluster.TypeProtobuf),
		s.listPods("table", cluster.TypeTable),
		s.hpaRequest(),
		selectorRequest(hugeNamespace, rareApp, s.rare(), s.huge()),
		{name: "GET one pod, JSON", path: onePod, accept: cluster.TypeJSON, want: 1},
		{name: "LIST nodes, JSON", path: allNodes, accept: cluster.TypeJSON, want: s.nodes},
	}
}

func (s shape) listPods(format, accept string) request {
	return request{name: "LIST all pods, " + format, path: allPods, accept: accept, want: s.pods()}
}

func (r request) zipped() request {
	r.name, r.gzip = r.name+", gzip", true
	return r
}

// hpaRequest is what a HorizontalPodAutoscaler of a large app requests.
func (s shape) hpaRequest() request { return selectorRequest(shopNamespace, webApp, s.web(), s.shop()) }

func selectorRequest(namespace, app string, want, of int) request {
	return request{
		name: fmt.Sprintf("LIST by selector, %d of %d pods, protobuf (HPA)", want, of),
		path: namespacePods(namespace) + "?labelSelector=" + url.QueryEscape(objects.Selector(app)),
		want: want, accept: cluster.TypeProtobuf,
	}
}

func namespacePods(namespace string) string {
	return cluster.V1beta1 + "/namespaces/" + namespace + "/pods"
}

func (r request) send(ctx context.Context, s *cluster.Standalone) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+r.path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Accept", r.accept)
	if r.gzip { // set here, the transport does not decompress, which would count as latency
		request.Header.Set("Accept-Encoding", "gzip")
	}
	response, err := s.Direct.Do(request)
	if err == nil && response.StatusCode != http.StatusOK {
		response.Body.Close()
		return nil, &cluster.StatusError{URL: s.URL + r.path, Code: response.StatusCode}
	}
	return response, err
}

// discard sends the request, and reads the response.
func (r request) discard(ctx context.Context, s *cluster.Standalone) error {
	response, err := r.send(ctx, s)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return err
}

// count sends the request, and returns the number of items in the response and when it started.
func (r request) count(ctx context.Context, s *cluster.Standalone) (items int, at time.Time, err error) {
	r.gzip = false
	response, err := r.send(ctx, s)
	if err != nil {
		return 0, at, err
	}
	defer response.Body.Close()
	at = time.Now()
	body, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
	case response.Header.Get("Content-Type") == cluster.TypeProtobuf:
		items, err = countProtobuf(body)
	case r.accept == cluster.TypeTable:
		items = strings.Count(string(body), `"cells":`)
	default:
		items = strings.Count(string(body), `"timestamp":`)
	}
	return items, at, err
}

// countProtobuf counts the items of a list in Kubernetes' protobuf encoding. Decoding them would
// cost as much CPU as the measured server.
func countProtobuf(body []byte) (items int, err error) {
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(bytes.TrimPrefix(body, []byte("k8s\x00"))); err != nil {
		return 0, err
	}
	if len(envelope.Raw) == 0 {
		return 0, errors.New("the response is not protobuf")
	}
	for list := envelope.Raw; len(list) > 0; {
		number, _, n := protowire.ConsumeField(list)
		if n < 0 {
			return 0, protowire.ParseError(n)
		}
		if number == 2 { // an item
			items++
		}
		list = list[n:]
	}
	return items, nil
}
