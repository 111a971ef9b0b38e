package e2e

import (
	"context"
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"github.com/kube-vitals/kube-vitals/test/internal/cluster"
)

// testAdmissionPolicy patches the chart's APIServices as the server's ServiceAccount: the admission
// policy accepts a change of spec.caBundle and denies every other change. Other users may change
// everything. No server runs that would correct an APIService.
func (c *testCluster) testAdmissionPolicy(t *testing.T) {
	const (
		right     = `{"spec":{"service":{"name":"` + cluster.Release + `"}}}`
		elsewhere = `{"spec":{"service":{"name":"elsewhere"}}}`
		denied    = "kube-vitals may change only spec.caBundle of an APIService"
	)
	versions := []string{"v1", "v1beta1"}
	caBundle := base64.StdEncoding.EncodeToString(c.CA.PEM())
	patch := func(ctx context.Context, version, patch string) error { // as the server's ServiceAccount
		_, err := c.Kubectl(ctx, "patch", "apiservice", version+".metrics.k8s.io", "--type=merge", "--patch", patch,
			"--as="+account)
		return err
	}
	isDenied := func(err error) bool { return err != nil && strings.Contains(err.Error(), denied) }
	eventually(t, "the policy to deny a patch", func(ctx context.Context) error {
		// An earlier attempt may have been accepted; then the same patch would change nothing.
		c.patchAPIService(t, "v1", right)
		err := patch(ctx, "v1", elsewhere)
		if isDenied(err) {
			return nil
		}
		return errors.Join(errors.New("the patch was not denied"), err)
	})
	before := c.apiServices(t)
	for _, change := range []string{
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
		for _, version := range versions {
			if err := patch(t.Context(), version, change); !isDenied(err) {
				t.Errorf("%s: %s: got %v, want a denial", version, change, err)
			}
		}
	}
	if after := c.apiServices(t); after != before {
		t.Errorf("the APIServices changed from\n%s\nto\n%s", before, after)
	}
	for _, version := range versions {
		for _, value := range []string{`"` + caBundle + `"`, "null"} {
			if err := patch(t.Context(), version, `{"spec":{"caBundle":`+value+`}}`); err != nil {
				t.Errorf("%s: a patch of the caBundle: %v", version, err)
			}
		}
	}
	c.patchAPIService(t, "v1", elsewhere) // another user
}

// apiServices returns the fields of both APIServices that the policy protects.
func (c *testCluster) apiServices(t *testing.T) string {
	t.Helper()
	return c.kubectl(t, "get", "apiservices", "--selector", "app.kubernetes.io/instance="+cluster.Release, "--output",
		`jsonpath={range .items[*]}{.metadata.name} {.metadata.labels} {.metadata.annotations} {.metadata.finalizers} `+
			`{.metadata.ownerReferences} {.spec}{"\n"}{end}`)
}
