# The image of kube-vitals: one static binary, CA roots, licenses and an empty /tmp, built from scratch.
#
# Build arguments:
#   BUILD_IMAGE  the image to build in: the Go version in go.mod, a POSIX shell and CA roots. The digest is
#                that of the index of all platforms.
#   BASE_IMAGE   the image to add the binary to; it may be empty
#   GOPROXY      the Go module proxy
#   LDFLAGS      flags of the Go linker, which set the version that the binary prints
#   GOFIPS140    version of Go's FIPS 140-3 module, such as v1.0.0; off: without it
#   VERSION, COMMIT  for the labels

ARG BUILD_IMAGE=golang:1.26.8@sha256:3c3e25a4da13fd0478eed2df1eb35a0e667094a7124d3993a6a1d30f71c17e79
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
ARG TARGETVARIANT
ARG LDFLAGS="-s -w"
ARG GOFIPS140=off
# The variant of arm, v7, is GOARM=7. The link is for manifests that set the command of metrics-server.
RUN --mount=type=cache,target=/cache \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH GOARM=${TARGETVARIANT#v} GOFIPS140=$GOFIPS140 \
      go build -trimpath -buildvcs=false -ldflags="$LDFLAGS" -o /image/kube-vitals ./cmd/kube-vitals \
 && ln -s kube-vitals /image/metrics-server \
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
COPY LICENSE THIRD_PARTY_LICENSES /licenses/
# A number: kubelets cannot check that a named user is not root (runAsNonRoot).
USER 65532:65532
ENTRYPOINT ["/kube-vitals"]
