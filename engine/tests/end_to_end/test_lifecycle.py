"""Whatever happens to process, disk and terminal: a true record, one line, a run that resumes."""

import errno
import os
import pty
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from seedbed import record
from seedbed.errors import InputError
from tests.end_to_end.kill_anywhere import COMMON, differences
from tests.running import QUICK, ROOT, command, refusal, train

pytestmark = pytest.mark.long

# Validations after 16 and 32 of 40 steps; an evaluation is 40 batches, long enough to be hit.
TINY = (
    *COMMON,
    "experiment=adding_lstm",
    "data.length=20",
    "data.train.samples=1024",
    "data.validation.samples=400",
    "data.test.samples=400",
    "data.eval_batch_size=10",
)


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
    done = train(folder, *TINY)
    assert done.returncode == 0, done.stderr
    return folder


def started(folder: Path, *overrides: str, **how: Any) -> subprocess.Popen[str]:
    """Start a run in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "train.py", f"hydra.run.dir={folder}", *TINY, *overrides],
        cwd=ROOT,
        text=True,
        start_new_session=True,
        **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | how,
    )


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait until something is so, while a process lives."""
    while not condition():
        assert process.poll() is None, process.communicate()
        time.sleep(0.002)


def rows(folder: Path, phase: str = "train") -> int:
    table = folder / "metrics.csv"
    return table.read_text().count(f",{phase},") if table.exists() else 0


def resumed(folder: Path, *overrides: str) -> None:
    """Resume a run to its end."""
    done = command("scripts/resume.py", str(folder), *overrides)
    assert done.returncode == 0, done.stderr


def test_a_closed_terminal_saves_a_checkpoint(whole: Path, tmp_path: Path) -> None:
    """SIGHUP and a dead terminal, for train.py, training process and loader workers: 129."""
    folder = tmp_path / "run"
    terminal, end = pty.openpty()
    process = started(folder, "data.num_workers=2", stdout=end, stderr=end)
    os.close(end)
    drain = threading.Thread(target=read_all, args=[terminal])
    drain.start()
    until(lambda: rows(folder) > 3, process)
    stop_reading.set()
    drain.join()
    os.close(terminal)
    os.killpg(process.pid, signal.SIGHUP)
    assert process.wait(120) == 128 + signal.SIGHUP
    summary = record.read_summary(folder)
    assert summary["status"] == "interrupted"
    assert f"interrupted after {summary['steps']} steps" in (folder / "train.log").read_text()
    resumed(folder, "data.num_workers=0")
    assert differences(whole, folder) == []


stop_reading = threading.Event()


def read_all(terminal: int) -> None:
    """Read what is printed, so that the run does not wait for us."""
    os.set_blocking(terminal, False)
    while not stop_reading.is_set():
        try:
            os.read(terminal, 1 << 16)
        except BlockingIOError:
            time.sleep(0.01)


def test_a_run_under_nohup_outlives_its_terminal(whole: Path, tmp_path: Path) -> None:
    """What ignores SIGHUP goes on ignoring it, loader workers too; negative control: the run
    before."""
    folder = tmp_path / "run"
    process = started(
        folder,
        "data.num_workers=1",
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    until(lambda: rows(folder) > 3, process)
    os.killpg(process.pid, signal.SIGHUP)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")
    assert differences(whole, folder) == []


def ignore_hangup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


@pytest.mark.parametrize(
    ("method", "number"), [("spawn", signal.SIGTERM), ("forkserver", signal.SIGHUP)]
)
def test_a_signal_to_the_group_while_loader_workers_start(
    method: str, number: signal.Signals, whole: Path, tmp_path: Path
) -> None:
    """Validation starts its own; a cluster's SIGTERM reaches them while they still import."""
    folder = tmp_path / "run"
    process = started(folder, "data.num_workers=2", f"data.start_method={method}")
    until(lambda: rows(folder) == 16, process)
    time.sleep(0.05)
    os.killpg(process.pid, number)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (128 + number, "")
    assert record.read_summary(folder)["status"] == "interrupted"
    resumed(folder, "data.num_workers=0")
    assert differences(whole, folder) == []


def test_an_interrupted_run_says_how_it_goes_on(whole: Path, tmp_path: Path) -> None:
    """The last line is the command, which a shell takes as it is; no line is empty."""
    folder = tmp_path / "a run"
    process = started(folder)
    until(lambda: rows(folder) > 3, process)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    lines = out.splitlines()
    assert all(line.strip() for line in lines), out
    label, _, words = lines[-1].partition(": python ")
    assert label == "resume it"
    assert command(*shlex.split(words)).returncode == 0
    assert differences(whole, folder) == []


@pytest.mark.parametrize("steps", [0, 1])
def test_an_interruption_at_once_reads_properly(steps: int, tmp_path: Path) -> None:
    """Ctrl-C before the first step, and a count of one; nothing to show is no empty line."""
    folder = tmp_path / "run"
    process = started(folder)
    until(lambda: (folder / "summary.json").exists(), process)
    if steps:
        until(lambda: rows(folder) == 1, process)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, "")
    done = record.read_summary(folder)["steps"]
    assert f"interrupted after {done} step{'' if done == 1 else 's'} in " in out
    assert all(line.strip() for line in out.splitlines()), out


