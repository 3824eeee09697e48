"""Several processes, from the shell: the same bits, one voice, an end to go on from."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from seedbed import record
from tests.end_to_end import live
from tests.end_to_end.live import LSTM, interrupted, processes, resumed, started, until
from tests.running import printed, train
from tests.ways import differences

pytestmark = pytest.mark.long

SHARDED = ("trainer.shards=4", "trainer.checkpoint_every_steps=10")
TWO = ("trainer.shards=2", "trainer.processes=2")


def trained(folder: Path, *overrides: str) -> Path:
    done = train(folder, *LSTM, *SHARDED, *overrides)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return folder


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("alone") / "run")


def test_four_processes_give_the_bits_of_one(alone: Path, tmp_path: Path) -> None:
    """trainer.processes=4 changes no bit of the record, which says that there were four."""
    together = trained(tmp_path / "run", "trainer.processes=4")
    assert differences(alone, together) == []
    found = record.read_json(together / "environment.json")["processes"]
    assert found == {"count": 4, "bits_depend_on_count": None}
    log = (together / "train.log").read_text()
    assert log.count("finished after") == 1, "one process speaks"


def test_torchrun_alone_is_enough(alone: Path, tmp_path: Path) -> None:
    """torchrun with the module and a folder: it needs a config.yaml and no variable."""
    (tmp_path / "config.yaml").write_bytes((alone / "config.yaml").read_bytes())
    unset = ("CUBLAS_WORKSPACE_CONFIG", "OMP_NUM_THREADS", "PYTHONHASHSEED")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    words = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "seedbed.worker")
    printed("-m", *words, str(tmp_path), environment=environment)
    assert differences(alone, tmp_path) == []


def saved(folder: Path, process: "subprocess.Popen[str]", before: int = 0) -> int:
    """Wait for a checkpoint that is newer than one; return when it was written."""
    last = folder / "checkpoints" / "last.pt"
    until(lambda: last.exists() and last.stat().st_mtime_ns > before, process)
    return last.stat().st_mtime_ns


def test_signals_stop_all_and_one_goes_on(alone: Path, tmp_path: Path) -> None:
    """SIGINT, SIGTERM: a checkpoint each, status 130, 143, no noise; one process ends it alike."""
    run, steps = tmp_path / "run", [9, 40]
    for number in (signal.SIGINT, signal.SIGTERM):
        last = run / "checkpoints" / "last.pt"
        before = last.stat().st_mtime_ns if last.exists() else 0
        process = started(run, *([] if before else [*SHARDED, "trainer.processes=2"]))
        saved(run, process, before)
        interrupted(process, number, run)
        steps.insert(-1, record.read_summary(run)["steps"])
    assert steps == sorted(set(steps)), "each went further"
    resumed(run, "trainer.processes=1")
    assert differences(alone, run) == []


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_takes_the_run_down_and_two_go_on(
    rank: int, alone: Path, tmp_path: Path
) -> None:
    """SIGKILL: one line names the rank, none is left, and the run can be resumed.

    The record says it, unless rank 0, which writes it, was the one.
    """
    run = tmp_path / "run"
    process = started(run, *SHARDED, "trainer.processes=2")
    saved(run, process)
    os.kill(processes(parent=process.pid)[rank], signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == 128 + signal.SIGKILL
    line, *advice = errors.splitlines()
    assert advice == ["killed by SIGKILL, as when memory runs out",
                      f"resume it: python scripts/resume.py {run}"], errors  # fmt: skip
    start = f"rank {rank}: expected to work on with the others, got"
    assert line.startswith(f"error: {start}")
    summary = record.read_summary(run)
    assert summary["status"] == ("failed" if rank else "running")
    assert str(summary["error"]).startswith(start) == bool(rank)
    assert processes(group=process.pid) == []
    resumed(run, "trainer.processes=2")
    assert differences(alone, run) == []


def test_a_rank_that_is_stopped_past_its_time_ends_the_run_with_status_2(tmp_path: Path) -> None:
    """The line names it; that train.py has to kill it at last is not what ended the run."""
    folder = tmp_path / "run"
    process = started(folder, *TWO, "trainer.distributed_timeout_seconds=5")
    until(lambda: live.rows(folder) > 3, process)
    stopped = processes(parent=process.pid)[1]
    os.kill(stopped, signal.SIGSTOP)
    until(lambda: is_pending(stopped, signal.SIGTERM), process)  # train.py's
    os.kill(stopped, signal.SIGKILL)  # which train.py does after half a minute
    assert live.ended(process).startswith("rank 1: expected an answer within 5 s, got none")
    assert record.read_summary(folder)["status"] == "failed"


def is_pending(process: int, number: int) -> bool:
    found = re.search(r"^ShdPnd:\s*(\w+)", Path(f"/proc/{process}/status").read_text(), re.M)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)
