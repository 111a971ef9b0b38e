# The image of kube-vitals: one static binary, CA roots and an empty /tmp, built from scratch.
#
# Build arguments:
#   BUILD_IMAGE  the image to build in: the Go version in go.mod, a POSIX shell and CA roots. A release
#                uses a digest (golang:1.26@sha256:…), which makes the build reproducible.
#   BASE_IMAGE   the image to add the binary to; it may be empty
#   GOPROXY      the Go module proxy
#   LDFLAGS      flags of the Go linker, which set the version that the binary prints
#   GOFIPS140    version of Go's FIPS 140-3 module, such as v1.0.0; off: without it
#   VERSION, COMMIT  for the labels

ARG BUILD_IMAGE=golang:1.26
ARG BASE_IMAGE=scratch

# Go cross-compiles, so that nothing is emulated.
FROM --platform=$BUILDPLATFORM ${BUILD_IMAGE} AS build
WORKDIR /src
# The caches are shared by builds and are not in the image.
ENV GOMODCACHE=/cache/modules GOCACHE=/cache/packages
ARG GOPROXY
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/cache go mod download
COPY cmd cmd
COPY pkg pkg
ARG TARGETOS
ARG TARGETARCH
ARG LDFLAGS="-s -w"
ARG GOFIPS140=off
RUN --mount=type=cache,target=/cache \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH GOFIPS140=$GOFIPS140 \
      go build -trimpath -buildvcs=false -ldflags="$LDFLAGS" -o /image/kube-vitals ./cmd/kube-vitals \
 && mkdir -p /image/etc/ssl/certs && cp /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ \
 && mkdir -m 1777 /image/tmp

FROM ${BASE_IMAGE}
ARG VERSION
ARG COMMIT
LABEL org.opencontainers.image.title="kube-vitals" \
      org.opencontainers.image.description="CPU and memory usage of nodes and pods as the metrics.k8s.io API" \
      org.opencontainers.image.source="https://github.com/kube-vitals/kube-vitals" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="$VERSION" \
      org.opencontainers.image.revision="$COMMIT"
COPY --from=build /image /
# A number: kubelets cannot check that a named user is not root (runAsNonRoot).
USER 65532:65532
ENTRYPOINT ["/kube-vitals"]
