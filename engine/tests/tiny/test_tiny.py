"""The engine's tests stand on a data set and models that train, learn and need no project."""

from pathlib import Path

import pytest

from seedbed import record
from tests import tiny
from tests.running import trained


@pytest.mark.parametrize("model", [tiny.DENSE, tiny.CONVOLUTION], ids=lambda model: model["name"])
@pytest.mark.long
def test_tiny_models_learn(model: dict[str, object], tmp_path: Path) -> None:
    """A guess is right once in three."""
    run = trained(tmp_path / "run", *tiny.overrides(model), "trainer.max_steps=40")
    assert record.read_summary(run)["metrics"]["test_accuracy"] > 0.6
    assert "project." not in (run / "config.yaml").read_text()
