"""Collect these tests only if their libraries are installed, as by `make
test-integrations`."""

import importlib.util

NEEDED = ("lightning", "transformers", "accelerate", "nbclient", "ipykernel")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if MISSING else []
