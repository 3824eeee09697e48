"""Collect these tests only if submitit is installed, as by `make test-integrations`."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("submitit") else ["test_*.py"]
