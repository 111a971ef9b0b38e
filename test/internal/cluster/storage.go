package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/client-go/kubernetes/scheme"
)

const (
	maxTransaction      = 100     // objects; etcd allows 128
	maxTransactionBytes = 4 << 20 // etcd allows twice as many here
	etcdWriters         = 4
)

// WriteObjects writes n objects with their keys directly to etcd. That is ten times as fast as
// through the API server, and far more for objects with very many fields: the time that the API
// server needs for managedFields grows with the square of their number.
func (c *Cluster) WriteObjects(ctx context.Context, n int, object func(i int) (key string, o runtime.Object)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var writers sync.WaitGroup
	for w := range etcdWriters {
		writers.Go(func() {
			for i := w * maxTransaction; i < n; i += etcdWriters * maxTransaction {
				if err := c.writeRange(ctx, i, min(i+maxTransaction, n), object); err != nil {
					cancel(fmt.Errorf("write objects to etcd: %w", err))
					return
				}
			}
		})
	}
	writers.Wait()
	return context.Cause(ctx)
}

// put is a write in the format of etcd's JSON gateway, which encodes bytes in base64 as
// encoding/json does.
type put struct {
	Request struct {
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
	} `json:"request_put"`
}

// writeRange writes the objects from one to the one before end, in one transaction unless they are large.
func (c *Cluster) writeRange(
	ctx context.Context, from, end int, object func(i int) (key string, o runtime.Object),
) error {
	var puts []put
	size := 0
	for i := from; i < end; i++ {
		key, o := object(i)
		value, err := Encode(o)
		if err != nil {
			return err
		}
		if size += len(value); size > maxTransactionBytes && len(puts) > 0 {
			if err := c.writeTransaction(ctx, puts); err != nil {
				return err
			}
			puts, size = nil, len(value)
		}
		var p put
		p.Request.Key, p.Request.Value = []byte(key), value
		puts = append(puts, p)
	}
	return c.writeTransaction(ctx, puts)
}

func (c *Cluster) writeTransaction(ctx context.Context, puts []put) error {
	body, err := json.Marshal(map[string]any{"success": puts})
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Etcd+"/v3/kv/txn", bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	return err
}

// Encode returns an object in the storage format of the API server.
func Encode(object runtime.Object) ([]byte, error) {
	var b bytes.Buffer
	err := protobuf.NewSerializer(scheme.Scheme, scheme.Scheme).Encode(object, &b)
	return b.Bytes(), err
}
