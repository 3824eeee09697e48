"""An error in a user's code ends in its traceback, and the record says that the run failed."""

import textwrap
from pathlib import Path

import pytest

from seedbed import record
from tests import tiny
from tests.running import QUICK, train, trained

BROKEN = """
    from tests.tiny import data, models

    class Constructor(models.Dense):
        def __init__(self, **arguments):
            super().__init__(**arguments)
            self.nothing

    class Forward(models.Dense):
        def forward(self, x):
            return x + missing

    class Samples(data.Noisy):
        def __getitem__(self, index):
            return {}["nothing"]
"""
PLACES = {
    "model._target_=broken.Constructor": "self.nothing",
    "model._target_=broken.Forward": "return x + missing",
    "data.train._target_=broken.Samples data.num_workers=1": 'return {}["nothing"]',
}


@pytest.mark.parametrize("override", PLACES)
def test_a_run_that_fails_in_the_users_code(override: str, tmp_path: Path) -> None:
    """Traceback, status 1, a record that says failed; mended, it runs in the same folder."""
    module, run = tmp_path / "broken.py", tmp_path / "run"
    module.write_text(textwrap.dedent(BROKEN))
    environment = {"PYTHONPATH": f"{tmp_path}:{Path(tiny.__file__).parents[2]}"}
    words = (*tiny.OVERRIDES, *QUICK, "trainer.max_steps=2")
    done = train(run, *words, *override.split(), environment=environment)
    assert done.returncode == 1
    assert PLACES[override] in done.stderr
    summary = record.read_summary(run)
    assert summary["status"] == "failed"
    assert summary["error"] in done.stderr
    assert PLACES[override] in (run / "train.log").read_text()
    trained(run, *words, environment=environment)
    assert record.read_summary(run)["status"] == "finished"
