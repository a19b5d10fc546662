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
	  /^[a-z][a-z-]*:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

## See it work
.PHONY: demo
demo: setup ## Run an elastic job on this machine and take nodes away from it
	@$(BIN)/python tools/demo.py

## Test
.PHONY: test test-unit test-local test-examples lint
test: setup ## Everything: lint and all tiers, then one table; fails if a tier could not run
	@MAKE='$(MAKE)' $(BIN)/python tools/run_tiers.py lint test-unit test-local test-examples

test-unit: setup ## Decisions, simulation, agent, trainer library; no cluster
	@$(PYTEST) --tier=unit tests/core tests/simulation tests/agent tests/trainer tests/test_repository.py

test-local: setup ## Whole jobs with real processes on this machine
	@$(PYTEST) --tier=local tests/local

test-examples: setup ## Every example, executed
	@$(PYTEST) --tier=examples tests/examples

lint: setup ## Style, formatting, types, and who may import whom
	@failed=; \
	step() { echo "$$*" | cut -c -100; "$$@" || failed="$$failed $${1##*/}"; }; \
	step $(BIN)/ruff check .; \
	step $(BIN)/ruff format --check .; \
	step $(BIN)/mypy $(TYPED); \
	step $(BIN)/lint-imports --no-logo; \
	if [[ -n $$failed ]]; then echo "lint: failed:$$failed"; exit 1; fi; \
	echo 'lint: all passed'

## Change
.PHONY: fmt lock
fmt: setup ## Format the code and mend what can be mended safely
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format .

# The lock names no index, only versions and hashes, so it works behind any mirror.
COMPILE = "$$uv" pip compile --quiet --universal --generate-hashes --no-annotate \
  --custom-compile-command 'make lock' $(if $(UPGRADE),--upgrade)
lock: ## Write requirements.lock anew after a change of pyproject.toml; UPGRADE=1 takes newer versions
	@uv=$$(tools/setup.sh --uv); \
	$(COMPILE) --python-version 3.11 --extra trainer --group dev pyproject.toml -o requirements.lock; \
	echo 'uv>=0.9' | $(COMPILE) --python-version 3.8 - -o tools/uv.lock

## Build and measure
.PHONY: agent bench-recovery
agent: setup ## Build build/ddpjob-agent.pyz, the agent as one file for any Python from 3.9
	@$(BIN)/python -m ddpjob_operator.archive build/ddpjob-agent.pyz

bench-recovery: setup ## Time from a lost node to the first step of the new group (QUICK=1: smoke)
	@$(BIN)/python benchmarks/recovery.py

## Look after
.PHONY: setup clean clean-all
setup: ## Make .venv, or bring it up to date (other targets do so by themselves)
	@tools/setup.sh

clean: ## Remove what was built, and caches; keeps .venv
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . \( -path ./.venv -o -path ./.venv-uv -o -path ./.git \) -prune -o \
	  -name __pycache__ -type d -exec rm -rf {} +

clean-all: clean ## The same, and .venv too
	@rm -rf .venv .venv-uv
