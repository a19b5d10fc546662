# `make help` lists what there is. Nothing needs to be installed by hand: every target that
# needs Python first makes .venv from requirements.lock (tools/setup.sh, quick when up to date).

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
BIN := .venv/bin
PYTEST = $(BIN)/python -m pytest
TYPED := $(strip $(foreach d,operator trainer-image tools benchmarks tests,\
  $(if $(shell find $(d) -name '*.py' -print -quit 2>/dev/null),$(d))))
# QUICK=1 gives a smoke figure in under a minute
export QUICK

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^## / {printf "\n%s\n", substr($$0, 4)} \
	  /^[a-z][a-z0-9-]*:.*## / {printf "  %-20s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

## See it work
.PHONY: demo
demo: setup ## Run an elastic job on this machine and take nodes away from it
	@$(BIN)/python tools/demo.py

## Test; ONLY=tests/FILE.py::NAME runs a part of a tier
.PHONY: test test-unit test-local test-cluster test-alerts test-gpu test-e2e test-examples fuzz mutations lint
test: setup ## Everything: lint and all tiers, then one table; fails if a tier could not run
	@MAKE='$(MAKE)' $(BIN)/python -m tools.run_tiers lint test-e2e test-local test-examples test-unit test-cluster

test-unit: setup ## Decisions, simulation, agent, trainer library; no cluster
	@$(PYTEST) $(or $(ONLY),--tier=unit tests/operator tests/protocol tests/agent tests/trainer tests/fuzz \
	  tests/mutations tests/test_repository.py tests/test_run_tiers.py tests/test_flaky.py \
	  tests/test_beside.py tests/test_agent_pythons.py \
	  tests/test_docs_site.py tests/test_prose.py tests/test_docs_blocks.py tests/test_wheel.py tests/test_release.py)

test-local: setup ## Whole jobs with real processes on this machine; snapshots in a real S3 server
	@tools/kind/binaries.sh versitygw >/dev/null
	@$(PYTEST) $(or $(ONLY),--tier=local tests/jobs tests/store)

fuzz: setup ## Look for inputs that break readers of foreign bytes, guided by coverage; TARGET=service SECONDS=600; without TARGET all
	@tools/extra_env.sh fuzz
	@.venv-fuzz/bin/python tests/fuzz/run.py $(TARGET) --seconds $(or $(SECONDS),60)

mutations: setup ## Break the product on purpose, over 400 times, and see tests fail for it; hours (SAMPLE=100: 100 of them)
	@$(BIN)/python tests/mutations/run.py $(if $(SAMPLE),--sample $(SAMPLE))

test-cluster: setup ## The CRD, the chart and the operator against a real API server
	@tools/kind/binaries.sh kube-apiserver etcd kubectl helm >/dev/null
	@$(PYTEST) $(or $(ONLY),--tier=cluster tests/cluster)

test-e2e: setup ## The operator in a kind cluster, and what becomes of jobs when things die there
	@tools/e2e.sh $(PYTEST) --timeout=1500 -o faulthandler_timeout=1600 \
	  $(or $(ONLY),--tier=e2e tests/e2e)

test-alerts: setup ## Alerts, metrics and dashboards by a real Prometheus, which is built first: no part of `make test`
	@tools/kind/binaries.sh prometheus promtool >/dev/null
	@$(PYTEST) tests/alerts

test-gpu: setup ## Live mode on one GPU, which its processes share: no part of `make test`
	@$(PYTEST) $(or $(ONLY),tests/gpu)
	@$(if $(ONLY),true,DDPJOB_TEST_DEVICE=cuda $(PYTEST) tests/trainer/habits/test_habits.py -k live_mode)

test-examples: setup ## Every example, executed
	@tools/slurm.sh
	@tools/extra_env.sh examples
	@$(PYTEST) $(or $(ONLY),--tier=examples tests/examples)

lint: setup ## Style, formatting, types, imports between packages, English
	@failed=; \
	step() { echo "$$*" | cut -c -100; "$$@" || failed="$$failed $${1##*/}"; }; \
	step $(BIN)/ruff check .; \
	step $(BIN)/ruff format --check .; \
	step $(BIN)/mypy $(TYPED); \
	step $(BIN)/lint-imports --no-logo --no-cache; \
	step $(BIN)/python tools/prose.py; \
	step $(BIN)/python tools/docs_site.py --check; \
	step $(BIN)/python -m tools.pages --check; \
	if [[ -n $$failed ]]; then echo "lint: failed:$$failed"; exit 1; fi; \
	echo 'lint: all passed'

## Test at length what `make test` runs in short; root
SOAK = e2e mutations executed simulation changes equivalence habits scenes lines histories fuzz breaks demo pythons memberships
.PHONY: soak $(SOAK:%=soak-%)
soak: setup ## All of these, three at a time: an hour or two
	@MAKE='$(MAKE)' $(BIN)/python -m tools.run_tiers $(SOAK:%=soak-%)

