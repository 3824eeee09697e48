"""Runs that resume themselves: data sets, presets, short runs, callbacks, settings."""

from pathlib import Path
from typing import Any

import pytest
import torch

from seedbed import record
from seedbed.worker import parts
from tests.tiny.data import Noisy
from tests.worker.runs import begun, of_method, work

pytestmark = pytest.mark.usefixtures("this_process_trains")


class Tabled(Noisy):
    """Draws a table when a sample is first asked for."""

    table: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.table is None:
            self.table = torch.randn(8)
        inputs, target = super().__getitem__(index)
        return torch.as_tensor(inputs) + self.table, target


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_that_draws_at_first_access_is_refused(
    workers: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever loads; negative control: unrehearsed it trains."""
    chosen = (f"data.train._target_={__name__}.Tabled", f"data.num_workers={workers}")
    assert work(begun(tmp_path / "run", *of_method("Tokens", *chosen))) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: data.train: expected the same batch in step 2"), error
    assert error.count("\n") == 1
    off = "trainer.rehearse_resume=false"
    assert work(begun(tmp_path / "off", *of_method("Tokens", *chosen, off))) == 0


@pytest.mark.parametrize(
    ("words", "count"),
    [((), 1), (("trainer.max_steps=1",), 0), (("determinism=seeded",), 0),
     (("trainer.replay_every_steps=5",), 3)],
)  # fmt: skip
def test_a_run_is_built_anew_as_often_as_it_is_rehearsed(
    words: tuple[str, ...], count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once; not for one step, nor where no bits are promised, and more often if it is asked."""
    steps: list[int] = []
    rebuilt = parts.Parts.rebuilt

    def noted(self: parts.Parts, step: int) -> Any:
        steps.append(step)
        return rebuilt(self, step)

    monkeypatch.setattr(parts.Parts, "rebuilt", noted)
    assert work(begun(tmp_path / "run", *of_method("Tokens", *words))) == 0
    assert steps == [2, 5, 10][:count]
    assert record.read_summary(tmp_path / "run")["status"] == "finished"
