#!/usr/bin/env bash
# Prints a chart rendered for kubectl apply, without the labels that only releases of Helm have.
# usage: HELM=PROGRAM render.sh CHART TAG-OF-IMAGE [ARGUMENT OF helm template...]
set -euo pipefail
folder=$(dirname "$0")
echo "# Generated from charts/kube-vitals by \`make generate\`: do not edit."
"${HELM:-helm}" template kube-vitals "$1" --namespace kube-system --kube-version 1.36.0 --no-hooks \
  --set image.tag="$2" --values "$folder/base/values.yaml" "${@:3}" |
  sed -e '/^# Source: /d' -e '/ helm\.sh\/chart: /d' -e '/ app\.kubernetes\.io\/managed-by: Helm$/d'
