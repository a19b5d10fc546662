#!/usr/bin/env bash
# Everything that kind-up needs, without making a cluster: Docker, programs, images.
# 10 minutes on two cores the first time where no registry answers, 1 or 2 where one does;
# a second or two when all is there. Safe to interrupt: what is finished is kept.
set -euo pipefail
# shellcheck source=tools/kind/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

"$HERE/docker.sh"
"$HERE/node-image.sh" >/dev/null
"$HERE/base-image.sh" >/dev/null
"$HERE/binaries.sh" kind kubectl helm >/dev/null
