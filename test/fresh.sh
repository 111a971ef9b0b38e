#!/usr/bin/env bash
# Runs the two commands of README as on a fresh machine: from a clone of HEAD, in an empty HOME with Go caches of its
# own. Each line of output has the minutes since the start of its command; the last lines have the time of each command,
# and when the demo showed kubectl top. It needs 20 GB in FOLDER, by default a new one in TMPDIR, and removes that.
# usage: fresh.sh [-d FOLDER] [TARGET...]     TARGET: demo, again (demo from the caches), test; by default all three
set -euo pipefail
checkout=$(cd "$(dirname "$0")/.." && pwd)
folder=
while getopts d: flag; do
  case $flag in
    d) folder=$OPTARG ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))
[ -n "$folder" ] || folder=$(mktemp -d)
if [ -n "$(ls -A "$folder" 2>/dev/null)" ]; then
  echo "fresh.sh: $folder is not empty" >&2
  exit 1
fi
mkdir -p "$folder/home"
# Go's module cache is read-only.
trap 'chmod -R u+w "$folder" && rm -rf "$folder"' EXIT
git clone --quiet "$checkout" "$folder/kube-vitals"

# What a machine of yours has anyway: its module proxy, and where Go and make are.
settings=(HOME="$folder/home" PATH="$PATH" TERM="${TERM:-dumb}" CI="${CI:-}")
for name in GOPROXY GOSUMDB GONOSUMDB GOFLAGS GOTOOLCHAIN; do settings+=("$name=$(go env $name)"); done

# prefix puts the minutes since the start in front of each line.
prefix() {
  local start=$EPOCHSECONDS line seconds
  while IFS= read -r line; do
    seconds=$((EPOCHSECONDS - start))
    printf '%3d:%02d  %s\n' $((seconds / 60)) $((seconds % 60)) "$line"
  done
}

results=()
# run = name, command. CPU is that of all processes that the command waited for.
run() {
  local name=$1 status=0 real user sys
  shift
  echo "==> $name: $*"
  TIMEFORMAT='%0R %0U %0S'
  { time env -i -C "$folder/kube-vitals" "${settings[@]}" "$@" 2>&1 | prefix | tee "$folder/log" >&3; } \
    3>&1 2>"$folder/time" || status=$?
  read -r real user sys <"$folder/time"
  results+=("$(printf '%-6s %3d:%02d min, %5d s of CPU, exit status %d%s' \
    "$name" $((real / 60)) $((real % 60)) $((user + sys)) "$status" \
    "$(sed -n '/\$ kubectl top nodes/{s/^ *\([0-9:]*\) .*/, kubectl top after \1 min/p;q}' "$folder/log")")")
  return "$status"
}

status=0
for target in "${@:-demo}" $([ $# -gt 0 ] || echo again test); do
  case $target in
    demo | again) run "$target" make demo ONCE=1 ;;
    test) run test make test ;;
    *) echo "fresh.sh: unknown target $target" >&2 && false ;;
  esac || status=$?
done
printf '\non %d cores:\n' "$(nproc)"
printf '%s\n' "${results[@]}"
exit "$status"
