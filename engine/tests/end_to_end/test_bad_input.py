"""Bad input from the shell: one clear line, exit status 2, nothing half-written."""

import os
import pty
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from seedbed import record
from seedbed.cli import train as train_command
from seedbed.training import checkpoint
from tests import forks, tiny
from tests.running import QUICK, ROOT, called, command, refusal, train, trained

STREAMS = "tests.data.test_streams"
STREAMED = (
    *(f"data.train._target_={STREAMS}.Features", "data.train.samples=80", "data.num_workers=2"),
    *("+data.streams=4", "+data.samples_per_epoch=96", "trainer.max_steps=20"),
)
TF32 = {"NVIDIA_TF32_OVERRIDE": "1"}


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ("trainer.max_epoch=3", "did you mean trainer.max_epochs"),
        ("data=squars", "did you mean "),
        ("modle=cnn", "did you mean model"),
        ("model.classes=2", "model.classes: "),
        ("model=vgg", "model: "),
        ("seed=1,2", "seed: "),
        ("seed=[", "overrides: "),
        ("seed=-1", "seed: "),
        ("data.batch_size=0", "data.batch_size: "),
        ("~seed", "'seed'"),
        ("~data.train", "data.train"),
        ("+seed=1", "seed: "),
        ("hydra.run.dir=null", "hydra.run.dir: "),
        ("--config-dir=/nonexistent", "/nonexistent"),
        ("=1", "=: "),
        ("seed 0", "overrides: "),
    ],
)
def test_a_bad_command_line_is_refused_in_one_line(
    overrides: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line names the key or the nearest one, and no run folder is left."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEEDBED_PROJECT", str(ROOT))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # the command sets it; here it is unset again
    message = refusal(called(train_command.main, *overrides.split()))
    assert key in message
    assert ": expected " in message
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_wrong_override_leaves_nothing_behind(tmp_path: Path) -> None:
    """From the shell; the folder that Hydra made is removed."""
    message = refusal(train(tmp_path / "run", "data.batch_size=0"))
    assert message.startswith("data.batch_size: ")
    assert not (tmp_path / "run").exists()


def test_a_stream_that_ends_too_early_is_refused(tmp_path: Path) -> None:
    """What is found in a loader worker ends the run as what is found before it."""
    message = refusal(train(tmp_path / "run", *tiny.OVERRIDES, *QUICK, *STREAMED))
    assert message.startswith("data.train: expected a sample at position 20 of stream 0 of 4")
    assert record.read_summary(tmp_path / "run")["steps"] == 8


def test_a_yaml_file_that_is_not_yaml_is_named(tmp_path: Path) -> None:
    """The line names the file and the place."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "broken.yaml").write_text("a: [1, 2\nb: }")
    done = train(tmp_path / "run", "--config-dir", str(tmp_path), "experiment=broken")
    assert "broken.yaml, line 2" in refusal(done)


def test_a_variable_that_overrides_tf32_stops_strict(tmp_path: Path) -> None:
    """`strict` does not go on when something else decides the precision."""
    message = refusal(train(tmp_path / "run", *QUICK, environment=TF32))
    assert message.startswith("NVIDIA_TF32_OVERRIDE: expected no such environment variable")
    # Negative control: a preset that promises less does not mind.
    trained(tmp_path / "seeded", "determinism=seeded", environment=TF32)


def test_a_folder_that_holds_a_run_is_not_used_again(quick_run: Path, tmp_path: Path) -> None:
    """A record is never overwritten."""
    run = Path(shutil.copytree(quick_run, tmp_path / "run"))

    def recorded() -> dict[Path, bytes]:
        files = (path for path in run.rglob("*") if path.is_file())
        return {path: path.read_bytes() for path in files if path.name != ".lock"}

    before = recorded()
    assert refusal(train(run, *QUICK)).startswith("hydra.run.dir: ")
    assert recorded() == before


def test_a_run_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A path below a file is no folder."""
    (tmp_path / "file").write_text("")
    assert "hydra.run.dir" in refusal(train(tmp_path / "file" / "run", *QUICK))


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    """The line says step and epoch; the last good checkpoint stays and holds finite weights."""
    sgd = ("optimizer=sgd", "optimizer.lr=1e18", "trainer.gradient_clip_norm=null")
    message = refusal(train(tmp_path / "run", *QUICK, *sgd, "trainer.checkpoint_every_steps=1"))
    assert message.startswith("loss: expected a finite number, got nan in step ")
    summary = record.read_summary(tmp_path / "run")
    assert (summary["status"], summary["error"]) == ("failed", message)
    weights: dict[str, torch.Tensor] = checkpoint.load(
        tmp_path / "run" / "checkpoints" / "last.pt"
    )["model"]
    assert all(weight.isfinite().all() for weight in weights.values())


def test_a_full_disk_stops_the_run_in_one_line(tmp_path: Path) -> None:
    """No traceback, and the run says how to go on; a limit on file sizes stands for the disk."""
    done = subprocess.run(
        [sys.executable, "train.py", f"hydra.run.dir={tmp_path / 'run'}", *QUICK],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000)),
    )
    message = refusal(done)
    assert "expected room on the disk, got File too large" in message
    assert "scripts/resume.py" in message
    assert list((tmp_path / "run" / "checkpoints").glob("*.pt")) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_a_checkpoint_and_is_told_in_the_exit_status(
    number: signal.Signals, tmp_path: Path
) -> None:
    """130 after Ctrl-C and 143 after SIGTERM, by the true command; the record is complete."""
    folder = tmp_path / "run"
    with forks.true_commands():
        process = subprocess.Popen(
            [
                sys.executable,
                "train.py",
                f"hydra.run.dir={folder}",
                *QUICK,
                "trainer.max_steps=600",
            ],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that the signal reaches train.py alone
        )
    wait_for_rows(folder / "metrics.csv", 3)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors
    assert errors == ""
    summary = record.read_summary(folder)
    assert summary["status"] == "interrupted"
    assert 0 < summary["steps"] < 600
    assert (folder / "checkpoints" / "last.pt").exists()
    assert (folder / "loss_curve.png").exists()


def test_ctrl_c_in_a_terminal_reaches_the_loader_workers_and_leaves_no_traceback(
    tmp_path: Path,
) -> None:
    """A terminal sends SIGINT to every process of the group; the run ends as if it were one."""
    folder = tmp_path / "run"
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [
            sys.executable, "train.py", f"hydra.run.dir={folder}", *QUICK,
            "trainer.max_steps=600", "data.num_workers=2",
        ],
        cwd=ROOT, stdout=slave, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    threading.Thread(target=read_all, args=(master,), daemon=True).start()
    wait_for_rows(folder / "metrics.csv", 3)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(timeout=60) == 130
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert record.read_summary(folder)["status"] == "interrupted"


def test_help_shows_usage_and_an_example() -> None:
    """-h on the command that everybody runs first."""
    done = command("train.py", "--help")
    assert done.returncode == 0
    assert "python train.py" in done.stdout


def read_all(descriptor: int) -> None:
    """Read what is printed to a terminal until its other end is closed."""
    try:
        while os.read(descriptor, 1024):
            pass
    except OSError:
        pass


def wait_for_rows(path: Path, rows: int, timeout_seconds: float = 90) -> None:
    end = time.monotonic() + timeout_seconds
    while time.monotonic() < end:
        if path.exists() and path.read_text().count("\n") > rows:
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} never had {rows} rows")
