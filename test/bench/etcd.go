package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kube-vitals/kube-vitals/test/internal/objects"
)

// Objects are written straight into etcd, past the API server, which is started afterwards: an
// order of magnitude faster.
const (
	txnSize     = 100 // objects a transaction; etcd takes 128
	etcdWriters = 4   // at once
)

// put is one write, as etcd's JSON gateway takes it. Bytes are base64 there, as encoding/json makes
// them.
type put struct {
	Request struct {
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
	} `json:"request_put"`
}

// writeObjects writes all objects of a cluster: namespaces, nodes and pods.
func writeObjects(ctx context.Context, etcd string, s shape, kubeletPort uint16) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	batches := make(chan []put)
	var writers sync.WaitGroup
	for range etcdWriters {
		writers.Go(func() {
			for batch := range batches {
				if err := writeBatch(ctx, etcd, batch); err != nil {
					cancel(fmt.Errorf("objects cannot be written into etcd: %w", err))
				}
			}
		})
	}
	err := eachObject(s, kubeletPort, batcher(ctx, batches))
	close(batches)
	writers.Wait()
	if failed := context.Cause(ctx); failed != nil {
		return failed // and err only says that this was noticed
	}
	return err
}

// batcher returns a function that collects writes, and hands them on in batches; an empty key hands
// on what is left.
func batcher(ctx context.Context, batches chan<- []put) func(key string, object runtime.Object) error {
	var batch []put
	return func(key string, object runtime.Object) error {
		if key != "" {
			value, err := encode(object)
			if err != nil {
				return err
			}
			var p put
			p.Request.Key, p.Request.Value = []byte("/registry/"+key), value
			batch = append(batch, p)
		}
		if len(batch) == 0 || key != "" && len(batch) < txnSize {
			return nil
		}
		select {
		case batches <- batch:
			batch = nil
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// eachObject makes all objects, one after the other, and calls write with an empty key at the end.
func eachObject(s shape, kubeletPort uint16, write func(key string, object runtime.Object) error) error {
	created := time.Now().Add(-time.Hour).Truncate(time.Second)
	for _, name := range s.namespaces() {
		if err := write("namespaces/"+name, objects.Namespace(name, created)); err != nil {
			return err
		}
	}
	for i := range s.nodes {
		if err := write("minions/"+objects.NodeName(i), objects.Node(i, kubeletPort, created)); err != nil {
			return err
		}
	}
	for i := range s.pods() {
		p := s.pod(i)
		if err := write("pods/"+p.Namespace+"/"+p.Name, p.Object(created)); err != nil {
			return err
		}
	}
	return write("", nil)
}

// encode gives an object as the API server stores it in etcd.
func encode(object runtime.Object) ([]byte, error) {
	var b bytes.Buffer
	if err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(object, &b); err != nil {
		return nil, fmt.Errorf("an object cannot be encoded: %w", err)
	}
	return b.Bytes(), nil
}

func writeBatch(ctx context.Context, etcd string, batch []put) error {
	body, err := json.Marshal(map[string]any{"success": batch})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, etcd+"/v3/kv/txn", bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("etcd answers %s: %s", response.Status, text)
	}
	return nil
}
