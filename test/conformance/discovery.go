package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/util/proto"
	"k8s.io/kube-openapi/pkg/util/proto/validation"
)

// The sources of the checks.
var (
	design = Source{"design proposal: resource metrics API",
		"https://github.com/kubernetes/design-proposals-archive/blob/main/instrumentation/resource-metrics-api.md"}
	definition = Source{"types of k8s.io/metrics",
		"https://github.com/kubernetes/metrics/blob/master/pkg/apis/metrics/v1beta1/types.go"}
	kepV1    = Source{"KEP-5207: metrics.k8s.io v1", "https://kep.k8s.io/5207"}
	concepts = Source{"Kubernetes API concepts",
		"https://kubernetes.io/docs/reference/using-api/api-concepts/"}
	conventions = Source{"Kubernetes API conventions",
		"https://github.com/kubernetes/community/blob/main/contributors/devel/sig-architecture/api-conventions.md"}
	kubectlTop = Source{"kubectl top", "https://kubernetes.io/docs/reference/kubectl/generated/kubectl_top/"}
	autoscaler = Source{"HorizontalPodAutoscaler",
		"https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#algorithm-details"}
	recommender = Source{"recommender of the VerticalPodAutoscaler",
		"https://github.com/kubernetes/autoscaler/tree/master/vertical-pod-autoscaler/pkg/recommender"}
	pipeline = Source{"resource metrics pipeline",
		"https://kubernetes.io/docs/tasks/debug/debug-cluster/resource-metrics-pipeline/"}
	rbac = Source{"Using RBAC Authorization", "https://kubernetes.io/docs/reference/access-authn-authz/rbac/"}
	swap = Source{"kubectl top --show-swap",
		"https://kubernetes.io/docs/reference/kubectl/generated/kubectl_top/kubectl_top_node/"}
	watchKEP = Source{"KEP-1013: watch of metrics (provisional)", "https://kep.k8s.io/1013"}
)

// groupCheck is the check that the API is there at all.
const groupCheck = "discovery/group"

var discoveryChecks = []Check{
	{groupCheck, Required, "the API server serves the group metrics.k8s.io", kubectlTop, nothing, checkGroup},
	{"discovery/v1beta1", Required, "version v1beta1 is served, which the HPA, the VPA and k9s request",
		autoscaler, nothing, served("v1beta1")},
	{"discovery/v1", Recommended, "version v1 is served", kepV1, nothing, served("v1")},
	{"discovery/resources", Required,
		"each version has nodes and pods with their kinds, scopes, and the verbs get and list",
		design, nothing, checkResources},
	{"discovery/aggregated", Recommended, "aggregated discovery has the group and its resources", concepts, nothing,
		checkAggregated},
	{"openapi/v2", Recommended, "OpenAPI v2 describes what is served", conventions, nothing, checkOpenAPIv2},
	{"openapi/v3", Recommended, "OpenAPI v3 describes what is served", conventions, nothing, checkOpenAPIv3},
}

func checkGroup(ctx context.Context, e *env) error {
	var groups metav1.APIGroupList
	if err := e.decode(ctx, "/apis", typeJSON, &groups); err != nil {
		return err
	}
	i := slices.IndexFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == group })
	if i < 0 {
		return mismatch("GET /apis", "the group "+group, "no such group: is its APIService available?")
	}
	var listed []string
	for _, v := range groups.Groups[i].Versions {
		listed = append(listed, v.Version)
	}
	for _, v := range e.versions {
		if !slices.Contains(listed, v) {
			return mismatch("GET /apis", "version "+v+" of "+group+", which is served", listed)
		}
	}
	if !e.served() {
		return mismatch("GET /apis/"+group, "version v1 or v1beta1 with status 200", "none")
	}
	return nil
}

func served(version string) func(context.Context, *env) error {
	return func(ctx context.Context, e *env) error {
		_, err := e.admin.expect(ctx, "/apis/"+group+"/"+version, typeJSON, http.StatusOK)
		return err
	}
}

func checkResources(ctx context.Context, e *env) error {
	var errs []error
	for _, version := range e.versions {
		var listed metav1.APIResourceList
		at := "/apis/" + group + "/" + version
		if err := e.decode(ctx, at, typeJSON, &listed); err != nil {
			return err
		}
		for name, kind := range resources {
			i := slices.IndexFunc(listed.APIResources, func(r metav1.APIResource) bool { return r.Name == name })
			if i < 0 {
				errs = append(errs, mismatch("GET "+at, "resource "+name, "none"))
				continue
			}
			r := listed.APIResources[i]
			if r.Kind != kind || r.Namespaced != (name == "pods") ||
				!slices.Contains(r.Verbs, "get") || !slices.Contains(r.Verbs, "list") {
				errs = append(errs, mismatch("resource "+name+" of GET "+at,
					fmt.Sprintf("kind %s, namespaced %t, verbs get and list", kind, name == "pods"),
					fmt.Sprintf("kind %s, namespaced %t, verbs %v", r.Kind, r.Namespaced, r.Verbs)))
			}
		}
	}
	return first(errs)
}

