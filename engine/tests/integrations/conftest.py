"""Without the libraries, these tests are not of this environment: make test-integrations."""

import importlib.util

NEEDED = ("lightning", "transformers", "accelerate")
MISSING = [name for name in NEEDED if importlib.util.find_spec(name) is None]
collect_ignore_glob = ["test_*.py"] if MISSING else []
