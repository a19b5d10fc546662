#!/usr/bin/env bash
# Runs at length what `make test` runs in short: writers killed at every line and 500 times, 200
# memberships and histories of a sampler, scripts of users with 100 changes each, programs executed
# that are forked elsewhere, a job for each scene, heavy load for 30 s, every mistake in training, a
# cluster's jobs one for each thing that happens, 200 lives of a simulated job under two operators, breakages of the
# product that tests must see, all steps of the demo, 20 random sequences of changes (SEEDS chooses
# others), readers of foreign bytes with FUZZ times the examples.
# Runs everything and then names what failed.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

failed=()

step() { # NAME COMMAND...
  local name=$1 start=$SECONDS
  shift
  printf '==== soak: %s\n' "$name"
  env "$@" || failed+=("$name")
  printf '==== soak: %s took %d s\n' "$name" $((SECONDS - start))
}

# shellcheck disable=SC2206
readonly pytest=(${PYTEST:-.venv/bin/python -m pytest})

step lines DDPJOB_LINES=each DDPJOB_KILLS=500 "${pytest[@]}" tests/trainer/snapshots/test_durability.py -k killed_at
step memberships DDPJOB_CHANGES=200 "${pytest[@]}" tests/trainer/elastic/test_many_memberships.py
step histories DDPJOB_HISTORIES=200 "${pytest[@]}" tests/trainer/data/test_histories.py
step habits DDPJOB_HABITS=all "${pytest[@]}" tests/trainer/habits

step simulation DDPJOB_SIMULATIONS=200 DDPJOB_STEPS=50 "${pytest[@]}" tests/operator/controller/test_simulation.py
step breaks DDPJOB_BREAKS=200 "${pytest[@]}" tests/trainer/elastic/group/test_random_breaks.py
step demo .venv/bin/python tools/demo.py
step fuzz DDPJOB_FUZZ="${FUZZ:-50}" "${pytest[@]}" --timeout=0 -o faulthandler_timeout=0 tests/agent/fuzz \
  tests/operator/rendezvous/test_fuzzed_answers.py tests/trainer/snapshots/test_fuzzed_manifests.py
step executed DDPJOB_COLD=1 "${pytest[@]}" tests/trainer tests/agent/{c10d/test_torchrun.py,service,file_sync} tests/store \
  tests/jobs/test_{bad_input,cli,gpus,output,report,torchrun}.py
step scenes DDPJOB_SCENES=alone DDPJOB_LOAD_SECONDS=30 "${pytest[@]}" \
  tests/jobs/test_live.py tests/jobs/test_planned_stops.py tests/jobs/test_outcomes.py
step equivalence DDPJOB_EQUIVALENCE=all "${pytest[@]}" tests/jobs/test_equivalence.py
step e2e DDPJOB_SCENES=alone tools/e2e.sh "${pytest[@]}" --timeout=1500 -o faulthandler_timeout=1600 tests/e2e
step mutations .venv/bin/python tests/mutations/run.py
step changes DDPJOB_EVENTS=32 DDPJOB_SEEDS="${SEEDS:-$(seq -s ' ' 1 20)}" "${pytest[@]}" tests/jobs/test_random_changes.py

if ((${#failed[@]})); then
  printf 'soak: failed: %s\n' "${failed[*]}"
  exit 1
fi
printf 'soak: all passed in %d s\n' "$SECONDS"
