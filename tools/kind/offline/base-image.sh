#!/usr/bin/env bash
# Builds the image for worker pods without an image registry: Debian with the Python of .venv.
# Called by ../base-image.sh, which gives the label.
#
#   tools/kind/offline/base-image.sh LABEL=VALUE
set -euo pipefail
# shellcheck source=tools/kind/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
# shellcheck source=tools/kind/offline/debian.sh
source "$OFFLINE/debian.sh"

readonly WORK=$CACHE/base-image PYTHON=$ROOT/.venv/bin/python
(($# == 1)) || die "usage: tools/kind/offline/base-image.sh LABEL=VALUE"

ask() { "$PYTHON" -ISc "import sys, sysconfig; print($1)"; }

VERSION=$(ask '"%d.%d" % sys.version_info[:2]')
EXECUTABLE=$(ask sys._base_executable)
STDLIB=$(ask 'sysconfig.get_path("stdlib")')
readonly VERSION EXECUTABLE STDLIB

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

build_image() { # LABEL=VALUE
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
  import_rootfs "$WORK/rootfs" "$BASE_IMAGE" "LABEL $1" 'CMD ["python3"]' \
    'ENV PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin' 'ENV LANG=C.UTF-8'
}

build_image "$1"
