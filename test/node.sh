#!/usr/bin/env bash
# A cluster with a real node: the kubelet and kube-proxy of a version of Kubernetes, built from its Go modules, and
# containerd or CRI-O, beside the control plane of the tests. All of it runs in a network namespace. It needs root on
# Debian or Ubuntu without another kubelet, Go, and `make build plugin programs`.
#
#   test/node.sh up VERSION    such as 1.33.13: build (some minutes, once), start, and wait until the node is ready
#   test/node.sh try [ARG...]  install the chart with bin/kube-vitals and further arguments of helm; run helm test, the
#                              conformance suite, doctor and kubectl top
#   test/node.sh kubectl ...   kubectl for this cluster
#   test/node.sh down          end it, and delete its state
#
# CONTAINERD=VERSION, such as 2.4.2: built from its module, instead of Debian's. CRIO=VERSION, such as 1.36.3: CRI-O,
# built from its module with gcc. KUBELET_CERT=self: the kubelet signs its own certificate, as with kubeadm;
# `try --set kubelet.tls=pin` then. NODE_DIR: the folder of its state. The logs are in NODE_DIR/log.
set -euo pipefail
script=$(realpath "$0")
state=$(realpath --canonicalize-missing "${NODE_DIR:-/tmp/kube-vitals-node}")
cd "$(dirname "$script")/.."
pki=$state/pki
programs=$PWD/bin/controlplane
cache=${XDG_CACHE_HOME:-$HOME/.cache}/kube-vitals
export PATH=$state/runtime:$PATH # build_containerd, build_crio
crio_socket=/run/crio/crio.sock # cAdvisor and the kubelet know CRI-O by this path only
namespace=kube-vitals
address=10.200.0.1 # of the node and of the API server

say() { echo "node.sh: $*" >&2; }
kubectl() { "$programs/kubectl" --kubeconfig="$state/admin.kubeconfig" "$@"; }
uses_crio() { [ -x "$state/runtime/crio" ]; }
containers() { ctr --address "$state/containerd.sock" --namespace k8s.io "$@"; }

# await TEXT COMMAND...: repeat a command for up to two minutes until it succeeds.
await() {
  local what=$1
  shift
  for _ in $(seq 240); do
    "$@" >/dev/null 2>&1 && return
    sleep 0.5
  done
  say "no $what after two minutes: see $state/log"
  exit 1
}

install_packages() {
  local wanted=(conntrack containernetworking-plugins iproute2 iptables openssl procps runc)
  if [ -n "${CRIO:-}" ]; then
    wanted+=(conmon gcc libc6-dev skopeo)
  elif [ -z "${CONTAINERD:-}" ]; then
    wanted+=(containerd)
  fi
  dpkg --status "${wanted[@]}" >/dev/null 2>&1 && return
  say "installing ${wanted[*]}"
  apt-get update -qq >/dev/null
  apt-get install --yes --no-remove -qq "${wanted[@]}" >/dev/null
}

# module PATH@VERSION: its folder.
module() { (cd "$state" && go mod download -json "$1") | sed -n 's/.*"Dir": "\(.*\)".*/\1/p'; }

# build_containerd VERSION: of major version 2, with its own go.sum.
build_containerd() {
  local out=$cache/containerd-$1 folder
  mkdir -p "$out"
  ln -sfn "$out" "$state/runtime"
  if [ -x "$out/containerd" ] && [ -x "$out/containerd-shim-runc-v2" ] && [ -x "$out/ctr" ]; then return; fi
  say "building containerd $1"
  folder=$(module "github.com/containerd/containerd/v2@v$1")
  CGO_ENABLED=0 go build -C "$folder" -trimpath -buildvcs=false -o "$out/" -ldflags '-s -w' \
    ./cmd/containerd ./cmd/containerd-shim-runc-v2 ./cmd/ctr
}

