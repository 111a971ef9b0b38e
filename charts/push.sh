#!/usr/bin/env bash
# Pushes the chart of `make package` to a registry, and writes its digest into build/chart.digest. `make push-chart`
# calls it, after helm registry login or docker login.
# usage: HELM=PROGRAM push.sh REPOSITORY [FLAG of helm push...]
set -euo pipefail
cd "$(dirname "$0")/.."
"${HELM:-helm}" push build/kube-vitals-*.tgz "$@" 2>&1 | tee build/push.log
sed -n 's/^Digest: //p' build/push.log >build/chart.digest
grep --quiet '^sha256:' build/chart.digest
