"""Signals, kills, a full disk, a closed terminal: the record is right, and the run
resumes."""

import os
import pty
import random
import resource
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from seedbed import record
from tests.end_to_end import kills
from tests.end_to_end.live import (
    LSTM,
    interrupted,
    processes,
    resumed,
    rows,
    started,
    until,
)
from tests.running import command, printed, refusal, train
from tests.ways import differences

pytestmark = pytest.mark.long
SPAWN, FORKSERVER = (
    ("data.num_workers=2", f"data.start_method={how}")
    for how in ("spawn", "forkserver")
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of an undisturbed run on one process."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    done = train(folder, *LSTM)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_run_killed_at_random_moments_has_the_same_bits(
    whole: Path, tmp_path: Path
) -> None:
    """Three kills here; `make test-kills` does a hundred."""
    one = kills.Case("LSTM", (*LSTM, "data.num_workers=3"))
    hits = kills.killed(one, tmp_path / "run", 6, 3, random.Random())
    assert differences(whole, tmp_path / "run") == [], hits


# Rows of a phase in metrics.csv; loader workers start at 16, and the test after 2
# validations.
@pytest.mark.parametrize(
    ("moment", "number", "words"),
    [
        (None, signal.SIGINT, ()),
        (("validation", 2), signal.SIGTERM, ()),
        (("train", 16), signal.SIGTERM, SPAWN),
        (("train", 9), signal.SIGINT, ("trainer.processes=4",)),
        (("train", 9), signal.SIGTERM, ("trainer.processes=2",)),
    ],
    ids=["at start-up", "test", "spawn", "four, SIGINT", "two, SIGTERM"],
)
def test_a_signal_leaves_a_run_that_goes_on(
    moment: tuple[str, int] | None,
    number: signal.Signals,
    words: tuple[str, ...],
    whole: Path,
    tmp_path: Path,
) -> None:
    """The status names the signal, stderr is empty, and the last line is the command to
    resume.

    Terminals and clusters signal all processes of the group, loader workers too, as
    does the case "spawn".
    """
    folder = tmp_path / "a run"
    process = started(folder, *words)
    if moment is None:
        until((folder / "summary.json").exists, process)
    else:
        phase, count = moment
        until(lambda: rows(folder, phase) >= count, process)
    if words == SPAWN:
        os.killpg(process.pid, number)
    lines = interrupted(process, number, folder).splitlines()
    assert all(line.strip() for line in lines), lines
    label, _, advice = lines[-1].partition(": python ")
    assert label == "resume it"
    on_one = ("data.num_workers=0", "trainer.processes=1")
    assert command(*shlex.split(advice), *on_one).returncode == 0
    assert differences(whole, folder) == []


def test_a_closed_terminal_saves_a_checkpoint(whole: Path, tmp_path: Path) -> None:
    """All processes get SIGHUP; the exit status is 129. train.log has no progress
    bar."""
    folder = tmp_path / "run"
    # inherited; tests under nohup ignore it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    terminal, end = pty.openpty()
    process = started(folder, *FORKSERVER, stdout=end, stderr=end)
    os.close(end)
    until(lambda: rows(folder) > 16, process)
    os.close(terminal)
    os.killpg(process.pid, signal.SIGHUP)
    assert process.wait(120) == 128 + signal.SIGHUP
    assert b"\r" not in (folder / "train.log").read_bytes()
    assert record.read_summary(folder)["status"] == "interrupted"
    resumed(folder, "data.num_workers=0")
    assert differences(whole, folder) == []


def test_a_run_outlives_the_reader_of_its_output(whole: Path, tmp_path: Path) -> None:
    """As in `train.py | head -1`: the run ends as usual, and train.log is complete."""
    folder = tmp_path / "run"
    process = started(folder, "data.num_workers=1")
    assert process.stdout is not None
    assert process.stderr is not None
    assert "parameters) on" in process.stdout.readline()
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.wait(120) == 0
    assert "loss curve: " in (folder / "train.log").read_text()
    assert differences(whole, folder) == []


def test_a_full_disk_keeps_the_last_checkpoint(whole: Path, tmp_path: Path) -> None:
    """Exit status 2 and one line; once there is space, the run resumes to the same
    bits.

    A limit on file sizes, between those of tables and checkpoints, simulates the full
    disk.
    """
    folder = tmp_path / "run"
    process = started(folder)
    until(lambda: rows(folder) == 20, process)
    interrupted(process, signal.SIGTERM, folder)
    before = (folder / "checkpoints" / "last.pt").read_bytes()
    limit = len(before) * 3 // 4
    limited = {
        "preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    }
    process = started(folder, **limited)
    done = subprocess.CompletedProcess([], process.wait(120), *process.communicate())
    assert "expected a run folder that can be written, got File too large" in refusal(
        done
    )
    assert (folder / "checkpoints" / "last.pt").read_bytes() == before
    resumed(folder)
    assert differences(whole, folder) == []


@pytest.mark.parametrize("count", [1, 4])
def test_torchrun_alone_is_enough(count: int, whole: Path, tmp_path: Path) -> None:
    """torchrun with the module and a folder needs only a config.yaml, no environment
    variables. Four processes change no bit of the record, which has their number."""
    (tmp_path / "config.yaml").write_bytes((whole / "config.yaml").read_bytes())
    unset = ("CUBLAS_WORKSPACE_CONFIG", "OMP_NUM_THREADS", "PYTHONHASHSEED")
    environment = {
        name: value for name, value in os.environ.items() if name not in unset
    }
    words = ("torch.distributed.run", "--standalone", f"--nproc-per-node={count}")
    words = ("-m", *words, "-m", "seedbed.worker", "train", str(tmp_path))
    printed(*words, environment=environment)
    assert differences(whole, tmp_path) == []
    found = record.read_json(tmp_path / "environment.json")["processes"]
    assert found == {"count": count, "bits_depend_on_count": None}
    assert (tmp_path / "train.log").read_text().count("finished after") == 1, (
        "one process speaks"
    )


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_takes_the_run_down_and_two_go_on(
    rank: int, whole: Path, tmp_path: Path
) -> None:
    """After SIGKILL, one line names the rank, no process is left, and the run can be
    resumed.

    The record has the error, unless rank 0, which writes it, was killed.
    """
    folder = tmp_path / "run"
    process = started(folder, "trainer.processes=2")
    until(lambda: rows(folder) >= 9, process)
    os.kill(processes(parent=process.pid)[rank], signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == 128 + signal.SIGKILL
    line, *advice = errors.splitlines()
    assert advice == [
        "killed by SIGKILL, perhaps because memory ran out",
        f"resume it: python scripts/resume.py {folder}",
    ], errors
    start = f"rank {rank}: it disconnected; "
    assert line.startswith(f"error: {start}")
    summary = record.read_summary(folder)
    assert summary["status"] == ("failed" if rank else "running")
    assert str(summary["error"]).startswith(start) == bool(rank)
    assert processes(group=process.pid) == []
    resumed(folder, "trainer.processes=2")
    assert differences(whole, folder) == []
