# The image of kube-vitals: one static binary, the system's CA roots and an empty /tmp, from scratch.
#
# Build arguments:
#   BUILD_IMAGE  the image to build in: Go of the version in go.mod, a POSIX shell and /etc/ssl/certs/ca-certificates.crt.
#                A release names it by digest (golang:1.26@sha256:…), so that the image can be built again.
#   BASE_IMAGE   the image to put the binary on; it need not contain anything
#   GOPROXY      where modules come from
#   LDFLAGS      for the Go linker; sets the version that the binary prints

ARG BUILD_IMAGE=golang:1.26
ARG BASE_IMAGE=scratch

# The compiler runs on the platform of the machine: Go cross-compiles, nothing is emulated.
FROM --platform=$BUILDPLATFORM ${BUILD_IMAGE} AS build
WORKDIR /src
# Caches are kept between builds and are in no layer.
ENV GOMODCACHE=/cache/modules GOCACHE=/cache/packages
ARG GOPROXY
COPY go.mod go.sum ./
RUN --mount=type=cache,target=/cache go mod download
COPY cmd cmd
COPY pkg pkg
ARG TARGETOS
ARG TARGETARCH
ARG LDFLAGS="-s -w"
RUN --mount=type=cache,target=/cache \
    CGO_ENABLED=0 GOOS=$TARGETOS GOARCH=$TARGETARCH go build -trimpath -buildvcs=false -ldflags="$LDFLAGS" \
      -o /image/kube-vitals ./cmd/kube-vitals \
 && mkdir -p /image/etc/ssl/certs && cp /etc/ssl/certs/ca-certificates.crt /image/etc/ssl/certs/ \
 && mkdir -m 1777 /image/tmp

FROM ${BASE_IMAGE}
COPY --from=build /image /
# A number, since kubelets cannot check that a named user is not root (runAsNonRoot).
USER 65532:65532
ENTRYPOINT ["/kube-vitals"]
