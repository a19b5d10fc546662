#!/usr/bin/env bash
# Builds a node image for kind out of Go modules and Debian packages, without an image registry.
#
#   tools/kind/offline/node-image.sh          builds it, if it is missing
#   tools/kind/offline/node-image.sh --name   prints its name
#
# It differs from the stock image in what this needs: Debian's containerd and CNI plugins, no
# CAP_SYS_RESOURCE in containers, and no network of its own (see network.sh).
set -euo pipefail
# shellcheck source=tools/kind/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
# shellcheck source=tools/kind/offline/debian.sh
source "$OFFLINE/debian.sh"

readonly WORK=$CACHE/node-image BUILDER=ddpjob-node-image
readonly PARTS="kube-apiserver kube-controller-manager kube-scheduler kube-proxy etcd coredns pause"
readonly NODE_PROGRAMS="kubelet kubeadm kubectl"
BUILT=ddpjob-test/node:$KUBERNETES_VERSION-$(cat "$HERE/versions.sh" "$OFFLINE"/{debian,node-image}.sh | hash_of)
readonly BUILT

# What the stock image has, and one thing less: a container network that it would pull.
readonly PACKAGES="systemd containerd runc containernetworking-plugins conntrack iptables nftables
  iproute2 ethtool util-linux mount kmod libseccomp2 pigz socat e2fsprogs bash ca-certificates
  curl jq procps"

from_scratch() { # IMAGE PROGRAM PATH
  local folder=$WORK/image
  rm -rf "$folder"
  install -D "$BIN/$2" "$folder$3"
  import_rootfs "$folder" "$1" "ENTRYPOINT [\"$3\"]"
}

# kube-proxy calls programs, so its image has them, with their libraries, and no more: it is
# unpacked on every node.
kube_proxy_image() {
  local folder=$WORK/image
  rm -rf "$folder"
  mkdir -p "$folder"
  # shellcheck disable=SC2016
  chroot "$WORK/rootfs" sh -c '
    files=$(dpkg -L iptables nftables conntrack kmod | grep -E "/s?bin/|/xtables/")
    { printf "%s\n" $files /usr/sbin/ip*tables*; ldd $files 2>/dev/null | grep -oE "/[^ :)]+"; } |
      sort -u | tar -c --dereference --no-recursion -T - 2>/dev/null' | tar -C "$folder" -x
  install -D "$BIN/kube-proxy" "$folder/usr/local/bin/kube-proxy"
  import_rootfs "$folder" "registry.k8s.io/kube-proxy:$KUBERNETES_VERSION" \
    'ENTRYPOINT ["/usr/local/bin/kube-proxy"]'
}

# Named as kubeadm names them, and kept in no registry.
control_plane_images() {
  local part
  for part in kube-apiserver kube-controller-manager kube-scheduler; do
    from_scratch "registry.k8s.io/$part:$KUBERNETES_VERSION" "$part" "/usr/local/bin/$part"
  done
  from_scratch "registry.k8s.io/etcd:$ETCD_TAG" etcd /usr/local/bin/etcd
  from_scratch "registry.k8s.io/coredns/coredns:$COREDNS_VERSION" coredns /coredns
  from_scratch "registry.k8s.io/pause:$PAUSE_VERSION" pause /pause
  kube_proxy_image
}

image_names() {
  printf "registry.k8s.io/%s:$KUBERNETES_VERSION\n" kube-apiserver kube-controller-manager \
    kube-scheduler kube-proxy
  echo "registry.k8s.io/etcd:$ETCD_TAG"
  echo "registry.k8s.io/coredns/coredns:$COREDNS_VERSION"
  echo "registry.k8s.io/pause:$PAUSE_VERSION"
}

# kind's own files for its nodes come with its module; Debian's containerd lies elsewhere.
kind_files() {
  local module files
  # shellcheck source=tools/kind/go.sh
  source "$HERE/go.sh"
  find_go
  module=$(cd "$WORK" && "$GO" mod download -json "sigs.k8s.io/kind@$KIND_VERSION" |
    sed -n 's/^\t*"Dir": "\(.*\)",\{0,1\}$/\1/p')
  files=$module/images/base/files
  cp -r --no-preserve=mode,ownership "$files"/{usr,etc,kind} "$WORK/rootfs/"
  sed -i 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' \
    "$WORK/rootfs/etc/containerd/config.toml"
  sed -i "s#registry.k8s.io/pause:[0-9.]*#registry.k8s.io/pause:$PAUSE_VERSION#" \
    "$WORK/rootfs/etc/containerd/config.toml"
  sed -i 's#/usr/local/bin/containerd$#/usr/bin/containerd#' \
    "$WORK/rootfs/etc/systemd/system/containerd.service"
}

