# What the scripts of the development cluster share. Sourced; runs nothing.
# shellcheck shell=bash disable=SC2034
set -euo pipefail

HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
ROOT=$(cd "$HERE/../.." && pwd)
readonly HERE ROOT OFFLINE=$HERE/offline
# shellcheck source=tools/kind/versions.sh
source "$HERE/versions.sh"

readonly CACHE=${DDPJOB_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ddpjob}
readonly CLUSTER=${DDPJOB_CLUSTER:-ddpjob}
readonly STATE=$CACHE/clusters/$CLUSTER
readonly SHARED=$CACHE/shared
readonly LOGS=$CACHE/logs
mkdir -p "$LOGS"

say() { printf 'kind: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

is_root() { [[ $(id -u) == 0 ]]; }

# Quiet, unless it fails: then the end of what it said.
quietly() { # LOG COMMAND...
  local log=$LOGS/$1.log
  shift
  if ! "$@" >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    return 1
  fi
}

# One at a time; the lock ends with this process, however it ends. Each name has a file
# descriptor of its own, so that what is started to stay (dockerd) can close them all.
lock() { # packages | binaries | images | docker | cluster
  local fd
  case $1 in packages) fd=5 ;; docker) fd=6 ;; binaries) fd=7 ;; images) fd=8 ;; cluster) fd=9 ;; *) die "no such lock: $1" ;; esac
  command -v flock >/dev/null || die "flock is missing: install util-linux, then try again"
  eval "exec $fd>\"\$CACHE/.$1.lock\""
  if ! flock -n "$fd"; then
    say "waiting for another run that works on the $1"
    flock "$fd"
  fi
}

apt_install() { # PACKAGE...
  is_root && command -v apt-get >/dev/null || return 1
  say "installing $* with apt-get"
  export DEBIAN_FRONTEND=noninteractive
  (
    lock packages
    quietly apt apt-get update -qq &&
      quietly apt apt-get install -y -qq --no-install-recommends "$@"
  )
}

# Programs and the Debian packages that they are in: `need debootstrap tar=tar`.
need() { # PROGRAM[=PACKAGE]...
  local pair packages=()
  for pair in "$@"; do
    command -v "${pair%%=*}" >/dev/null || packages+=("${pair##*=}")
  done
  ((${#packages[@]} == 0)) || apt_install "${packages[@]}" ||
    die "missing: ${packages[*]}. Install them with your system's package manager, or run this as root on Debian or Ubuntu"
}

hash_of() { sha256sum | cut -c-12; }

have_image() { docker image inspect "$1" >/dev/null 2>&1; }

# Some machines withhold this from root; runc and the stock node image cannot do without it.
may_use_sys_resource() {
  local bounds
  bounds=$(sed -n 's/^CapBnd:\s*//p' /proc/self/status)
  (((16#$bounds >> 24) & 1))
}

[[ $(uname -s) == Linux ]] || die "this needs Linux. Elsewhere, bring a cluster of your own: docs/development-cluster.md"
