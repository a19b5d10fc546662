#!/usr/bin/env bash
# Makes .venv-examples for the notebook and the trackers: tools/examples.lock, pinned and
# hash-checked. It sees the packages of .venv, so torch is installed once.
#
# Does nothing, in milliseconds, when .venv-examples is up to date. Needs .venv.
# Safe to interrupt and to run twice at once: the stamp is written last, under a lock.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VENV=.venv-examples BASE=.venv/bin/python STAMP=.venv-examples/.ddpjob-ready

die() { printf 'examples: %s\n' "$*" >&2; exit 1; }

fingerprint() {
  { pwd; readlink -f .venv; "$BASE" --version; cat tools/examples.lock tools/examples_env.sh; } |
    sha256sum
}

up_to_date() { [[ -x $VENV/bin/python && -f $STAMP && $(<"$STAMP") == "$(fingerprint)" ]]; }

# A folder with a line for each path. The last line also reads the .pth files of .venv.
link_packages() {
  local own base
  own=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  base=$("$BASE" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  printf '%s\n' "$PWD/operator" "$PWD/trainer-image" "import site; site.addsitedir('$base')" \
    >"$own/ddpjob-base.pth"
}

# `torchrun` beside `python`, as in an environment that holds torch itself.
write_torchrun() {
  printf '#!%s\nfrom torch.distributed.run import main\n\nmain()\n' "$PWD/$VENV/bin/python" \
    >"$VENV/bin/torchrun"
  chmod +x "$VENV/bin/torchrun"
}

main() {
  [[ -x $BASE ]] || die "$BASE is missing; run tools/setup.sh first"
  if up_to_date; then return; fi
  mkdir -p build
  exec 9>build/.examples.lock
  if command -v flock >/dev/null; then flock 9; fi
  if up_to_date; then return; fi
  local uv
  uv=$(tools/setup.sh --uv)
  printf 'examples: making %s\n' "$VENV" >&2
  "$uv" venv --quiet --clear --python "$(readlink -f "$BASE")" "$VENV" ||
    die "$VENV cannot be made with $BASE (see above)"
  "$uv" pip install --compile-bytecode --quiet --python "$VENV/bin/python" --no-deps --require-hashes \
    --requirements tools/examples.lock ||
    die "the packages of tools/examples.lock cannot be installed (see above); try again"
  link_packages
  write_torchrun
  fingerprint >"$STAMP"
}

main "$@"
