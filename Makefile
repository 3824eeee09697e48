# Needs make, pip, a package registry and Python 3.11 to 3.13: PYTHON=python3.13 picks another than 3.11.
PYTHON ?= python3.11

# Every command below runs in this environment, which is brought up to date when the lock changes.
VENV := .venv
RUN := $(VENV)/bin/python
INSTALLED := $(VENV)/installed
# The tests are of the CPU, also on a machine that has a GPU; those of the GPU say so.
ON_CPU := CUDA_VISIBLE_DEVICES=
# A test that hangs ends with its name and the stacks of its threads, instead of taking CI's time.
SIDE_BY_SIDE := -n 2 --dist worksteal -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true
# Launchers for clusters and the search, beside everything else, in an environment of their own.
CLUSTER := .venv-cluster
# Peers to be measured beside, likewise.
BENCH := .venv-bench
# Models that other libraries bring, likewise.
ZOO := .venv-zoo
# Trainers that record by a callback of ours, likewise.
INTEGRATIONS := .venv-integrations
# What makes a site of docs/, likewise.
DOCS := .venv-docs
# What test-versions takes: the oldest PyTorch that the engine's wheel accepts.
OTHER ?= python3.12
TORCH ?= 2.11.0

# Pinned too, so that the lock changes when the packages do and not with the tool that writes it.
LOCK_TOOL := uv==0.13.9

.DEFAULT_GOAL := help
.PHONY: help install new train test test-all test-avx2 test-kills test-cluster test-loggers test-emulated test-zoo test-integrations test-versions test-gpu guarantees benchmark comparison docs lint lines format lock

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

new: $(INSTALLED)  ## Rename src/project: make new NAME=waves; KEEP=1 keeps the examples
	@$(RUN) scripts/new.py $(if $(KEEP),--keep) -- "$(NAME)"

train: $(INSTALLED)  ## Train the CNN on 5,000 MNIST digits, the same bits every time
	$(RUN) train.py determinism=strict seed=0

test: $(INSTALLED)  ## Run the tests, but for those that take long
	$(ON_CPU) $(RUN) -m pytest $(SIDE_BY_SIDE)

test-all: $(INSTALLED)  ## Run every test that needs no more than this
	$(ON_CPU) $(RUN) -m pytest $(SIDE_BY_SIDE) -m "not emulated and not zoo"

test-avx2: $(INSTALLED)  ## Run the tests that depend on the processor as if it had no more than AVX2
	$(ON_CPU) ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 $(RUN) -m pytest -m processor

test-kills: $(INSTALLED)  ## Kill runs and sweeps at random moments and compare what they resume to
	$(ON_CPU) $(RUN) tests/end_to_end/kill_anywhere.py --kills 100
	$(ON_CPU) $(RUN) tests/end_to_end/kill_ranks.py --kills 30
	$(ON_CPU) $(RUN) -m tests.end_to_end.kill_sweep --kills 10

test-cluster: $(CLUSTER)/installed  ## Run the tests of launchers and search (installs them)
	$(ON_CPU) $(CLUSTER)/bin/python -m pytest tests/engine/config/test_launchers.py

test-loggers: $(VENV)/installed-loggers  ## Run the tests of the loggers (installs them into .venv)
	$(ON_CPU) $(RUN) -m pytest tests/engine/loggers/test_loggers.py

test-emulated: $(INSTALLED)  ## Run the tests on emulated CPUs (needs qemu-user)
	$(ON_CPU) $(RUN) -m pytest -m emulated

test-zoo: $(ZOO)/installed  ## Run models and transforms of torch, torchvision, timm, transformers
	$(ON_CPU) $(ZOO)/bin/python -m pytest -m zoo tests/zoo tests/end_to_end/test_examples.py

test-integrations: $(INTEGRATIONS)/installed  ## Run the callbacks of Lightning, transformers, accelerate
	$(ON_CPU) $(INTEGRATIONS)/bin/python -m pytest tests/integrations

test-versions: $(INSTALLED)  ## Run the tests with another Python and PyTorch: OTHER=python3.12 TORCH=2.11.0
	$(RUN) scripts/measure/versions.py build/$(notdir $(OTHER))-$(TORCH) --python $(OTHER) --torch $(TORCH) -- $(SIDE_BY_SIDE)

test-gpu: $(INSTALLED)  ## Run the tests that need an NVIDIA GPU
	@$(RUN) -c 'import sys, torch; sys.exit(None if torch.cuda.is_available() else "error: test-gpu: expected a GPU that torch can use, got none; see nvidia-smi")'
	$(RUN) -m pytest -m gpu

