// This module has no code: it pins the modules whose folders deploy/crds and example/prometheus-operator-crd
// have the CustomResourceDefinitions for TestChartObjects. Nothing else of them is used, so what they
// require is not listed, and go mod tidy would remove everything.
module github.com/kube-vitals/kube-vitals/test/tools/crds

go 1.26.8

require (
	github.com/cert-manager/cert-manager v1.21.2
	github.com/prometheus-operator/prometheus-operator v0.85.0
)
