"""What the tests of runs in their own process share."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.worker.runs import trained


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return runs that nobody stopped, one for each command line."""
    runs: dict[tuple[str, ...], Path] = {}

    def run(*words: str) -> Path:
        if words not in runs:
            runs[words] = trained(tmp_path_factory.mktemp("whole") / "run", *words)
        return runs[words]

    return run