func checkAggregated(ctx context.Context, e *env) error {
	const accept = "application/json;v=v2;g=apidiscovery.k8s.io;as=APIGroupDiscoveryList"
	var discovered struct {
		Items []struct {
			Metadata metav1.ObjectMeta
			Versions []struct {
				Version   string
				Freshness string
				Resources []struct{ Resource string }
			}
		}
	}
	return e.eventually(ctx, func(ctx context.Context) error {
		if err := e.decode(ctx, "/apis", accept, &discovered); err != nil {
			return err
		}
		var got []string
		for _, g := range discovered.Items {
			for _, v := range g.Versions {
				for _, r := range v.Resources {
					if g.Metadata.Name == group {
						got = append(got, v.Version+"/"+r.Resource)
					}
				}
			}
		}
		return e.each(func(version, resource string) error {
			if want := version + "/" + resource; !slices.Contains(got, want) {
				return mismatch("GET /apis as APIGroupDiscoveryList", want, got)
			}
			return nil
		})
	})
}

// decode requests JSON and decodes it.
func (e *env) decode(ctx context.Context, path, accept string, into any) error {
	r, err := e.admin.expect(ctx, path, accept, http.StatusOK)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(r.body, into); err != nil {
		return mismatch(r.request, fmt.Sprintf("%T", into), err)
	}
	return nil
}

func checkOpenAPIv2(ctx context.Context, e *env) error {
	return e.validate(ctx, func(string) string { return "/openapi/v2" }, func(body []byte) (proto.Models, error) {
		document, err := openapi_v2.ParseDocument(body)
		if err != nil {
			return nil, err
		}
		return proto.NewOpenAPIData(document)
	})
}

func checkOpenAPIv3(ctx context.Context, e *env) error {
	at := func(version string) string { return "/openapi/v3/apis/" + group + "/" + version }
	return e.validate(ctx, at, func(body []byte) (proto.Models, error) {
		document, err := openapi_v3.ParseDocument(body)
		if err != nil {
			return nil, err
		}
		return proto.NewOpenAPIV3Data(document)
	})
}

// validate compares the lists with the models of a document. The API server merges the documents of
// all its servers from time to time, so that they may come late.
func (e *env) validate(ctx context.Context, at func(version string) string,
	parse func(body []byte) (proto.Models, error)) error {
	return e.each(func(version, resource string) error {
		return e.eventually(ctx, func(ctx context.Context) error {
			r, err := e.admin.expect(ctx, at(version), typeJSON, http.StatusOK)
			if err != nil {
				return err
			}
			models, err := parse(r.body)
			if err != nil {
				return fmt.Errorf("%s: %w", r.request, err)
			}
			kind := resources[resource] + "List"
			model := findModel(models, version, kind)
			if model == nil {
				return mismatch(r.request, "a definition of "+version+" "+kind, "none")
			}
			var served any
			if err := e.decode(ctx, path(version, resource, "", ""), typeJSON, &served); err != nil {
				return err
			}
			if err := first(validation.ValidateModel(served, model, kind)); err != nil {
				return mismatch("GET "+path(version, resource, "", ""), "what "+r.request+" describes", err)
			}
			return nil
		})
	})
}

// findModel returns the definition of a kind, or nil. Its name differs between servers; its
// extension does not.
func findModel(models proto.Models, version, kind string) proto.Schema {
	for _, name := range models.ListModels() {
		model := models.LookupModel(name)
		if model == nil || !strings.Contains(name, kind[:4]) {
			continue
		}
		kinds, _ := model.GetExtensions()["x-kubernetes-group-version-kind"].([]any)
		for _, k := range kinds {
			if equalGVK(k, version, kind) {
				return model
			}
		}
	}
	return nil
}

func equalGVK(extension any, version, kind string) bool {
	text := func(key string) string {
		switch m := extension.(type) {
		case map[any]any:
			return fmt.Sprint(m[key])
		case map[string]any:
			return fmt.Sprint(m[key])
		}
		return ""
	}
	return text("group") == group && text("version") == version && text("kind") == kind
}
