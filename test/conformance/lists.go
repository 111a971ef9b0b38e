package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// unknown is the name of an object that does not exist.
const unknown = "metrics-conformance-does-not-exist"

var listChecks = []Check{
	{"list/get", Required, "a GET of an object returns the same as the list", design, nothing, checkGet},
	{"list/namespace", Required, "the list of a namespace has its part of the list of all pods", design, nothing,
		checkNamespaces},
	{"list/label-selector", Required, "label selectors select by the labels of pods and nodes", autoscaler, nothing,
		checkLabelSelector},
	{"list/field-selector", Required,
		"field selectors select pods by metadata.name and metadata.namespace, as in kubectl top pods --field-selector",
		kubectlTop, nothing, checkFieldSelector},
	{"list/invalid-selector", Recommended, "an invalid selector gets status 400", conventions, nothing,
		checkInvalidSelector},
	{"list/unknown-namespace", Required, "the list of a namespace that does not exist is empty", conventions, nothing,
		checkUnknownNamespace},
	{"list/limit", Recommended, "limit and continue return a list in pages", concepts, nothing, checkLimit},
	{"list/order", Recommended, "lists are sorted by namespace and name", concepts, nothing, checkOrder},
	{"get/unknown", Required, "an unknown name gets status 404 with reason NotFound", conventions, nothing, checkUnknown},
	{"verbs/write", Required, "create, update, patch and delete get status 405: metrics are read-only", definition,
		nothing, checkWrite},
	{"verbs/watch", Recommended, "a watch gets status 405 unless discovery has the verb", conventions, nothing,
		checkWatch},
	{"extension/watch", Extension, "metrics can be watched", watchKEP, nothing, checkWatchServed},
	{"extension/remaining-items", Extension, "a page has remainingItemCount", concepts, nothing, checkRemaining},
}

func checkGet(ctx context.Context, e *env) error {
	return e.eachList(ctx, func(l *list, version, resource string) error {
		const most = 20
		some := *l
		some.Items = l.Items[:min(most, len(l.Items))]
		return some.each(func(o *object) error {
			one, err := e.list(ctx, path(version, resource, o.Namespace, o.Name))
			if err != nil {
				return err
			}
			return equal(l.filter(func(other *object) bool { return other == o }), one)
		})
	})
}

func checkNamespaces(ctx context.Context, e *env) error {
	return e.eachList(ctx, func(l *list, version, resource string) error {
		namespaces := map[string]bool{}
		for i := range l.Items {
			namespaces[l.Items[i].Namespace] = true
		}
		var errs []error
		for namespace := range namespaces {
			if namespace == "" {
				continue // nodes
			}
			part, err := e.list(ctx, path(version, resource, namespace, ""))
			if err != nil {
				return err
			}
			errs = append(errs, equal(l.filter(func(o *object) bool { return o.Namespace == namespace }), part))
		}
		return first(errs)
	})
}

// checkSelected compares the list with a selector with the objects that match.
func (e *env) checkSelected(ctx context.Context, l *list, at, parameter, selector string,
	match func(*object) bool) error {
	got, err := e.list(ctx, query(at, parameter, selector))
	if err != nil {
		return err
	}
	return equal(l.filter(match), got)
}

func checkLabelSelector(ctx context.Context, e *env) error {
	return e.eachList(ctx, func(l *list, version, resource string) error {
		at := path(version, resource, "", "")
		i := slices.IndexFunc(l.Items, func(o object) bool { return len(o.Labels) > 0 })
		if len(l.Items) == 0 {
			return skip("no pod or no node has metrics")
		}
		if i < 0 {
			return mismatch("GET "+at, "an object with labels", "none")
		}
		key := slices.Sorted(maps.Keys(l.Items[i].Labels))[0]
		value := l.Items[i].Labels[key]
		var errs []error
		for _, text := range []string{
			key + "=" + value, key + "!=" + value, key, "!" + key,
			key + " in (" + value + ",none)", key + " notin (" + value + ")", "metrics-conformance.example/none=none",
		} {
			selector, err := labels.Parse(text)
			if err != nil {
				return err
			}
			errs = append(errs, e.checkSelected(ctx, l, at, "labelSelector", text,
				func(o *object) bool { return selector.Matches(labels.Set(o.Labels)) }))
		}
		return first(errs)
	})
}

func checkFieldSelector(ctx context.Context, e *env) error {
	return e.eachList(ctx, func(l *list, version, resource string) error {
		if resource != "pods" {
			return nil
		}
		if len(l.Items) == 0 {
			return skip("no pod has metrics")
		}
		at := path(version, resource, "", "")
		name, namespace := l.Items[0].Name, l.Items[0].Namespace
		var errs []error
		for selector, match := range map[string]func(*object) bool{
			"metadata.name=" + name:                                    func(o *object) bool { return o.Name == name },
			"metadata.name!=" + name:                                   func(o *object) bool { return o.Name != name },
			"metadata.namespace=" + namespace:                          func(o *object) bool { return o.Namespace == namespace },
			"metadata.name=" + name + ",metadata.namespace=" + unknown: func(*object) bool { return false },
		} {
			errs = append(errs, e.checkSelected(ctx, l, at, "fieldSelector", selector, match))
		}
		return first(errs)
	})
}

