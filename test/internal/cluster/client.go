package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
)

// Content types that clients request.
const (
	TypeJSON     = "application/json"
	TypeProtobuf = "application/vnd.kubernetes.protobuf"
	TypeTable    = "application/json;as=Table;v=v1;g=meta.k8s.io"
)

// The versions of metrics.k8s.io. metrics-server serves the older one only.
const (
	V1beta1 = "/apis/metrics.k8s.io/v1beta1"
	V1      = "/apis/metrics.k8s.io/v1"
)

// requestTimeout bounds a request of a Standalone's clients.
const requestTimeout = 2 * time.Minute

// StatusError is a response whose status is not 200.
type StatusError struct {
	URL  string
	Code int
	Body string // the beginning of the response body
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%s: status %d %s: %s", e.URL, e.Code, http.StatusText(e.Code), e.Body)
}

// Send sends a GET request. It returns a StatusError if the status is not 200, and else a response whose body
// the caller must close.
func Send(ctx context.Context, client *http.Client, url string, header http.Header) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	request.Header = header
	response, err := client.Do(request)
	if err != nil || response.StatusCode == http.StatusOK {
		return response, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 500))
	return nil, errors.Join(&StatusError{URL: url, Code: response.StatusCode, Body: string(body)}, err)
}

// Get sends a GET request as Send does, and reads the response.
func Get(ctx context.Context, client *http.Client, url, accept string) (body []byte, contentType string, err error) {
	response, err := Send(ctx, client, url, http.Header{"Accept": {accept}})
	if err != nil {
		return nil, "", err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return body, response.Header.Get("Content-Type"), err
}

// unmarshal decodes Kubernetes' protobuf encoding, which is an envelope around the object.
func unmarshal(body []byte, object interface{ Unmarshal([]byte) error }) error {
	content, ok := bytes.CutPrefix(body, []byte("k8s\x00"))
	if !ok {
		return fmt.Errorf("it begins with %q", body[:min(len(body), 4)])
	}
	var envelope runtime.Unknown
	if err := envelope.Unmarshal(content); err != nil {
		return err
	}
	return object.Unmarshal(envelope.Raw)
}