def test_a_resume_that_is_interrupted_at_start_up_says_so(tmp_path: Path) -> None:
    """Ctrl-C twice while it imports: its record stays, and the command is there to be copied."""
    folder = interrupted(tmp_path / "run")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    process = subprocess.Popen(
        [sys.executable, "-m", "seedbed", "resume", str(folder)],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    until(lambda: is_worked_on(folder), process)
    os.killpg(process.pid, signal.SIGINT)
    time.sleep(1.1)  # a second one that comes sooner counts as the same
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, "")
    assert out.splitlines()[-1] == f"resume it: python scripts/resume.py {folder}"
    if "before it went on" in out:  # not where all was imported within a second
        assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("ignores", [False, True], ids=["stops", "nohup"])
def test_a_reader_that_goes_away_stops_the_run_as_a_closed_terminal_does(
    ignores: bool, tmp_path: Path
) -> None:
    """`train.py | head -1`: what it was and how to resume it is on stderr and in train.log.

    Negative control: a run that ignores SIGHUP, as under nohup, goes on to its end.
    """
    folder = tmp_path / "run"
    # Ignored signals are inherited; a shell's `trap ''` is what nohup does.
    words = [sys.executable, "train.py", f"hydra.run.dir={folder}", *TINY]
    shell = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"] if ignores else []
    process = subprocess.Popen(
        [*shell, *words], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    assert "parameters) on" in process.stdout.readline()
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=120) == (0 if ignores else 129)
    process.stderr.close()
    status = "finished" if ignores else "interrupted"
    assert record.read_summary(folder)["status"] == status
    assert f"{status} after" in errors
    assert "Traceback" not in errors
    assert errors.strip().splitlines()[-1] in (folder / "train.log").read_text()
    if not ignores:
        assert f"resume it: python scripts/resume.py {folder}" in errors
        resumed(folder)


def is_worked_on(folder: Path) -> bool:
    try:
        with record.lock(folder):
            return False
    except InputError:
        return True


def interrupted(folder: Path) -> Path:
    process = started(folder)
    until(lambda: rows(folder) > 3, process)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=120)[1] == ""
    assert process.returncode == 143
    return folder


def ended(process: subprocess.Popen[str]) -> str:
    """Return the one line with which a run ended: status 2, nothing else on stderr."""
    out, errors = process.communicate(timeout=120)
    return refusal(subprocess.CompletedProcess([], process.returncode, out, errors))


@pytest.mark.parametrize("key", ["hydra.run.dir", "hydra.sweep.dir"])
def test_an_empty_folder_name_is_refused(key: str, tmp_path: Path) -> None:
    """`hydra.run.dir=$UNSET`: one line, and the current folder stays as it is, if it is empty."""
    words = ["-m"] if "sweep" in key else []
    done = subprocess.run(
        [sys.executable, str(ROOT / "train.py"), *words, f"{key}=", *QUICK],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert refusal(done).startswith(f"{key}: expected a folder, got an empty name")
    assert tmp_path.is_dir()
    assert list(tmp_path.iterdir()) == []


# A disk that is full when the picture is written, and has room for all else.
FULL_FOR_THE_PICTURE = """
import errno, os, sys

def full(event, arguments):
    is_picture = event == "open" and "loss_curve" in str(arguments[0])
    if is_picture and os.path.exists(os.path.join(os.path.dirname(__file__), "full")):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), arguments[0])

sys.addaudithook(full)
"""


def test_a_disk_that_is_full_at_the_end_leaves_a_run_that_can_be_finished(tmp_path: Path) -> None:
    """The picture does not fit: exit status 2 and one line, also for a resume while it is so."""
    whole, folder, site = tmp_path / "whole", tmp_path / "run", tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(FULL_FOR_THE_PICTURE)
    place = {"PYTHONPATH": f"{site}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    assert train(whole, *TINY, environment=place).returncode == 0
    (site / "full").touch()
    first = train(folder, *TINY, environment=place)
    for done in (first, command("scripts/resume.py", str(folder), environment=place)):
        assert f"expected room on the disk, got {os.strerror(errno.ENOSPC)}" in refusal(done)
        assert "finished" not in done.stdout
        assert record.read_summary(folder)["status"] == "running"
    (site / "full").unlink()
    assert command("scripts/resume.py", str(folder), environment=place).returncode == 0
    assert differences(whole, folder) == []