guarantees: $(INSTALLED)  ## Measure what may change without changing a bit
	$(ON_CPU) $(RUN) scripts/measure/invariance.py

benchmark: $(BENCH)/installed  ## Measure speed beside a bare loop and beside baselines, about 35 minutes
	$(BENCH)/bin/python scripts/measure/benchmark.py

comparison: $(INTEGRATIONS)/installed  ## Try Lightning, transformers, accelerate (and TEMPLATE=FOLDER, a clone) beside Seedbed
	$(INTEGRATIONS)/bin/python -m pip install torchdata==0.11.0 rootutils==1.0.7 hydra-colorlog==1.2.0
	$(ON_CPU) $(INTEGRATIONS)/bin/python scripts/measure/templates.py $(if $(TEMPLATE),--template "$(TEMPLATE)")

docs: $(DOCS)/installed  ## Make a site of docs/ in build/docs; a broken link is an error
	$(DOCS)/bin/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo build/docs/index.html

lint: $(INSTALLED)  ## Check style, format, types, and which file imports which
	$(RUN) -m ruff check
	$(RUN) -m ruff format --check
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports

lines: $(INSTALLED)  ## Count lines: the engine, its optional rooms, and what to read to trust a run
	$(RUN) -m tests.lines

format: $(INSTALLED)  ## Rewrite the code in the project's format
	$(RUN) -m ruff check --fix
	$(RUN) -m ruff format

install: $(INSTALLED)  ## Bring .venv up to date with requirements.txt

$(INSTALLED): requirements.txt
$(CLUSTER)/installed: requirements-cluster.txt
$(BENCH)/installed: requirements-bench.txt
$(ZOO)/installed: requirements-zoo.txt
$(INTEGRATIONS)/installed: requirements-integrations.txt
$(DOCS)/installed: requirements-docs.txt
$(INSTALLED) $(CLUSTER)/installed $(BENCH)/installed $(ZOO)/installed $(INTEGRATIONS)/installed $(DOCS)/installed:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
		echo "PYTHON: expected Python 3.11 to 3.13, got $(PYTHON); do make PYTHON=python3.13" >&2; \
		exit 2; }
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --disable-pip-version-check -r $<
	@touch $@

$(VENV)/installed-loggers: requirements-loggers.txt | $(INSTALLED)
	$(RUN) -m pip install --disable-pip-version-check -r $<
	@touch $@

# Pins that still fit stay; delete requirements.txt first to move every package to its newest version.
# One version of a package for every Python (fork-strategy), so that a run differs less between them.
# What the launchers want older (requirements-cluster.in) is not held to requirements.txt.
LOCK := --quiet --no-config --universal --python-version 3.11 --fork-strategy fewest \
	--custom-compile-command "make lock"

lock:  ## Pin what the requirements*.in files ask for in their .txt files
	@tools=$$(mktemp -d) && trap 'rm -rf "$$tools"' EXIT && \
	$(PYTHON) -m venv "$$tools" && \
	"$$tools/bin/python" -m pip install --quiet --disable-pip-version-check $(LOCK_TOOL) && \
	"$$tools/bin/uv" pip compile requirements.in --output-file requirements.txt $(LOCK) && \
	sed -E '/^(-e|(cloudpickle|joblib|python-dateutil)==)/d' requirements.txt | \
	"$$tools/bin/uv" pip compile requirements-cluster.in --constraints - \
		--output-file requirements-cluster.txt $(LOCK) && \
	sed '/^-e/d' requirements.txt | \
	"$$tools/bin/uv" pip compile requirements-bench.in --constraints - \
		--output-file requirements-bench.txt $(LOCK) && \
	sed '/^-e/d' requirements.txt | \
	"$$tools/bin/uv" pip compile requirements-zoo.in --constraints - \
		--output-file requirements-zoo.txt $(LOCK) && \
	sed '/^-e/d' requirements.txt | \
	"$$tools/bin/uv" pip compile requirements-integrations.in --constraints - \
		--output-file requirements-integrations.txt $(LOCK) && \
	sed '/^-e/d' requirements.txt | \
	"$$tools/bin/uv" pip compile requirements-loggers.in --constraints - \
		--output-file requirements-loggers.txt $(LOCK) && \
	"$$tools/bin/uv" pip compile requirements-docs.in --output-file requirements-docs.txt $(LOCK)
