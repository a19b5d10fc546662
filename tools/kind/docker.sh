#!/usr/bin/env bash
# Makes sure that a Docker daemon answers; starts one, as root, where none does.
#
#   tools/kind/docker.sh        start it if need be
#   tools/kind/docker.sh stop   stop it, but only if it was started here
#
# A daemon that was started here and killed leaves nothing to mend: the next call starts another.
# Node containers do not outlive it; kind-up makes the cluster anew.
set -euo pipefail
# shellcheck source=tools/kind/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly PIDFILE=$CACHE/dockerd.pid

answers() { docker info >/dev/null 2>&1; }

# Of the process that we started, not of another that has its number now.
our_daemon() {
  local pid
  [[ -f $PIDFILE ]] && pid=$(<"$PIDFILE") && [[ $(cat "/proc/$pid/comm" 2>/dev/null) == dockerd ]] && echo "$pid"
}

explain_and_die() {
  local answer
  answer=$(docker info 2>&1 || true)
  if [[ $answer == *'permission denied'* ]]; then
    die "Docker is running, but not for you: add yourself to the group docker (sudo usermod -aG docker \$USER) and log in again, or run this as root"
  fi
  die "Docker does not answer: start it (for instance: sudo systemctl start docker), install it, or run this as root"
}

# Where root lacks CAP_SYS_RESOURCE a privileged container cannot be started: runc would give
# the container what we do not have. The wrapper takes it out of the request.
install_wrapper() {
  local python wrapper=$CACHE/runc-without-sys-resource
  python=$("$ROOT/.venv/bin/python" -c 'import sys; print(sys._base_executable)' 2>/dev/null || command -v python3) ||
    die "python3 is missing: run make setup first"
  printf '#!/bin/sh\nexec "%s" -ISE "%s" "%s" "$@"\n' \
    "$python" "$CACHE/runc_without_sys_resource.py" "$(command -v runc)" >"$wrapper.part"
  cp "$OFFLINE/runc_without_sys_resource.py" "$CACHE/"
  chmod 755 "$wrapper.part"
  mv -T "$wrapper.part" "$wrapper"
  echo "$wrapper"
}

start_daemon() {
  local options=() wrapper
  rm -f "$PIDFILE" # of one that was killed
  need dockerd=docker.io docker=docker.io containerd=containerd runc=runc iptables=iptables ip=iproute2
  if answers; then return; fi # installing it may have started it
  if [[ -d /run/systemd/system ]]; then
    say "starting Docker with systemd"
    systemctl start docker || die "systemd could not start Docker: see systemctl status docker"
    return
  fi
  if ! may_use_sys_resource; then
    wrapper=$(install_wrapper)
    options=(--add-runtime "ddpjob=$wrapper" --default-runtime ddpjob)
  fi
  if [[ $(stat -f -c %T /var/lib) == overlayfs ]] && ! mountpoint -q /var/lib/docker; then
    say "/var/lib/docker lies on an overlay file system, where nodes cannot start: mount a volume there if this fails"
  fi
  say "starting dockerd; its log is $LOGS/dockerd.log"
  # the locks are closed, so that they end with us and not with the daemon
  setsid dockerd "${options[@]}" >"$LOGS/dockerd.log" 2>&1 </dev/null 6>&- 7>&- 8>&- 9>&- &
  echo $! >"$PIDFILE"
}

wait_for_daemon() {
  for _ in $(seq 300); do
    if answers; then return; fi
    # by its number alone: in its first moments it does not have its name yet
    if [[ -f $PIDFILE ]] && ! kill -0 "$(<"$PIDFILE")" 2>/dev/null; then break; fi
    sleep 0.2
  done
  tail -n 20 "$LOGS/dockerd.log" >&2 2>/dev/null || true
  die "Docker did not start (see above)"
}

start() {
  if answers; then return; fi
  is_root || explain_and_die
  lock docker
  if answers; then return; fi
  start_daemon
  wait_for_daemon
}

stop() {
  local pid
  if ! pid=$(our_daemon); then say "no Docker daemon was started here"; return; fi
  say "stopping dockerd"
  kill "$pid"
  for _ in $(seq 300); do
    if ! our_daemon >/dev/null; then break; fi
    sleep 0.1
  done
  rm -f "$PIDFILE"
}

case ${1:-start} in
  start) start ;;
  stop) stop ;;
  *) die "usage: tools/kind/docker.sh [stop]" ;;
esac
