# The image of kube-vitals: one static binary, the system's CA roots and an empty /tmp on nothing else.
#
# Both base images are build arguments, so that it builds where only a mirror can be reached:
#   BUILD_IMAGE  has Go of the version in go.mod, a POSIX shell and /etc/ssl/certs/ca-certificates.crt
#   BASE_IMAGE   what the binary is put on; it needs to hold nothing
# GOPROXY likewise says where modules come from, and LDFLAGS which version the binary tells.

ARG BUILD_IMAGE=golang:1.26
ARG BASE_IMAGE=scratch

# The compiler runs on the machine's own platform whatever the image's is: Go cross-compiles, nothing is emulated.
FROM --platform=$BUILDPLATFORM ${BUILD_IMAGE} AS build
WORKDIR /src
# Kept between builds, and out of the layers.
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
# nonroot, as number: kubelets refuse names where runAsNonRoot is asked for.
USER 65532:65532
ENTRYPOINT ["/kube-vitals"]
