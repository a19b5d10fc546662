# Debian or Ubuntu, unpacked into a folder and turned into an image: what a registry would give,
# from where this machine gets its own packages. Sourced.
# shellcheck shell=bash

# The release that this machine runs.
make_rootfs() { # FOLDER PACKAGE...
  local folder=$1 codename site components
  shift
  need debootstrap
  is_root || die "building an image needs root (debootstrap): run this as root once, or let Docker reach an image registry"
  command -v apt-get >/dev/null ||
    die "building an image needs Debian or Ubuntu: here, let Docker reach an image registry"
  codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  site=$(package_sources "$codename" | awk 'NR == 1 {print $1}')
  components=$(package_sources "$codename" | awk '{print $2}' | sort -u | paste -sd,)
  [[ -n $site ]] || die "apt's sources name no repository of $codename to build an image from"
  remove_rootfs "$folder"
  mkdir -p "$CACHE/debs"
  eval "$(apt-config shell http_proxy Acquire::http::Proxy https_proxy Acquire::https::Proxy)"
  if [[ -n ${http_proxy:-} ]]; then export http_proxy; fi
  if [[ -n ${https_proxy:-} ]]; then export https_proxy; fi
  quietly debootstrap debootstrap --variant=minbase --cache-dir="$CACHE/debs" \
    --components="$components" --include="$(IFS=,; echo "$*")" "$codename" "$folder" "$site" ||
    die "debootstrap failed (see above)"
  rm -rf "$folder"/var/cache/apt/archives/*.deb "$folder"/var/lib/apt/lists/*
  rm -rf "$folder"/usr/share/{doc,man,locale,info}
}

# An interrupted debootstrap leaves file systems mounted.
remove_rootfs() { # FOLDER
  local mounted
  for mounted in proc sys dev; do umount -R "$1/$mounted" 2>/dev/null || true; done
  rm -rf --one-file-system "$1"
}

package_sources() { # CODENAME
  # shellcheck disable=SC2016
  apt-get indextargets --format '$(SITE) $(COMPONENT) $(RELEASE)' 'Created-By: Packages' |
    awk -v codename="$1" '$3 == codename && $1 ~ /^http/'
}

import_rootfs() { # FOLDER IMAGE [CHANGE...]
  local folder=$1 image=$2 change changes=()
  shift 2
  for change in "$@"; do changes+=(--change "$change"); done
  tar --numeric-owner -C "$folder" -c . | docker import "${changes[@]}" - "$image" >/dev/null
}
