"""From a command line to a training process: names, messages, the run folder,
signals."""

import fcntl
import os
import select
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seedbed import config, launch, record
from seedbed.cli import runs
from seedbed.config.compose import configuration
from seedbed.errors import InputError
from seedbed.launch import run_passing_signals
from seedbed.record import text
from seedbed.run.job import Job
from seedbed.signals import Stop
from seedbed.sweeps import groups
from tests.end_to_end.live import begin
from tests.made_up_runs import write_run
from tests.running import QUICK, ROOT, command

SETTINGS = configuration("seed=3")


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    """Its entries stay unchanged. Negative control: leftovers of launchers and killed
    runs."""
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(
        InputError, match=r"^hydra.run.dir: .* holds thesis.tex; choose"
    ):
        launch.create_run_folder(tmp_path, SETTINGS)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    left = tmp_path / "left"
    left.mkdir()
    for name in (".lock", ".config.yaml.7.tmp", "train.log"):
        (left / name).touch()
    launch.create_run_folder(left, SETTINGS)


def test_a_command_given_twice_at_once_names_the_process_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While that makes the folder, and if it has just made it: then its run is joined.

    Negative control: a folder that the first one has left.
    """
    process = rf"without a running process, .* alive \(process {os.getpid()} on "
    (tmp_path / "config.mark").touch()
    with record.lock(tmp_path), pytest.raises(InputError, match=process):
        launch.create_run_folder(tmp_path, SETTINGS)
    with pytest.raises(InputError, match=r"holds config.mark; choose another"):
        launch.create_run_folder(tmp_path, SETTINGS)
    folder = tmp_path / "run"
    create = launch.create_run_folder

    def second(*arguments: Any) -> None:
        create(*arguments)
        create(*arguments)

    monkeypatch.setattr(launch, "create_run_folder", second)
    monkeypatch.setattr(launch, "resume", lambda *_: 7)
    assert launch.start(SETTINGS, folder) == 7


def test_threads_that_wait_leave_cores_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More threads than cores wait passively. Negative control: the user's own
    OMP_WAIT_POLICY."""
    names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    for threads, usual in ((1, (None, "3000")), (9999, ("PASSIVE", None))):
        preset = {"env": {}, "threads": threads, "interop_threads": 1}
        settings: Any = SimpleNamespace(
            trainer=SimpleNamespace(processes=1), plain={"determinism": preset}
        )
        for user, expected in (({}, usual), ({names[0]: "ACTIVE"}, ("ACTIVE", None))):
            monkeypatch.setattr(os, "environ", user)
            assert (
                tuple(map(launch.training_environment(settings).get, names)) == expected
            )


@pytest.mark.parametrize(
    ("status", "steps", "checkpoint", "kept"),
    [
        ("failed", None, False, False),
        ("failed", 1, False, True),
        ("failed", None, True, True),
        ("running", None, False, True),
        ("interrupted", None, False, True),
    ],
)
def test_a_run_that_failed_before_its_first_step_is_replaced(
    status: str, steps: int | None, checkpoint: bool, kept: bool, tmp_path: Path
) -> None:
    """Negative control: a run with a step, a checkpoint or another status is kept."""
    run = write_run(tmp_path / "run", summary={"status": status, "steps": steps})
    if checkpoint:
        (run / "checkpoints").mkdir()
        (run / "checkpoints/last.pt").touch()
    with pytest.raises(InputError) if kept else nullcontext():
        launch.create_run_folder(run, SETTINGS)
    assert (record.read_config(run).get("seed") != 3) is kept
    left = {name for name in record.FILES if (run / name).is_file()}
    assert ("summary.json" in left) is kept
    assert kept or left == {"config.yaml", "config.mark"}
    # a second command, before the first one's process has started
    with pytest.raises(InputError):
        launch.create_run_folder(run, configuration("seed=4"))
    assert record.read_config(run).get("seed") != 4


