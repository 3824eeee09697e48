"""A run whose best weights are not its last ones."""

from pathlib import Path

import pytest

from tests.running import made_once, trained


@pytest.fixture(scope="session")
def run(shared: Path) -> Path:
    words = ("data.batch_size=1000", "optimizer.lr=0.1")  # three epochs, unstable
    return made_once(shared / "tools", lambda folder: trained(folder / "run", *words)) / "run"