soak-e2e: setup ## A job in a kind cluster for each thing that happens, and what takes minutes there
	@DDPJOB_SCENES=alone tools/e2e.sh $(PYTEST) --tier=$@ --timeout=1500 -o faulthandler_timeout=1600 tests/e2e tests/soak

soak-mutations: setup ## 100 of the mutations, chosen at random (`make mutations`: all)
	@$(BIN)/python tests/mutations/run.py --sample 100

soak-executed: setup ## Programs executed that `make test` forks
	@tools/kind/binaries.sh versitygw >/dev/null
	@DDPJOB_COLD=1 $(PYTEST) --tier=$@ tests/trainer tests/agent/{c10d/test_torchrun.py,service,file_sync} tests/store \
	  tests/jobs/test_{bad_input,cli,gpus,output,report,torchrun}.py

soak-simulation: setup ## 200 lives of a simulated job under two operators, 50 steps each
	@DDPJOB_SIMULATIONS=200 DDPJOB_STEPS=50 $(PYTEST) --tier=$@ tests/operator/controller/test_simulation.py

soak-changes: setup ## 20 random sequences of changes; SEEDS="1 2 3" chooses
	@DDPJOB_EVENTS=32 DDPJOB_SEEDS='$(or $(SEEDS),$(shell seq -s ' ' 1 20))' $(PYTEST) --tier=$@ tests/jobs/test_random_changes.py

soak-equivalence: setup ## Every mistake in training
	@DDPJOB_EQUIVALENCE=all $(PYTEST) --tier=$@ tests/jobs/test_equivalence.py

soak-habits: setup ## Scripts of users, with 100 changes each
	@DDPJOB_HABITS=all $(PYTEST) --tier=$@ tests/trainer/habits

soak-scenes: setup ## A job for each scene, and heavy load for 30 s
	@DDPJOB_SCENES=alone DDPJOB_LOAD_SECONDS=30 $(PYTEST) --tier=$@ \
	  tests/jobs/test_live.py tests/jobs/test_planned_stops.py tests/jobs/test_outcomes.py

soak-lines: setup ## Writers of snapshots killed at every line, and 500 times
	@DDPJOB_LINES=each DDPJOB_KILLS=500 $(PYTEST) --tier=$@ tests/trainer/snapshots/test_durability.py::test_a_writer_killed_at_{any_line_leaves_the_older_or_the_newer,random_moments_loses_nothing_announced}

soak-histories: setup ## 200 histories of a sampler
	@DDPJOB_HISTORIES=200 $(PYTEST) --tier=$@ tests/trainer/data/test_histories.py

soak-fuzz: setup ## Readers of foreign bytes, with 50 times the examples; FUZZ=1000: 1,000 times
	@DDPJOB_FUZZ=$(or $(FUZZ),50) $(PYTEST) --tier=$@ --timeout=0 -o faulthandler_timeout=0 tests/agent/fuzz \
	  tests/operator/rendezvous/test_fuzzed_answers.py tests/trainer/snapshots/test_fuzzed_manifests.py

soak-breaks: setup ## Steps broken at 200 random points
	@DDPJOB_BREAKS=200 $(PYTEST) --tier=$@ tests/trainer/elastic/group/test_random_breaks.py

soak-demo: setup ## The whole demo
	@$(BIN)/python tools/demo.py

soak-pythons: setup ## The agent on each Python from 3.9 to 3.13 that this machine has
	@DDPJOB_PYTHONS=all $(PYTEST) --tier=$@ tests/test_agent_pythons.py

soak-memberships: setup ## 200 memberships of one process
	@DDPJOB_CHANGES=200 $(PYTEST) --tier=$@ tests/trainer/elastic/test_many_memberships.py

## Change
.PHONY: fmt lock pages
fmt: setup ## Format the code and mend what can be mended safely
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

pages: setup ## Write all that is generated anew: the CRD and its page, metrics, alerts, dashboards, chart's README
	@$(BIN)/python -m tools.pages

# The lock names no index, only versions and hashes, so it works behind any mirror.
COMPILE = "$$uv" pip compile --quiet --universal --generate-hashes --no-annotate \
  --custom-compile-command 'make lock' $(if $(UPGRADE),--upgrade)
lock: ## Write the locks anew after a change of pyproject.toml; UPGRADE=1 takes newer versions
	@uv=$$(tools/setup.sh --uv); \
	$(COMPILE) --python-version 3.11 --extra cluster --extra trainer --group dev pyproject.toml -o requirements.lock; \
	$(COMPILE) --python-version 3.11 -c requirements.lock --extra cluster pyproject.toml -o requirements-operator.lock; \
	known=$$(grep -oE '^[A-Za-z0-9._-]+==' requirements.lock | sed 's/==//; s/^/--no-emit-package /'); \
	$(COMPILE) --python-version 3.11 -c requirements.lock $$known tools/examples.in -o tools/examples.lock; \
	$(COMPILE) --python-version 3.11 tools/release.in -o tools/release.lock; \
	$(COMPILE) --python-version 3.11 tools/fuzz.in -o tools/fuzz.lock; \
	echo 'uv>=0.9' | $(COMPILE) --python-version 3.8 - -o tools/uv.lock

