#!/usr/bin/env bash
# Builds the image with docker, buildah or podman: docs/dev/releases.md. Without PUSH=1, it is for this machine's
# architecture and stays on this machine. Only docker attaches provenance and an SBOM. `make image` calls it.
# usage: VERSION=v… COMMIT=… LDFLAGS=… GOFIPS140=… image.sh
set -euo pipefail
cd "$(dirname "$0")/.."
image=${IMAGE:-ghcr.io/kube-vitals/kube-vitals}:${TAG:-$VERSION}
arch=$(go env GOHOSTARCH)
platforms=linux/$arch
[ -z "${PUSH:-}" ] || platforms=linux/amd64,linux/arm64,linux/arm/v7,linux/ppc64le,linux/s390x
builder=${BUILDER:-$(basename "$(command -v docker || command -v buildah || command -v podman || true)")}
[ -n "$builder" ] || { echo "install docker, buildah or podman, or set BUILDER" >&2; exit 1; }
# shellcheck disable=SC2206 # several arguments
arguments=(--platform "${PLATFORMS:-$platforms}" --build-arg "LDFLAGS=$LDFLAGS" --build-arg "VERSION=$VERSION"
  --build-arg "COMMIT=$COMMIT" --build-arg "GOFIPS140=$GOFIPS140" ${BUILD_ARGS:-})
if [ "$builder" = docker ]; then
  docker buildx version >/dev/null 2>&1 ||
    { echo "docker has no plugin buildx: install it (Debian: docker-buildx), or set BUILDER=buildah or podman" >&2; exit 1; }
  SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || true)
  export SOURCE_DATE_EPOCH # the time of the image and of its files
  output=(--load)
  if [ -n "${PUSH:-}" ]; then
    # The driver docker unpacks the image, and then rejects other times of its files.
    driver=$(docker buildx inspect | awk '/^Driver:/ {print $2}') rewrite=,rewrite-timestamp=true
    [ "$driver" != docker ] || rewrite=''
    scanner=docker/buildkit-syft-scanner:1.12.0@sha256:ae4f3b554449e7e25548e7d8ccc029d17357348e30c6e3df01b92bc93654d6a9
    output=(--output "type=image,push=true$rewrite" --provenance=mode=max --attest "type=sbom,generator=$scanner")
  fi
  docker buildx build "${output[@]}" "${arguments[@]}" --tag "$image" .
else # --manifest adds to an existing manifest, and older versions do not set BUILDPLATFORM
  "$builder" manifest rm "$image" 2>/dev/null || true
  tag=--tag
  [ -z "${PUSH:-}" ] || tag=--manifest
  "$builder" build --layers --build-arg "BUILDPLATFORM=linux/$arch" "${arguments[@]}" "$tag" "$image" .
  [ -z "${PUSH:-}" ] || "$builder" manifest push --all "$image" "docker://$image"
fi
echo "Install it with helm --set image.repository=${image%:*},image.tag=${image##*:}"
