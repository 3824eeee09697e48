"""Several processes, from the shell: the same bits, one voice, an end to go on from."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from seedbed import record
from tests.end_to_end.test_lifecycle import ended, rows, started, until
from tests.forks import true_commands
from tests.running import ROOT, command, refusal, train

pytestmark = pytest.mark.long

WORKER = "seedbed.distributed.worker"
TABLES = ("metrics.csv", "fingerprints.csv", "test_predictions.csv")
SHARDED = (
    "determinism.threads=1",
    "trainer.shards=4",
    "trainer.max_steps=40",
    "trainer.log_every_steps=1",
    "trainer.checkpoint_every_steps=10",
)


@pytest.fixture(scope="module", autouse=True)
def in_interpreters_of_their_own() -> Iterator[None]:
    """The command line of a process says which rank it is."""
    with true_commands():
        yield


def trained(folder: Path, *overrides: str) -> Path:
    done = train(folder, *SHARDED, *overrides)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return folder


def same_bits(a: Path, b: Path) -> bool:
    """Compare tables; the last rows of the fingerprints are hashes of the final weights."""
    return all((a / name).read_bytes() == (b / name).read_bytes() for name in TABLES)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("alone") / "run")


def test_four_processes_give_the_bits_of_one(alone: Path, tmp_path: Path) -> None:
    """trainer.processes=4 changes no bit of the record, which says that there were four."""
    together = trained(tmp_path / "run", "trainer.processes=4")
    assert same_bits(alone, together)
    found = record.read_json(together / "environment.json")["processes"]
    assert found == {"count": 4, "bits_depend_on_count": None}
    log = (together / "train.log").read_text()
    assert log.count("finished after") == 1, "one process speaks"
    assert "4 processes" in log


def test_plain_allreduce_is_recorded_as_such(alone: Path, tmp_path: Path) -> None:
    """The record of trainer.reduce=allreduce says that its bits are those of two processes.

    Twin of the test above: the comparison can fail, here because there are other shards.
    """
    ways = ("trainer.processes=2", "trainer.shards=2", "trainer.reduce=allreduce")
    run = trained(tmp_path / "run", *ways)
    found = record.read_json(run / "environment.json")["processes"]
    assert found == {"count": 2, "bits_depend_on_count": 2}
    assert "on whose number the bits depend" in (run / "train.log").read_text()
    assert not same_bits(alone, run)


def test_torchrun_alone_is_enough(alone: Path, tmp_path: Path) -> None:
    """torchrun with the module and a folder: it needs a config.yaml and no variable."""
    (tmp_path / "config.yaml").write_bytes((alone / "config.yaml").read_bytes())
    unset = ("CUBLAS_WORKSPACE_CONFIG", "OMP_NUM_THREADS", "PYTHONHASHSEED")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    words = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", WORKER)
    done = subprocess.run(
        [sys.executable, "-m", *words, str(tmp_path)],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert same_bits(alone, tmp_path)


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start or resume with a run, and wait until it has saved a checkpoint."""
    last = folder / "checkpoints" / "last.pt"
    before = last.stat().st_mtime_ns if last.exists() else 0
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not (last.exists() and last.stat().st_mtime_ns > before):
        time.sleep(0.005)
    return process


def start_anew(folder: Path) -> subprocess.Popen[str]:
    return start(folder, "train.py", f"hydra.run.dir={folder}", *SHARDED, "trainer.processes=2")


