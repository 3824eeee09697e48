"""Batches of a custom loop depend on (seed, step), not on loader workers, resumes or
ranks."""

import itertools
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from seedbed.errors import InputError
from seedbed.loading import SeededLoader, seeded_loader
from tests.data.loading import Fetched
from tests.tiny.data import Noisy

SAMPLES = 50
BATCH = 8
PER_EPOCH = 6


class Texts(Dataset[dict[str, Any]]):
    """A data set whose samples are mappings that contain strings."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"text": f"t{index}", "x": np.random.rand(2), "y": random.random()}


def steps(loader: SeededLoader, first: int = 1, last: int = 15) -> list[Any]:
    """Return step, sample ids, batch and a draw of the model for each step of a
    loop."""
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    return [
        (step, loader.ids(step).tolist(), str(batch), float(torch.rand(1)))
        for step, batch in zip(range(first, last + 1), batches, strict=False)
    ]


@pytest.mark.parametrize(
    "dataset",
    [Noisy(SAMPLES), Texts(), Fetched(SAMPLES)],
    ids=lambda d: type(d).__name__,
)
def test_neither_workers_nor_a_resume_change_a_bit(dataset: Any) -> None:
    expected = steps(seeded_loader(dataset, BATCH, 3))
    assert len({draw for *_, draw in expected}) == 15
    assert steps(seeded_loader(dataset, BATCH, 3, workers=2)) == expected
    assert steps(seeded_loader(dataset, BATCH, 4)) != expected
    for stopped in (1, 6, 11):
        before = seeded_loader(dataset, BATCH, 3, workers=1)
        steps(before, last=stopped)
        loader = seeded_loader(dataset, BATCH, 3, workers=stopped % 2)
        loader.load_state_dict(before.state_dict())  # calls `seek`
        assert steps(loader, first=stopped + 1) == expected[stopped:]


def test_processes_share_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks together load the batches of a single process; each draws its own
    random numbers.

    The ranks are set after the loaders are built, as by trainers of other libraries.
    """
    alone, *loaders = (seeded_loader(Noisy(SAMPLES), BATCH, 0) for _ in range(3))
    whole = [(alone.ids(step), points) for step, (points, _) in enumerate(alone, 1)]
    monkeypatch.setenv("WORLD_SIZE", "2")
    parts = []
    draws = []
    for rank, loader in enumerate(loaders):
        monkeypatch.setenv("RANK", str(rank))
        parts.append(
            [(loader.ids(step), points) for step, (points, _) in enumerate(loader, 1)]
        )
        next(iter(loader))
        draws.append(float(torch.rand(1)))
    for pairs, step in zip(zip(*parts, strict=True), whole, strict=True):
        for kind, of_all in enumerate(step):
            assert torch.equal(torch.cat([pair[kind] for pair in pairs]), of_all)
    assert draws[0] != draws[1]
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(
        InputError, match="batch_size: expected equal slices for 3 processes"
    ):
        next(iter(loader))


def test_what_cannot_be_is_refused() -> None:
    """Steps before the first would select other batches; seed and batch size have
    ranges."""
    loader = seeded_loader(Noisy(SAMPLES), BATCH, 0)
    for message, late in {
        "step: expected an integer >= 0, got -3": lambda: loader.seek(-3),
        "step: expected an integer >= 1": lambda: loader.ids(0),
        "seed: expected an integer from 0": lambda: seeded_loader(
            Noisy(SAMPLES), BATCH, -1
        ),
        "batch_size: expected from 1 to 50": lambda: seeded_loader(
            Noisy(SAMPLES), 51, 0
        ),
    }.items():
        with pytest.raises(InputError, match=message):
            late()


def test_an_epoch_left_early_leaves_no_gap_in_the_steps() -> None:
    """After a `break`, the next batch is that of the next step, as `enumerate`
    counts."""
    expected = steps(seeded_loader(Noisy(SAMPLES), BATCH, 3))
    loader = seeded_loader(Noisy(SAMPLES), BATCH, 3)
    found = []
    for stop in (2, 5, 15, 15):
        for step, batch in enumerate(loader, loader.step + 1):
            found.append(
                (step, loader.ids(step).tolist(), str(batch), float(torch.rand(1)))
            )
            assert loader.step == step
            if step == stop:
                break
    assert found == expected[: len(found)]
    assert len(found) > PER_EPOCH


def test_an_epoch_begins_where_a_trainer_says() -> None:
    """`set_epoch` counts epochs from 0; right after `seek`, it has no effect."""
    loader = seeded_loader(Noisy(SAMPLES), BATCH, 3)
    loader.seek(PER_EPOCH + 2)
    for epoch, first in ((0, PER_EPOCH + 3), (0, 1), (3, 3 * PER_EPOCH + 1)):
        loader.set_epoch(epoch)
        next(iter(loader))
        assert loader.step == first
