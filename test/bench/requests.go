package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

const (
	allPods  = cluster.V1beta1 + "/pods"
	allNodes = cluster.V1beta1 + "/nodes"
	appLabel = "app.kubernetes.io/name"
)

// request is a request to the metrics server.
type request struct {
	name, path, accept string
	want               int    // items in the response
	gzip               bool   // the client accepts compression, as client-go does
	column             string // of the CSV file, for its CPU; empty: none
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
	header := http.Header{"Accept": {r.accept}}
	if r.gzip { // set here, the transport does not decompress, which would count as latency
		header.Set("Accept-Encoding", "gzip")
	}
	return cluster.Send(ctx, s.Direct, s.URL+r.path, header)
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

// count sends the request, and returns the number of pods or nodes in the response and when it started. In every
// format, each of them has one of these labels once. Decoding would cost as much CPU as the measured server.
func (r request) count(ctx context.Context, s *cluster.Standalone) (items int, at time.Time, err error) {
	r.gzip = false
	response, err := r.send(ctx, s)
	if err != nil {
		return 0, at, err
	}
	defer response.Body.Close()
	at = time.Now()
	body, err := io.ReadAll(response.Body)
	for _, label := range []string{appLabel, corev1.LabelHostname} {
		items += bytes.Count(body, []byte(label))
	}
	return items, at, err
}
