#!/usr/bin/env bash
# Runs the two commands of README as on a fresh machine: from a clone of HEAD, in an empty HOME with Go caches of its
# own. Each line of output has the minutes since the start of its command. The last lines have the time and the CPU of
# each command, when the demo showed kubectl top, and the CPU of `make demo` and of both together as multiples of that of
# building the control plane alone. It needs 20 GB in FOLDER, by default a new one in TMPDIR, and removes that.
#
# After deps, nothing may read the network: the other commands run in a namespace that has none, if the machine allows
# that. SEED makes the network bad (test/cmd/flaky): some responses of the module proxy break, and some never end.
# usage: fresh.sh [-d FOLDER] [-s SEED] [TARGET...]
# TARGET: deps, programs (the control plane), demo, again (demo from the caches), test; by default all, in this order.
# lint, which downloads what only it needs, is run only if it is named.
set -euo pipefail
checkout=$(cd "$(dirname "$0")/.." && pwd)
folder='' seed=''
while getopts d:s: flag; do
  case $flag in
    d) folder=$OPTARG ;;
    s) seed=$OPTARG ;;
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
trap 'kill "${flaky:-}" 2>/dev/null || true; wait; chmod -R u+w "$folder" && rm -rf "$folder"' EXIT
git clone --quiet "$checkout" "$folder/kube-vitals"

# What a machine of yours has anyway: its module proxy, and where Go and make are.
settings=(HOME="$folder/home" PATH="$PATH" TERM="${TERM:-dumb}" CI="${CI:-}")
for name in GOPROXY GOSUMDB GONOSUMDB GOFLAGS GOTOOLCHAIN; do settings+=("$name=$(go env $name)"); done
if [ -n "$seed" ]; then
  (cd "$checkout/test" && go build -o "$folder/flaky" ./cmd/flaky)
  mkfifo "$folder/url"
  "$folder/flaky" "$seed" "$(go env GOPROXY)" >"$folder/url" & flaky=$!
  read -r url <"$folder/url"
  settings+=("GOPROXY=$url")
fi

# offline = the command that runs another one without a network
offline=()
for namespace in 'unshare --net' 'unshare --net --map-root-user'; do
  # shellcheck disable=SC2086 # two words
  if $namespace ip link set lo up 2>/dev/null; then
    offline=($namespace bash -c 'ip link set lo up && exec "$@"' offline)
    break
  fi
done
[ ${#offline[@]} -gt 0 ] || echo "fresh.sh: this machine has no namespaces: only Go's commands are known to be offline" >&2

# prefix puts the minutes since the start in front of each line.
prefix() {
  local start=$EPOCHSECONDS line seconds
  while IFS= read -r line; do
    seconds=$((EPOCHSECONDS - start))
    printf '%3d:%02d  %s\n' $((seconds / 60)) $((seconds % 60)) "$line"
  done
}

results=()
declare -A cpu
# run = name, command. CPU is that of all processes that the command waited for.
run() {
  local name=$1 status=0 real user sys
  shift
  echo "==> $name: $*"
  TIMEFORMAT='%0R %0U %0S'
  { time env -i -C "$folder/kube-vitals" "${settings[@]}" "$@" 2>&1 | prefix | tee "$folder/log" >&3; } \
    3>&1 2>"$folder/time" || status=$?
  read -r real user sys <"$folder/time"
  cpu[$name]=$((user + sys))
  results+=("$(printf '%-8s %3d:%02d min, %5d s of CPU, exit status %d%s' \
    "$name" $((real / 60)) $((real % 60)) $((user + sys)) "$status" \
    "$(sed -n '/\$ kubectl top nodes/{s/^ *\([0-9:]*\) .*/, kubectl top after \1 min/p;q}' "$folder/log")")")
  return "$status"
}

# ratio = what, its CPU
ratio() {
  awk -v what="$1" -v cpu="$2" -v alone="${cpu[programs]}" \
    'BEGIN {printf "%s: %.2f times the CPU of the control plane\n", what, cpu / alone}'
}

status=0
for target in "${@:-deps}" $([ $# -gt 0 ] || echo programs demo again test); do
  case $target in
    deps) run deps make deps ;;
    programs) run programs "${offline[@]}" make programs DEPS= ;;
    demo | again) run "$target" "${offline[@]}" make demo ONCE=1 ;;
    test) run test "${offline[@]}" make test ;;
    lint) run lint make lint ;;
    *) echo "fresh.sh: unknown target $target" >&2 && false ;;
  esac || status=$?
done
printf '\non %d cores:\n' "$(nproc)"
printf '%s\n' "${results[@]}"
if [ -n "${cpu[programs]:-}" ] && [ -n "${cpu[demo]:-}" ]; then
  demo=$((cpu[programs] + cpu[demo])) # what make demo costs without make programs before it
  ratio "make demo" $demo
  [ -z "${cpu[test]:-}" ] || ratio "make demo and make test" $((demo + cpu[test]))
fi
exit "$status"
