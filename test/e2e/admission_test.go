package e2e

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// TestAdmissionPolicy patches the chart's APIServices as the server's ServiceAccount. With the
// chart's admission policy, the API server accepts a change of spec.caBundle and denies every other
// change. Other users may change everything.
func TestAdmissionPolicy(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	policy := func(command, enabled string) {
		t.Helper()
		if err := c.Helm(t.Context(), command, "replicas=0", "tls.admissionPolicy.enabled="+enabled); err != nil {
			t.Fatal(err)
		}
	}
	const (
		v1, v1beta1 = "v1.metrics.k8s.io", "v1beta1.metrics.k8s.io"
		elsewhere   = `{"spec":{"service":{"name":"elsewhere"}}}`
		denied      = "kube-vitals may change only spec.caBundle of an APIService"
	)
	caBundle := base64.StdEncoding.EncodeToString(c.CA.PEM())
	policy("install", "false")
	if err := c.patchAPIService(t.Context(), account, v1, elsewhere); err != nil {
		t.Errorf("without the policy, a patch is denied: %v", err)
	}
	if err := c.patchAPIService(t.Context(), "", v1, `{"spec":{"service":{"name":"`+cluster.Release+`"}}}`); err != nil {
		t.Fatal(err)
	}

	policy("upgrade", "true")
	eventually(t, "the policy to deny a patch", func(ctx context.Context) error {
		// An earlier attempt may have been accepted; then the same patch would change nothing.
		if err := c.patchAPIService(ctx, "", v1, `{"spec":{"service":{"name":"`+cluster.Release+`"}}}`); err != nil {
			return err
		}
		err := c.patchAPIService(ctx, account, v1, elsewhere)
		switch {
		case err == nil:
			return errors.New("the patch was accepted")
		case !strings.Contains(err.Error(), denied):
			return fmt.Errorf("the patch was denied for another reason: %w", err)
		default:
			return nil
		}
	})
	before := c.apiServices(t)
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
			err := c.patchAPIService(t.Context(), account, name, patch)
			if err == nil || !strings.Contains(err.Error(), denied) {
				t.Errorf("%s: %s: got %v, want a denial", name, patch, err)
			}
		}
	}
	if after := c.apiServices(t); after != before {
		t.Errorf("the APIServices changed from\n%s\nto\n%s", before, after)
	}

	for _, value := range []string{`"` + caBundle + `"`, "null"} {
		for _, name := range []string{v1, v1beta1} {
			if err := c.patchAPIService(t.Context(), account, name, `{"spec":{"caBundle":`+value+`}}`); err != nil {
				t.Errorf("%s: a patch of the caBundle: %v", name, err)
			}
		}
	}
	if err := c.patchAPIService(t.Context(), "", v1, elsewhere); err != nil {
		t.Errorf("another user's patch was denied: %v", err)
	}
}

// patchAPIService applies a merge patch to an APIService as a user, or as the administrator.
func (c *testCluster) patchAPIService(ctx context.Context, user, name, patch string) error {
	args := []string{"patch", "apiservice", name, "--type=merge", "--patch", patch}
	if user != "" {
		args = append(args, "--as="+user)
	}
	_, err := c.Kubectl(ctx, args...)
	return err
}

// apiServices returns the fields of both APIServices that the policy protects.
func (c *testCluster) apiServices(t *testing.T) string {
	t.Helper()
	return c.kubectl(t, "get", "apiservices", "--selector", "app.kubernetes.io/instance="+cluster.Release, "--output",
		`jsonpath={range .items[*]}{.metadata.name} {.metadata.labels} {.metadata.annotations} {.metadata.finalizers} `+
			`{.metadata.ownerReferences} {.spec}{"\n"}{end}`)
}
