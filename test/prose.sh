#!/usr/bin/env bash
# Fails if a tracked file has words that CONTRIBUTING.md, "Words", replaces by standard terms. misspell knows single words
# and only in Go; half of these are phrases, and half of the text is Markdown and YAML.
# usage: prose.sh [PATH...]
set -euo pipefail
patterns=(
  '//[/ ]+[A-Za-z_.]+ (gives|says|tells)\b'     # returns, reports whether, sets
  '\b(gives|says|tells) (whether|what|how|which|why|when|where)\b'
  '\bfigures?\b'                                # metrics, usage, sample, value
  '\banew\b|\bbesides\b|\breckon(s|ed|ing)?\b|\bwhoever\b|\b(?-i:[Nn]obody)\b|\baffairs?\b|\bwhat for\b|\blets? go of\b'
  '\b(is|are|was|were) to be\b'                 # must be, is
  '\b(borrow|borrows|borrowed|borrowing|lend|lends|lent|lending)\b' # kubelet-reported rate
  '\black(s|ed|ing)?\b'                         # missing, is missing, has no
  '\bown rates?\b'                              # kubelet-reported rate
  '\bfarewell\b|\bhurried\b|\bbegins? anew\b|\bheard\b'
  '\bquestions?\b'                              # query, request
  '\bnone the less\b|\bthereof\b|\bwherein\b|\bwherefrom\b|\bwhence\b'
)
args=()
for p in "${patterns[@]}"; do args+=(-e "$p"); done
if git grep -nIiP "${args[@]}" -- "${@:-.}" ':!test/prose.sh' ':!pkg/api/openapi' ':!LICENSE' ':!THIRD_PARTY_LICENSES' ':!*.sum' ':!CONTRIBUTING.md' ':!**/testdata/**'; then
  echo "replace these words by the terms of CONTRIBUTING.md" >&2
  exit 1
fi
