#!/usr/bin/env bash
# A network for the pods of a self-built cluster: each node gives out addresses of its own
# range, knows the way to the other nodes' ranges, and hides pods behind its address outside.
# Stock clusters have kind's own network instead, which is an image that would be pulled.
#
#   KUBECONFIG=... tools/kind/offline/network.sh      may be repeated
set -euo pipefail
# shellcheck source=tools/kind/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

readonly PODS=10.244.0.0/16 # what kind gives out to nodes

# Point to point, not a bridge: all traffic is routed, so Services work between pods of one
# node without the kernel's bridge filter.
write_config() { # NODE RANGE
  docker exec -i "$1" sh -euc 'mkdir -p /etc/cni/net.d; cat >/etc/cni/net.d/.part
    mv /etc/cni/net.d/.part /etc/cni/net.d/10-ddpjob.conflist' <<EOF
{
  "cniVersion": "0.4.0",
  "name": "ddpjob",
  "plugins": [
    {
      "type": "ptp",
      "ipam": {
        "type": "host-local",
        "ranges": [[{"subnet": "$2"}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
EOF
}

main() {
  local nodes node range other other_range other_address commands
  nodes=$(kubectl get nodes -o jsonpath='{range .items[*]}{.metadata.name} {.spec.podCIDR} {.status.addresses[?(@.type=="InternalIP")].address}{"\n"}{end}')
  while read -r node range _; do
    write_config "$node" "$range"
    commands="set -eu; rule='POSTROUTING -s $range ! -d $PODS -j MASQUERADE'
      iptables -t nat -C \$rule 2>/dev/null || iptables -t nat -A \$rule;"
    while read -r other other_range other_address; do
      if [[ $other != "$node" ]]; then commands+="ip route replace $other_range via $other_address;"; fi
    done <<<"$nodes"
    docker exec "$node" sh -c "$commands" </dev/null
  done <<<"$nodes"
}

main