# build_crio VERSION: with its own go.sum, and without seccomp and AppArmor.
build_crio() {
  local out=$cache/crio-$1 folder
  mkdir -p "$out"
  ln -sfn "$out" "$state/runtime"
  if [ -x "$out/crio" ] && [ -x "$out/pinns" ]; then return; fi
  say "building CRI-O $1"
  folder=$(module "github.com/cri-o/cri-o@v$1")
  CGO_ENABLED=1 go build -C "$folder" -trimpath -buildvcs=false -o "$out/" -ldflags '-s -w' \
    -tags 'containers_image_openpgp containers_image_ostree_stub exclude_graphdriver_btrfs' ./cmd/crio
  gcc -Os -static -o "$out/pinns" "$folder"/pinns/src/*.c
}

# build_node VERSION: k8s.io/kubernetes finds its staging modules in a folder of its own. Other modules get those that
# were published with it.
build_node() {
  local version=$1 out=$cache/node-$1 work=$state/build file flag=k8s.io/component-base/version.git
  mkdir -p "$out" "$work"
  ln -sfn "$out" "$state/bin"
  if [ -x "$out/kubelet" ] && [ -x "$out/kube-proxy" ]; then return; fi
  say "building the kubelet $version"
  file=$(cd "$work" && go mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
  sed -E -e 's#^module .*#module node#' -e '/^godebug \(/,/^\)/d' -e '/^(godebug|go|toolchain) /d' \
    -e "s#^(replace )?([ \t]*k8s.io/[a-z-]+) => ./staging/src/.*#\1\2 => \2 v0.${version#1.}#" "$file" >"$work/go.mod"
  printf 'go 1.24\nrequire k8s.io/kubernetes v%s\n' "$version" >>"$work/go.mod"
  (cd "$work" && CGO_ENABLED=0 GOFLAGS=-mod=mod go build -trimpath -o "$out/" \
    -ldflags "-s -w -X ${flag}Version=v$version -X ${flag}Major=1 -X ${flag}Minor=$(cut -d. -f2 <<<"$version")" \
    k8s.io/kubernetes/cmd/kubelet k8s.io/kubernetes/cmd/kube-proxy)
}

# authority NAME: NAME.crt and NAME.key of a CA.
authority() {
  openssl req -x509 -newkey rsa:2048 -nodes -keyout "$1.key" -out "$1.crt" -days 3650 -subj "/CN=$1" 2>/dev/null
}

# certificate NAME SUBJECT CA [NAMES]: NAME.crt and NAME.key, for clients and servers.
certificate() {
  local extensions="extendedKeyUsage=serverAuth,clientAuth"
  [ -z "${4:-}" ] || extensions+=$'\n'"subjectAltName=$4"
  openssl req -newkey rsa:2048 -nodes -keyout "$1.key" -out "$1.csr" -subj "$2" 2>/dev/null
  openssl x509 -req -in "$1.csr" -CA "$3.crt" -CAkey "$3.key" -CAcreateserial -out "$1.crt" -days 3650 \
    -extfile <(echo "$extensions") 2>/dev/null
}

# kubeconfig NAME: ../NAME.kubeconfig with the certificate of that name.
kubeconfig() {
  local config=("$programs/kubectl" config "--kubeconfig=../$1.kubeconfig")
  "${config[@]}" set-cluster node --server="https://$address:6443" --certificate-authority=ca.crt --embed-certs
  "${config[@]}" set-credentials "$1" --client-certificate="$1.crt" --client-key="$1.key" --embed-certs
  "${config[@]}" set-context node --cluster=node --user="$1"
  "${config[@]}" use-context node
}

make_certificates() {
  mkdir -p "$pki"
  [ ! -f "$pki/done" ] || return 0
  (
    cd "$pki"
    authority ca
    authority front-proxy-ca
    certificate apiserver /CN=kube-apiserver ca \
      "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,IP:127.0.0.1,IP:10.96.0.1,IP:$address"
    certificate apiserver-kubelet /O=system:masters/CN=kubelet-client ca
    certificate front-proxy-client /CN=front-proxy-client front-proxy-ca
    certificate admin /O=system:masters/CN=admin ca
    certificate controllers /CN=system:kube-controller-manager ca
    certificate scheduler /CN=system:kube-scheduler ca
    certificate proxy /CN=system:kube-proxy ca
    certificate node1 /O=system:nodes/CN=system:node:node1 ca "DNS:node1,IP:$address"
    openssl genrsa -out tokens.key 2048 2>/dev/null
    for name in admin controllers scheduler proxy node1; do kubeconfig "$name" >/dev/null; done
    touch done
  )
}

remove_network() {
  ip netns delete "$namespace" 2>/dev/null || true
  ip link delete kube-vitals 2>/dev/null || true
}

make_network() {
  if [ -f "$state/network" ] && [ -e "/var/run/netns/$namespace" ]; then return; fi
  remove_network # of an attempt that failed
  ip netns add "$namespace"
  ip link add kube-vitals type veth peer name node netns "$namespace"
  ip address add 10.200.0.254/24 dev kube-vitals
  ip link set kube-vitals up
  ip -n "$namespace" address add "$address/24" dev node
  ip -n "$namespace" link set node up
  ip -n "$namespace" link set lo up
  ip -n "$namespace" route add default via 10.200.0.254
  ip route add 10.244.0.0/16 via "$address" # pods
  ip route add 10.96.0.0/16 via "$address"  # services
  ip netns exec "$namespace" sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.route_localnet=1
  touch "$state/network"
}

write_files() {
  mkdir -p "$state/log" "$state/cni"
  cat >"$state/cni/10-ptp.conflist" <<END
{"cniVersion": "0.4.0", "name": "ptp", "plugins": [{"type": "ptp", "ipMasq": false, "ipam": {
  "type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}],
  "dataDir": "$state/ipam"}}]}
END
  cat >"$state/containerd.toml" <<END
version = 2
root = "$state/containerd"
state = "$state/run/containerd"
[grpc]
  address = "$state/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/local/busybox:1"
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$state/cni"
END
  echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$state/policy.json"
  cat >"$state/crio.conf" <<END
[crio]
root = "$state/crio"
runroot = "$state/run/crio"
log_dir = "$state/log/crio"
version_file = "$state/run/crio-version"
clean_shutdown_file = "$state/run/crio-clean"
[crio.api]
listen = "$crio_socket"
[crio.runtime]
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
container_attach_socket_dir = "$state/run/crio-attach"
container_exits_dir = "$state/run/crio-exits"
default_runtime = "runc"
namespaces_dir = "$state/run/namespaces"
[crio.runtime.runtimes.runc]
monitor_cgroup = "pod"
runtime_root = "$state/run/runc"
[crio.image]
pause_image = "docker.io/local/busybox:1"
pause_command = "/bin/sleep 2147483647"
signature_policy = "$state/policy.json"
[crio.network]
network_dir = "$state/cni"
plugin_dirs = ["/usr/lib/cni"]
END
  cat >"$state/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $pki/ca.crt}}
authorization: {mode: Webhook}
containerRuntimeEndpoint: unix://$(uses_crio && echo "$crio_socket" || echo "$state/containerd.sock")
cgroupDriver: cgroupfs
cgroupRoot: /
failSwapOn: false
failCgroupV1: false
podLogsDir: $state/pod-logs
address: $address
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
END
  [ "${KUBELET_CERT:-}" = self ] ||
    printf 'tlsCertFile: %s\ntlsPrivateKeyFile: %s\n' "$pki/node1.crt" "$pki/node1.key" >>"$state/kubelet.yaml"
}

# runs NAME: whether a program runs. After a reboot, its number may be that of another one.
runs() { [ -f "$state/$1.pid" ] && [ "$(readlink "/proc/$(cat "$state/$1.pid")/cwd")" = "$state" ]; }

# start NAME COMMAND...: start a program in the namespace, unless it runs.
start() {
  local name=$1
  shift
  if runs "$name"; then return; fi
  (cd "$state" && exec nsenter --net="/var/run/netns/$namespace" setsid "$@") >>"$state/log/$name.log" 2>&1 </dev/null &
  echo $! >"$state/$name.pid"
}

stop() {
  local signal
  for signal in TERM KILL; do
    ! runs "$1" || kill -"$signal" "$(cat "$state/$1.pid")" || true
    for _ in $(seq 100); do
      runs "$1" || break
      sleep 0.1
    done
  done
  rm -f "$state/$1.pid"
}

# load NAME FILE ENTRYPOINT...: load docker.io/local/NAME, an image of one static program, and of its links if it is
# busybox.
load() {
  local name=$1 file=$2 work entrypoint
  shift 2
  work=$(mktemp -d)
  mkdir -p "$work/layer/bin" "$work/layer/tmp"
  chmod 1777 "$work/layer/tmp"
  install -m 755 "$file" "$work/layer/bin/"
  if [ "${file##*/}" = busybox ]; then
    for program in sh sleep dd cat true; do ln -s busybox "$work/layer/bin/$program"; done
  fi
  tar -C "$work/layer" --owner=0 --group=0 --sort=name --mtime=@0 -cf "$work/layer.tar" .
  entrypoint=$(printf '"%s",' "$@")
  cat >"$work/config.json" <<END
{"architecture": "$(go env GOARCH)", "os": "linux",
 "config": {"Entrypoint": [${entrypoint%,}], "Env": ["PATH=/bin"], "User": "65532:65532"},
 "rootfs": {"type": "layers", "diff_ids": ["sha256:$(sha256sum "$work/layer.tar" | cut -d' ' -f1)"]}}
