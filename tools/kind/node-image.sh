#!/usr/bin/env bash
# Pulls kind's stock node image, and prints its name and "pull". On a machine without an image
# registry, offline/node-image.sh builds an image instead: then prints its name and "build".
set -euo pipefail
# shellcheck source=tools/kind/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# Gives up early if no registry answers, but waits as long as it takes once one does.
pull() { # IMAGE
  local log=$LOGS/pull.log pid
  say "pulling $1"
  docker pull "$1" >"$log" 2>&1 &
  pid=$!
  for _ in $(seq 100); do
    if grep -q 'Pulling from' "$log" || ! kill -0 "$pid" 2>/dev/null; then
      wait "$pid"
      return
    fi
    sleep 0.2
  done
  kill "$pid"
  return 1
}

# Decided once per machine: an existing image decides, then whether a registry answers.
# DDPJOB_NODE_IMAGE=pull or =build overrides.
image_source() { # BUILT-NODE-IMAGE
  case ${DDPJOB_NODE_IMAGE:-} in
    pull | build) echo "$DDPJOB_NODE_IMAGE"; return ;;
    '') ;;
    *) die "DDPJOB_NODE_IMAGE is $DDPJOB_NODE_IMAGE: it must be pull or build" ;;
  esac
  if have_image "$1"; then
    echo build
  elif ! may_use_sys_resource; then
    say "this machine withholds CAP_SYS_RESOURCE, which the stock node image needs: building one without"
    echo build
  elif have_image "$STOCK_NODE_IMAGE" || pull "$STOCK_NODE_IMAGE"; then
    echo pull
  else
    say "no image registry answers: building the node image here"
    echo build
  fi
}

main() {
  local source built
  built=$("$OFFLINE/node-image.sh" --name)
  source=$(image_source "$built")
  if [[ $source == pull ]]; then
    have_image "$STOCK_NODE_IMAGE" || pull "$STOCK_NODE_IMAGE" ||
      die "$STOCK_NODE_IMAGE could not be pulled: $(tail -n 1 "$LOGS/pull.log")"
    echo "$STOCK_NODE_IMAGE pull"
  else
    have_image "$built" || "$OFFLINE/node-image.sh"
    echo "$built build"
  fi
}

main