## Cluster
.PHONY: kind-up kind-down kind-build
kind-up: setup ## A kind cluster with 2 workers, 2 and 1 pretended GPUs; the first time takes 1-12 minutes
	@tools/kind/up.sh

kind-down: ## Delete that cluster; DOCKER=1 also stops dockerd, if kind-up started it
	@tools/kind/down.sh $(if $(DOCKER),--docker)

kind-build: setup ## Only build or pull what kind-up needs
	@tools/kind/build.sh

## Build and measure
.PHONY: agent wheel release images publish bench-agents bench-control-plane bench-equivalence bench-exactly-once bench-link bench-overhead bench-recovery bench-silence bench-snapshot \
	bench-torchrun
agent: setup ## Build build/ddpjob-agent.pyz, the agent as one file for any Python from 3.9
	@$(BIN)/python -m ddpjob_operator.agent_bundle build/ddpjob-agent.pyz

wheel: setup ## Build the Python package in dist/; nothing is fetched
	@$(BIN)/python -m hatchling build -t wheel -d dist

release: setup ## Build wheel, chart, bill of materials and checksums in dist/; TAG=v0.1.0 checks the versions first
	@uv=$$(tools/setup.sh --uv); \
	"$$uv" venv --quiet --clear --python $(BIN)/python build/release-env; \
	"$$uv" pip install --quiet --python build/release-env/bin/python --require-hashes -r tools/release.lock; \
	PATH=$$(tools/kind/binaries.sh helm):$$PWD/build/release-env/bin:$$PATH $(BIN)/python tools/release.py $(TAG)

# BASE_IMAGE, TRAINER_BASE_IMAGE, IMAGE_PREFIX and TAG: see tools/images.sh
images: ## Build the images of operator, agent and trainer; needs docker
	@tools/images.sh

# TAG, IMAGE_PREFIX, ARCHITECTURES and CHARTS: see tools/publish.sh
publish: ## Publish what `release` and `images` built; STEP=push, join, sign, chart, page or wheel
	@if [[ '$(STEP)' == chart ]]; then PATH=$$(tools/kind/binaries.sh helm):$$PATH; fi; tools/publish.sh $(STEP)

bench-snapshot: setup ## What a snapshot costs, beside torch's own means (QUICK=1: smoke)
	@$(BIN)/python benchmarks/snapshot.py

bench-exactly-once: setup ## Samples lost and repeated, beside others' samplers (QUICK=1: smoke)
	@$(BIN)/python benchmarks/exactly_once.py

bench-overhead: setup ## Cost of ddpjob's loop beside one written by hand (QUICK=1: smoke)
	@$(BIN)/python benchmarks/overhead.py

bench-equivalence: setup ## Training with ten changes and more against undisturbed (QUICK=1: smoke)
	@$(BIN)/python benchmarks/equivalence.py

bench-link: setup ## What up to 1,000 workers cost a job's service, and the delay of an order (QUICK=1: smoke)
	@$(BIN)/python benchmarks/link.py

bench-torchrun: setup ## torchrun's rendezvous in our store, beside torch's own (QUICK=1: smoke)
	@$(BIN)/python benchmarks/torchrun.py

bench-agents: setup ## A job of 100 real agents, three losses and three joins (QUICK=1: smoke)
	@$(BIN)/python benchmarks/agents.py

bench-control-plane: setup ## The operator with 1,000 jobs, and with a job of 1,000 workers (QUICK=1: smoke)
	@tools/kind/binaries.sh kube-apiserver etcd kubectl >/dev/null
	@$(BIN)/python benchmarks/control_plane.py

bench-silence: setup ## False losses in 30 minutes at four times the load, and frozen workers (QUICK=1: smoke)
	@$(BIN)/python benchmarks/silence.py

bench-recovery: setup ## Time from a lost node to the first step of the new group (QUICK=1: smoke)
	@$(BIN)/python benchmarks/recovery.py

.PHONY: docs screenshots
docs: setup ## The documentation as a site in build/site; a dead link or a warning is an error
	@$(BIN)/python tools/docs_site.py

screenshots: docs ## Look at all pages with Chromium, which must be on PATH, and write pictures to build/screenshots
	@$(PYTEST) $(or $(ONLY),tests/browser)

## Look after
.PHONY: setup clean clean-all
setup: ## Make .venv, or bring it up to date (other targets do so by themselves)
	@tools/setup.sh

clean: ## Remove what was built, and caches; keeps .venv
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . \( -path ./.venv -o -path ./.venv-examples -o -path ./.venv-fuzz -o -path ./.venv-uv -o -path ./.git \) -prune -o \
	  -name __pycache__ -type d -exec rm -rf {} +

clean-all: clean ## The same, and the virtual environments too
	@rm -rf .venv .venv-examples .venv-fuzz .venv-uv .venv-torchft .venv-dlrover
