package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var formatChecks = []Check{
	{"format/json", Required, "lists and objects are served as JSON", concepts, nothing, format(typeJSON)},
	{"format/yaml", Required, "lists and objects are served as YAML, the same as JSON", concepts, nothing,
		format(typeYAML)},
	{"format/protobuf", Required, "lists and objects are served as protobuf, the same as JSON", autoscaler, nothing,
		format(typeProtobuf)},
	{"format/cbor", Extension, "lists and objects are served as CBOR, the same as JSON", concepts, nothing,
		format(typeCBOR)},
	{"format/table", Recommended, "tables have a row for every object, for kubectl get", concepts, nothing, checkTable},
	{"format/metadata", Recommended, "lists are served as PartialObjectMetadataList", concepts, nothing, checkMetadata},
	{"format/default", Required, "JSON is served to clients that accept anything", concepts, nothing, checkDefault},
	{"format/not-acceptable", Recommended, "a format that is not served gets status 406", concepts, nothing,
		checkNotAcceptable},
	{"versions/equal", Required, "all versions serve the same metrics", kepV1, nothing, checkVersions},
}

// format compares lists in a format with JSON, and the first object with its item in the list.
func format(accept string) func(context.Context, *env) error {
	return func(ctx context.Context, e *env) error {
		return e.eachList(ctx, func(want *list, version, resource string) error {
			at := path(version, resource, "", "")
			got, err := e.admin.list(ctx, at, accept)
			if err != nil {
				return err
			}
			if kind := resources[resource] + "List"; got.kind != kind {
				return mismatch(got.response.request, "kind "+kind, got.kind)
			}
			if err := equal(want, got); err != nil || len(want.Items) == 0 {
				return err
			}
			o := &want.Items[0]
			one, err := e.admin.list(ctx, path(version, resource, o.Namespace, o.Name), accept)
			if err != nil {
				return err
			}
			if one.kind != resources[resource] {
				return mismatch(one.response.request, "kind "+resources[resource], one.kind)
			}
			return equal(want.filter(func(other *object) bool { return other == o }), one)
		})
	}
}

func checkTable(ctx context.Context, e *env) error {
	return e.eachList(ctx, func(want *list, version, resource string) error {
		at := path(version, resource, "", "")
		table, err := e.table(ctx, at)
		if err != nil {
			return err
		}
		if len(table.ColumnDefinitions) == 0 || !strings.EqualFold(table.ColumnDefinitions[0].Name, "name") {
			return mismatch("GET "+at+" as Table", "a first column Name", table.ColumnDefinitions)
		}
		var names []string
		for _, row := range table.Rows {
			if len(row.Cells) != len(table.ColumnDefinitions) {
				return mismatch("GET "+at+" as Table", fmt.Sprintf("%d cells in a row", len(table.ColumnDefinitions)), row.Cells)
			}
			names = append(names, fmt.Sprint(row.Cells[0]))
		}
		return sameNames("GET "+at+" as Table", want, names)
	})
}

func (e *env) table(ctx context.Context, path string) (*metav1.Table, error) {
	var table metav1.Table
	if err := e.decode(ctx, path, typeTable, &table); err != nil {
		return nil, err
	}
	if table.Kind != "Table" {
		return nil, mismatch("GET "+path+" as Table", "kind Table", table.Kind)
	}
	return &table, nil
}

func checkMetadata(ctx context.Context, e *env) error {
	return e.eachList(ctx, func(want *list, version, resource string) error {
		at := path(version, resource, "", "")
		var got metav1.PartialObjectMetadataList
		if err := e.decode(ctx, at, typePartial, &got); err != nil {
			return err
		}
		if got.Kind != "PartialObjectMetadataList" {
			return mismatch("GET "+at+" as PartialObjectMetadataList", "this kind", got.Kind)
		}
		var names []string
		for i := range got.Items {
			names = append(names, got.Items[i].Name)
		}
		return sameNames("GET "+at+" as PartialObjectMetadataList", want, names)
	})
}

// sameNames compares names, which need not be unique, with those of a list.
func sameNames(request string, want *list, got []string) error {
	var names []string
	for i := range want.Items {
		names = append(names, want.Items[i].Name)
	}
	slices.Sort(names)
	slices.Sort(got)
	if !slices.Equal(names, got) {
		return mismatch(request, fmt.Sprintf("the %d names of the list in JSON", len(names)),
			abbreviate([]byte(strings.Join(got, " "))))
	}
	return nil
}

func checkDefault(ctx context.Context, e *env) error {
	return e.each(func(version, resource string) error {
		r, err := e.admin.expect(ctx, path(version, resource, "", ""), "*/*", http.StatusOK)
		if err != nil {
			return err
		}
		if got := r.header.Get("Content-Type"); !strings.HasPrefix(got, typeJSON) {
			return mismatch(r.request, "Content-Type "+typeJSON, got)
		}
		return nil
	})
}

func checkNotAcceptable(ctx context.Context, e *env) error {
	return e.each(func(version, resource string) error {
		const accept = "application/x-metrics-conformance"
		_, err := e.admin.expect(ctx, path(version, resource, "", ""), accept, http.StatusNotAcceptable)
		return err
	})
}

func checkVersions(ctx context.Context, e *env) error {
	if len(e.versions) < 2 {
		return skip("only " + strings.Join(e.versions, "") + " is served")
	}
	return e.eachList(ctx, func(l *list, version, resource string) error {
		var errs []error
		for _, other := range e.versions {
			if other == version {
				continue
			}
			again, err := e.list(ctx, path(other, resource, "", ""))
			if err != nil {
				return err
			}
			errs = append(errs, equal(l, again))
		}
		return errors.Join(errs...)
	})
}

// statusObject decodes the Status of an error response.
func (r *response) statusObject() (*metav1.Status, error) {
	var status metav1.Status
	if err := json.Unmarshal(r.body, &status); err != nil || status.Kind != "Status" ||
		status.Status != metav1.StatusFailure ||
		int(status.Code) != r.status {
		return nil, mismatch(r.request, fmt.Sprintf("a Status with status Failure and code %d", r.status), abbreviate(r.body))
	}
	return &status, nil
}

// fails returns an error unless the client gets a Status with this code and reason for a path.
func (c *client) fails(ctx context.Context, path string, code int, reason metav1.StatusReason) error {
	r, err := c.expect(ctx, path, typeJSON, code)
	if err != nil {
		return err
	}
	status, err := r.statusObject()
	if err == nil && status.Reason != reason {
		err = mismatch(r.request, fmt.Sprintf("reason %s", reason), fmt.Sprintf("%q", status.Reason))
	}
	return err
}
