#!/usr/bin/env bash
# A development cluster: one control plane, and two workers, which advertise 2 and 1 GPUs.
# See docs/development-cluster.md. Prints what to export; everything else goes to stderr.
#
# A healthy cluster is used again in a few seconds. One that does not answer, or that was made
# with other versions or for another .venv, is made anew. Safe to interrupt.
set -euo pipefail
# shellcheck source=tools/kind/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly GPUS=(2 1)
export KUBECONFIG=$STATE/kubeconfig

site_packages() {
  "$ROOT/.venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' ||
    die ".venv is missing: run make setup first"
}

config() { # SITE-PACKAGES SOURCE
  local mounts="extraMounts:
  - {hostPath: \"$1\", containerPath: /mnt/ddpjob/site-packages, readOnly: true}
  - {hostPath: \"$SHARED\", containerPath: /mnt/ddpjob/shared}"
  echo 'kind: Cluster'
  echo 'apiVersion: kind.x-k8s.io/v1alpha4'
  # For tests/e2e/torch-from-node.yaml.
  echo 'featureGates: {MutatingAdmissionPolicy: true}'
  echo 'runtimeConfig: {admissionregistration.k8s.io/v1beta1: "true"}'
  control_plane
  if [[ $2 == build ]]; then echo 'networking: {disableDefaultCNI: true}'; fi
  printf 'nodes:\n- role: control-plane\n'
  for _ in "${GPUS[@]}"; do printf -- '- role: worker\n  %s\n' "$mounts"; done
}

# There is one of each, and nothing in it outlives this machine.
control_plane() {
  cat <<'EOF'
kubeadmConfigPatches:
- |
  kind: ClusterConfiguration
  controllerManager: {extraArgs: {leader-elect: "false"}}
  scheduler: {extraArgs: {leader-elect: "false"}}
  etcd: {local: {extraArgs: {unsafe-no-fsync: "true"}}}
EOF
}

# All that a running cluster cannot change. A folder made anew at the same path is another one.
fingerprint() { # IMAGE CONFIG SITE-PACKAGES
  { echo "$1"; cat "$2"; stat -c '%d %i' "$3" "$SHARED"; } | hash_of
}

healthy() {
  local ready
  ready=$(kubectl --request-timeout=5s get nodes --no-headers 2>/dev/null | awk '$2 == "Ready"' | wc -l) || true
  ((ready == 1 + ${#GPUS[@]}))
}

# A node that has not renewed its lease since it was resumed may yet be called lost.
resume() {
  local paused since
  paused=$(docker ps --quiet --filter status=paused --filter "label=io.x-k8s.kind.cluster=$CLUSTER")
  if [[ -z $paused ]]; then return; fi
  say "resuming the cluster $CLUSTER, which was paused"
  since=$(date --utc +%Y-%m-%dT%H:%M:%SZ)
  # shellcheck disable=SC2086
  docker unpause $paused >/dev/null
  for _ in {1..60}; do
    if (($(renewed_since "$since") == 1 + ${#GPUS[@]})); then
      quietly kind-wait kubectl wait --for=condition=Ready node --all --timeout=60s || true
      return
    fi
    sleep 1
  done
}

renewed_since() { # TIME
  kubectl --request-timeout=5s -n kube-node-lease get leases --no-headers \
    --output custom-columns=AT:.spec.renewTime 2>/dev/null | awk -v since="$1" '$1 > since' | wc -l
}

exists() { kind get clusters 2>/dev/null | grep -qxF "$CLUSTER"; }

# Only what was made here is deleted; the folder says so.
delete_old() {
  if ! exists; then return; fi
  [[ -d $STATE ]] ||
    die "there is a kind cluster $CLUSTER that was not made here: delete it (kind delete cluster --name $CLUSTER), or choose another name with DDPJOB_CLUSTER"
  say "$1: making the cluster anew"
  kind delete cluster --quiet --name "$CLUSTER"
}

create() { # IMAGE SOURCE
  say "creating the cluster $CLUSTER ($2 node image): about a minute"
  mkdir -p "$STATE"
  rm -f "$STATE/made-of"
  mv "$STATE.yaml" "$STATE/kind.yaml"
  quietly kind-create kind create cluster --name "$CLUSTER" --image "$1" --config "$STATE/kind.yaml" ||
    die "kind could not create the cluster (see above and $LOGS/kind-create.log)"
  if [[ $2 == build ]]; then "$OFFLINE/network.sh"; fi
  quietly kind-wait kubectl wait --for=condition=Ready node --all --timeout=180s ||
    die "the nodes did not become ready (see above): kubectl describe nodes"
  quietly kind-wait kubectl -n kube-system rollout status deployment/coredns --timeout=180s ||
    die "the cluster's DNS did not become ready (see above): kubectl -n kube-system get pods"
}

# An extended resource, as Kubernetes documents it. It stays while the kubelet runs.
claim_gpus() {
  local node=$CLUSTER-worker count path=/nvidia.com~1gpu
  for count in "${GPUS[@]}"; do
    kubectl patch node "$node" --subresource=status --type=json -p "[
      {\"op\": \"add\", \"path\": \"/status/capacity$path\", \"value\": \"$count\"},
      {\"op\": \"add\", \"path\": \"/status/allocatable$path\", \"value\": \"$count\"}]" >/dev/null
    node=${CLUSTER}-worker2
  done
}

main() {
  local started=$SECONDS bin image source site wanted
  lock cluster
  "$HERE/docker.sh"
  image=$("$HERE/node-image.sh") || die "there is no node image (see above); what is finished is kept: try again"
  read -r image source <<<"$image"
  bin=$("$HERE/binaries.sh" kind kubectl helm)
  "$HERE/base-image.sh" >/dev/null || die "there is no image for pods (see above): try again"
  PATH=$bin:$PATH
  site=$(site_packages)
  mkdir -p "$SHARED" "$CACHE/clusters"
  chmod 1777 "$SHARED"
  config "$site" "$source" >"$STATE.yaml"
  wanted=$(fingerprint "$image" "$STATE.yaml" "$site")
  if [[ $(cat "$STATE/made-of" 2>/dev/null) != "$wanted" ]]; then
    delete_old "the one that is there was made differently, or not finished"
    create "$image" "$source"
  elif ! { resume; healthy; }; then
    delete_old "the one that is there does not answer"
    create "$image" "$source"
  elif [[ $source == build ]]; then
    "$OFFLINE/network.sh" # a node that was restarted has forgotten the way to the others
  fi
  "$HERE/load.sh" "$BASE_IMAGE"
  claim_gpus
  echo "$wanted" >"$STATE/made-of"
  say "ready after $((SECONDS - started)) s: 2 workers with ${GPUS[0]} and ${GPUS[1]} GPUs, the $source node image"
  echo "export KUBECONFIG=$KUBECONFIG PATH=$bin:\$PATH"
}

main
