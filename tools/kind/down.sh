#!/usr/bin/env bash
# Deletes the development cluster. What was built or pulled stays, and so does dockerd.
#
#   tools/kind/down.sh            the cluster
#   tools/kind/down.sh --docker   and dockerd, if it was started here
set -euo pipefail
# shellcheck source=tools/kind/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case ${1:-} in
  '' | --docker) ;;
  *) die "usage: tools/kind/down.sh [--docker]" ;;
esac

lock cluster
if [[ ! -d $STATE ]]; then
  say "there is no cluster $CLUSTER that was made here"
elif ! docker info >/dev/null 2>&1; then
  say "Docker does not answer, so no cluster runs; the next make kind-up deletes what is left of it"
else
  "$("$HERE/binaries.sh" kind)/kind" delete cluster --quiet --name "$CLUSTER" --kubeconfig "$STATE/kubeconfig"
  rm -rf "$STATE"
  say "deleted the cluster $CLUSTER"
fi
if [[ ${1:-} == --docker ]]; then "$HERE/docker.sh" stop; fi
