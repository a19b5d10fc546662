#!/usr/bin/env bash
# Builds programs of a Kubernetes cluster, and an S3 server, from Go modules, and prints the folder they are in.
#
#   tools/kind/binaries.sh kube-apiserver etcd kubectl
#
# Known: kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubeadm
# kubectl etcd coredns kind helm pause versitygw prometheus promtool. Only what is asked for is built, each
# once. No image registry and no download page is needed, only a Go module proxy.
# Safe to interrupt. Runs at the same time share the work: nobody builds what another one builds,
# and nobody waits for what only another one asked for.
set -euo pipefail
# shellcheck source=tools/kind/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=tools/kind/go.sh
source "$HERE/go.sh"

# Files in the store are never changed, and a folder of links belongs to one set of versions:
# clones of different age can share the cache.
STORE=$CACHE/store/$(uname -m)
FOLDER=$CACHE/bin-$({ uname -m; cat "$HERE/versions.sh"; } | hash_of)
PART=
readonly STORE FOLDER

# Each is one call of go, which compiles once what its programs share. First what an API server
# alone needs, so that the cluster tier does not wait for the rest of Kubernetes.
readonly BATCHES=(
  "kube-apiserver kubectl"
  "kube-controller-manager kube-scheduler kube-proxy kubelet kubeadm"
  etcd helm versitygw coredns kind pause
  "prometheus promtool"
)
readonly BUSY=75 # exit status: another run builds it

version_of() { # NAME
  case $1 in
    kube-apiserver | kube-controller-manager | kube-scheduler | kube-proxy) echo "$KUBERNETES_VERSION" ;;
    kubelet | kubeadm | kubectl) echo "$KUBERNETES_VERSION" ;;
    etcd) echo "$ETCD_VERSION" ;;
    coredns) echo "$COREDNS_VERSION" ;;
    kind) echo "$KIND_VERSION" ;;
    helm) echo "$HELM_VERSION" ;;
    versitygw) echo "$VERSITYGW_VERSION" ;;
    prometheus | promtool) echo "$PROMETHEUS_VERSION" ;;
    pause) echo "v$PAUSE_VERSION" ;;
    *) die "no such program: $1 (see the head of tools/kind/binaries.sh)" ;;
  esac
}

stored() { echo "$STORE/$1-$(version_of "$1")"; }

# Kubernetes as a module requires its own parts at v0.0.0 and replaces them with folders that
# the module does not have: we replace them with the modules of the same release.
kubernetes_module() {
  local folder=$CACHE/src/kubernetes-$KUBERNETES_VERSION part release
  if [[ -f $folder/ready ]]; then echo "$folder"; return; fi
  release=v0.${KUBERNETES_VERSION#v1.}
  mkdir -p "$folder"
  cd "$folder" || return 1
  part=$("$GO" mod download -json "k8s.io/kubernetes@$KUBERNETES_VERSION" | sed -n 's/^\t*"GoMod": "\(.*\)",\{0,1\}$/\1/p')
  [[ -f $part ]] || die "k8s.io/kubernetes $KUBERNETES_VERSION could not be fetched: can the Go module proxy be reached?"
  {
    printf 'module ddpjob.io/build\n\ngo %s\n\nrequire k8s.io/kubernetes %s\n\n' \
      "$(sed -n 's/^go //p' "$part")" "$KUBERNETES_VERSION"
    sed -nE "s#^\s+(k8s\.io/[a-z-]+) => \./staging.*#replace \1 => \1 $release#p" "$part"
  } >go.mod
  {
    printf '//go:build tools\n\npackage build\n\nimport (\n'
    printf '\t_ "k8s.io/kubernetes/cmd/%s"\n' \
      kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubeadm kubectl
    printf ')\n'
  } >tools.go
  quietly go-mod-kubernetes "$GO" mod tidy ||
    die "the modules of Kubernetes could not be fetched (see above)"
  touch ready
  echo "$folder"
}

build_kubernetes() { # NAME...
  local package flags='-s -w' minor=${KUBERNETES_VERSION#v1.}
  for package in k8s.io/component-base/version k8s.io/client-go/pkg/version; do
    flags+=" -X $package.gitVersion=$KUBERNETES_VERSION -X $package.gitTreeState=clean"
    flags+=" -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*} -X $package.buildDate=1970-01-01T00:00:00Z"
  done
  local folder
  folder=$(kubernetes_module) && cd "$folder" &&
    quietly go-kubernetes "$GO" build -mod=mod -trimpath -ldflags "$flags" -o "$PART/" \
      "${@/#/k8s.io/kubernetes/cmd/}"
}

# A main package of our own, in $PART/src.
build_source() { # NAME MODULE@VERSION
  cd "$PART/src" && printf 'module ddpjob.io/build\n\ngo 1.24\n' >go.mod &&
    quietly "go-$1" "$GO" get "$2" &&
    quietly "go-$1" "$GO" mod tidy &&
    quietly "go-$1" "$GO" build -trimpath -ldflags '-s -w' -o "$PART/$1" .
}

# etcd's own main package is in a module with replacements, which `go install` refuses.
build_etcd() {
  printf '%s\n' 'package main' 'import (' '"os"' '"go.etcd.io/etcd/server/v3/etcdmain"' ')' \
    'func main() { etcdmain.Main(os.Args) }' >"$PART/src/main.go"
  build_source etcd "go.etcd.io/etcd/server/v3@$ETCD_VERSION"
}

# With the plugins that kubeadm configures: the others bring the libraries of three clouds.
build_coredns() {
  {
    printf '%s\n' 'package main' 'import (' '"github.com/coredns/coredns/coremain"'
    printf '_ "github.com/coredns/coredns/plugin/%s"\n' \
      cache errors forward health kubernetes loadbalance loop metrics ready reload
    printf '%s\n' ')' 'func main() { coremain.Run() }'
  } >"$PART/src/main.go"
  build_source coredns "github.com/coredns/coredns@$COREDNS_VERSION"
}

# Their module has replacements as well. Without the service discoveries, which bring the libraries
# of all clouds. The module lacks the pages of the server, which then has its API only.
build_prometheus() { # NAME...
  local packages=("${@/#/github.com/prometheus/prometheus/cmd/}")
  cd "$PART/src" && printf 'module ddpjob.io/build\n\ngo 1.24\n' >go.mod &&
    quietly go-prometheus "$GO" get "${packages[@]/%/@$PROMETHEUS_VERSION}" &&
    quietly go-prometheus "$GO" build -tags remove_all_sd -trimpath -ldflags '-s -w' -o "$PART/" "${packages[@]}"
}

build_pause() {
  quietly go-pause "$GO" build -trimpath -ldflags '-s -w' -o "$PART/pause" "$OFFLINE/pause.go"
}

build_module() { # NAME PACKAGE
  local version
  version=$(version_of "$1")
  GOBIN=$PART quietly "go-$1" "$GO" install -trimpath -ldflags '-s -w' "$2@$version"
}

build() { # NAME...
  say "building $* $(version_of "$1") ($(date +%T))"
  case $1 in
    kube*) build_kubernetes "$@" ;;
    prom*) build_prometheus "$@" ;;
    etcd | coredns | pause) "build_$1" ;;
    kind) build_module kind sigs.k8s.io/kind ;;
    helm) build_module helm helm.sh/helm/v3/cmd/helm ;;
    versitygw) build_module versitygw github.com/versity/versitygw/cmd/versitygw ;;
  esac
}

