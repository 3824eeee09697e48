# Needs make, pip, a package registry and Python 3.11 to 3.13: PYTHON=python3.13 picks another than 3.11.
PYTHON ?= python3.11
RUN := .venv/bin/python
ON_CPU := CUDA_VISIBLE_DEVICES=
# Installs the lock in 25 s where pip takes 100. It does not read pip's own configuration: where only
# that names an index, pip installs. Both compare each file with its hash; pip refuses editable
# packages beside hashes, so these have a file of their own.
UV := uv==0.13.9
HASHES := requirements-hashes.txt
PINS := grep -oE '^[A-Za-z0-9._-]+==[^ ;]+'
# Built by the setuptools of the lock.
LOCAL := grep -E '^-e |@' requirements.txt
LOCK := --quiet --no-config --universal --python-version 3.11 --fork-strategy fewest \
	--custom-compile-command "make lock"
# make install CPU=1: without CUDA's packages. Its builds of PyTorch come from PyTorch's own index
# and have hashes of their own, so none are compared. (Untried.)
WITHOUT_CUDA := grep -vE '^(cuda-|nvidia-|triton=)' requirements.txt
FROM ?= seedbed/main
# What belongs to the engine, whose next version replaces its files there; everything else is yours.
ENGINE := engine kernels docs scripts train.py configs/engine.yaml configs/debug configs/determinism configs/trainer configs/hydra

.DEFAULT_GOAL := help
.PHONY: help install train test lint format lock

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

install: .venv/installed  ## Bring .venv up to date with requirements.txt

train: .venv/installed  ## Train the default configuration, the same bits every time
	$(RUN) train.py determinism=strict seed=0

test: .venv/installed  ## Test your project, and that the engine keeps its promises here
	$(ON_CPU) $(RUN) -m pytest -n 2 --dist loadfile

.PHONY: new
new: .venv/installed  ## Make this checkout your project: make new NAME=waves [KEEP=1] [SLIM=1]
	@$(RUN) scripts/new.py $(if $(KEEP),--keep) $(if $(SLIM),--slim) -- "$(NAME)"

lint: .venv/installed  ## Check style, format and types of your project
	$(RUN) -m ruff check && $(RUN) -m ruff format --check && $(RUN) -m mypy

format: .venv/installed  ## Rewrite your code in the project's format
	$(RUN) -m ruff check --fix --exit-zero && $(RUN) -m ruff format

lock:  ## Pin what requirements.in asks for in requirements.txt; show what has changed
	$(PYTHON) -m venv build/lock && build/lock/bin/python -m pip install -q $(UV)
	build/lock/bin/uv pip compile requirements.in --output-file requirements.txt $(LOCK)
	grep -vE '^-e |@' requirements.txt | build/lock/bin/uv pip compile - --output-file $(HASHES) \
		--no-deps --no-annotate --generate-hashes $(LOCK)
	@touch requirements.txt $(HASHES)
	@git --no-pager diff --unified=0 requirements.txt | grep -E '^[-+][A-Za-z0-9]' || true

.PHONY: upgrade
upgrade:  ## Stage another version of the engine: make upgrade FROM=seedbed/main
	@$(PYTHON) scripts/upgrade.py $(FROM) $(ENGINE)

.PHONY: test-engine test-all
test-engine test-all: .venv/installed  ## Test the engine; its other targets: make -C engine
	$(MAKE) -C engine $@

.venv/installed: requirements.txt $(HASHES) $(wildcard requirements.in engine/pyproject.toml kernels/pyproject.toml)
	@if [ -e $@ ] && [ requirements.in -nt $@ ] && [ requirements.in -nt requirements.txt ]; then \
		echo "requirements.txt: expected one made from requirements.in, got an older one; do make lock" >&2; exit 2; fi
	@other=$$({ $(PINS) requirements.txt; $(PINS) $(HASHES); } | sort | uniq -u | tr '\n' ' '); [ -z "$$other" ] || { \
		echo "requirements.txt: expected the pins of $(HASHES), got others: $$other; do make lock, which takes versions from requirements.in" >&2; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
		echo "PYTHON: expected Python 3.11 to 3.13, got $(PYTHON); do make PYTHON=python3.13" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(RUN) -m pip install --disable-pip-version-check --quiet $(UV)
ifdef CPU
	$(WITHOUT_CUDA) | .venv/bin/uv pip install --python $(RUN) --compile-bytecode --torch-backend cpu -r -
else
	.venv/bin/uv pip install --python $(RUN) --compile-bytecode --require-hashes --build-constraints $(HASHES) -r $(HASHES) || \
		$(RUN) -m pip install --disable-pip-version-check --require-hashes -r $(HASHES)
	$(LOCAL) | .venv/bin/uv pip install --python $(RUN) --no-deps --no-build-isolation -r - || \
		$(LOCAL) | $(RUN) -m pip install --disable-pip-version-check --no-deps --no-build-isolation -r /dev/stdin
endif
	@touch $@