def test_a_run_killed_before_its_first_summary_is_of_the_command_that_resumes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: a summary that names the command."""
    monkeypatch.setenv("SEEDBED_COMMAND", "")  # restored
    monkeypatch.setattr(launch, "run_worker", lambda *_: 0)
    run = tmp_path / "run"
    resuming = f"python scripts/resume.py {tmp_path / 'run'}"
    launch.create_run_folder(run, SETTINGS)
    for known, expected in (
        ({}, resuming),
        ({"command": "python train.py"}, "python train.py"),
    ):
        if known:
            record.write_summary(run, {"status": "running", **known})
        assert launch.resume_run(run, (), allow_changed=False) == 0
        job = Job(run, SETTINGS, config.Request(), Stop())
        job.begin()
        assert job.summary["command"] == expected


def test_the_recorded_command_is_that_of_the_run(tmp_path: Path) -> None:
    """Not that of one that failed in its folder. Given again, it finds the run
    finished."""
    folder = tmp_path / "run, 1"
    failed = command(
        "train.py", "files=[none.txt]", f"hydra.run.dir={text.quoted(folder)}"
    )
    assert failed.returncode == 2
    assert "none.txt" in record.read_summary(folder)["command"]
    done = command("train.py", *QUICK, "seed=7", f"hydra.run.dir={text.quoted(folder)}")
    assert done.returncode == 0, done.stderr
    recorded = record.read_summary(folder)["command"]
    assert "seed=7" in recorded
    assert "none.txt" not in recorded
    again = command(*shlex.split(recorded)[1:])
    assert f"{folder}: finished before" in again.stdout


@pytest.mark.long
def test_two_commands_at_once_after_an_early_failure_do_not_mix(tmp_path: Path) -> None:
    """One trains with its own configuration, the other is refused."""
    folder = f"hydra.run.dir={tmp_path / 'run'}"
    assert command("train.py", "files=[none.txt]", folder).returncode == 2
    processes = [begin("train.py", *QUICK, f"seed={seed}", folder) for seed in (1, 2)]
    errors = [process.communicate(timeout=300)[1] for process in processes]
    statuses = [process.returncode for process in processes]
    assert sorted(statuses) == [0, 2], errors
    seed = 1 + statuses.index(0)
    summary = record.read_summary(tmp_path / "run")
    assert (summary["status"], summary["seed"]) == ("finished", seed)
    assert f" seed={seed} " in summary["command"]
    assert record.read_config(tmp_path / "run").seed == seed


def test_a_secret_that_comes_into_the_record_is_named(tmp_path: Path) -> None:
    """The warning has no value. Negative control: another variable."""
    folder = f"hydra.run.dir={tmp_path / 'run'}"
    words = ("files=[none.txt]", "tags=['${oc.env:DATA_ROOT}']", folder)
    variables = {"SERVICE_TOKEN": "abc123", "DATA_ROOT": "data"}
    secret = "notes='${oc.env:SERVICE_TOKEN} ${oc.env:DATA_ROOT}'"
    done = command("train.py", secret, *words, environment=variables)
    warning, error = done.stderr.splitlines()
    assert warning.startswith(
        "warning: notes: config.yaml, and every copy of the record, has"
    )
    assert "SERVICE_TOKEN" in warning
    assert "abc123" not in done.stderr
    assert error.startswith("error: files:")


def test_a_killed_run_has_the_status_killed(tmp_path: Path) -> None:
    """Reading it writes nothing. Negative controls: a live one, and one that was
    interrupted."""
    run = write_run(tmp_path / "run", summary={"status": "running"})
    before = sorted(tmp_path.rglob("*"))
    assert runs.read_row(run)["status"] == "killed"
    assert sorted(tmp_path.rglob("*")) == before
    with record.lock(run):
        assert runs.read_row(run)["status"] == "running"
    assert groups.read_run(run, tmp_path).failure == "killed"
    other = write_run(tmp_path / "other", summary={"status": "interrupted"})
    assert runs.read_row(other)["status"] == "interrupted"


def test_a_reader_of_the_status_stops_no_run(tmp_path: Path) -> None:
    """A reader holds the lock for a moment. Negative control: one that holds it for
    good."""
    with open(tmp_path / ".lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        with pytest.raises(InputError, match="still alive"), record.lock(tmp_path):
            pass
        threading.Timer(0.005, fcntl.flock, [file, fcntl.LOCK_UN]).start()
        with record.lock(tmp_path):
            assert record.is_held(tmp_path)
    assert not record.is_held(tmp_path)


def run(program: str, environment: Mapping[str, str] = os.environ) -> int:
    return run_passing_signals([sys.executable, "-c", program], environment)


@pytest.mark.parametrize("released", [False, True])
def test_a_signal_in_the_first_moments_waits_until_it_is_let_through(
    released: bool,
) -> None:
    """A starting process is not killed by it. Negative control: one that called
    `release`."""
    program = (
        "import os, signal, sys; from seedbed import signals\n"
        f"if {released}: signals.release()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"  # before there is a handler
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nsignals.release()\n"
    )
    assert run(program) == (128 + signal.SIGTERM if released else 7)


def test_ranks_of_the_callers_do_not_reach_a_training_process() -> None:
    """A run ignores the ranks of a cluster job. Negative control: other variables
    pass."""
    variables = {"WORLD_SIZE": "2", "RANK": "1", "OMP_NUM_THREADS": "7"}
    program = (
        f"import os; os._exit(sum(1 << i for i, n in enumerate({[*variables]}) if n in"
        " os.environ))"
    )
    assert run(program, {**os.environ, **variables}) == 0b100


@pytest.mark.parametrize("status", ["finished", "failed", "interrupted", "running"])
def test_sweepers_get_the_metric_of_a_run_that_finished(
    status: str, tmp_path: Path
) -> None:
    """The metric of any other run is not a result: Optuna counts a failed trial."""
    summary = {"status": status, "objective": {"name": "x", "value": 0.25}}
    found = launch.objective(write_run(tmp_path / "run", summary=summary))
    assert found == (0.25 if status == "finished" else None)


@pytest.mark.parametrize("ignored", [True, False])
def test_ctrl_c_while_train_py_starts(ignored: bool, tmp_path: Path) -> None:
    """Ctrl-C during its imports (0.5 s) prints no traceback; under nohup and & it is
    ignored."""
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nos._exit(7)\n"
    (tmp_path / "hydra.py").write_text(code)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN) if ignored else None
    try:
        done = command("train.py", environment={"PYTHONPATH": str(tmp_path)})
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
    assert (done.returncode, done.stderr) == (7 if ignored else -signal.SIGINT, "")


def test_a_run_stops_when_who_started_it_is_killed(tmp_path: Path) -> None:
    """If `train.py` is killed, the training process stops. Negative control: not before
    that."""
    training = (
        "import time\nfrom seedbed import signals\nstop ="
        " signals.Stop()\nprint('begun', flush=True)\nwhile not stop.requested():\n   "
        " time.sleep(0.01)\nprint(stop.status(), flush=True)"
    )
    starting = (
        f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {training!r}])"
    )
    started = begin("-c", starting)
    assert started.stdout is not None
    assert started.stdout.readline() == "begun\n"
    assert select.select([started.stdout], [], [], 0.3)[0] == [], (
        "control: it does not stop"
    )
    started.kill()
    assert started.stdout.read() == f"{128 + signal.SIGTERM}\n"
    started.wait(timeout=60)


@pytest.mark.parametrize(
    ("endings", "status"),
    [
        (("2", "143", "2"), 2),
        (("1", "2", "2"), 1),
        (("kill", "2"), 128 + signal.SIGKILL),
        (("2", "hang"), 2),  # ended by us: its status does not count
        (("143", "143"), 143),
        (("0", "0"), 0),
    ],
)
def test_the_exit_status_of_several_is_that_of_the_cause(
    endings: tuple[str, ...], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill explains failures, a crash explains lost connections; each process gets
    its rank."""
    monkeypatch.setattr(launch, "_ENDING_SECONDS", 2.0)
    program = (
        "import os, signal, sys, time\n"
        f"how = {endings}[int(os.environ['RANK'])]\n"
        "if how == 'kill': os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(600 if how == 'hang' else 0.5)\n"  # the killed one ends first
        "sys.exit(int(how))"
    )
    command = [sys.executable, "-c", program]
    assert run_passing_signals(command, os.environ, len(endings)) == status


