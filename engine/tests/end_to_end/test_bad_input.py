"""Bad input from the shell: one clear line, exit status 2, nothing half-written."""

import shutil
from pathlib import Path

import pytest
import torch

from seedbed import project, record
from seedbed.cli import train as train_command
from seedbed.training import checkpoint
from tests import tiny
from tests.running import QUICK, ROOT, called, refusal, train, trained

STREAMS = "tests.tiny.streams"
STREAMED = (
    *(f"data.train._target_={STREAMS}.Features", "data.train.samples=80", "data.num_workers=2"),
    *("+data.streams=4", "+data.samples_per_epoch=96", "trainer.max_steps=20"),
)
TF32 = {"NVIDIA_TF32_OVERRIDE": "1"}


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ("trainer.max_epoch=3", "did you mean trainer.max_epochs"),
        ("data=squars", "did you mean squares"),
        ("modle=cnn", "did you mean model"),
        ("seed=1,2", "seed: "),
        ("seed=[", "overrides: "),
        ("seed", "overrides: "),
        ("model=null", "overrides: "),
        ("--resolve", "overrides: "),
        ("--config-name=nothing", "nothing: "),
        ("data.batch_size=0", "data.batch_size: "),
        ("~data.train", "data.train"),
        ("+seed=1", "seed: "),
        ("hydra.run.dir=null", "hydra.run.dir: "),
        ("-m hydra.sweep.dir=", "hydra.sweep.dir: expected a folder, got an empty name"),
        ("--config-dir=/nonexistent", "/nonexistent"),
    ],
)
def test_a_bad_command_line_is_refused_in_one_line(
    overrides: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line names the key or the nearest one, and no run folder is left."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(project.PROJECT, str(ROOT))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # the command sets it; here it is unset again
    message = refusal(called(train_command.main, *overrides.split()))
    assert key in message
    assert ": expected " in message
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_yaml_file_that_is_not_yaml_is_named(tmp_path: Path) -> None:
    """The line names the file and the place; the folder that Hydra made is removed."""
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "broken.yaml").write_text("a: [1, 2\nb: }")
    done = train(tmp_path / "run", "--config-dir", str(tmp_path), "experiment=broken")
    assert "broken.yaml, line 2" in refusal(done)
    assert not (tmp_path / "run").exists()


def test_a_stream_that_ends_too_early_is_refused(tmp_path: Path) -> None:
    """What is found in a loader worker ends the run as what is found before it."""
    message = refusal(train(tmp_path / "run", *tiny.OVERRIDES, *QUICK, *STREAMED))
    assert message.startswith("data.train: expected a sample at position 20 of stream 0 of 4")
    assert record.read_summary(tmp_path / "run")["steps"] == 8


def test_a_variable_that_overrides_tf32_stops_strict(tmp_path: Path) -> None:
    """`strict` does not go on when something else decides the precision."""
    message = refusal(train(tmp_path / "run", *QUICK, environment=TF32))
    assert message.startswith("NVIDIA_TF32_OVERRIDE: expected no such environment variable")
    # Negative control: a preset that promises less does not mind.
    trained(tmp_path / "seeded", "determinism=seeded", environment=TF32)


def test_a_folder_that_holds_a_run_is_not_used_again(quick_run: Path, tmp_path: Path) -> None:
    """A record is never overwritten; a path below a file is no folder."""
    run = Path(shutil.copytree(quick_run, tmp_path / "run"))

    def recorded() -> dict[Path, bytes]:
        files = (path for path in run.rglob("*") if path.is_file())
        return {path: path.read_bytes() for path in files if path.name != ".lock"}

    before = recorded()
    assert refusal(train(run, *QUICK)).startswith("hydra.run.dir: ")
    assert "hydra.run.dir" in refusal(train(run / "config.yaml" / "run", *QUICK))
    assert recorded() == before


def test_a_loss_that_is_not_finite_stops_the_run(tmp_path: Path) -> None:
    """The line says step and epoch; the last good checkpoint stays and holds finite weights."""
    sgd = ("optimizer=sgd", "optimizer.lr=1e18", "trainer.gradient_clip_norm=null")
    run = tmp_path / "run"
    message = refusal(train(run, *QUICK, *sgd, "trainer.checkpoint_every_steps=1"))
    assert message.startswith("loss: expected a finite number, got nan in step ")
    summary = record.read_summary(run)
    assert (summary["status"], summary["error"]) == ("failed", message)
    weights: dict[str, torch.Tensor] = checkpoint.load(run / "checkpoints" / "last.pt")["model"]
    assert all(weight.isfinite().all() for weight in weights.values())
