"""Bad input from the shell: one clear line, exit status 2, nothing half-written."""

import os
import pty
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import train as train_module

from seedbed import launch, record
from seedbed.errors import exit_status
from seedbed.record import source
from seedbed.training import checkpoint
from tests import tiny
from tests.running import QUICK, ROOT, command, refusal, train, trained


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("trainer.max_epoch=3", "did you mean trainer.max_epochs"),
        ("sed=1", "did you mean seed"),
        ("data=mnst", "did you mean data=mnist"),
        ("model=lstn", "did you mean model=lstm"),
        ("modle=cnn", "did you mean model"),
        ("seed=1,2", "seed"),
        ("seed=[", "overrides"),
        ("seed=-1", "seed: expected an integer from 0 to 9223372036854775807 or null, got -1"),
        ("data.batch_size=0", "data.batch_size: expected an integer >= 1, got 0"),
        ("model=cnn data=adding", "model: expected a model for data of kind sequence"),
    ],
)
def test_bad_overrides_are_refused(override: str, expected: str, tmp_path: Path) -> None:
    """The line names the key or the nearest one, and no run folder is left."""
    message = refusal(train(tmp_path / "run", *override.split()))
    assert expected in message
    assert not (tmp_path / "run").exists()


STREAMS = "tests.data.test_streams"
STREAMED = (
    *(f"data.train._target_={STREAMS}.Features", "data.train.samples=80", "data.num_workers=2"),
    *("+data.streams=4", "+data.samples_per_epoch=96", "trainer.max_steps=20"),
)


def test_a_stream_that_ends_too_early_is_refused(tmp_path: Path) -> None:
    """In a loader worker; tests/engine/worker/test_refusals.py has more."""
    message = refusal(train(tmp_path / "run", *tiny.OVERRIDES, *QUICK, *STREAMED))
    assert message == (
        "data.train: expected a sample at position 20 of stream 0 of 4 in each epoch, got the "
        "end of Features; lower data.samples_per_epoch (96), or cut the data set by "
        "get_worker_info() into 4 equal streams"
    )
    assert record.read_summary(tmp_path / "run")["steps"] == 8