END
  echo "[{\"Config\": \"config.json\", \"RepoTags\": [\"docker.io/local/$name\"], \"Layers\": [\"layer.tar\"]}]" \
    >"$work/manifest.json"
  tar -C "$work" -cf "$work/image.tar" manifest.json config.json layer.tar
  if uses_crio; then
    skopeo --insecure-policy copy --quiet "docker-archive:$work/image.tar" \
      "containers-storage:[overlay@$state/crio+$state/run/crio]docker.io/local/$name"
  else
    containers images import "$work/image.tar" >/dev/null
  fi
  rm -rf "$work"
}

up() {
  if runs kubelet || pgrep --exact kubelet >/dev/null; then
    say "a kubelet runs already: end it first, with \`test/node.sh down\` if it is that of this script"
    exit 1
  fi
  if [ -n "${CRIO:-}" ] && [ -d /sys/fs/cgroup/memory ] && [ ! -d /sys/fs/cgroup/hugetlb ]; then
    say "CRI-O needs this cgroup: mkdir /sys/fs/cgroup/hugetlb && mount -t cgroup -o hugetlb cgroup /sys/fs/cgroup/hugetlb"
    exit 1
  fi
  install_packages
  mkdir -p "$state"
  [ -z "${CONTAINERD:-}" ] || build_containerd "$CONTAINERD"
  [ -z "${CRIO:-}" ] || build_crio "$CRIO"
  build_node "$1"
  make_certificates
  make_network
  write_files
  start etcd "$programs/etcd" --data-dir="$state/etcd" --unsafe-no-fsync \
    --listen-client-urls=http://127.0.0.1:2379 --advertise-client-urls=http://127.0.0.1:2379
  start apiserver "$programs/kube-apiserver" --etcd-servers=http://127.0.0.1:2379 --allow-privileged=true \
    --bind-address="$address" --advertise-address="$address" --service-cluster-ip-range=10.96.0.0/16 \
    --authorization-mode=Node,RBAC --client-ca-file="$pki/ca.crt" \
    --tls-cert-file="$pki/apiserver.crt" --tls-private-key-file="$pki/apiserver.key" \
    --service-account-issuer=https://kubernetes.default.svc \
    --service-account-key-file="$pki/tokens.key" --service-account-signing-key-file="$pki/tokens.key" \
    --requestheader-client-ca-file="$pki/front-proxy-ca.crt" --requestheader-allowed-names=front-proxy-client \
    --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
    --requestheader-extra-headers-prefix=X-Remote-Extra- \
    --proxy-client-cert-file="$pki/front-proxy-client.crt" --proxy-client-key-file="$pki/front-proxy-client.key" \
    --kubelet-client-certificate="$pki/apiserver-kubelet.crt" --kubelet-client-key="$pki/apiserver-kubelet.key" \
    --kubelet-preferred-address-types=InternalIP
  await "API server" kubectl get --raw /readyz
  start controllers "$programs/kube-controller-manager" --kubeconfig="$state/controllers.kubeconfig" \
    --leader-elect=false --use-service-account-credentials --root-ca-file="$pki/ca.crt" \
    --service-account-private-key-file="$pki/tokens.key" \
    --cluster-signing-cert-file="$pki/ca.crt" --cluster-signing-key-file="$pki/ca.key"
  start scheduler "$programs/kube-scheduler" --kubeconfig="$state/scheduler.kubeconfig" --leader-elect=false
  if uses_crio; then
    start crio crio --config "$state/crio.conf" --config-dir "$state/crio.conf.d"
    await CRI-O crio status --socket "$crio_socket" info
  else
    start containerd containerd --config "$state/containerd.toml"
    await containerd containers version
  fi
  # The package cannot be installed beside busybox.
  (cd "$state" && apt-get download -qq busybox-static >/dev/null && dpkg-deb --extract busybox-static_*.deb busybox)
  load busybox:1 "$state/busybox/bin/busybox" /bin/sleep 2147483647
  start kubelet "$state/bin/kubelet" --config="$state/kubelet.yaml" --kubeconfig="$state/node1.kubeconfig" \
    --hostname-override=node1 --node-ip="$address" --root-dir="$state/kubelet" --cert-dir="$state/kubelet-pki"
  start proxy "$state/bin/kube-proxy" --kubeconfig="$state/proxy.kubeconfig" --hostname-override=node1 \
    --proxy-mode=iptables --conntrack-max-per-core=0 --cluster-cidr=10.244.0.0/16
  await node kubectl wait --for=condition=Ready node/node1 --timeout=1s
  await "service account" kubectl --namespace=default get serviceaccount default
  kubectl get nodes --output=wide
  say "export KUBECONFIG=$state/admin.kubeconfig"
}

