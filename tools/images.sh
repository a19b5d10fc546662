#!/usr/bin/env bash
# Builds the images with docker: operator, agent, trainer, or those that are named.
#
#   tools/images.sh [operator] [agent] [trainer]
#
# BASE_IMAGE           of operator and agent: Debian or alike, with python3 from 3.11 to 3.13
# TRAINER_BASE_IMAGE   of the trainer: the same, with torch
# IMAGE_PREFIX         ddpjob; with your registry to push them: registry.example.com/team/ddpjob
# TAG                  the version in pyproject.toml
#
# Packages are put into build/image by uv, on this machine, and only copied in the build: it
# fetches nothing, so it needs neither a network nor settings of one (docs/adr/0015).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly OUT=build/image
VERSION=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
readonly VERSION
readonly PREFIX=${IMAGE_PREFIX:-ddpjob} TAG=${TAG:-$VERSION}
UV=

say() { printf 'images: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# The base image says which Python the packages are for.
pip_target() { # BASE-IMAGE: sets TARGET to options of uv
  local answer python machine
  answer=$(docker run --rm --network none --entrypoint python3 "$1" -c \
    'import platform, sys; print("%d.%d" % sys.version_info[:2], platform.machine())') ||
    die "python3 does not run in $1 (see above): is the name right, and can it be pulled?"
  read -r python machine <<<"$answer"
  case $python in
    3.11 | 3.12 | 3.13) ;;
    *) die "$1 has Python $python: 3.11, 3.12 or 3.13 is needed" ;;
  esac
  TARGET=(--python-version "$python" --python-platform "$machine-unknown-linux-gnu")
}

install_into() { # FOLDER REQUIREMENTS
  "$UV" pip install --quiet --no-deps --only-binary :all: --require-hashes --link-mode copy \
    "${TARGET[@]}" --target "$1" -r "$2" ||
    die "the packages of $2 could not be installed (see above)"
  rm -rf "${1:?}/bin" # their scripts name this machine's python3
}

prepare_operator() { # BASE-IMAGE
  local folder=$OUT/operator
  pip_target "$1"
  rm -rf "$folder"
  mkdir -p "$folder/bin"
  install_into "$folder/lib" requirements-operator.lock
  rm -rf "$OUT/wheel"
  "$UV" build --quiet --wheel --build-constraints requirements.lock --require-hashes \
    --out-dir "$OUT/wheel" || die "ddpjob itself could not be built (see above)"
  "$UV" pip install --quiet --no-deps --link-mode copy "${TARGET[@]}" --target "$folder/lib" \
    "$OUT/wheel/"*.whl
  rm -rf "$folder/lib/bin" "$folder/lib/ddpjob_trainer"
  printf '%s\n' '#!/usr/bin/env python3' 'from ddpjob_operator.cli.main import main' 'main()' \
    >"$folder/bin/ddpjob"
  chmod -R u=rwX,go=rX "$folder"
  chmod 755 "$folder/bin/ddpjob"
}

prepare_trainer() { # BASE-IMAGE
  local folder=$OUT/trainer
  pip_target "$1"
  rm -rf "$folder"
  mkdir -p "$folder"
  awk '/^(obstore|xxhash)==/,/[^\\]$/' requirements.lock >"$OUT/trainer.lock"
  [[ -s $OUT/trainer.lock ]] || die "requirements.lock does not hold xxhash"
  install_into "$folder" "$OUT/trainer.lock"
  cp -r trainer-image/ddpjob_{agent,protocol,trainer} "$folder/"
  find "$folder" -name __pycache__ -type d -prune -exec rm -rf {} +
  chmod -R u=rwX,go=rX "$folder"
}

build() { # NAME OPTION...
  local name=$PREFIX/$1:$TAG
  shift
  say "building $name"
  if ! docker build --build-arg "VERSION=$VERSION" --tag "$name" "$@" . >"$OUT/build.log" 2>&1; then
    tail -n 30 "$OUT/build.log" >&2
    die "$name could not be built (see above)"
  fi
}

main() {
  local wanted=${*:-operator agent trainer} name
  for name in $wanted; do
    [[ $name =~ ^(operator|agent|trainer)$ ]] || die "no such image: $name (operator, agent, trainer)"
  done
  docker info >/dev/null 2>&1 || die "docker does not answer: install it, start it, or ask to be in the group docker"
  # Debian's docker comes without buildx, and then only the classic builder is there.
  if ! docker buildx version >/dev/null 2>&1; then export DOCKER_BUILDKIT=0; fi
  UV=$(tools/setup.sh --uv)
  mkdir -p "$OUT"
  exec 9>"$OUT/.lock" # two at once would take each other's packages away
  if command -v flock >/dev/null; then flock 9; fi
  if [[ $wanted == *operator* || $wanted == *agent* ]]; then
    prepare_operator "${BASE_IMAGE:=python:3.13-slim}"
  fi
  if [[ $wanted == *trainer* ]]; then
    prepare_trainer "${TRAINER_BASE_IMAGE:=pytorch/pytorch:2.13.0-cuda12.6-cudnn9-runtime}"
  fi
  for name in $wanted; do
    case $name in
      trainer) build trainer --build-arg "BASE_IMAGE=$TRAINER_BASE_IMAGE" --file trainer-image/Dockerfile ;;
      *) build "$name" --build-arg "BASE_IMAGE=$BASE_IMAGE" --target "$name" ;;
    esac
  done
  for name in $wanted; do
    docker image inspect --format '{{index .RepoTags 0}}: {{.Size}}' "$PREFIX/$name:$TAG" |
      awk '{printf "images: %-40s %6.0f MB\n", $1, $2 / 1e6}' >&2
  done
}

main "$@"