@pytest.mark.parametrize(
    "closed",
    [
        ">&- 2>&- <&-",
        *(pytest.param(x, marks=pytest.mark.long) for x in (">&-", "2>&-")),
    ],
)
def test_a_run_needs_no_terminal(closed: str, tmp_path: Path) -> None:
    """Its files do not get the numbers of streams that the shell has closed: the log is
    as usual. Negative control: a wrong value is refused."""
    for seed, status in (("0", 0), ("abc", 2)):
        folder = tmp_path / seed
        words = [
            sys.executable,
            "train.py",
            f"hydra.run.dir={folder}",
            *QUICK,
            f"seed={seed}",
        ]
        done = subprocess.run(
            ["sh", "-c", f"exec {shlex.join(words)} {closed}"], cwd=ROOT
        )
        assert done.returncode == status
        assert folder.exists() == (status == 0)
    log = (tmp_path / "0/train.log").read_text().splitlines()
    assert log[-1] == f"loss curve: {tmp_path / '0/loss_curve.png'}"
    assert not any("rror" in line or "xception" in line for line in log)


def test_a_full_disk_behind_the_output_is_no_fault_of_the_run(tmp_path: Path) -> None:
    """The run has its log. A command whose output is its result says so in one line."""
    words = [sys.executable, "train.py", f"hydra.run.dir={tmp_path / 'run'}", *QUICK]
    with open("/dev/full", "w") as full:
        assert subprocess.run(words, cwd=ROOT, stdout=full).returncode == 0
        table = [sys.executable, "-m", "seedbed", "runs", str(tmp_path)]
        done = subprocess.run(
            table, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert "finished after 12 steps" in (tmp_path / "run/train.log").read_text()
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(
        "error: output: expected a file that can be written, got No space"
    )