try() {
  export KUBECONFIG=$state/admin.kubeconfig PATH=$programs:$PATH
  load kube-vitals:dev bin/kube-vitals /bin/kube-vitals
  load kubectl:dev "$programs/kubectl" /bin/kubectl
  helm upgrade --install kube-vitals charts/kube-vitals --namespace=kube-system --wait \
    --set=image.repository=docker.io/local/kube-vitals,image.tag=dev,image.pullPolicy=Never \
    --set=tests.image.repository=docker.io/local/kubectl,tests.image.tag=dev,tests.image.pullPolicy=Never \
    --set-string="podAnnotations.binary=$(sha256sum <bin/kube-vitals | cut -c1-16)" "$@"
  kubectl wait --for=condition=Available apiservice/v1.metrics.k8s.io --timeout=2m
  helm test kube-vitals --namespace=kube-system
  (cd test/conformance && go run ./metrics-conformance --profile=extension --workload=docker.io/local/busybox:1)
  bin/kubectl-vitals doctor
  kubectl top pods --all-namespaces --containers
}

down() {
  if [ ! -d "$pki" ]; then
    say "there is nothing in $state"
    exit 1
  fi
  if runs kubelet; then
    kubectl delete pods --all --all-namespaces --grace-period=0 --force --wait=false >/dev/null 2>&1 || true
    sleep 5
  fi
  stop kubelet
  if [ -S "$state/containerd.sock" ]; then
    for task in $(containers tasks list --quiet); do containers tasks kill --signal=9 "$task" || true; done
    sleep 1
    for container in $(containers containers list --quiet); do containers containers rm "$container" || true; done
  fi
  if uses_crio; then
    for container in $(runc --root "$state/run/runc" list --quiet); do
      runc --root "$state/run/runc" delete --force "$container" || true
    done
  fi
  for name in proxy scheduler controllers apiserver etcd containerd crio; do stop "$name"; done
  awk -v state="$state/" 'index($2, state) == 1 {print $2}' /proc/mounts | sort -r | xargs -r umount --lazy
  remove_network
  rm -rf "$state"
}

case ${1:-} in
  up) up "${2:?VERSION, such as 1.33.13}" ;;
  try) try "${@:2}" ;;
  kubectl) kubectl "${@:2}" ;;
  down) down ;;
  *)
    sed -n 's/^#  *\(test.node.sh\)/\1/p' "$script"
    exit 2
    ;;
esac
