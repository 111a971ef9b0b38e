# `make help` lists the targets. What they run is built from Go modules at fixed versions, the first time, and kept in the
# user's cache folder. CONTRIBUTING.md says what a machine needs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

VERSION ?= $(shell git describe --tags --always --dirty --match 'v*' 2>/dev/null | sed 's/^\([^v]\)/v0.0.0-g\1/' | grep . || echo v0.0.0-dev)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
LDFLAGS ?= -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)
GO      ?= go

# Tools at fixed versions, each built once into a folder of its own.
CACHE     ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/kube-vitals/tools
HELM      := $(CACHE)/helm-v3.22.0/helm
KUSTOMIZE := $(CACHE)/kustomize-v5.8.1/kustomize
HELM_DOCS := $(CACHE)/helm-docs-v1.14.2/helm-docs
LINT      := $(CACHE)/golangci-lint-v2.15.0/golangci-lint
PROMTOOL  := $(CACHE)/promtool-v0.315.0/promtool
VULN      := $(CACHE)/govulncheck-v1.8.0/govulncheck

IMAGE     ?= ghcr.io/kube-vitals/kube-vitals
TAG       ?= $(VERSION)
PLATFORMS ?= linux/amd64,linux/arm64
RELEASED  ?= linux/amd64,linux/arm64,linux/ppc64le,linux/s390x
DIGEST    ?=
BUILDER   ?= $(firstword $(notdir $(shell command -v docker buildah podman)))

FUZZTIME ?= 30s
SOAK     ?= 3
NODES    ?= 1000
ROUNDS   ?= 3

.DEFAULT_GOAL := help
.PHONY: help build test unit e2e lint fmt verify generate demo bench soak fuzz image release vuln

help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-8s %s\n", $$1, $$2}'

build: ## build bin/kube-vitals, one static binary
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/kube-vitals ./cmd/kube-vitals

test: unit verify e2e ## all tests: unit with -race, then chart against manifests, then e2e on a real control plane

unit: $(PROMTOOL) ## the fast tests beside the code
	$(GO) test -race ./...
	cd test && PROMTOOL=$(PROMTOOL) $(GO) test -race $$($(GO) list ./... | grep -v -e /e2e -e /verify)

e2e: build ## the built binary behind a real API server; the first run builds the control plane (minutes)
	cd test && KUBE_VITALS=$(CURDIR)/bin/kube-vitals $(GO) test -count=1 -timeout 30m ./e2e/...

lint: $(LINT) ## golangci-lint on both modules
	$(LINT) run ./...
	cd test && $(LINT) run --config ../.golangci.yaml ./...

fmt: $(LINT) ## format the code
	$(LINT) fmt ./...
	cd test && $(LINT) fmt --config ../.golangci.yaml ./...

verify: $(HELM) $(KUSTOMIZE) $(HELM_DOCS) ## fail where chart, manifests and the chart's README differ
	cd test && $(GO) run ./verify -root .. -helm $(HELM) -kustomize $(KUSTOMIZE) -helm-docs $(HELM_DOCS)
	cd test && HELM=$(HELM) KUSTOMIZE=$(KUSTOMIZE) HELM_DOCS=$(HELM_DOCS) $(GO) test -count=1 ./verify

generate: $(HELM_DOCS) ## write the chart's README and the descriptions in its schema from values.yaml
	cd test && $(GO) run ./verify -write -root .. -helm-docs $(HELM_DOCS)

# Ctrl-C ends the demo without an error: go run would report one, and so would make, unless the demo has its own process
# group (set -m).
demo: build ## a cluster with 20 simulated nodes, kubectl top and an HPA; ONCE=1 ends after the last step
	cd test && $(GO) build -o $(CURDIR)/bin/demo ./cmd/demo
	@$(if $(ONCE),,set -m;) cd test && ONCE=$(ONCE) KUBE_VITALS=$(CURDIR)/bin/kube-vitals $(CURDIR)/bin/demo || exit

bench: build ## Go benchmarks and a simulated cluster of NODES nodes beside its floor; ONLY=start, failures or newpods
ifeq ($(ONLY),)
	$(GO) test -run '^$$' -bench . -benchmem ./pkg/...
