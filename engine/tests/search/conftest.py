"""Collect these tests only if Optuna is installed, as by `make test-search`."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("optuna") else ["test_*.py"]
