package world

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

// What clients ask for.
const (
	TypeJSON     = "application/json"
	TypeProtobuf = "application/vnd.kubernetes.protobuf"
	TypeTable    = "application/json;as=Table;v=v1;g=meta.k8s.io"
)

// The versions of metrics.k8s.io. Every metrics server serves the older one.
const (
	V1beta1 = "/apis/metrics.k8s.io/v1beta1"
	V1      = "/apis/metrics.k8s.io/v1"
)

// StatusError is an answer whose status is not 200.
type StatusError struct {
	URL  string
	Code int
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s answers %d %s", e.URL, e.Code, http.StatusText(e.Code))
}

// Get asks with the administrator's token, and reads the answer whole. The body is returned even
// with a StatusError, which it may explain.
func Get(ctx context.Context, client *http.Client, url, accept string) (body []byte, contentType string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, "", err
	}
	request.Header.Set("Accept", accept)
	request.Header.Set("Authorization", "Bearer "+Token)
	response, err := client.Do(request)
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = &StatusError{URL: url, Code: response.StatusCode}
	}
	return body, response.Header.Get("Content-Type"), err
}

// Get asks the server under test.
func (s *Server) Get(ctx context.Context, path, accept string) (body []byte, contentType string, err error) {
	return Get(ctx, s.Direct, s.URL+path, accept)
}

// Pods asks for a list of pods' figures. Both versions have the same fields.
func (s *Server) Pods(ctx context.Context, path, accept string) (*metricsv1beta1.PodMetricsList, error) {
	return ask[metricsv1beta1.PodMetricsList](ctx, s, path, accept)
}

// Pod asks for the figures of one pod.
func (s *Server) Pod(ctx context.Context, path, accept string) (*metricsv1beta1.PodMetrics, error) {
	return ask[metricsv1beta1.PodMetrics](ctx, s, path, accept)
}

// Nodes asks for a list of nodes' figures.
func (s *Server) Nodes(ctx context.Context, path, accept string) (*metricsv1beta1.NodeMetricsList, error) {
	return ask[metricsv1beta1.NodeMetricsList](ctx, s, path, accept)
}

// Node asks for the figures of one node.
func (s *Server) Node(ctx context.Context, path, accept string) (*metricsv1beta1.NodeMetrics, error) {
	return ask[metricsv1beta1.NodeMetrics](ctx, s, path, accept)
}

// ask reads an answer as the type T, whose pointers read protobuf.
func ask[T any, P interface {
	*T
	Unmarshal([]byte) error
}](ctx context.Context, s *Server, path, accept string) (*T, error) {
	body, contentType, err := s.Get(ctx, path, accept)
	if err != nil {
		return nil, err
	}
	into := new(T)
	if contentType == TypeProtobuf {
		err = unmarshal(body, P(into))
	} else {
		err = json.Unmarshal(body, into)
	}
	if err != nil {
		return nil, fmt.Errorf("the answer to %s cannot be read: %w", path, err)
	}
	return into, nil
}

// unmarshal reads Kubernetes' protobuf encoding: an envelope that says of which type its content
// is.
func unmarshal(body []byte, into interface{ Unmarshal([]byte) error }) error {
	content, ok := bytes.CutPrefix(body, []byte("k8s\x00"))
	if !ok {
		return fmt.Errorf("it begins with %q", body[:min(len(body), 4)])
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(content); err != nil {
		return err
	}
	return into.Unmarshal(envelope.Raw)
}
