"""Third gate, restart replay: a run that is killed and resumed ends with the same bits."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from seedbed import record
from tests.golden import runs
from tests.gpu.gates import GATE, MODELS, prepared
from tests.running import ROOT

pytestmark = GATE


@pytest.mark.parametrize("model", MODELS)
def test_a_killed_and_resumed_run_has_the_same_bits(model: str, tmp_path: Path) -> None:
    """SIGKILL after a checkpoint; the run that was left alone ends with the same weights."""
    overrides = ("trainer.max_steps=400", "trainer.checkpoint_every_steps=3")
    command, environment = prepared(tmp_path / "whole", model, *overrides)
    subprocess.run(command, env=environment, capture_output=True, check=True)
    folder = tmp_path / "killed"
    command, environment = prepared(folder, model, *overrides)
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    while process.poll() is None and not (folder / "checkpoints" / "last.pt").exists():
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert 0 < len(runs.fingerprint_rows(folder)) < 400
    resume = [sys.executable, "-m", "seedbed", "resume", str(folder)]
    subprocess.run(resume, cwd=ROOT, capture_output=True, check=True)
    assert runs.first_difference(*map(runs.fingerprint_rows, (folder, tmp_path / "whole"))) == ""
    ends = [record.read_summary(run)["fingerprints"] for run in (folder, tmp_path / "whole")]
    assert ends[0] == ends[1]
