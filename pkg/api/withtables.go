package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1beta1 "k8s.io/apimachinery/pkg/apis/meta/v1beta1"
	"k8s.io/apimachinery/pkg/apis/meta/v1beta1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/util/apihelpers"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/kube-vitals/kube-vitals/pkg/usage"
)

// WithTables lets the resources of the group write the tables that kubectl asks for. It goes
// between the filters of an API server, of which it needs the one that knows what a request is for,
// and its handler.
//
// The library wants a table as an object, with an object in each row, which it then encodes by
// reflection: nothing of that can write its own bytes. An object that is to be written as JSON can.
// So a request for a table in JSON goes on as one for JSON, and its context says what is to be
// written; everything else about the request stays as it is. Only the white space of an error can
// differ, when the client accepts nothing but tables or asks for pretty errors.
func WithTables(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if t := newTableRequest(r); t != nil {
			r = r.Clone(context.WithValue(r.Context(), tableKey{}, t))
			r.Header.Set("Accept", runtime.ContentTypeJSON)
		}
		next.ServeHTTP(w, r)
	})
}

// tableRequest says what kind of table is asked for.
type tableRequest struct {
	version schema.GroupVersion // of the table
	include metav1.IncludeObjectPolicy
}

type tableKey struct{}

// tableAsked gives what WithTables has found, or nil.
func tableAsked(ctx context.Context) *tableRequest {
	t, _ := ctx.Value(tableKey{}).(*tableRequest)
	return t
}

// newTableRequest gives what a request asks for if that is a table of the group in JSON without
// white space, or nil. What is wrong with the request is for the library to say.
func newTableRequest(r *http.Request) *tableRequest {
	if !strings.Contains(r.Header.Get("Accept"), "as=Table") {
		return nil // nearly always
	}
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || info.APIGroup != metrics.GroupName || info.Subresource != "" || info.Verb != "get" && info.Verb != "list" {
		return nil
	}
	media, serializer, err := negotiation.NegotiateOutputMediaType(r, apihelpers.GetMetaInternalVersionCodecs(), tablesAllowed{})
	if err != nil || media.Convert == nil || media.Convert.Kind != "Table" || serializer.MediaType != runtime.ContentTypeJSON ||
		serializer.Serializer == serializer.PrettySerializer {
		return nil
	}
	var options metav1.TableOptions
	err = metainternalversionscheme.ParameterCodec.DecodeParameters(r.URL.Query(), metav1.SchemeGroupVersion, &options)
	if err != nil || len(validation.ValidateTableOptions(&options)) > 0 {
		return nil
	}
	return &tableRequest{media.Convert.GroupVersion(), options.IncludeObject}
}

// tablesAllowed are the conversions that the library allows for a resource that can be shown as a
// table.
type tablesAllowed struct{}

func (tablesAllowed) AllowsMediaTypeTransform(mimeType, mimeSubType string, target *schema.GroupVersionKind) bool {
	if target == nil {
		return true
	}
	if version := target.GroupVersion(); version != metav1.SchemeGroupVersion && version != metav1beta1.SchemeGroupVersion {
		return false
	}
	switch target.Kind {
	case "Table":
		return mimeType == "application" && (mimeSubType == "json" || mimeSubType == "yaml")
	case "PartialObjectMetadata", "PartialObjectMetadataList":
		return true
	}
	return false
}

func (tablesAllowed) AllowsServerVersion(string) bool       { return false }
func (tablesAllowed) AllowsStreamSchema(schema string) bool { return schema == "watch" }

// entryTable is a table that was not made yet, and never will be: it can only write its own bytes.
type entryTable[U usage.Pod | usage.Node] struct {
	list  *entryList[U]
	asked *tableRequest
}

var _ runtime.CacheableObject = (*entryTable[usage.Pod])(nil)

// CacheEncode implements runtime.CacheableObject. Nothing is cached.
func (t *entryTable[U]) CacheEncode(id runtime.Identifier, encode func(runtime.Object, io.Writer) error, out io.Writer) error {
	return t.list.answer.write(t, id, encode, out)
}

// GetObject implements runtime.CacheableObject. It is not called: WithTables sees to it that the
// encoding is known.
func (t *entryTable[U]) GetObject() runtime.Object {
	return t.list.table(&metav1.TableOptions{IncludeObject: t.asked.include})
}

// GetObjectKind implements runtime.Object.
func (t *entryTable[U]) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. All that a table leads to is immutable.
func (t *entryTable[U]) DeepCopyObject() runtime.Object {
	c := *t
	return &c
}

func (t *entryTable[U]) writeProtobuf(*writer, string) error {
	return errors.New("there are no tables in protobuf; ask for one in JSON")
}

func (t *entryTable[U]) writeJSON(w *writer, apiVersion string) error {
	swap := t.list.anySwap()
	head, err := json.Marshal(&metav1.Table{
		TypeMeta:          metav1.TypeMeta{Kind: "Table", APIVersion: t.asked.version.String()},
		ListMeta:          t.list.ListMeta,
		ColumnDefinitions: columns(swap),
		Rows:              []metav1.TableRow{},
	})
	if err != nil {
		return err
	}
	b := append(w.buffer[:0], head[:len(head)-len("]}")]...)
	for i := range t.list.Items {
		if i > 0 {
			b = append(b, ',')
		}
		e := &t.list.Items[i]
		b = append(b, `{"cells":`...)
		b = e.appendCellsJSON(b, swap)
		b = append(b, `,"object":`...)
		b = t.appendObjectJSON(b, w, e, apiVersion)
		b = append(b, '}')
		if b, err = w.spill(b); err != nil {
			return err
		}
	}
	return w.flush(append(b, "]}\n"...))
}

// appendCellsJSON appends what cells gives.
func (e *entry[U]) appendCellsJSON(b []byte, swap bool) []byte {
	total := e.answer.total(e.usage)
	_, window := e.answer.period(e.usage)
	b = append(b, '[')
	b = appendStringJSON(b, e.object.Name)
	b = append(b, `,"`...)
	b = appendMillicores(b, total.nanocores)
	b = append(b, `","`...)
	b = appendMebibytes(b, total.memory)
	b = append(b, `",`...)
	b = appendDurationJSON(b, window.Round(time.Millisecond))
	switch {
	case swap && total.hasSwap:
		b = append(b, `,"`...)
		b = appendMebibytes(b, total.swap)
		b = append(b, '"')
	case swap:
		b = append(b, ',')
		b = appendOddStringJSON(b, noSwap)
	}
	return append(b, ']')
}

// appendObjectJSON appends as much of a row's object as is asked for.
func (t *entryTable[U]) appendObjectJSON(b []byte, w *writer, e *entry[U], apiVersion string) []byte {
	switch t.asked.include {
	case metav1.IncludeNone:
		return append(b, "null"...)
	case metav1.IncludeObject:
		b = appendTypeJSON(b, e.answer.name, apiVersion)
		b = append(b, ',')
		b = e.appendJSON(b, w)
	default:
		b = appendTypeJSON(b, "PartialObjectMetadata", t.asked.version.String())
		b = append(b, `,"metadata":`...)
		b = w.appendMetaJSON(b, e.object)
	}
	return append(b, '}')
}
