"""Runs that resume themselves: data sets, presets, short runs, callbacks, settings."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from seedbed import record
from seedbed.worker import parts
from tests import tiny
from tests.tiny.data import Noisy
from tests.worker.runs import begun, of_method, refused, work

pytestmark = pytest.mark.usefixtures("this_process_trains")


class Tabled(Noisy):
    """Draws a table when a sample is first asked for."""

    table: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.table is None:
            self.table = torch.randn(8)
        inputs, target = super().__getitem__(index)
        return torch.as_tensor(inputs) + self.table, target


class Stream(IterableDataset[Any]):
    """Begins elsewhere at each reading, as WebDataset does that shuffles without a seed."""

    readings = itertools.count()

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[Any]:
        first = next(self.readings)
        for number in range(first, first + self.samples):
            yield torch.randn(tiny.FEATURES) + number % self.samples, number % tiny.CLASSES


TABLED = f"data.train._target_={__name__}.Tabled"
STREAM = f"data.train._target_={__name__}.Stream"


@pytest.mark.parametrize(
    "chosen",
    [(TABLED, "data.num_workers=0"), (TABLED, "data.num_workers=2"), (STREAM, "+data.streams=1")],
)
def test_a_data_set_that_reads_another_batch_is_refused(
    chosen: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever loads; negative control: unrehearsed it trains."""
    words = of_method("Tokens", *chosen)
    line = refused(tmp_path / "run", capsys, *words)
    assert line.startswith("data.train: expected the same batch "), line
    assert work(begun(tmp_path / "off", *words, "trainer.rehearse_resume=false")) == 0


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
