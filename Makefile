# Needs make, pip, a package registry and Python 3.11 to 3.13: PYTHON=python3.13 picks another than 3.11.
PYTHON ?= python3.11
RUN := .venv/bin/python
ON_CPU := CUDA_VISIBLE_DEVICES=
SIDE_BY_SIDE := -n 2 --dist worksteal -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true

.DEFAULT_GOAL := help
.PHONY: help install new train test test-engine test-all lint lines format

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

install: .venv/installed  ## Bring .venv up to date with requirements.txt

train: .venv/installed  ## Train the CNN on 5,000 MNIST digits, the same bits every time
	$(RUN) train.py determinism=strict seed=0

test: .venv/installed  ## Test your project, and that the engine keeps its promises here
	$(ON_CPU) $(RUN) -m pytest -n 2 --dist worksteal

new: .venv/installed  ## Make this checkout a project of your own: make new NAME=waves (KEEP=1: with the examples)
	@$(RUN) scripts/new.py $(if $(KEEP),--keep) -- "$(NAME)"

test-engine test-all test-%: .venv/installed  ## Test the engine; test-all: with the tests that take long
	$(MAKE) -C engine $@

lint: .venv/installed  ## Check style, format and types
	$(RUN) -m ruff check && $(RUN) -m ruff format --check && $(RUN) -m mypy
	$(MAKE) -C engine lint

format: .venv/installed  ## Rewrite the code in the project's format
	$(RUN) -m ruff check --fix && $(RUN) -m ruff format

.venv/installed: requirements.txt engine/pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
		echo "PYTHON: expected Python 3.11 to 3.13, got $(PYTHON); do make PYTHON=python3.13" >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(RUN) -m pip install --disable-pip-version-check -r $<
	@touch $@
