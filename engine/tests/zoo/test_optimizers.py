"""Optimizers of other libraries go on from a kill as if it had not been."""

import signal
from pathlib import Path

import pytest

from seedbed import record
from tests import tiny
from tests.end_to_end.test_moments import BASE, at
from tests.running import command, refusal, train
from tests.tiny import replaced
from tests.ways import differences

pytestmark = pytest.mark.zoo
OF_TIMM = ("lion.Lion", "adan.Adan", "adopt.Adopt", "kron.Kron", "mars.Mars")
OF_TIMM = (*OF_TIMM, "lamb.Lamb", "muon.Muon", "madgrad.MADGRAD", "laprop.LaProp")
OF_HEAVYBALL = ("Muon", "SFAdamW", "AdEMAMix", "Scion", "MSAMLaProp")
TARGETS = (
    *(f"timm.optim.{name}" for name in OF_TIMM),
    *(f"heavyball.{name}" for name in OF_HEAVYBALL),
)


def words_of(target: str, **values: object) -> tuple[str, ...]:
    # With the resume check, which finds state that a checkpoint lacks.
    words = [each for each in BASE if each != "trainer.rehearse_resume=false"]
    return (*words, *tiny.OVERRIDES, *replaced("optimizer", target, lr=0.01, **values))


@pytest.mark.parametrize("target", TARGETS)
def test_a_run_that_is_killed_keeps_its_bits(target: str, tmp_path: Path) -> None:
    """Every step changes the weights, so that equal bits are meaningful."""
    words = words_of(target)
    done = train(tmp_path / "whole", *words)
    assert done.returncode == 0, done.stderr
    rows = record.read_fingerprints(tmp_path / "whole")
    assert len({row["weights"] for row in rows}) == len(rows) == 24
    done = train(tmp_path / "run", *words, environment=at("step", 9, tmp_path))
    assert done.returncode == 128 + signal.SIGKILL
    done = command("scripts/resume.py", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert differences(tmp_path / "whole", tmp_path / "run") == []


def test_an_optimizer_whose_state_lasts_elsewhere_is_refused(tmp_path: Path) -> None:
    """The negative control: the resume check notices what a checkpoint lacks."""
    target = "tests.run.cases.Hiding"
    assert "optimizer" in refusal(train(tmp_path / "run", *words_of(target)))