def rank_of(folder: Path, rank: int) -> int:
    """Return the id of the training process of a rank."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
            variables = (place / "environ").read_bytes().split(b"\0")
        except OSError:  # it ended
            continue
        is_worker = WORKER.encode() in words and str(folder).encode() in words
        if is_worker and f"RANK={rank}".encode() in variables:
            return int(place.name)
    raise AssertionError(f"no rank {rank}")


def resume_run(folder: Path, processes: int) -> None:
    done = command("scripts/resume.py", str(folder), f"trainer.processes={processes}")
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


def interrupt(process: subprocess.Popen[str], number: int, folder: Path) -> int:
    """Send a signal; return the step after which the run was interrupted."""
    process.send_signal(number)
    _, errors = process.communicate()
    assert (process.returncode, errors) == (128 + number, "")
    summary = record.read_summary(folder)
    assert summary["status"] == "interrupted"
    return int(summary["steps"])


def test_signals_stop_all_and_one_goes_on(alone: Path, tmp_path: Path) -> None:
    """SIGINT, SIGTERM: a checkpoint each, status 130, 143, no noise; one process ends it alike."""
    run = tmp_path / "run"
    first = interrupt(start_anew(run), signal.SIGINT, run)
    second = interrupt(start(run, "-m", "seedbed", "resume", str(run)), signal.SIGTERM, run)
    assert 10 <= first < second < 40
    resume_run(run, processes=1)
    assert same_bits(alone, run)


def test_a_rank_that_is_killed_takes_the_run_down_and_two_go_on(
    alone: Path, tmp_path: Path
) -> None:
    """SIGKILL of rank 1: one line names it, no process is left, and the last checkpoint resumes."""
    run = tmp_path / "run"
    process = start_anew(run)
    os.kill(rank_of(run, 1), signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == 128 + signal.SIGKILL
    assert len(errors.splitlines()) == 1, errors
    assert errors.startswith("error: rank 1: expected to work on with the others")
    assert record.read_summary(run)["error"] == errors.strip().removeprefix("error: ")
    with pytest.raises(AssertionError, match="no rank 0"):
        rank_of(run, 0)
    resume_run(run, processes=2)
    assert same_bits(alone, run)


def test_what_no_process_can_do_is_said_once(tmp_path: Path) -> None:
    """A model that refuses its arguments: one line from two processes, and status 2."""
    done = train(tmp_path / "run", *SHARDED, "trainer.processes=2", "+model.colour=red")
    assert refusal(done).startswith("model: expected the arguments of")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (("trainer.processes=0",), "trainer.processes"),
        (("trainer.processes=3",), "trainer.processes"),
        (("trainer.processes=4", "trainer.shards=2"), "trainer.shards"),
        (("trainer.shards=128",), "trainer.shards"),
        (("trainer.distributed_timeout_seconds=0",), "trainer.distributed_timeout_seconds"),
    ],
)
def test_impossible_processes_and_shards(
    overrides: tuple[str, ...], key: str, tmp_path: Path
) -> None:
    """What cannot be is refused in one line before anything is written."""
    run = tmp_path / "run"
    assert refusal(train(run, *overrides)).startswith(f"{key}: expected")
    assert not run.exists()


def test_a_rank_that_is_stopped_past_its_time_ends_the_run_with_status_2(tmp_path: Path) -> None:
    """The line names it; that train.py has to kill it at last is not what ended the run."""
    folder = tmp_path / "run"
    shared = ("trainer.shards=2", "trainer.processes=2", "trainer.distributed_timeout_seconds=5")
    process = started(folder, *shared)
    until(lambda: rows(folder) > 3, process)
    stopped = rank_of(folder, 1)
    os.kill(stopped, signal.SIGSTOP)
    until(lambda: is_pending(stopped, signal.SIGTERM), process)  # train.py's
    os.kill(stopped, signal.SIGKILL)  # which train.py does after half a minute
    assert ended(process).startswith("rank 1: expected an answer within 5 s, got none")
    assert record.read_summary(folder)["status"] == "failed"


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of others are Linux's")
def test_a_full_disk_at_an_interruption_is_status_2(tmp_path: Path) -> None:
    """Not even summary.json can say it: a limit on the size of the leader's files is the disk."""
    folder = tmp_path / "run"
    process = started(folder, "trainer.shards=2", "trainer.processes=2")
    until(lambda: rows(folder) > 3, process)
    resource.prlimit(rank_of(folder, 0), resource.RLIMIT_FSIZE, (100, 100))
    process.send_signal(signal.SIGTERM)
    assert "expected room on the disk" in ended(process)
    assert process.returncode == 2
    assert record.read_summary(folder)["status"] == "running"


def is_pending(process: int, number: int) -> bool:
    found = re.search(r"^ShdPnd:\s*(\w+)", Path(f"/proc/{process}/status").read_text(), re.M)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)
