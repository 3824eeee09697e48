"""Collect these tests only if submitit, optuna and their plugins of Hydra are installed."""

import importlib.util

NEEDED = ("submitit", "optuna", "hydra_plugins.hydra_optuna_sweeper")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if MISSING else []
