"""Third gate, restart replay: a run that is killed and resumed ends with the same bits."""

import subprocess
from pathlib import Path

import pytest

from seedbed import launch
from tests import ways
from tests.end_to_end.live import until
from tests.golden import runs
from tests.gpu.gates import GATE, MODELS, configuration
from tests.running import command

pytestmark = GATE


@pytest.mark.parametrize("model", MODELS)
def test_a_killed_and_resumed_run_has_the_same_bits(model: str, tmp_path: Path) -> None:
    """SIGKILL after a checkpoint; the run that was left alone ends with the same weights."""
    settings = configuration(model, "trainer.max_steps=400", "trainer.checkpoint_every_steps=3")
    runs.train(tmp_path, {"whole": settings})
    folder = tmp_path / "killed"
    launch.create_run_folder(folder, settings)
    process = subprocess.Popen(
        launch.worker_command(folder),
        env=launch.training_environment(settings),
        stdout=subprocess.DEVNULL,
    )
    until((folder / "checkpoints" / "last.pt").exists, process)
    process.kill()
    process.wait()
    assert 0 < len(runs.fingerprint_rows(folder)) < 400
    assert command("scripts/resume.py", str(folder)).returncode == 0
    assert ways.differences(tmp_path / "whole", folder) == []
