"""A run whose best weights are not its last ones."""

from pathlib import Path

import pytest

from tests.running import trained


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tools") / "run"
    return trained(folder, "data.batch_size=1000", "optimizer.lr=0.3")  # three epochs, unstable


@pytest.fixture(scope="session")
def before(run: Path) -> dict[Path, bytes]:
    """What the run's folder held before any command read it."""
    return contents(run)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
