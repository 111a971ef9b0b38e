# `make help` lists the targets. The tools they need are built from Go modules at fixed versions, once,
# into the user's cache folder. CONTRIBUTING.md lists what a machine needs.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

GO      ?= go
VERSION ?= $(shell git describe --tags --always --dirty --match 'v*' 2>/dev/null | \
	sed 's/^\([^v]\)/v0.0.0-g\1/' | grep . || echo v0.0.0-dev)
COMMIT  ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
LDFLAGS ?= -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)

# All go commands have the same flags, also those that tests run: Go compiles what several programs need once only if
# flags, cgo and versions are equal. No program is linked with DWARF, so the compiler need not write it. `make lint`
# runs vet. Only the race detector needs cgo.
export GOFLAGS := $(strip $(shell $(GO) env GOFLAGS) -trimpath -gcflags=all=-dwarf=false -vet=off)
export CGO_ENABLED := 0

CACHE      ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/kube-vitals/tools
ACTIONLINT := $(CACHE)/actionlint-v1.7.12/actionlint
GORELEASER := $(CACHE)/goreleaser-v2.16.0/goreleaser
HELM       := $(CACHE)/helm-v3.22.0/helm
HELM_DOCS  := $(CACHE)/helm-docs-v1.14.2/helm-docs
KUBECONFORM := $(CACHE)/kubeconform-v0.8.0/kubeconform
KUSTOMIZE  := $(CACHE)/kustomize-v5.8.1/kustomize
LINT       := $(CACHE)/golangci-lint-v2.15.0/golangci-lint
METRICS_SERVER := $(CACHE)/metrics-server-v0.9.0/metrics-server
PROMTOOL   := $(CACHE)/promtool-v0.315.0/promtool
PROMETHEUS := $(CACHE)/prometheus-v0.315.0/prometheus
VICTORIA_METRICS := $(CACHE)/victoria-metrics-v1.79.5/victoria-metrics
SYFT       := $(CACHE)/syft-v1.46.0/syft
VULN       := $(CACHE)/govulncheck-v1.8.0/govulncheck

.DEFAULT_GOAL := help
.PHONY: help build plugin programs test unit browser victoria-metrics e2e clients client-tools conformance verify lint fmt generate demo bench scaling plot soak fuzz vuln image package release push-chart

help: ## list the targets
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-11s  %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The version of Go's cryptographic module that is certified for FIPS 140-3: lib/fips140/certified.txt of Go.
GOFIPS140 := $(if $(FIPS),v1.0.0,off)
build: ## build bin/kube-vitals, one static binary; FIPS=1: with the FIPS 140-3 module
	GOFIPS140=$(GOFIPS140) $(GO) build -ldflags '$(LDFLAGS)' -o bin/kube-vitals ./cmd/kube-vitals

plugin: ## build bin/kubectl-vitals, the plugin of kubectl
	$(GO) build -ldflags '$(LDFLAGS)' -o bin/kubectl-vitals ./cmd/kubectl-vitals

# Before everything else, because it shows its progress.
programs:
	@cd test && $(GO) build -ldflags '-s -w' -o $(CURDIR)/bin/programs ./cmd/programs && $(CURDIR)/bin/programs

# The unit tests, at a low priority, use the CPU that the others leave: e2e waits for much. browser comes first, because
# apt-get does not run twice at once.
test: browser ## run all tests: unit, verify and e2e
	@$(MAKE) unit & unit=$$! status=0; $(MAKE) programs verify e2e || status=$$?; wait $$unit && exit $$status

# promtool is built between the tests: `make test` builds what it shares with other programs beside the first ones.
unit: export CGO_ENABLED := 1
unit: browser ## run the unit tests with -race
	nice $(GO) test -race -timeout 1h ./...
	@$(MAKE) $(PROMTOOL)
	cd test && PROMTOOL=$(PROMTOOL) nice $(GO) test -race -timeout 1h \
	  $$($(GO) list ./... | grep -v -e /e2e -e /test/chart)
	cd test/conformance && nice $(GO) test -race -timeout 1h ./...

# The tests of the page of nodes run in Chromium.
browser:
	@command -v chromium chromium-browser google-chrome google-chrome-stable >/dev/null || \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update --quiet=2 && apt-get install --yes --quiet=2 --no-install-recommends chromium; \
	  else \
	    echo "Chromium is missing, so the tests of /nodez in a browser are skipped: apt-get install chromium" >&2; \
	  fi

