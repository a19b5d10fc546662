#!/usr/bin/env bash
# Deletes the development cluster. What was built or pulled stays, and so does dockerd.
#
#   tools/kind/down.sh            the cluster
#   tools/kind/down.sh --docker   and dockerd, if it was started here
#   tools/kind/down.sh --pause    nothing: it only takes no processor until the next make kind-up
set -euo pipefail
# shellcheck source=tools/kind/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case ${1:-} in
  '' | --docker | --pause) ;;
  *) die "usage: tools/kind/down.sh [--docker | --pause]" ;;
esac

lock cluster
if [[ ! -d $STATE ]]; then
  say "there is no cluster $CLUSTER that was made here"
elif ! docker info >/dev/null 2>&1; then
  say "Docker does not answer, so no cluster runs; the next make kind-up deletes what is left of it"
elif [[ ${1:-} == --pause ]]; then
  docker ps --quiet --filter status=running --filter "label=io.x-k8s.kind.cluster=$CLUSTER" |
    xargs --no-run-if-empty docker pause >/dev/null
  say "paused the cluster $CLUSTER: make kind-up resumes it, make kind-down deletes it"
else
  "$("$HERE/binaries.sh" kind)/kind" delete cluster --quiet --name "$CLUSTER" --kubeconfig "$STATE/kubeconfig"
  rm -rf "$STATE"
  say "deleted the cluster $CLUSTER"
fi
if [[ ${1:-} == --docker ]]; then "$HERE/docker.sh" stop; fi
