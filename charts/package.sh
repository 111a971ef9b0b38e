#!/usr/bin/env bash
# Packages the chart in build/, and renders it as one manifest, with lists of images and vulnerabilities.
# DIGEST and TESTS_DIGEST are those of the images, and empty by default. `make package` calls it.
# usage: VERSION=v… HELM=PROGRAM package.sh
set -euo pipefail
cd "$(dirname "$0")/.."
version=${VERSION#v} digest=${DIGEST:-} tests=${TESTS_DIGEST:-} helm=${HELM:-helm}
copy=build/chart/kube-vitals archive=build/kube-vitals-$version.tgz
rm -rf build && mkdir -p build/chart
cp -r charts/kube-vitals build/chart

# set = file, the start of its line, the end of it
set_end() {
  sed -i "s|^\($2\).*|\1$3|" "$copy/$1"
  grep --quiet "^$2$3\$" "$copy/$1"
}
# The digest is not in values.yaml: a tag of the user would have no effect, and --reuse-values would keep it.
set_end Chart.yaml '  kube-vitals.io/image-digest: ' "\"$digest\""
case $version in *-*) set_end Chart.yaml '  artifacthub.io/prerelease: ' '"true"' ;; esac
tag=v$version suffix=:v$version
[ -z "$digest" ] || { tag='' suffix=@$digest; }
set_end Chart.yaml '      image: ghcr.io/kube-vitals/kube-vitals' "$suffix"
[ -z "$tests" ] || set_end values.yaml '    tag: v1[0-9.]*' "@$tests"
# Artifact Hub shows the README, but has no files of the repository.
sed -i "s|](\.\./\.\./|](https://github.com/kube-vitals/kube-vitals/blob/v$version/|g" $copy/README.md
"$helm" package $copy --destination build/chart --version "$version" --app-version "$version"
# Helm writes the current time into the archive, so tar packs it again with the time of the commit.
tar -C build/chart --extract --touch --file "build/chart/kube-vitals-$version.tgz" --one-top-level=packaged
tar -C build/chart/packaged --create --sort=name --mtime="@$(git log -1 --format=%ct)" \
  --owner=0 --group=0 --numeric-owner kube-vitals | gzip --no-name >"$archive"
rm -r build/chart
HELM=$helm manifests/render.sh "$archive" "$tag" >build/kube-vitals.yaml
"$helm" template kube-vitals "$archive" --kube-version 1.36.0 --set image.tag="$tag" |
  sed -n 's/^ *image: *"\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' | sort -u >build/images.txt
cp .github/openvex.json build/kube-vitals.openvex.json
