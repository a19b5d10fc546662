#!/usr/bin/env bash
# Makes the image for worker pods, which is also what our own images can be built on: Debian
# with the Python of .venv, so that torch can be used from .venv where it lies, and a user for
# pods. Prints its name. Follows node-image.sh in whether it is pulled or built.
set -euo pipefail
# shellcheck source=tools/kind/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=tools/kind/debian.sh
source "$HERE/debian.sh"

readonly WORK=$CACHE/base-image PYTHON=$ROOT/.venv/bin/python
[[ -x $PYTHON ]] || die ".venv is missing: run make setup first"

ask() { "$PYTHON" -ISc "import sys, sysconfig; print($1)"; }

VERSION=$(ask '"%d.%d" % sys.version_info[:2]')
# Changed when the image would come out different.
LABEL=$({ ask 'sys.version, sys.base_prefix'; cat "$HERE"/{versions,debian,base-image}.sh; } | hash_of)
EXECUTABLE=$(ask sys._base_executable)
STDLIB=$(ask 'sysconfig.get_path("stdlib")')
readonly VERSION LABEL EXECUTABLE STDLIB

is_current() {
  [[ $(docker image inspect -f '{{index .Config.Labels "ddpjob.io/base"}}' "$BASE_IMAGE" 2>/dev/null) == "$LABEL" ]]
}

pulled_image() {
  docker pull -q "python:$VERSION-slim" >/dev/null ||
    die "python:$VERSION-slim could not be pulled; with DDPJOB_NODE_IMAGE=build no registry is needed"
  docker build -q -t "$BASE_IMAGE" --label "ddpjob.io/base=$LABEL" - >/dev/null <<EOF
FROM python:$VERSION-slim
RUN useradd --uid $POD_USER --user-group --create-home nonroot
EOF
}

# The interpreter, moved to /usr/local: it finds its modules by where it lies.
copy_python() {
  install -D "$(readlink -f "$EXECUTABLE")" "$WORK/rootfs/usr/local/bin/python$VERSION"
  ln -sf "python$VERSION" "$WORK/rootfs/usr/local/bin/python3"
  ln -sf "python$VERSION" "$WORK/rootfs/usr/local/bin/python"
  tar -C "$(dirname "$STDLIB")" -c --exclude='site-packages/*' --exclude='dist-packages/*' \
    --exclude=test --exclude=tests --exclude=idlelib --exclude=tkinter --exclude=turtledemo \
    --exclude='config-*' --exclude='*.a' --exclude='_tkinter*' --exclude=EXTERNALLY-MANAGED \
    "$(basename "$STDLIB")" | tar -C "$WORK/rootfs/usr/local/lib" -x --no-same-owner
}

# What it is linked with and Debian's smallest system lacks, such as OpenSSL.
copy_libraries() {
  local library
  find "$STDLIB/lib-dynload" -name '*.so' ! -name '_tkinter*' -print0 |
    xargs -0 ldd "$EXECUTABLE" 2>/dev/null | awk '/=> \// {print $3}' | sort -u >"$WORK/libraries"
  while read -r library; do
    if [[ ! -e $WORK/rootfs$library ]]; then cp -L "$library" "$WORK/rootfs/usr/local/lib/"; fi
  done <"$WORK/libraries"
}

built_image() {
  mkdir -p "$WORK"
  trap 'remove_rootfs "$WORK/rootfs"; rm -rf "$WORK"' EXIT
  make_rootfs "$WORK/rootfs" ca-certificates libgomp1 libstdc++6
  copy_python
  copy_libraries
  chroot "$WORK/rootfs" ldconfig
  quietly useradd chroot "$WORK/rootfs" useradd --uid "$POD_USER" --user-group --create-home nonroot
  chroot --userspec="$POD_USER:$POD_USER" "$WORK/rootfs" /usr/local/bin/python3 -c \
    'import bz2, ctypes, hashlib, lzma, sqlite3, ssl, zlib' ||
    die "the Python of .venv does not run outside its place (see above): make .venv with another one (PYTHON=... make setup)"
  import_rootfs "$WORK/rootfs" "$BASE_IMAGE" "LABEL ddpjob.io/base=$LABEL" 'CMD ["python3"]' \
    'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin' 'ENV LANG=C.UTF-8'
}

main() {
  local source
  if ! is_current; then
    source=$("$HERE/node-image.sh")
    lock images
    if ! is_current; then
      say "making the image $BASE_IMAGE with Python $VERSION: under a minute"
      if [[ $source == *" build" ]]; then built_image; else pulled_image; fi
    fi
  fi
  echo "$BASE_IMAGE"
}

main
