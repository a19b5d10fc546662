# Finds a Go that is new enough, or fetches one. Sourced; `find_go` sets GO.
# shellcheck shell=bash disable=SC2034
# A Go toolchain is a Go module too (golang.org/toolchain), so any Go, however old, fetches a
# new one from wherever GOPROXY points. That does not depend on GOTOOLCHAIN, which is often
# switched off, and which old versions do not know.

GO=

not_older() { # VERSION THAN
  [[ $(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1) == "$2" ]]
}

go_version() { GOTOOLCHAIN=local "$1" version 2>/dev/null | grep -oE 'go[0-9]+\.[0-9.]+' | cut -c3-; }

any_go() {
  local candidate
  for candidate in go /usr/local/go/bin/go /usr/lib/go-*/bin/go; do
    if "$candidate" version >/dev/null 2>&1; then command -v "$candidate"; return; fi
  done
  return 1
}

fetch_go() { # OLD-GO
  local target=$CACHE/go-$GO_FETCHED module answer folder
  if [[ -x $target/bin/go ]]; then GO=$target/bin/go; return; fi
  say "this machine's Go is $(go_version "$1"); fetching $GO_FETCHED as a Go module, 75 MB"
  module=golang.org/toolchain@v0.0.1-go$GO_FETCHED.$("$1" env GOOS)-$("$1" env GOARCH)
  answer=$(cd "$CACHE" && GO111MODULE=on GOTOOLCHAIN=local GOFLAGS=-mod=mod "$1" mod download -json "$module") ||
    die "Go $GO_FETCHED could not be fetched: install Go $GO_MINIMUM or newer, or set GOPROXY to a proxy that can be reached"
  folder=$(sed -n 's/^\t*"Dir": "\(.*\)",\{0,1\}$/\1/p' <<<"$answer")
  rm -rf "$target.part"
  cp -r "$folder" "$target.part"
  chmod -R u+w "$target.part" # in the module cache nothing is writable, and nothing executable
  chmod +x "$target".part/bin/* "$target".part/pkg/tool/*/*
  mv -T "$target.part" "$target"
  GO=$target/bin/go
}

find_go() {
  local found
  if ! found=$(any_go); then
    apt_install golang-go || die "Go is missing: install it (any version will do to begin with), then try again"
    found=$(any_go) || die "Go was installed, but does not run"
  fi
  if not_older "$(go_version "$found")" "$GO_MINIMUM"; then GO=$found; else fetch_go "$found"; fi
  export GOTOOLCHAIN=local CGO_ENABLED=0 GOWORK=off
}
