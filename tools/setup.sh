#!/usr/bin/env bash
# Makes .venv from requirements.lock: every package pinned and hash-checked.
#
#   tools/setup.sh        does nothing, in milliseconds, when .venv is up to date
#   tools/setup.sh --uv   only finds or installs uv, and prints where it is
#
# Needs nothing installed by hand. PYTHON=... chooses the interpreter (3.11 to 3.13).
# Safe to interrupt and to run twice at once: the stamp is written last, under a lock.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VENV=.venv UV_HOME=.venv-uv STAMP=.venv/.ddpjob-ready
readonly PYTHONS='>=3.11,<3.14'
UV=

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# The environment also depends on where it lies: its scripts hold absolute paths.
fingerprint() {
  { pwd; echo "${PYTHON:-}"; cat pyproject.toml requirements.lock tools/setup.sh; } | sha256sum
}

up_to_date() {
  [[ -x $VENV/bin/python && -f $STAMP && $(<"$STAMP") == "$(fingerprint)" ]]
}

apt_install() {
  [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || return 1
  say "installing $* with apt-get"
  apt-get update -qq >&2 && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >&2
}

# `python3 -m venv` fails on Debian without python3-venv; where only pip is there, that does.
make_uv_home() {
  rm -rf "$UV_HOME"
  python3 -m venv "$UV_HOME" 2>/dev/null && return
  rm -rf "$UV_HOME"
  if apt_install python3-venv; then
    python3 -m venv "$UV_HOME" && return
  fi
  python3 -m pip --version >/dev/null 2>&1 && python3 -m venv --without-pip "$UV_HOME"
}

install_uv() {
  command -v python3 >/dev/null || apt_install python3 python3-venv ||
    die "python3 is missing: install it with your system's package manager, then try again"
  say "installing uv, the package installer, into $UV_HOME"
  make_uv_home ||
    die "python3 has neither venv nor pip: install python3-venv, then try again"
  local pip=(python3 -m pip --python "$UV_HOME/bin/python")
  if [[ -x $UV_HOME/bin/pip ]]; then pip=("$UV_HOME/bin/python" -m pip); fi
  "${pip[@]}" install --quiet --disable-pip-version-check --require-hashes -r tools/uv.lock >&2 ||
    die "uv could not be installed (see above): is the package registry reachable?"
}

find_uv() {
  local candidate
  for candidate in uv "$UV_HOME/bin/uv"; do
    if "$candidate" --version >/dev/null 2>&1; then UV=$candidate; return; fi
  done
  install_uv
  UV=$UV_HOME/bin/uv
  "$UV" --version >/dev/null || die "$UV does not run on this machine"
}

suitable() {
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null
}

# Version managers leave stubs on PATH that exist but do not run, hence the trying out. What
# is found nowhere, uv fetches.
choose_python() {
  if [[ -n ${PYTHON:-} ]]; then
    suitable "$PYTHON" || die "PYTHON=$PYTHON is not Python $PYTHONS, or does not run"
    echo "$PYTHON"
    return
  fi
  local name
  for name in python3 python3.11 python3.12 python3.13; do
    if suitable "$name"; then command -v "$name"; return; fi
  done
  echo "$PYTHONS"
}

make_venv() {
  if [[ -z ${PYTHON:-} ]] && suitable "$VENV/bin/python"; then return; fi
  local python
  python=$(choose_python)
  say "making $VENV with ${python}"
  "$UV" venv --quiet --clear --python "$python" "$VENV" ||
    die "no Python $PYTHONS could be had: install one, or set PYTHON to one"
}

install_packages() {
  local count
  count=$(grep -oE '^[A-Za-z0-9][^= ]*' requirements.lock | sort -u | wc -l)
  if [[ ! -d $(echo "$VENV"/lib/python3.*/site-packages/torch) ]]; then
    say "installing torch and $((count - 1)) others, 2-3 GB: about a minute the first time, more on a slow line"
  else
    say "bringing $VENV in step with requirements.lock"
  fi
  "$UV" pip sync --compile-bytecode --quiet --python "$VENV/bin/python" --require-hashes requirements.lock ||
    die "the packages could not be installed (see above, with uv at $UV); nothing is broken: try again"
  # hatchling comes from the lock too, so that nothing unpinned is fetched to build with
  "$UV" pip install --quiet --python "$VENV/bin/python" --no-deps --no-build-isolation --editable . ||
    die "ddpjob itself could not be installed into $VENV (see above)"
}

main() {
  if [[ ${1:-} == --uv ]]; then find_uv; echo "$UV"; return; fi
  if up_to_date; then return; fi
  mkdir -p build
  exec 9>build/.setup.lock
  if command -v flock >/dev/null; then flock 9; fi
  if up_to_date; then return; fi
  find_uv
  make_venv
  rm -f "$STAMP"
  install_packages
  fingerprint >"$STAMP"
  say "$VENV is ready"
}

main "$@"