SCHEMAS := $(CACHE)/schemas-v1.29.15-v1.33.13-v1.36.3
verify: $(HELM) $(KUBECONFORM) $(KUSTOMIZE) $(SCHEMAS) ## test the chart, and that manifests/ describes the same objects
	cd test && HELM=$(HELM) KUBECONFORM=$(KUBECONFORM) KUSTOMIZE=$(KUSTOMIZE) SCHEMAS=$(SCHEMAS) $(GO) test -count=1 ./chart

# TestVictoriaMetrics runs the binary of Debian's package. The package is not installed: it would start a service.
victoria-metrics:
	@[ -x $(VICTORIA_METRICS) ] || command -v victoria-metrics >/dev/null || { \
	  mkdir -p $(dir $(VICTORIA_METRICS)) && cd $(dir $(VICTORIA_METRICS)) && \
	  { [ "$$(id -u)" != 0 ] || apt-get update --quiet=2; } && \
	  apt-get download --quiet=2 'victoria-metrics=1.79.5*' && dpkg-deb --extract victoria-metrics_*.deb package && \
	  cp package/usr/bin/victoria-metrics . && rm -r package victoria-metrics_*.deb; \
	} || echo "VictoriaMetrics is missing, so its test is skipped: apt-get install victoria-metrics" >&2

e2e: programs build plugin $(PROMETHEUS) victoria-metrics ## the built binary behind a real API server; the first run builds the control plane (minutes)
	cd test && KUBE_VITALS=$(CURDIR)/bin/kube-vitals PROMETHEUS=$(PROMETHEUS) \
	  VICTORIA_METRICS=$$(command -v $(VICTORIA_METRICS) victoria-metrics | head -n 1) \
	  $(GO) test -count=1 -timeout 1h -parallel 6 ./e2e/...

# What cannot be built from Go modules. Python's client is Debian's package, for Debian's interpreter.
client-tools:
	@command -v node >/dev/null && command -v npm >/dev/null || \
	  { echo "npm is missing: install Node.js 20" >&2; exit 1; }
	@/usr/bin/python3 -c 'import kubernetes' 2>/dev/null || \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update --quiet=2 && apt-get install --yes --quiet=2 --no-install-recommends python3-kubernetes; \
	  else \
	    echo "Python's client library is missing: apt-get install python3-kubernetes" >&2; exit 1; \
	  fi