func checkInvalidSelector(ctx context.Context, e *env) error {
	return e.each(func(version, resource string) error {
		at := query(path(version, resource, "", ""), "labelSelector", "a=b=c")
		_, err := e.admin.expect(ctx, at, typeJSON, http.StatusBadRequest)
		return err
	})
}

func checkUnknownNamespace(ctx context.Context, e *env) error {
	for _, version := range e.versions {
		l, err := e.list(ctx, path(version, "pods", unknown, ""))
		if err != nil {
			return err
		}
		if len(l.Items) > 0 {
			return mismatch(l.response.request, "an empty list", l.keys())
		}
	}
	return nil
}

func checkLimit(ctx context.Context, e *env) error {
	var judged bool
	err := e.eachList(ctx, func(want *list, version, resource string) error {
		at := path(version, resource, "", "")
		all := &list{response: &response{request: "the pages of GET " + at + " with limit"}}
		if len(want.Items) < 2 {
			return nil
		}
		judged = true
		limit := (len(want.Items) + 1) / 2 // two pages
		for token := ""; ; {
			parameters := url.Values{"limit": {fmt.Sprint(limit)}}
			if token != "" {
				parameters.Set("continue", token)
			}
			page, err := e.list(ctx, at+"?"+parameters.Encode())
			if err != nil {
				return err
			}
			if len(page.Items) > limit {
				return mismatch(page.response.request, fmt.Sprintf("at most %d objects", limit), len(page.Items))
			}
			all.Items = append(all.Items, page.Items...)
			if token = page.Continue; token == "" {
				return equal(want, all)
			}
			if len(all.Items) > 2*len(want.Items) {
				return mismatch(page.response.request, "an end of the pages", "more objects than there are")
			}
		}
	})
	if err == nil && !judged {
		return skip("needs two nodes or pods with metrics")
	}
	return err
}

func checkRemaining(ctx context.Context, e *env) error {
	return e.eachList(ctx, func(l *list, version, resource string) error {
		if len(l.Items) < 2 {
			return skip("needs two nodes and two pods with metrics")
		}
		page, err := e.list(ctx, path(version, resource, "", "")+"?limit=1")
		if err != nil {
			return err
		}
		if n := page.RemainingItemCount; n == nil || *n <= 0 {
			return mismatch(page.response.request, "a remainingItemCount", "none")
		}
		return nil
	})
}

func checkOrder(ctx context.Context, e *env) error {
	return e.each(func(version, resource string) error {
		l, err := e.list(ctx, path(version, resource, "", ""))
		if err != nil {
			return err
		}
		compare := func(a, b object) int {
			return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
		}
		if !slices.IsSortedFunc(l.Items, compare) {
			return mismatch(l.response.request, "objects sorted by namespace and name", abbreviate(fmt.Append(nil, l.keys())))
		}
		return nil
	})
}

// eachExisting calls f with every version and resource, and with a namespace that exists, unless the resource has none.
func (e *env) eachExisting(namespace string, f func(version, resource, namespace string) error) error {
	return e.each(func(version, resource string) error {
		if resource == "nodes" {
			return f(version, resource, "")
		}
		return f(version, resource, namespace)
	})
}

func checkUnknown(ctx context.Context, e *env) error {
	return e.eachExisting("default", func(version, resource, namespace string) error {
		at := path(version, resource, namespace, unknown)
		return e.admin.fails(ctx, at, http.StatusNotFound, metav1.StatusReasonNotFound)
	})
}

func checkWrite(ctx context.Context, e *env) error {
	return e.eachExisting("default", func(version, resource, namespace string) error {
		body := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q}}`, group+"/"+version, resources[resource],
			unknown)
		all, one := path(version, resource, namespace, ""), path(version, resource, namespace, unknown)
		var errs []error
		for _, request := range []struct{ method, path, body string }{
			{http.MethodPost, all, body}, {http.MethodPut, one, body}, {http.MethodPatch, one, body},
			{http.MethodDelete, one, ""},
		} {
			r, err := e.admin.do(ctx, request.method, request.path, typeJSON, request.body)
			if err != nil {
				return err
			}
			errs = append(errs, r.expect(http.StatusMethodNotAllowed))
		}
		return errors.Join(errs...)
	})
}

// watchable reports whether discovery has the verb watch.
func (e *env) watchable(ctx context.Context, version, resource string) (bool, error) {
	var listed metav1.APIResourceList
	if err := e.decode(ctx, "/apis/"+group+"/"+version, typeJSON, &listed); err != nil {
		return false, err
	}
	return slices.ContainsFunc(listed.APIResources, func(r metav1.APIResource) bool {
		return r.Name == resource && slices.Contains(r.Verbs, "watch")
	}), nil
}

// checkWatch requests a watch that ends by itself.
func checkWatch(ctx context.Context, e *env) error {
	return e.each(func(version, resource string) error {
		watchable, err := e.watchable(ctx, version, resource)
		if err != nil {
			return err
		}
		status := http.StatusMethodNotAllowed
		if watchable {
			status = http.StatusOK
		}
		_, err = e.admin.expect(ctx, path(version, resource, "", "")+"?watch=true&timeoutSeconds=1", typeJSON, status)
		return err
	})
}

func checkWatchServed(ctx context.Context, e *env) error {
	return e.each(func(version, resource string) error {
		watchable, err := e.watchable(ctx, version, resource)
		if err == nil && !watchable {
			err = mismatch("resource "+resource+" of "+version, "the verb watch in discovery", "no such verb")
		}
		return err
	})
}
