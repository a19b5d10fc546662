#!/usr/bin/env bash
# extra_env.sh NAME: makes .venv-NAME from tools/NAME.lock, pinned and hash-checked: `examples` for
# the notebook and the trackers, `fuzz` for atheris. It sees the packages of .venv, so torch is
# installed once.
#
# Does nothing, in milliseconds, when .venv-NAME is up to date. Needs .venv.
# Safe to interrupt and to run twice at once: the stamp is written last, under a lock.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly NAME=$1
readonly VENV=.venv-$NAME BASE=.venv/bin/python STAMP=.venv-$NAME/.ddpjob-ready LOCK=tools/$NAME.lock

die() { printf '%s: %s\n' "$NAME" "$*" >&2; exit 1; }

fingerprint() {
  { pwd; readlink -f .venv; "$BASE" --version; cat "$LOCK" tools/extra_env.sh; } |
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
  exec 9>"build/.$NAME.lock"
  if command -v flock >/dev/null; then flock 9; fi
  if up_to_date; then return; fi
  local uv
  uv=$(tools/setup.sh --uv)
  printf '%s: making %s\n' "$NAME" "$VENV" >&2
  "$uv" venv --quiet --clear --python "$(readlink -f "$BASE")" "$VENV" ||
    die "$VENV cannot be made with $BASE (see above)"
  "$uv" pip install --compile-bytecode --quiet --python "$VENV/bin/python" --no-deps --require-hashes \
    --requirements "$LOCK" ||
    die "the packages of $LOCK cannot be installed (see above); try again"
  link_packages
  write_torchrun
  fingerprint >"$STAMP"
}

main "$@"
