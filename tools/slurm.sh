#!/usr/bin/env bash
# Slurm, for the test of a batch file: Debian's packages of it, if they are missing.
set -euo pipefail
# shellcheck source=tools/kind/common.sh
source "$(dirname "${BASH_SOURCE[0]}")/kind/common.sh"
need munged=munge slurmctld slurmd sbatch=slurm-client unshare=util-linux
