#!/usr/bin/env bash
# Puts local Docker images into the nodes of the development cluster.
#
#   tools/kind/load.sh IMAGE...
#
# Does nothing, quickly, for an image that is there already.
set -euo pipefail
# shellcheck source=tools/kind/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly NODES=("$CLUSTER-control-plane" "$CLUSTER-worker" "$CLUSTER-worker2")

# The node remembers which image it got under a name; the kubelet may have removed it since.
loaded() { # NODE IMAGE ID
  # shellcheck disable=SC2016
  docker exec "$1" sh -c '[ "$(cat "/var/lib/ddpjob-images/$2" 2>/dev/null)" = "$3" ] &&
    ctr -n k8s.io images ls -q | grep -qF "$1"' - "$2" "$(hash_of <<<"$2")" "$3" >/dev/null 2>&1
}

remember() { # NODE IMAGE ID
  # shellcheck disable=SC2016
  docker exec "$1" sh -c 'mkdir -p /var/lib/ddpjob-images && echo "$2" >"/var/lib/ddpjob-images/$1"' \
    - "$(hash_of <<<"$2")" "$3"
}

# All at once: what they have in common then travels once.
load() { # IMAGE...
  local id image node nodes=() images=()
  for image in "$@"; do
    id=$(docker image inspect -f '{{.Id}}' "$image" 2>/dev/null) || die "there is no image $image here: build it first"
    for node in "${NODES[@]}"; do
      loaded "$node" "$image" "$id" && continue
      nodes+=("$node")
      images+=("$image")
    done
  done
  ((${#images[@]})) || return 0
  mapfile -t nodes < <(printf '%s\n' "${nodes[@]}" | sort -u)
  mapfile -t images < <(printf '%s\n' "${images[@]}" | sort -u)
  say "loading ${images[*]} into ${nodes[*]}"
  quietly load kind load docker-image --name "$CLUSTER" --nodes "$(IFS=,; echo "${nodes[*]}")" "${images[@]}" ||
    die "${images[*]} could not be loaded (see above): is the cluster up (make kind-up)?"
  for image in "${images[@]}"; do
    id=$(docker image inspect -f '{{.Id}}' "$image")
    for node in "${nodes[@]}"; do remember "$node" "$image" "$id"; done
  done
}

PATH=$("$HERE/binaries.sh" kind):$PATH
load "$@"
