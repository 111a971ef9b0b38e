// Package openapi contains the OpenAPI schemas of metrics.k8s.io and of the Kubernetes types that it
// uses. `kubectl explain` shows their descriptions.
//
// The schemas are generated from the comments of k8s.io/metrics and k8s.io/apimachinery; run `go
// generate` here when their version changes. The generator's version is that of
// k8s.io/kube-openapi in go.mod.
package openapi

//go:generate go tool -modfile=../../../test/tools/lint/go.mod openapi-gen --output-dir=. --output-pkg=github.com/kube-vitals/kube-vitals/pkg/api/openapi --output-file=zz_generated.openapi.go --go-header-file=/dev/null --report-filename=/dev/null k8s.io/metrics/pkg/apis/metrics/v1 k8s.io/metrics/pkg/apis/metrics/v1beta1 k8s.io/apimachinery/pkg/apis/meta/v1 k8s.io/apimachinery/pkg/api/resource k8s.io/apimachinery/pkg/runtime k8s.io/apimachinery/pkg/version
