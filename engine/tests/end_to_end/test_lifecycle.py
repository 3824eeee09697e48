"""Whatever happens to process, disk and terminal: a true record, one line, a run that resumes."""

import os
import pty
import random
import resource
import shlex
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from seedbed import record
from tests import forks
from tests.end_to_end import kills
from tests.end_to_end.live import LSTM, TIMEOUT, ended, interrupted, resumed, rows, started, until
from tests.running import command, train
from tests.ways import differences

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", autouse=True)
def closed_terminals_are_noticed() -> Iterator[None]:
    """Runs inherit what becomes of SIGHUP, which tests under nohup ignore."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run that nothing happened to."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    done = train(folder, *LSTM)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_run_killed_at_random_moments_has_the_same_bits(whole: Path, tmp_path: Path) -> None:
    """Three kills here; `make test-kills` does a hundred."""
    one = kills.Case("LSTM", (*LSTM, "data.num_workers=3"))
    hits = kills.killed(one, tmp_path / "run", 6, 3, random.Random())
    assert differences(whole, tmp_path / "run") == [], hits


# Rows of a phase in metrics.csv; at 16 loader workers start, after two validations it is tested.
@pytest.mark.parametrize(
    ("moment", "number", "loading"),
    [
        (None, signal.SIGINT, ()),
        (("validation", 2), signal.SIGTERM, ()),
        (("train", 16), signal.SIGTERM, ("data.num_workers=2", "data.start_method=spawn")),
        (("train", 16), signal.SIGHUP, ("data.num_workers=2", "data.start_method=forkserver")),
    ],
    ids=["at start-up", "test", "spawn", "forkserver"],
)
def test_a_signal_leaves_a_run_that_goes_on(
    moment: tuple[str, int] | None, number: signal.Signals, loading: tuple[str, ...],
    whole: Path, tmp_path: Path,
) -> None:  # fmt: skip
    """The status names it, stderr is silent, and the last line is the command that goes on.

    A terminal and a cluster signal every process of the group, loader workers too; the first case
    is the true command.
    """
    folder = tmp_path / "a run"
    with nullcontext() if moment else forks.true_commands():
        process = started(folder, *loading)
    if moment is None:
        until((folder / "summary.json").exists, process)
    else:
        phase, count = moment
        until(lambda: rows(folder, phase) >= count, process)
    if loading:
        os.killpg(process.pid, number)
    lines = interrupted(process, number, folder).splitlines()
    assert all(line.strip() for line in lines), lines
    label, _, words = lines[-1].partition(": python ")
    assert label == "resume it"
    assert command(*shlex.split(words), "data.num_workers=0").returncode == 0
    assert differences(whole, folder) == []


def test_a_closed_terminal_saves_a_checkpoint(whole: Path, tmp_path: Path) -> None:
    """SIGHUP and a dead terminal, for train.py, training process and loader workers: 129."""
    folder = tmp_path / "run"
    terminal, end = pty.openpty()
    process = started(folder, "data.num_workers=2", stdout=end, stderr=end)
    os.close(end)
    until(lambda: rows(folder) > 3, process)
    os.close(terminal)
    os.killpg(process.pid, signal.SIGHUP)
    assert process.wait(TIMEOUT) == 128 + signal.SIGHUP
    assert record.read_summary(folder)["status"] == "interrupted"
    resumed(folder, "data.num_workers=0")
    assert differences(whole, folder) == []


def test_a_run_outlives_the_reader_of_its_output(whole: Path, tmp_path: Path) -> None:
    """`train.py | head -1`: it ends as it would have, and train.log has everything."""
    folder = tmp_path / "run"
    process = started(folder, "data.num_workers=1")
    assert process.stdout is not None
    assert process.stderr is not None
    assert "parameters) on" in process.stdout.readline()
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.wait(TIMEOUT) == 0
    assert "loss curve: " in (folder / "train.log").read_text()
    assert differences(whole, folder) == []


def test_a_full_disk_keeps_the_last_checkpoint(whole: Path, tmp_path: Path) -> None:
    """Exit status 2 and one line; once there is room, the run goes on to the same bits.

    A limit on the size of files, between the tables' and the checkpoints', stands for the disk.
    """
    folder = tmp_path / "run"
    process = started(folder)
    until(lambda: rows(folder) == 20, process)
    interrupted(process, signal.SIGTERM, folder)
    before = (folder / "checkpoints" / "last.pt").read_bytes()
    limit = len(before) * 3 // 4
    limited = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))}
    assert "expected a run folder that can be written, got File too large" in ended(
        started(folder, **limited)
    )
    assert (folder / "checkpoints" / "last.pt").read_bytes() == before
    resumed(folder)
    assert differences(whole, folder) == []
