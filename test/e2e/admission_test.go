package e2e

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/test/internal/binaries"
	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// TestAdmissionPolicy patches the chart's APIServices as the server's ServiceAccount. With the
// chart's admission policy, the real API server accepts a change of spec.caBundle and denies every
// other change. Other users may change anything.
func TestAdmissionPolicy(t *testing.T) {
	t.Parallel()
	o := &owner{Cluster: startCluster(t)}
	policy := func(command, enabled string) {
		t.Helper()
		if _, err := o.Run(t.Context(), binaries.Helm, command, cluster.Release, shared.Chart, "--namespace", cluster.Namespace,
			"--set", "replicas=0", "--set", "tls.admissionPolicy.enabled="+enabled); err != nil {
			t.Fatal(err)
		}
	}
	const (
		v1, v1beta1 = "v1.metrics.k8s.io", "v1beta1.metrics.k8s.io"
		elsewhere   = `{"spec":{"service":{"name":"elsewhere"}}}`
		denied      = "kube-vitals may change only spec.caBundle of an APIService"
	)
	caBundle := base64.StdEncoding.EncodeToString(o.CA.PEM())
	policy("install", "false")
	if err := o.patchAPIService(t.Context(), account, v1, elsewhere); err != nil {
		t.Errorf("without the policy, a patch is denied: %v", err)
	}
	if err := o.patchAPIService(t.Context(), "", v1, `{"spec":{"service":{"name":"`+cluster.Release+`"}}}`); err != nil {
		t.Fatal(err)
	}

	policy("upgrade", "true")
	o.eventually(t, "the policy to deny a patch", func(ctx context.Context) error {
		// An earlier attempt may have been accepted; then the same patch would change nothing.
		if err := o.patchAPIService(ctx, "", v1, `{"spec":{"service":{"name":"`+cluster.Release+`"}}}`); err != nil {
			return err
		}
		err := o.patchAPIService(ctx, account, v1, elsewhere)
		switch {
		case err == nil:
			return errors.New("the patch is accepted")
		case !strings.Contains(err.Error(), denied):
			return fmt.Errorf("the patch is denied for another reason: %w", err)
		default:
			return nil
		}
	})
	before := o.apiServices(t)
	for _, patch := range []string{
		elsewhere,
		`{"spec":{"service":{"namespace":"elsewhere"}}}`,
		`{"spec":{"service":{"port":444}}}`,
		`{"spec":{"service":null}}`,
		`{"spec":{"insecureSkipTLSVerify":true}}`,
		`{"spec":{"groupPriorityMinimum":1}}`,
		`{"spec":{"versionPriority":1}}`,
		`{"spec":{"caBundle":"` + caBundle + `","versionPriority":1}}`,
		`{"metadata":{"labels":{"a":"b"}}}`,
		`{"metadata":{"annotations":{"a":"b"}}}`,
		`{"metadata":{"annotations":null}}`,
		`{"metadata":{"finalizers":["example.org/a"]}}`,
		`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Namespace","name":"default","uid":"a"}]}}`,
	} {
		for _, name := range []string{v1, v1beta1} {
			if err := o.patchAPIService(t.Context(), account, name, patch); err == nil || !strings.Contains(err.Error(), denied) {
				t.Errorf("%s: %s: got %v, want a denial", name, patch, err)
			}
		}
	}
	if after := o.apiServices(t); after != before {
		t.Errorf("the APIServices have changed from\n%s\nto\n%s", before, after)
	}

	for _, value := range []string{`"` + caBundle + `"`, "null"} {
		for _, name := range []string{v1, v1beta1} {
			if err := o.patchAPIService(t.Context(), account, name, `{"spec":{"caBundle":`+value+`}}`); err != nil {
				t.Errorf("%s: the caBundle cannot be patched: %v", name, err)
			}
		}
	}
	if err := o.patchAPIService(t.Context(), "", v1, elsewhere); err != nil {
		t.Errorf("another user's patch is denied: %v", err)
	}
}

// patchAPIService applies a merge patch to an APIService as a user, or as the administrator.
func (o *owner) patchAPIService(ctx context.Context, user, name, patch string) error {
	args := []string{"patch", "apiservice", name, "--type=merge", "--patch", patch}
	if user != "" {
		args = append(args, "--as="+user)
	}
	_, err := o.Kubectl(ctx, args...)
	return err
}

// apiServices returns what a policy protects of both APIServices.
func (o *owner) apiServices(t *testing.T) string {
	t.Helper()
	return o.kubectl(t, "get", "apiservices", "--selector", "app.kubernetes.io/instance="+cluster.Release, "--output",
		`jsonpath={range .items[*]}{.metadata.name} {.metadata.labels} {.metadata.annotations} {.metadata.finalizers} `+
			`{.metadata.ownerReferences} {.spec}{"\n"}{end}`)
}
