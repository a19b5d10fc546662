#!/usr/bin/env bash
# The steps of a release after `make release` and `make images`, one at a time:
#
#   tools/publish.sh push     the images of this machine's architecture, as VERSION-ARCHITECTURE
#   tools/publish.sh join     one name for both architectures; the digests are in build/images.txt
#   tools/publish.sh sign     signatures and the bill of materials of these images, by cosign
#   tools/publish.sh chart    the chart
#   tools/publish.sh page     the release page, by gh
#   tools/publish.sh wheel    copies the wheel to build/wheel, which the package index gets
#
# TAG            v and the version in pyproject.toml
# IMAGE_PREFIX   of the images' names, such as registry.example.com/ml/ddpjob
# ARCHITECTURES  "amd64 arm64"; ARCHITECTURE is that of this machine
# INSECURE       1 for a registry without TLS, such as one on this machine
# CHARTS         where charts lie, such as oci://registry.example.com/ml/charts
# Sign in before: docker login, helm registry login.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly NAMES=(operator agent trainer) DIGESTS=build/images.txt
VERSION=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
readonly VERSION TAG=${TAG:-v$VERSION}

say() { printf 'publish: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

needed() { # VARIABLE
  [[ ${!1:-} ]] || die "$1 is not set: see the head of tools/publish.sh"
}

push() {
  needed IMAGE_PREFIX
  local name image architecture=${ARCHITECTURE:-$(docker version --format '{{.Server.Arch}}')}
  for name in "${NAMES[@]}"; do
    image=$IMAGE_PREFIX/$name:$VERSION-$architecture
    docker tag "$IMAGE_PREFIX/$name:$VERSION" "$image"
    docker push --quiet "$image"
  done
}

# `docker manifest` is in every docker; buildx is not.
join() {
  needed IMAGE_PREFIX
  local name image architecture digest parts
  mkdir -p build
  : >"$DIGESTS"
  for name in "${NAMES[@]}"; do
    image=$IMAGE_PREFIX/$name:$VERSION parts=()
    for architecture in ${ARCHITECTURES:-amd64 arm64}; do parts+=("$image-$architecture"); done
    docker manifest rm "$image" >/dev/null 2>&1 || true # of a run before
    docker manifest create ${INSECURE:+--insecure} "$image" "${parts[@]}" >/dev/null
    digest=$(docker manifest push ${INSECURE:+--insecure} --purge "$image" | grep -o 'sha256:[0-9a-f]\{64\}' | tail -n 1)
    echo "$IMAGE_PREFIX/$name@$digest" | tee -a "$DIGESTS"
  done
}

sign() {
  [[ -s $DIGESTS ]] || die "there is no $DIGESTS: run join before"
  local image
  while read -r image; do
    cosign sign --yes "$image"
    cosign attest --yes --type cyclonedx --predicate dist/ddpjob.cdx.json "$image"
  done <"$DIGESTS"
}

chart() {
  needed CHARTS
  helm push "dist/ddpjob-operator-$VERSION.tgz" "$CHARTS"
}

page() { gh release create "$TAG" --verify-tag --notes-file build/notes.md dist/*; }

notes() { # the part of CHANGELOG.md about this version
  awk -v version="$VERSION" '/^## / {found = index($0, "[" version "]")} found' CHANGELOG.md
}

wheel() { mkdir -p build/wheel && cp "dist/ddpjob-$VERSION-"*.whl build/wheel/; }

[[ $TAG == "v$VERSION" ]] || die "TAG is $TAG, and pyproject.toml has the version $VERSION"
case ${1:-} in
  push | join | sign | chart | wheel) "$1" ;;
  page) mkdir -p build && notes >build/notes.md && page ;;
  *) die "STEP must be push, join, sign, chart, page or wheel" ;;
esac