endif
	cd test && $(GO) run ./bench -server $(or $(SERVER),$(CURDIR)/bin/kube-vitals) -nodes $(NODES) -rounds $(ROUNDS) $(if $(ONLY),-only $(ONLY)) $(if $(BESIDE),-beside $(BESIDE)) $(FLAGS)

soak: build ## wear the server out for SOAK minutes in a simulated cluster with churn and faults; fails on growth
	cd test && $(GO) run ./soak -server $(CURDIR)/bin/kube-vitals -minutes $(SOAK) $(FLAGS)

fuzz: ## run each fuzz test for FUZZTIME
	@for package in $$($(GO) list ./pkg/...); do \
	  for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
	    echo "$$package $$target"; $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$package; \
	  done; \
	done

image: ## build the image IMAGE:TAG for PLATFORMS with docker, buildah or podman
	@test -n "$(BUILDER)" || { echo "make image needs docker, buildah or podman (set BUILDER)" >&2; exit 1; }
ifeq ($(BUILDER),docker)
	docker buildx build --platform $(PLATFORMS) --build-arg LDFLAGS='$(LDFLAGS)' $(BUILD_ARGS) --tag $(IMAGE):$(TAG) .
else # these append to a manifest that is there, and older ones do not set BUILDPLATFORM
	$(BUILDER) manifest rm $(IMAGE):$(TAG) 2>/dev/null || true
	$(BUILDER) build --layers --platform $(PLATFORMS) --manifest $(IMAGE):$(TAG) \
	  --build-arg BUILDPLATFORM=linux/$$($(GO) env GOHOSTARCH) --build-arg LDFLAGS='$(LDFLAGS)' $(BUILD_ARGS) .
endif

# Provenance and a bill of materials of the image: docs/release.md.
release: $(HELM) $(KUSTOMIZE) ## binaries, chart, manifest, bills of materials, checksums: in dist/; and the image, where it can be built
	cd test && $(GO) run ./release -root .. -out ../dist -version $(VERSION) $(if $(DIGEST),-digest $(DIGEST)) -ldflags '$(LDFLAGS)' -platforms $(RELEASED) \
	  -time $$(git log -1 --format=%ct) -helm $(HELM) -kustomize $(KUSTOMIZE)
	cd test && $(GO) run ./verify -helm $(HELM) -chart ../dist/kube-vitals-$(VERSION:v%=%).tgz -file ../dist/kube-vitals.yaml
	@if test -n "$(DIGEST)"; then echo "No image: the one of $(DIGEST) is pushed already."; \
	elif test -n "$(BUILDER)" && $(BUILDER) info >/dev/null 2>&1; then $(MAKE) image PLATFORMS=$(RELEASED); \
	else echo "No image: $(or $(BUILDER),docker, buildah or podman) does not work here. make image builds it where a BUILDER does."; fi

vuln: $(VULN) ## look for known vulnerabilities in what the binary calls; needs vuln.go.dev, or a copy that GOVULNDB names
	@$(VULN) ./... || { status=$$?; [ $$status = 3 ] || echo "make vuln could not look: see above what it lacks" >&2; exit $$status; } # 3: it found some

# Of the version in test/promql/go.mod, and without the clouds in which Prometheus can look for targets.
$(PROMTOOL):
	@mkdir -p $(dir $@)
	cd test/promql && GOFLAGS='-trimpath -tags=remove_all_sd' CGO_ENABLED=0 $(GO) build -o $@ github.com/prometheus/prometheus/cmd/promtool

# install = module, version, folder
define install
	@mkdir -p $(dir $@)
	cd $(dir $@) && GOFLAGS=-buildvcs=false GOBIN=$(dir $@) CGO_ENABLED=0 $(GO) install -ldflags '-s -w $(2)' $(1)
endef
$(HELM):      ; $(call install,helm.sh/helm/v3/cmd/helm@v3.22.0)
$(KUSTOMIZE): ; $(call install,sigs.k8s.io/kustomize/kustomize/v5@v5.8.1)
$(HELM_DOCS): ; $(call install,github.com/norwoodj/helm-docs/cmd/helm-docs@v1.14.2)
$(LINT):      ; $(call install,github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0)
$(VULN):      ; $(call install,golang.org/x/vuln/cmd/govulncheck@v1.8.0)