@pytest.fixture
def train_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return a way to call train.py in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # train.py sets it; here it is unset again

    def call(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["train.py", f"--config-path={ROOT / 'configs'}", *words])
        return exit_status(train_module.main)

    return call


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("model.classes=2", "model.classes: expected a known key, got a new one; did you mean"),
        ("model.classes=2", "+model.classes=2 adds it"),
        ("model.hidden_size=8", "got one that this configuration lacks; +model.hidden_size=8 adds"),
        ("optimizer.foo=3", "or +optimizer.foo=3 adds it"),
        ("trainer.accumulate_grad_batches=4", "got a new one; see `python train.py --cfg job`"),
        ("trainer.max_epoch=3", "got a new one; did you mean trainer.max_epochs"),
        ("lr=0.1", "lr: expected a known key, got a new one; did you mean optimizer.lr"),
        (
            "model=vgg",
            "model: expected one of cnn, dense, gpt, lstm, rnn, got vgg; see configs/model/",
        ),
        ("~seed", "seed: expected an integer from 0 to 9223372036854775807 or null, got nothing"),
        ("~data", "data: expected the keys name (text), batch_size (an integer >= 1), "),
        ("~data", "got none of these; do not delete them by ~data"),
        ("~data.train", "data.train._target_: expected the dotted name of a class, got nothing; "),
        ("~data.train", "do not delete it by ~data.train"),
        ("~seed=3", "seed: expected the value that it has, got another to delete (The value"),
        ("~determinism determinism.threads=1", "got one that this configuration lacks; leave its"),
        ("+seed=1", "seed: expected a new key after +, got one that is there; write seed=1"),
        ("+model=cnn", "model: expected one option of the group, got two; write model=OPTION"),
        ("model=cnn,lstm", "model: expected one value, got cnn,lstm; add --multirun"),
        ("hydra.run.dir=null", "hydra.run.dir: expected a configuration that Hydra can compose,"),
        ("hydra.job.chdir=abc", "chdir=abc (Value 'abc' is not a valid bool (type str))"),
        ("hydra.verbose=5", "overrides: expected a configuration that Hydra can compose, got "),
        ("--resolve", "The --resolve flag can only be used in conjunction with --cfg"),
        ("--config-dir=/nonexistent", "--config-dir: expected a folder, got /nonexistent, where"),
        ("=1", "overrides: expected Hydra's key=value syntax, got =1; write a key before the ="),
        ("hydra=null", "hydra: expected an option of the group, got hydra=null; see `python"),
        ("hydra/launcher=null", "expected an option of the group, got hydra/launcher=null; see `"),
        ("seed 0", "expected Hydra's key=value syntax, got seed without =; write key=value"),
        (
            "determinism.env.PYTHONHASHSEED=abc",
            "determinism.env.PYTHONHASHSEED: expected an ",
        ),
        ("seed=[", "got seed=[; quote values with special characters"),
    ],
)
def test_what_hydra_cannot_compose_is_refused_in_one_truthful_line(
    words: str,
    expected: str,
    train_here: Callable[..., int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each mistake has its own advice; to quote values is the advice for one of them alone."""
    with pytest.raises(SystemExit) as ended:
        sys.exit(train_here(*words.split()))
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert ": expected " in line
    assert ", got " in line
    assert expected in line
    assert ("quote values" in line) == (words == "seed=[")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_the_file_that_lacks_keys_is_named_with_all_of_them(
    train_here: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Whether Hydra misses one of them for the run folder's name, or the check does."""
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    monkeypatch.setattr(source, "configs", lambda: tmp_path / "configs")
    (tmp_path / "configs/data/houses.yaml").write_text("{outputs: 3, input_shape: [1]}")
    (tmp_path / "configs/model/mixer.yaml").write_text("_target_: torch.nn.Identity\n")
    where = f"--config-path={tmp_path / 'configs'}"
    for words in (), (f"hydra.run.dir={tmp_path / 'run'}",):
        with pytest.raises(SystemExit) as ended:
            sys.exit(train_here(where, "data=houses", *words))
        assert ended.value.code == 2
        assert capsys.readouterr().err == (
            "error: data: expected the keys name (text), batch_size (an integer >= 1), "
            "train._target_ (the dotted name of a class), validation._target_ (the dotted name of "
            "a class), task (a task for method=supervised, such as {name: classification}), got "
            "none of these; add them to configs/data/houses.yaml\n"
        )
        with pytest.raises(SystemExit):
            sys.exit(train_here(where, "model=mixer", *words))
        assert capsys.readouterr().err == (
            "error: model.name: expected text, got nothing; add it to configs/model/mixer.yaml\n"
        )


def test_a_configuration_that_is_right_is_started(
    train_here: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the same way of calling train.py gets to the training process."""
    started: list[Path] = []

    def start(_config: object, folder: Path) -> int:
        started.append(folder)
        return 0

    monkeypatch.setattr(launch, "start", start)
    monkeypatch.setattr(launch, "objective", lambda folder: 0.0)
    assert train_here(f"hydra.run.dir={tmp_path / 'run'}") == 0
    assert started == [tmp_path / "run"]


def test_a_yaml_file_that_is_not_yaml_is_named(tmp_path: Path) -> None:
    """The line names the file and the place."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "broken.yaml").write_text("a: [1, 2\nb: }")
    done = train(tmp_path / "run", "--config-dir", str(tmp_path), "experiment=broken")
    message = refusal(done)
    assert "broken.yaml, line 2" in message
    assert "expected YAML" in message


TF32 = {"NVIDIA_TF32_OVERRIDE": "1"}


def test_a_variable_that_overrides_tf32_stops_strict(tmp_path: Path) -> None:
    """`strict` does not go on when something else decides the precision."""
    message = refusal(train(tmp_path / "run", *QUICK, environment=TF32))
    assert message.startswith("NVIDIA_TF32_OVERRIDE: expected no such environment variable")


@pytest.mark.long
def test_a_variable_that_overrides_tf32_does_not_stop_seeded(tmp_path: Path) -> None:
    """Negative control: a preset that promises less does not mind."""
    trained(tmp_path / "run", "determinism=seeded", environment=TF32)


def test_a_folder_that_holds_a_run_is_not_used_again(quick_run: Path, tmp_path: Path) -> None:
    """A record is never overwritten."""
    run = Path(shutil.copytree(quick_run, tmp_path / "run"))

    def recorded() -> dict[Path, bytes]:
        files = (path for path in run.rglob("*") if path.is_file())
        return {path: path.read_bytes() for path in files if path.name != ".lock"}

    before = recorded()
    assert "which holds one" in refusal(train(run, *QUICK))
    assert recorded() == before


def test_a_run_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """A path below a file is no folder."""
    (tmp_path / "file").write_text("")
    assert "hydra.run.dir" in refusal(train(tmp_path / "file" / "run", *QUICK))


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    """The line says step and epoch; the last good checkpoint stays and holds finite weights."""
    done = train(
        tmp_path / "run",
        *QUICK,
        "optimizer=sgd",
        "optimizer.lr=1e18",
        "trainer.gradient_clip_norm=null",
        "trainer.checkpoint_every_steps=1",
    )
    message = refusal(done)
    assert message.startswith("loss: expected a finite number, got nan in step ")
    assert "(epoch 1)" in message
    summary = record.read_summary(tmp_path / "run")
    assert (summary["status"], summary["error"]) == ("failed", message)
    assert (tmp_path / "run" / "loss_curve.png").stat().st_size > 0
    assert all(weight.isfinite().all() for weight in weights(tmp_path / "run"))


def weights(folder: Path) -> list[torch.Tensor]:
    return list(checkpoint.load(folder / "checkpoints" / "last.pt")["model"].values())


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
    """130 after Ctrl-C and 143 after SIGTERM; the record is complete, and can go on."""
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "train.py", f"hydra.run.dir={folder}", *QUICK, "trainer.max_steps=600"],
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
    drain_in_background(master)
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


def drain_in_background(descriptor: int) -> None:
    import threading

    def drain() -> None:
        try:
            while os.read(descriptor, 1024):
                pass
        except OSError:  # the terminal's other end is closed
            pass

    threading.Thread(target=drain, daemon=True).start()


def wait_for_rows(path: Path, rows: int, timeout_seconds: float = 90) -> None:
    end = time.monotonic() + timeout_seconds
    while time.monotonic() < end:
        if path.exists() and path.read_text().count("\n") > rows:
            return
        time.sleep(0.02)
    raise AssertionError(f"{path} never had {rows} rows")


def test_a_copy_of_a_run_is_a_run(quick_run: Path, tmp_path: Path) -> None:
    """A record does not depend on where it lies."""
    copy = Path(shutil.copytree(quick_run, tmp_path / "copy"))
    assert record.read_summary(copy) == record.read_summary(quick_run)
