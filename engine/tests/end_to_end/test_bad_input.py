"""Bad input from the shell: one clear line, exit status 2, nothing half-written."""

from pathlib import Path

import pytest

from seedbed import project
from seedbed.cli import train as train_command
from tests.running import ROOT, called, refusal


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ("trainer.max_epoch=3", "trainer.max_epoch: expected a known key or option, got another"),
        ("data=squars", "did you mean squares"),
        ("modle=cnn", "did you mean model"),
        ("+sed=1", "did you mean seed"),
        ("+lr=1", "did you mean optimizer.lr"),
        ("optimizer=lion", "Available options in 'optimizer': adamw sgd"),
        ("model.classes=2", "To append to your config use +model.classes=2"),
        ("data=adding", "which takes image"),
        ("seed=1,2", "seed: "),
        ("seed=[", "overrides: "),
        ("model=null", "overrides: "),
        ("--resolve", "overrides: "),
        ("--config-name=nothing", "nothing: "),
        ("data.batch_size=0", "data.batch_size: "),
        ("~data.train", "data.train"),
        ("+seed=1", "seed: "),
        ("hydra.run.dir=null", "hydra.run.dir"),
        ("-m hydra.sweep.dir=/proc/x", "hydra.sweep.dir: expected a folder that can be written"),
        ("--config-dir=/nonexistent", "/nonexistent"),
        ("--config-dir=own experiment=broken", "broken.yaml, line 2"),
    ],
)
def test_a_bad_command_line_is_refused_in_one_line(
    overrides: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line names the key or the nearest one, or file and line; no run folder is left."""
    broken = tmp_path / "own" / "experiment" / "broken.yaml"
    broken.parent.mkdir(parents=True)
    broken.write_text("a: [1, 2\nb: }")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(project.PROJECT, str(ROOT))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # the command sets it; here it is unset again
    message = refusal(called(train_command.main, *overrides.split()))
    assert key in message
    assert ": expected " in message
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [broken]
    assert not list(tmp_path.glob("runs/*"))
