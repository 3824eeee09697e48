"""A run whose best weights are not its last ones."""

from pathlib import Path

import pytest

from tests.made_up_runs import contents
from tests.once import made_once
from tests.running import trained


@pytest.fixture(scope="session")
def run(shared: Path) -> Path:
    words = ("data.batch_size=1000", "optimizer.lr=0.1")  # three epochs, unstable
    return made_once(shared / "tools", lambda folder: trained(folder / "run", *words)) / "run"


@pytest.fixture(scope="session")
def before(run: Path) -> dict[Path, bytes]:
    """What the run's folder held before any command read it."""
    return contents(run)
