#!/usr/bin/env bash
# Makes the image for worker pods, which is also what our own images can be built on: a Debian
# with the Python version of .venv, so that torch can be used from .venv, and a user for pods.
# Prints its name. It is based on a pulled python:X.Y-slim; if the node image is built on this
# machine (node-image.sh), offline/base-image.sh builds this one, too.
set -euo pipefail
# shellcheck source=tools/kind/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

readonly PYTHON=$ROOT/.venv/bin/python
[[ -x $PYTHON ]] || die ".venv is missing: run make setup first"

ask() { "$PYTHON" -ISc "import sys; print($1)"; }

VERSION=$(ask '"%d.%d" % sys.version_info[:2]')
# Changed when the image would come out different.
LABEL=ddpjob.io/base=$(
  { ask 'sys.version, sys.base_prefix'; cat "$HERE"/{versions,base-image}.sh "$OFFLINE"/{debian,base-image}.sh; } | hash_of
)
readonly VERSION LABEL

is_current() {
  [[ $(docker image inspect -f '{{index .Config.Labels "ddpjob.io/base"}}' "$BASE_IMAGE" 2>/dev/null) == "${LABEL#*=}" ]]
}

pulled_image() {
  docker pull -q "python:$VERSION-slim" >/dev/null ||
    die "python:$VERSION-slim could not be pulled; with DDPJOB_NODE_IMAGE=build no registry is needed"
  docker build -q -t "$BASE_IMAGE" --label "$LABEL" - >/dev/null <<EOF
FROM python:$VERSION-slim
RUN useradd --uid $POD_USER --user-group --create-home nonroot
EOF
}

main() {
  local source
  if ! is_current; then
    source=$("$HERE/node-image.sh")
    lock images
    if ! is_current; then
      say "making the image $BASE_IMAGE with Python $VERSION: under a minute"
      if [[ $source == *" pull" ]]; then pulled_image; else "$OFFLINE/base-image.sh" "$LABEL"; fi
    fi
  fi
  echo "$BASE_IMAGE"
}

main
