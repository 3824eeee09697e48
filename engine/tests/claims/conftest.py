"""A checkout without uncommitted changes, in which claims can be fixed."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from omegaconf import DictConfig

from seedbed import project
from seedbed.claims import lock as locks
from seedbed.claims.lock import Lock
from seedbed.config import compose
from seedbed.record import code
from tests.claims import made_up
from tests.claims.made_up import COMMIT

COMPOSE = compose.configuration


@cache
def _made(_root: Path, *words: str) -> DictConfig:
    """Compose a configuration, which nothing changes here, and which takes a second."""
    return COMPOSE(*words)


@contextmanager
def checkout() -> Iterator[None]:
    state = ({"commit": COMMIT, "dirty": False}, b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code, "git_state", lambda _root: state)
        patch.setattr(
            compose, "configuration", lambda *words: _made(project.root(), *words)
        )
        yield


@pytest.fixture(autouse=True)
def committed() -> Iterator[None]:
    with checkout():
        yield


@pytest.fixture(scope="session")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a claim with all its runs, which holds; tests must copy
    it."""
    folder = tmp_path_factory.mktemp("held") / "claim"
    with checkout():  # this fixture outlives `committed`
        lock = made_up.fixed(folder)
        made_up.train_all(lock, base=made_up.BASE, high=made_up.better())
    return folder


@pytest.fixture
def lock(held: Path, tmp_path: Path) -> Lock:
    """Return the claim that holds, with runs that the test may change."""
    folder = Path(shutil.copytree(held, tmp_path / "claim"))
    return locks.read(folder / "claim.yaml")
