#!/usr/bin/env bash
# Writes the manifests in this folder from the chart. `make generate` calls it.
# usage: HELM=PROGRAM generate.sh
set -euo pipefail
folder=$(dirname "$0")
chart=$folder/../charts/kube-vitals
version=$(sed -n 's/^appVersion: //p' "$chart/Chart.yaml")

# render = file, arguments of helm template
render() {
  "$folder/render.sh" "$chart" "v$version" "${@:2}" >"$folder/$1"
}

# component = name, templates of its resources
component() {
  local arguments=(--values "$folder/components/$1/values.yaml") template
  for template in "${@:2}"; do arguments+=(--show-only "templates/$template.yaml"); done
  render "components/$1/resources.yaml" "${arguments[@]}"
}

render base/kube-vitals.yaml
component admission-policy admissionpolicy
component cert-manager certificate
component high-availability poddisruptionbudget
component pinned-kubelets kubeletpins
component prometheus servicemonitor prometheusrule
for overlay in "$folder"/overlays/*/values.yaml; do
  name=$(basename "$(dirname "$overlay")")
  render "overlays/$name/kube-vitals.yaml" --values "$overlay"
done