# The clients' versions are those of test/clients. After the first run, Go's build cache has them.
CLIENTS := bin/clients
RECOMMENDER := k8s.io/autoscaler/vertical-pod-autoscaler/pkg/recommender
DESCHEDULER := sigs.k8s.io/descheduler/cmd/descheduler
build-client = cd test/clients/$(1) && $(GO) build -o $(CURDIR)/$(CLIENTS)/$(2)
clients: client-tools build ## read metrics with other languages, old clients, the VPA and the descheduler; 15 minutes at first
	$(call build-client,kubectl,kubectl) .
	$(call build-client,clientset,clientset-0.24) -modfile=v0.24.mod .
	$(call build-client,clientset,clientset-0.30) .
	$(call build-client,recommender,recommender) $(RECOMMENDER)
	$(call build-client,descheduler,descheduler) $(DESCHEDULER)
	mkdir -p $(CLIENTS)/node && cp test/clients/node/* $(CLIENTS)/node
	cd $(CLIENTS)/node && npm ci --ignore-scripts --no-audit --no-fund
	cd test && KUBE_VITALS=$(CURDIR)/bin/kube-vitals CLIENTS=$(CURDIR)/$(CLIENTS) \
	  $(GO) test -count=1 -timeout 20m -run '^(TestClients|TestVerticalPodAutoscaler|TestDescheduler)$$' -v ./e2e

conformance: build $(PROMETHEUS) $(METRICS_SERVER) ## judge kube-vitals and metrics-server, and write its README
	cd test && KUBE_VITALS=$(CURDIR)/bin/kube-vitals PROMETHEUS=$(PROMETHEUS) METRICS_SERVER=$(METRICS_SERVER) \
	  $(GO) test -count=1 -timeout 30m -run '^TestConformance$$' ./e2e -args -conformance=$(CURDIR)/test/conformance/README.md

lint: $(LINT) $(ACTIONLINT) ## check the code, the workflows, the wording, and that `make generate` changes nothing
	test/prose.sh
	$(ACTIONLINT) -shellcheck= -pyflakes=
	$(LINT) run ./...
	cd test && $(LINT) run --config ../.golangci.yaml ./...
	cd test/conformance && $(LINT) run --config ../../.golangci.yaml ./...
	$(MAKE) generate
	@git diff --exit-code -- $(GENERATED) || { echo "generated files have changed: commit or stage them" >&2; exit 1; }

fmt: $(LINT) ## format the code
	$(LINT) fmt ./...
	cd test && $(LINT) fmt --config ../.golangci.yaml ./...
	cd test/conformance && $(LINT) fmt --config ../../.golangci.yaml ./...

GENERATED := charts/kube-vitals/README.md charts/kube-vitals/values.schema.json manifests

APP_VERSION = $(shell sed -n 's/^appVersion: //p' charts/kube-vitals/Chart.yaml)
generate: $(HELM) $(HELM_DOCS) ## update manifests/ and, from values.yaml, the chart's README and schema
	cd test && $(GO) run ./chart ../charts/kube-vitals
	$(HELM_DOCS) --chart-search-root charts --log-level warning
	$(call manifest,charts/kube-vitals,$(APP_VERSION)) >manifests/base/kube-vitals.yaml
	$(call component,admission-policy,admissionpolicy)
	$(call component,cert-manager,certificate)
	$(call component,high-availability,poddisruptionbudget)
	$(call component,pinned-kubelets,kubeletpins)
	$(call component,prometheus,servicemonitor prometheusrule)
	$(call overlay,prometheus-source)
	$(call overlay,kube-prometheus-kubelet)
	$(call overlay,kube-prometheus-prometheus)

# manifest = chart, its version, arguments of helm template. It removes the labels that only releases of Helm have.
manifest = @{ echo '\# Generated from charts/kube-vitals by `make generate`: do not edit.'; \
	$(HELM) template kube-vitals $(1) --namespace kube-system --kube-version 1.36.0 --no-hooks \
	  --set image.tag=v$(2) --values manifests/base/values.yaml $(3) | \
	sed -e '/^\# Source: /d' -e '/ helm\.sh\/chart: /d' -e '/ app\.kubernetes\.io\/managed-by: Helm$$/d'; }

# component = name, templates of its resources
component = $(call manifest,charts/kube-vitals,$(APP_VERSION),--values manifests/components/$(1)/values.yaml \
	$(2:%=--show-only templates/%.yaml)) >manifests/components/$(1)/resources.yaml

# overlay = name
overlay = $(call manifest,charts/kube-vitals,$(APP_VERSION),--values manifests/overlays/$(1)/values.yaml) \
	>manifests/overlays/$(1)/kube-vitals.yaml

# Ctrl-C ends the demo without an error: go run would report one, and so would make, unless the demo has its own process
# group (set -m).
demo: programs build ## a cluster with 20 simulated nodes, kubectl top and an HPA; ONCE=1 ends after the last step
	cd test && $(GO) build -ldflags '-s -w' -o $(CURDIR)/bin/demo ./cmd/demo
	@$(if $(ONCE),,set -m;) cd test && ONCE=$(ONCE) KUBE_VITALS=$(CURDIR)/bin/kube-vitals $(CURDIR)/bin/demo || exit

NODES  ?= $(if $(filter reaction,$(ONLY)),32,1000)
ROUNDS ?= 3
bench: build ## measure the cost with NODES simulated nodes; ONLY=limit, scale, profile, reaction or rules
ifeq ($(ONLY),)
	$(GO) test -run '^$$' -bench . -benchmem ./pkg/...
endif
	cd test && $(GO) run ./bench -server $(or $(SERVER),$(CURDIR)/bin/kube-vitals) -nodes $(NODES) -rounds $(ROUNDS) \
	  $(if $(ONLY),-only $(ONLY)) $(if $(BESIDE),-beside $(BESIDE)) \
	  $(if $(filter scale,$(ONLY)),-csv $(SCALING).csv) $(FLAGS)

SCALING := $(CURDIR)/docs/images/scaling
scaling: $(METRICS_SERVER) ## measure all sizes of docs/scaling.md: half an hour, and 16 GiB of memory
	$(MAKE) bench ONLY=scale ROUNDS=2 NODES=1
	$(MAKE) bench ONLY=scale ROUNDS=2 NODES=100,1000,5000 BESIDE=$(METRICS_SERVER)
	$(MAKE) bench ONLY=scale ROUNDS=2 NODES=19900x5,10000x30 FLAGS='-metric-resolution 30s'
	$(MAKE) plot

plot: ## draw docs/images/scaling.svg, and update docs/scaling.md, from the rows of ONLY=scale in scaling.csv
	cd test && $(GO) run ./bench plot -csv $(SCALING).csv -svg $(SCALING).svg -page $(CURDIR)/docs/scaling.md

SOAK ?= 3
soak: build ## run the server under churn and faults for SOAK minutes; fails if it grows or a response is wrong
	cd test && $(GO) run ./soak -server $(CURDIR)/bin/kube-vitals -minutes $(SOAK) $(FLAGS)

FUZZTIME ?= 30s
fuzz: ## run each fuzz test for FUZZTIME
	@for package in $$($(GO) list ./pkg/...); do \
	  for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
	    echo "$$package $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$package; \
	  done; \
	done

vuln: $(VULN) ## run govulncheck; needs vuln.go.dev, or a copy of its database that GOVULNDB names
	@$(VULN) $(FLAGS) ./...

# Without PUSH=1, the image is for this machine's architecture and stays on this machine. Only docker
# attaches provenance and an SBOM.
IMAGE         ?= ghcr.io/kube-vitals/kube-vitals
TAG           ?= $(VERSION)
ALL_PLATFORMS := linux/amd64,linux/arm64,linux/ppc64le,linux/s390x
PLATFORMS     ?= $(if $(PUSH),$(ALL_PLATFORMS),linux/$(shell $(GO) env GOHOSTARCH))
BUILDER       ?= $(firstword $(notdir $(shell command -v docker buildah podman)))
IMAGE_ARGS     = --platform $(PLATFORMS) --build-arg LDFLAGS='$(LDFLAGS)' --build-arg VERSION=$(VERSION) \
	--build-arg COMMIT=$(COMMIT) --build-arg GOFIPS140=$(GOFIPS140) $(BUILD_ARGS)

image: ## build the image IMAGE:TAG with docker, buildah or podman; PUSH=1 pushes it for all PLATFORMS
	@test -n "$(BUILDER)" || { echo "install docker, buildah or podman, or set BUILDER" >&2; exit 1; }
ifeq ($(BUILDER),docker)
	docker buildx build $(if $(PUSH),--push --provenance=mode=max --sbom=true,--load) $(IMAGE_ARGS) --tag $(IMAGE):$(TAG) .
else # --manifest adds to an existing manifest, and older versions do not set BUILDPLATFORM
	$(BUILDER) manifest rm $(IMAGE):$(TAG) 2>/dev/null || true
	$(BUILDER) build --layers --build-arg BUILDPLATFORM=linux/$$($(GO) env GOHOSTARCH) $(IMAGE_ARGS) \
	  $(if $(PUSH),--manifest,--tag) $(IMAGE):$(TAG) .
	$(if $(PUSH),$(BUILDER) manifest push --all $(IMAGE):$(TAG) docker://$(IMAGE):$(TAG))
endif
	@echo "Install it with helm --set image.repository=$(IMAGE),image.tag=$(TAG)"

# Helm writes the current time into the archive, so tar packs it again with the time of the commit.
CHART_VERSION = $(VERSION:v%=%)
package: $(HELM) ## package the chart and render it as one manifest in build/; DIGEST, TESTS_DIGEST: of the images
	rm -rf build && mkdir -p build/chart
	cp -r charts/kube-vitals build/chart
	$(if $(DIGEST),sed -i 's|^  digest: ""$$|  digest: "$(DIGEST)"|' build/chart/kube-vitals/values.yaml)
	grep --quiet '^  digest: "$(DIGEST)"$$' build/chart/kube-vitals/values.yaml
	$(if $(TESTS_DIGEST),sed -i 's|^    digest: ""$$|    digest: "$(TESTS_DIGEST)"|' build/chart/kube-vitals/values.yaml)
	grep --quiet '^    digest: "$(TESTS_DIGEST)"$$' build/chart/kube-vitals/values.yaml
	sed -i 's|^\(      image: ghcr.io/kube-vitals/kube-vitals\):.*|\1$(if $(DIGEST),@$(DIGEST),:v$(CHART_VERSION))|' \
	  build/chart/kube-vitals/Chart.yaml
	$(HELM) package build/chart/kube-vitals --destination build/chart \
	  --version $(CHART_VERSION) --app-version $(CHART_VERSION)
	tar -C build/chart --extract --touch --file build/chart/kube-vitals-$(CHART_VERSION).tgz --one-top-level=packaged
	tar -C build/chart/packaged --create --sort=name --mtime=@$$(git log -1 --format=%ct) \
	  --owner=0 --group=0 --numeric-owner kube-vitals | gzip --no-name >build/kube-vitals-$(CHART_VERSION).tgz
	rm -r build/chart
	$(call manifest,build/kube-vitals-$(CHART_VERSION).tgz,$(CHART_VERSION)) >build/kube-vitals.yaml
	$(HELM) template kube-vitals build/kube-vitals-$(CHART_VERSION).tgz --kube-version 1.36.0 \
	  --set image.tag=v$(CHART_VERSION) | \
	  sed -n 's/^ *image: *"\{0,1\}\([^"]*\)"\{0,1\}$$/\1/p' | sort -u >build/images.txt
	cp security/openvex.json build/kube-vitals.openvex.json

release: package $(GORELEASER) $(SYFT) ## build all files of a release in dist/; PUBLISH=1 uploads them
	$(if $(PUBLISH),[ "$(APP_VERSION)" = "$(CHART_VERSION)" ] || \
	  { echo "set the versions in Chart.yaml to $(CHART_VERSION), and run make generate" >&2; exit 1; })
	PATH=$(dir $(SYFT)):$$PATH VERSION=$(VERSION) LDFLAGS='$(LDFLAGS)' SYFT_CHECK_FOR_APP_UPDATE=false \
	  $(GORELEASER) release --clean $(if $(PUBLISH),,--snapshot)
	cp build/* dist/

# helm registry login or docker login must come first. PUSH_ARGS=--plain-http is for a registry on this machine.
CHARTS ?= ghcr.io/kube-vitals/charts
push-chart: $(HELM) ## push the chart of `make package` to CHARTS, as an OCI artifact
	$(HELM) push build/kube-vitals-*.tgz oci://$(CHARTS) $(PUSH_ARGS) 2>&1 | tee build/push.log
	sed -n 's/^Digest: //p' build/push.log >build/chart.digest
	grep --quiet '^sha256:' build/chart.digest

# The version of test/promql/go.mod, without Prometheus' service discoveries and without its pages.
$(PROMETHEUS) $(PROMTOOL):
	@mkdir -p $(dir $@)
	cd test/promql && $(GO) build -tags remove_all_sd -o $@ \
	  github.com/prometheus/prometheus/cmd/$(notdir $@)

# The versions of test/chart/schemas. The modules that it reads are 1 GB while they are unpacked.
$(SCHEMAS):
	@mkdir -p $(dir $@)
	cd test && $(GO) run ./chart/schemas $@

# helm and kustomize are tools of the modules of the control plane and of kubectl 1.36, which have the libraries of the
# server.
$(HELM):
	@mkdir -p $(dir $@)
	cd test/controlplane && $(GO) build -ldflags '-s -w' -o $@ helm.sh/helm/v3/cmd/helm
$(KUSTOMIZE):
	@mkdir -p $(dir $@)
	cd test/kubectl && $(GO) build -ldflags '-s -w' -o $@ sigs.k8s.io/kustomize/kustomize/v5

# install = package@version
define install
	@mkdir -p $(dir $@)
	cd $(dir $@) && GOBIN=$(dir $@) CGO_ENABLED=0 $(GO) install -buildvcs=false -ldflags '-s -w' $(1)
endef
$(ACTIONLINT): ; $(call install,github.com/rhysd/actionlint/cmd/actionlint@v1.7.12)
$(GORELEASER): ; $(call install,github.com/goreleaser/goreleaser/v2@v2.16.0)
$(HELM_DOCS):  ; $(call install,github.com/norwoodj/helm-docs/cmd/helm-docs@v1.14.2)
$(KUBECONFORM): ; $(call install,github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0)
$(LINT):       ; $(call install,github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0)
$(METRICS_SERVER): ; $(call install,sigs.k8s.io/metrics-server/cmd/metrics-server@v0.9.0)
$(SYFT):       ; $(call install,github.com/anchore/syft/cmd/syft@v1.46.0)
$(VULN):       ; $(call install,golang.org/x/vuln/cmd/govulncheck@v1.8.0)
