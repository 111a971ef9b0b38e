# `make help` lists the targets. CONTRIBUTING.md lists what a machine needs, and the proofs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty --match 'v*' 2>/dev/null | \
	sed 's/^\([^v]\)/v0.0.0-g\1/' | grep . || echo v0.0.0-dev)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
LDFLAGS ?= -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)
CACHE   ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/kube-vitals
$(if $(filter-out 1,$(words $(CURDIR)) $(words $(CACHE))),$(error the path of the checkout or of the cache has a space))
unexport CDPATH
# All go commands have the same flags, also those that tests run: Go compiles what several programs need once only if
# flags, cgo and versions are equal. No program is linked with DWARF. `make lint` runs vet. A package of tests has an
# hour: the default of 10 minutes ends them on a busy machine. Only the race detector needs cgo.
ifndef MODULE_PROXY # of the make that calls this one
export MODULE_PROXY := $(shell $(GO) env GOPROXY)
export GOFLAGS := $(strip $(shell $(GO) env GOFLAGS) -trimpath -buildvcs=false -gcflags=all=-dwarf=false -vet=off -timeout=1h)
export PATH := $(CURDIR)/bin/controlplane:$(CACHE)/debian:$(PATH)
endif
export GOPROXY := off
export CGO_ENABLED := 0

.PHONY: help deps quick build plugin programs helm test unit race verify e2e matrix clients conformance \
	lint fmt generate demo bench scaling plot soak fuzz vuln image package release push-chart

help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-11s  %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# download = flags and folders with a go.mod, variables
download = @(cd test && $(GO) build -o $(CURDIR)/bin/deps ./cmd/deps) && GOPROXY="$$MODULE_PROXY" $(2) bin/deps $(1)

DEPS ?= deps # empty: somebody has made them
deps: ## download all that demo, test and race need; the other targets download what only they need
	@[ "$$(uname)" = Linux ] || { echo "demo, test and race need Linux; make plugin does not" >&2; exit 1; }
	$(call download,-debian $(CACHE)/debian -skipped bin/skipped \
	  . test test/conformance test/tools/controlplane test/tools/kubectl test/tools/crds)

quick: ## after each change: the unit tests of the server that it can affect
	$(call download,.)
	$(GO) test ./...

# The version of Go's cryptographic module that is certified for FIPS 140-3: lib/fips140/certified.txt of Go.
GOFIPS140 := $(if $(FIPS),v1.0.0,off)
build: ## build bin/kube-vitals, one static binary; FIPS=1: with the FIPS 140-3 module
	$(call download,.)
	GOFIPS140=$(GOFIPS140) $(GO) build -ldflags '$(LDFLAGS)' -o bin/kube-vitals ./cmd/kube-vitals

plugin: ## build bin/kubectl-vitals, the plugin of kubectl
	$(call download,.)
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/kubectl-vitals ./cmd/kubectl-vitals

# etcd, Kubernetes, kubectl, helm and kwok, which are built once and kept in the cache.
programs: $(DEPS)
	@cd test && $(GO) build -ldflags '-s -w' -o $(CURDIR)/bin/programs ./cmd/programs && \
	  $(CURDIR)/bin/programs $(CURDIR)/bin/controlplane

test: $(DEPS) ## run all tests: unit, verify and e2e
	@(trap - INT QUIT; exec $(MAKE) unit verify DEPS=) & unit=$$!; status=0; $(MAKE) e2e DEPS= || status=$$?; \
	  wait $$unit || status=$$?; cat bin/skipped; exit $$status

# With half of the priority of e2e, which waits for much. Go does not see that files of another module change: -count=1.
UNIT = nice -n 3 $(GO) test $(RACE)
unit: $(DEPS) ## run the unit tests
	$(UNIT) ./...
	cd test && $(UNIT) ./page ./soak && $(UNIT) -count=1 $$($(GO) list ./... | grep -v -e /e2e -e /test/chart -e /page -e /soak)
	cd test/conformance && $(UNIT) ./...

race: ## run the unit tests with the race detector
	@$(MAKE) unit RACE=-race CGO_ENABLED=1

verify: programs ## test the chart, and that manifests/ describes the same objects
	cd test && $(GO) test -count=1 ./chart

E2E = cd test && $(GO) test -count=1
e2e: programs build plugin ## run the built binary behind a real API server
	$(E2E) -parallel 6 ./e2e/...