# What kind's own Dockerfile does to its base image.
prepare_rootfs() {
  local program
  for program in $NODE_PROGRAMS; do install "$BIN/$program" "$WORK/rootfs/usr/bin/"; done
  echo "$KUBERNETES_VERSION" >"$WORK/rootfs/kind/version"
  # shellcheck disable=SC2016
  quietly node-rootfs chroot "$WORK/rootfs" sh -euc '
    chmod 755 /usr/local/bin/* /kind /kind/bin /kind/bin/*
    rm -f /lib/systemd/system/multi-user.target.wants/* /etc/systemd/system/*.wants/* \
      /lib/systemd/system/local-fs.target.wants/* /lib/systemd/system/basic.target.wants/* \
      /lib/systemd/system/sockets.target.wants/*udev* \
      /lib/systemd/system/sockets.target.wants/*initctl* \
      /lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service
    echo ReadKMsg=no >>/etc/systemd/journald.conf
    ln -sf /lib/systemd/systemd /sbin/init
    systemctl enable kubelet.service containerd.service undo-mount-hacks.service
    systemctl mask systemd-binfmt.service
    mkdir -p /etc/kubernetes/manifests /opt/cni/bin /kind/manifests
    cp /usr/lib/cni/* /opt/cni/bin/
    ctr oci spec | jq ".hooks.createContainer += [{path: \"/kind/bin/mount-product-files.sh\"}]
      | del(.process.rlimits)
      | .process.capabilities[] |= map(select(. != \"CAP_SYS_RESOURCE\"))" \
      >/etc/containerd/cri-base.json
    rm -f /etc/machine-id /etc/hostname'
}

# As kind does it: the images go into the containerd of the node image itself.
preload_images() {
  local names
  mapfile -t names < <(image_names)
  docker rm -f "$BUILDER" >/dev/null 2>&1 || true
  docker run -d --name "$BUILDER" --privileged --entrypoint sleep "$BUILT-bare" infinity >/dev/null
  # shellcheck disable=SC2016
  docker save "${names[@]}" | quietly preload docker exec -i "$BUILDER" sh -euc '
    containerd >/var/log/preload.log 2>&1 &
    for i in $(seq 150); do ctr version >/dev/null 2>&1 && break; sleep 0.2; done
    ctr -n k8s.io images import --all-platforms --no-unpack -
    kill $! && wait $! || true'
  docker commit --change 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]' \
    "$BUILDER" "$BUILT" >/dev/null
  docker rm -f "$BUILDER" >/dev/null
  docker rmi "$BUILT-bare" "${names[@]}" >/dev/null
}

# Those of other versions, unless a cluster runs on them.
remove_old_images() {
  docker images -q --filter 'reference=ddpjob-test/node' --filter "before=$BUILT" |
    xargs -r docker rmi >/dev/null 2>&1 || true
}

build_image() {
  local started=$SECONDS
  lock images
  if have_image "$BUILT"; then return; fi
  # shellcheck disable=SC2086
  BIN=$("$HERE/binaries.sh" kind $PARTS $NODE_PROGRAMS)
  say "building the node image: a minute or two"
  mkdir -p "$WORK"
  trap 'remove_rootfs "$WORK/rootfs"; rm -rf "$WORK"' EXIT
  # shellcheck disable=SC2086
  make_rootfs "$WORK/rootfs" $PACKAGES
  say "Debian is unpacked; adding Kubernetes $KUBERNETES_VERSION"
  control_plane_images
  kind_files
  prepare_rootfs
  import_rootfs "$WORK/rootfs" "$BUILT-bare" 'ENV container=docker' \
    'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]'
  preload_images
  remove_old_images
  say "built the node image in $((SECONDS - started)) s"
}

case ${1:-} in
  --name) echo "$BUILT" ;;
  '') build_image ;;
  *) die "usage: tools/kind/offline/node-image.sh [--name]" ;;
esac
