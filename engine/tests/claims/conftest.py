"""A checkout without uncommitted changes, in which claims can be fixed."""

import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from seedbed import project
from seedbed.claims import lock as locks
from seedbed.claims.lock import Lock
from seedbed.config import compose
from seedbed.record import code
from tests.claims import made_up
from tests.claims.made_up import COMMIT


@pytest.fixture(scope="session", autouse=True)
def committed() -> Iterator[None]:
    state = ({"commit": COMMIT, "dirty": False}, b"")
    plain = compose.configuration
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(code, "git_state", lambda _root: state)
        # which nothing changes, and takes a second
        made = cache(lambda _root, *words: plain(*words))
        patch.setattr(
            compose, "configuration", lambda *words: made(project.root(), *words)
        )
        yield


@pytest.fixture(scope="session")
def held(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a claim with all its runs, which holds; tests must copy
    it."""
    folder = tmp_path_factory.mktemp("held") / "claim"
    lock = made_up.fixed(folder)
    made_up.train_all(lock, base=made_up.BASE, high=made_up.better())
    return folder


@pytest.fixture
def lock(held: Path, tmp_path: Path) -> Lock:
    """Return the claim that holds, with runs that the test may change."""
    folder = Path(shutil.copytree(held, tmp_path / "claim"))
    return locks.read(folder / "claim.yaml")