matrix: build plugin ## make e2e with 1.31, 1.34 and 1.37 of Kubernetes, or with that of KUBERNETES
	cd test/tools/kubernetes && for file in go v1.31; do GOPROXY="$$MODULE_PROXY" $(GO) list -modfile=$$file.mod -deps . >/dev/null || exit; done
	for version in $(or $(KUBERNETES),1.31 1.34 1.37); do KUBERNETES=$$version $(MAKE) e2e || exit; done

# The clients' versions are those of test/clients. npm downloads, so that this target is not offline.
CLIENTS := $(CURDIR)/bin/clients
build-client = cd test/clients/$(1) && GOPROXY="$$MODULE_PROXY" $(GO) build -o $(CLIENTS)/$(2)
clients: programs build ## run other languages, old clients, the VPA, KEDA, the descheduler and cert-manager
	@command -v npm >/dev/null || { echo "npm is missing: install Node.js 20" >&2; exit 1; }
	@/usr/bin/python3 -c 'import kubernetes' || { echo "install Debian's package python3-kubernetes" >&2; exit 1; }
	$(call build-client,kubectl,kubectl) .
	$(call build-client,clientset,clientset-0.24) -modfile=v0.24.mod .
	$(call build-client,clientset,clientset-0.30) .
	$(call build-client,objects,objects) .
	$(call build-client,vpa,) tool
	$(call build-client,descheduler,descheduler) tool
	$(call build-client,certmanager,certmanager) .
	$(call build-client,keda,keda) tool
	mkdir -p $(CLIENTS)/node && cp test/clients/node/* $(CLIENTS)/node
	cd $(CLIENTS)/node && npm ci --ignore-scripts --no-audit --no-fund
	CLIENTS=$(CLIENTS) && export CLIENTS && $(E2E) -v ./e2e \
	  -run '^(TestClients|TestOldestAPI|TestVerticalPodAutoscaler|TestKEDA|TestDescheduler|TestCertManager)$$'

# Prometheus without its service discoveries and pages. The last tests are those that otherwise run Debian's version.
conformance: export PATH := $(CURDIR)/bin/prometheus:$(PATH)
conformance: programs build plugin bin/metrics-server ## judge kube-vitals and metrics-server; test with Prometheus 3
	$(call download,test/tools/promql)
	cd test/tools/promql && $(GO) build -tags remove_all_sd -o $(CURDIR)/bin/prometheus/ tool
	METRICS_SERVER=$(CURDIR)/bin/metrics-server && export METRICS_SERVER && $(E2E) -run '^TestConformance$$' ./e2e \
	  -args -conformance=$(CURDIR)/test/conformance/README.md
	$(E2E) -run Prometheus ./e2e ./internal/observability

bin/metrics-server: test/tools/metrics-server/go.mod
	$(call download,test/tools/metrics-server)
	cd test/tools/metrics-server && $(GO) build -o $(CURDIR)/bin/ tool

tool = $(GO) tool -modfile=$(CURDIR)/test/tools/$(1)/go.mod
LINT = $(call tool,lint) golangci-lint
in-modules = for folder in . test test/conformance; do (cd $$folder && $(1)); done
lint: generate ## check the code, the workflows, the wording, and that `make generate` changes nothing
	$(call download,test test/conformance test/tools/actionlint)
	test/prose.sh
	$(call tool,actionlint) actionlint -shellcheck= -pyflakes=
	$(call in-modules,$(LINT) run --config $(CURDIR)/.golangci.yaml ./...)
	@git diff --exit-code -- $(GENERATED) || { echo "generated files have changed: commit or stage them" >&2; exit 1; }

fmt: ## format the code
	$(call download,test/tools/lint)
	$(call in-modules,$(LINT) fmt --config $(CURDIR)/.golangci.yaml ./...)

helm: # without the rest of the control plane, whose cached packages it shares
	$(call download,test/tools/controlplane)
	cd test/tools/controlplane && $(GO) build -ldflags '-s -w' -o $(CURDIR)/bin/ helm.sh/helm/v3/cmd/helm

GENERATED := charts/kube-vitals/README.md charts/kube-vitals/values.schema.json manifests pkg/api/openapi THIRD_PARTY_LICENSES
generate: helm ## update manifests/, the chart's README and schema, the OpenAPI document, and THIRD_PARTY_LICENSES
	$(call download,. test test/tools/lint)
	$(call download,.,GOOS=windows) # whose licences count, too
	$(GO) generate ./pkg/api/openapi
	cd test && $(GO) run ./chart ../charts/kube-vitals && $(GO) run ./cmd/licenses ..
	$(call tool,lint) helm-docs --chart-search-root charts --log-level warning
	HELM=bin/helm manifests/generate.sh

# Ctrl-C ends the demo without an error: go run would report one, and so would make, unless the demo has its own process
# group (set -m).
demo: programs build plugin ## a cluster with 20 simulated nodes, kubectl top and an HPA; ONCE=1 ends after the last step
	cd test && $(GO) build -ldflags '-s -w' -o $(CURDIR)/bin/demo ./cmd/demo
	@$(if $(ONCE),,set -m;) cd test && ONCE=$(ONCE) KUBE_VITALS=$(CURDIR)/bin/kube-vitals $(CURDIR)/bin/demo || exit

NODES  ?= $(if $(filter reaction autoscalers,$(ONLY)),32,1000)
bench: programs build ## measure the cost with NODES simulated nodes; ONLY=reaction, slow and others: docs/dev/measurements.md
	$(if $(ONLY),,$(GO) test -run '^$$' -bench . -benchmem ./pkg/...)
	cd test && $(GO) run ./bench -server $(or $(SERVER),$(CURDIR)/bin/kube-vitals) -nodes $(NODES) -rounds $(or $(ROUNDS),3) \
	  $(if $(ONLY),-only $(ONLY)) $(if $(BESIDE),-beside $(BESIDE)) \
	  $(if $(filter scale,$(ONLY)),-csv $(SCALING).csv) $(FLAGS)

SCALING := $(CURDIR)/docs/images/scaling
scaling: bin/metrics-server ## measure all sizes of docs/scaling.md: half an hour, and 16 GiB of memory
	$(MAKE) bench ONLY=scale ROUNDS=2 NODES=1
	$(MAKE) bench ONLY=scale ROUNDS=2 NODES=100,1000,5000 BESIDE=$(CURDIR)/bin/metrics-server
	$(MAKE) bench ONLY=scale ROUNDS=2 NODES=19900x5,10000x30 FLAGS='-metric-resolution 30s'
	$(MAKE) plot

plot: ## draw docs/images/scaling.svg, and update docs/scaling.md, from the rows of ONLY=scale in scaling.csv
	$(call download,test)
	cd test && $(GO) run ./bench plot -csv $(SCALING).csv -svg $(SCALING).svg -page $(CURDIR)/docs/scaling.md

soak: programs build ## run the server under churn and faults for SOAK minutes; fails if it grows or a response is wrong
	cd test && $(GO) run ./soak -server $(CURDIR)/bin/kube-vitals -minutes $(or $(SOAK),3) $(FLAGS)

fuzz: ## run each fuzz test for FUZZTIME
	$(call download,.)
	@for package in $$($(GO) list ./pkg/...); do \
	  for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz' || true); do echo "$$package $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(or $(FUZZTIME),30s) -fuzzminimizetime 20x $$package; \
	  done; done

vuln: ## run govulncheck; needs vuln.go.dev, or a copy of its database that GOVULNDB names
	$(call download,. test/tools/lint)
	@$(call tool,lint) govulncheck $(FLAGS) ./...

RELEASE = VERSION=$(VERSION) COMMIT=$(COMMIT) LDFLAGS='$(LDFLAGS)' GOFIPS140=$(GOFIPS140) GOPROXY="$$MODULE_PROXY"
image: ## build the image IMAGE:TAG with docker, buildah or podman; PUSH=1 pushes it for all PLATFORMS
	$(RELEASE) .github/image.sh

package: helm ## package the chart and render it as one manifest in build/; DIGEST, TESTS_DIGEST: of the images
	$(RELEASE) HELM=bin/helm charts/package.sh

release: package ## build all files of a release in dist/; PUBLISH=1 uploads them
	$(call download,. test/tools/release)
	[ -z "$(PUBLISH)" ] || grep --quiet '^appVersion: $(VERSION:v%=%)$$' charts/kube-vitals/Chart.yaml || \
	  { echo "set the versions in Chart.yaml to $(VERSION:v%=%), and run make generate" >&2; exit 1; }
	$(GO) build -C test/tools/release -o $(CURDIR)/bin/release/ tool
	PATH=$(CURDIR)/bin/release:$$PATH $(RELEASE) SYFT_CHECK_FOR_APP_UPDATE=false \
	  goreleaser release --clean $(if $(PUBLISH),,--snapshot)
	cp build/* dist/

# PUSH_ARGS=--plain-http is for a registry on this machine.
CHARTS ?= ghcr.io/kube-vitals/charts
push-chart: helm ## push the chart of `make package` to CHARTS, as an OCI artifact, after helm registry login
	HELM=bin/helm charts/push.sh oci://$(CHARTS) $(PUSH_ARGS)
