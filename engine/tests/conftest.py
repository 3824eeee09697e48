"""Environment and fixtures of the whole test suite."""

import functools
import os
import signal
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from seedbed import project
from seedbed.signals import STOP_SIGNALS
from tests.running import ENGINE, ROOT, command, made_once, trained

# Tests run in parallel. Set before torch is imported; runs they start get the preset's
# value.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# So that processes started by tests can import from `tests` and from the tests'
# project.
_PLACES = [
    str(ENGINE),
    str(ROOT / "src"),
    *filter(None, [os.environ.get("PYTHONPATH")]),
]
os.environ["PYTHONPATH"] = os.pathsep.join(_PLACES)
os.environ[project.PROJECT] = str(ROOT)
_distributions = functools.cache(metadata.packages_distributions)  # takes 0.2 s per run
# Shells start background jobs with SIGINT ignored, and child processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """Restore signal handlers and unblock stop signals: processes started later inherit
    both."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


@pytest.fixture
def this_process_trains(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Prepare this process for training: keep its flags, draw no plots, and do not run
    git."""
    import torch

    from seedbed import assemble, determinism
    from seedbed.record import code, plots

    monkeypatch.setattr(assemble, "prepare_backends", lambda _preset: None)
    monkeypatch.setattr(determinism, "require_in_force", lambda _preset: None)
    monkeypatch.setattr(plots, "loss_curve", lambda _folder: None)
    nothing = ({"commit": None, "dirty": None}, b"")
    monkeypatch.setattr(code, "git_state", lambda _root: nothing)
    monkeypatch.setattr(metadata, "packages_distributions", _distributions)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def shared(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Return the folder that all processes of this test session share, for
    `made_once`."""
    own = tmp_path_factory.getbasetemp()
    # a worker of pytest-xdist
    return own.parent if hasattr(pytestconfig, "workerinput") else own


@pytest.fixture(scope="session")
def quick_run(shared: Path) -> Path:
    """Return the finished run of tests.running.QUICK; tests that change it must copy
    it."""
    return made_once(shared / "quick", lambda folder: trained(folder / "run")) / "run"


@pytest.fixture(scope="session")
def quick_sweep(shared: Path) -> Path:

    def train(folder: Path) -> None:
        from tests.end_to_end import kills  # it imports torch

        done = command(*kills.sweep_words(folder / "sweep", 2))
        assert done.returncode == 0, done.stderr

    return made_once(shared / "sweep", train) / "sweep"
