"""A step of a method replayed, with everything noted."""

from pathlib import Path

import pytest

from seedbed import config, record
from seedbed.explain import replay
from tests.worker.runs import of_method, trained

pytestmark = pytest.mark.usefixtures("this_process_trains")


@pytest.mark.parametrize("method", ["WassersteinGAN", "FineTuning"])
def test_a_step_of_several_updates_is_replayed_to_the_bit(method: str, tmp_path: Path) -> None:
    """From the checkpoint before it; the state of each optimizer is named."""
    run = trained(tmp_path / "run", *of_method(method, "trainer.max_steps=5"))
    settings = config.check(record.read_config(run))
    trace = replay.replay(settings, 5, run / "checkpoints")
    recorded = record.read_fingerprints(run)
    for row in trace.rows:
        assert row == {k: v for k, v in recorded[int(row["step"]) - 1].items() if v}
    names = {event.operation for event in trace.events}
    inner = "critic.0.weight" if method == "WassersteinGAN" else "0.weight"
    assert f"exp_avg of {inner}" in names
    assert {event.place.phase for event in trace.events} >= {"backward", "update"}