missing() { # NAME...
  local name
  for name in "$@"; do
    [[ -x $(stored "$name") ]] || echo "$name"
  done
}

# Builds of one batch what is still missing, unless another run is at it.
try() { # NAME...
  local status=0 kind=$1
  if [[ $1 == kube* ]]; then kind=kubernetes; fi
  if [[ $1 == prom* ]]; then kind=prometheus; fi
  (
    flock -n 7 || exit $BUSY
    mapfile -t names < <(missing "$@")
    ((${#names[@]})) || exit 0
    PART=$CACHE/part.$BASHPID
    trap 'rm -rf "$PART"' EXIT
    mkdir -p "$PART/src" "$STORE"
    (build "${names[@]}") ||
      die "${names[*]} could not be built (see above); what is built so far is kept: try again"
    for name in "${names[@]}"; do mv "$PART/$name" "$(stored "$name")"; done
  ) 7>"$CACHE/.build-$kind.lock" || status=$?
  ((status == 0 || status == BUSY)) || exit "$status"
  return "$status"
}

# The first batch of which something is missing, and which no other run builds.
build_some() { # NAME...
  local batch names name
  for batch in "${BATCHES[@]}"; do
    names=()
    for name in $batch; do
      if [[ " $* " == *" $name "* ]]; then names+=("$name"); fi
    done
    if ((${#names[@]})) && try "${names[@]}"; then return; fi
  done
  return 1
}

build_missing() { # NAME...
  local left=("$@") waiting=
  lock binaries
  find_go
  exec 7>&-
  say "building $* from Go modules: about $(estimate "$@") minutes on two cores if nothing is cached"
  while ((${#left[@]})); do
    if build_some "${left[@]}"; then
      waiting=
    else
      [[ $waiting ]] || say "waiting for another run that builds ${left[*]}"
      waiting=yes
      sleep 1
    fi
    mapfile -t left < <(missing "${left[@]}")
  done
}

estimate() { # NAME...
  local minutes=1
  if [[ " $* " == *" kube"* ]]; then minutes=$((minutes + 5)); fi
  if [[ " $* " == *" helm "* || " $* " == *" coredns "* ]]; then minutes=$((minutes + 2)); fi
  if [[ " $* " == *" versitygw "* ]]; then minutes=$((minutes + 1)); fi
  if [[ " $* " == *" prom"* ]]; then minutes=$((minutes + 4)); fi
  echo "$minutes"
}

link() { # NAME
  if [[ ! -e $FOLDER/$1 ]]; then
    mkdir -p "$FOLDER"
    ln -sfn "$(stored "$1")" "$FOLDER/$1"
  fi
}

main() {
  local name left
  (($#)) || die "usage: tools/kind/binaries.sh NAME..."
  for name in "$@"; do version_of "$name" >/dev/null; done
  mapfile -t left < <(missing "$@")
  if ((${#left[@]})); then build_missing "${left[@]}"; fi
  for name in "$@"; do link "$name"; done
  echo "$FOLDER"
}

main "$@"
