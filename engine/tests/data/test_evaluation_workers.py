"""Loader workers of evaluations: kept from one to the next, and never out of date."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from seedbed import record
from seedbed.methods import Supervised
from seedbed.pipeline.positions import EvaluationPositions
from seedbed.pipeline.source import Batch, Source
from seedbed.pipeline.workers import Loading, Passes, load
from tests import tiny
from tests.data.loading import PRESET, hashes
from tests.end_to_end import live
from tests.run.runs import SHORT
from tests.running import command, train
from tests.tiny.data import Noisy

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
SAMPLES = 22
PLACES = EvaluationPositions(SAMPLES, 4)


class Watched(Dataset[tuple[Tensor, Tensor]]):
    """Samples that name the process that loads them, and count how many are loaded."""

    level = 0

    def __init__(self) -> None:
        self.loaded = torch.zeros(1, dtype=torch.int64).share_memory_()

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.loaded += 1
        return torch.tensor(float(self.level)), torch.tensor(os.getpid())


@pytest.fixture
def passes() -> Iterator[Callable[..., Passes]]:
    """Return a function that makes `Passes`, which are closed after the test."""
    made: list[Passes] = []

    def make(dataset: Any, workers: int = 2, **how: Any) -> Passes:
        source = Source(dataset, "validation", 0)
        made.append(Passes(source, Loading(workers, **how), PRESET))
        return made[-1]

    yield make
    for each in made:
        each.close()


def processes(batches: Iterator[Batch]) -> set[int]:
    return {int(pid) for batch in batches for pid in batch.targets}


@pytest.mark.parametrize(
    "how",
    [
        {"workers": 0},
        {"workers": 2},
        {"workers": 3, "prefetch_factor": 5},
        {"workers": 2, "persistent_workers": False},
        pytest.param({"workers": 2, "start_method": "spawn"}, marks=pytest.mark.long),
        {"workers": 2, "start_method": "forkserver"},
    ],
)
def test_each_pass_has_the_same_bits(how: dict[str, Any], passes: Any) -> None:
    """Samples draw from all generators. Negative control: those of another split."""

    def expected(split: str) -> list[int]:
        return hashes(load(Source(Noisy(SAMPLES), split, 0), PLACES, Loading(), {}))

    loader = passes(Noisy(SAMPLES), **how)
    for positions in (PLACES, PLACES[:2], PLACES):
        found = hashes(loader.load(positions))
        assert found == expected("validation")[: len(positions)]
    assert found != expected("test")


def test_loader_workers_serve_all_passes_and_load_nothing_in_between(
    passes: Any,
) -> None:
    """Negative control: `persistent_workers=false` starts new ones for each pass."""
    data = Watched()
    loader = passes(data)
    pids = [processes(loader.load(PLACES)) for _ in range(3)]
    assert pids[0] == pids[1] == pids[2]
    assert len(pids[0]) == 2
    assert int(data.loaded) == 3 * SAMPLES
    anew = passes(data, persistent_workers=False)
    assert not processes(anew.load(PLACES)) & processes(anew.load(PLACES))


def test_a_pass_that_is_not_read_to_its_end_stops_the_workers(passes: Any) -> None:
    """The next pass begins at its beginning, with new ones."""
    loader = passes(Watched())
    first = processes(loader.load(PLACES))
    batches = loader.load(PLACES)
    assert processes(islice(batches, 2)) == first
    del batches
    expected = [len(place.ids) for place in PLACES]
    again = [*loader.load(PLACES)]
    assert [len(batch.ids) for batch in again] == expected
    assert [int(batch.ids[0]) for batch in again] == [*range(0, SAMPLES, 4)]
    assert not processes(iter(again)) & first


def test_an_attribute_that_changes_between_passes_is_seen(passes: Any) -> None:
    """As it was by workers that started anew for each pass."""
    data = Watched()
    loader = passes(data)
    for level in (0, 3, 3, 1):
        data.level = level
        found = [*loader.load(PLACES)]
        assert {float(x) for batch in found for x in batch.inputs} == {float(level)}


ENDS_BETWEEN = """
import multiprocessing, os, signal, sys, torch
from seedbed.pipeline import workers
from seedbed.pipeline.positions import EvaluationPositions
from seedbed.pipeline.source import Source

if __name__ == "__main__":
    wide = torch.utils.data.TensorDataset(torch.zeros(64, 50_000), torch.arange(64))
    source = Source(wide, "validation", 0)
    passes = workers.Passes(source, workers.Loading(2), {preset!r})
    places = EvaluationPositions(64, 4)
    assert [len(list(passes.load(places))) for _ in range(2)] == [16, 16]
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    {ending}
"""


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("passes.close(); sys.exit(len(multiprocessing.active_children()))", 0),
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_no_worker_outlives_its_passes(
    ending: str, status: int, tmp_path: Path
) -> None:
    """Loader workers that wait for the next pass end with the training process."""
    script = tmp_path / "between.py"
    script.write_text(ENDS_BETWEEN.format(preset=PRESET, ending=ending))
    done = command(str(script), timeout_seconds=60)
    assert done.returncode == status, done.stderr
    workers = {int(pid) for pid in done.stdout.split()}
    assert len(workers) == 2
    deadline = time.monotonic() + 20
    while workers & {*live.processes()} and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not workers & {*live.processes()}


class Shared(Noisy):
    """Samples scaled by what all data sets of this class share, in a list."""

    scale: ClassVar[list[float]] = [1.0]

    def set_epoch_values(self, values: Mapping[str, Any]) -> None:
        self.scale[:] = [values["scale"]]

    def __getitem__(self, index: int) -> Any:
        inputs, target = super().__getitem__(index)
        return inputs * self.scale[0], target


class Scaling(Supervised):
    """Gives another scale in each epoch."""

    def epoch_values(self, model: Any, epoch: int) -> Mapping[str, Any]:
        return {"scale": 1.0 + epoch}


def test_values_for_epochs_reach_evaluations_by_loader_workers(tmp_path: Path) -> None:
    """Through what the data sets share; a strict run would refuse it.

    Negative control: without such values, the losses are others.
    """
    target = f"{__name__}.Shared"
    words = (
        *SHORT,
        *tiny.OVERRIDES,
        *(f"data.{split}._target_={target}" for split in ("train", "validation")),
        "determinism.on_nondeterministic=warn",
    )
    scaling = tiny.replaced("method", f"{__name__}.Scaling")
    losses = {}
    for name, more in {
        "here": scaling,
        "there": (*scaling, "data.num_workers=2"),
        "without": ("data.num_workers=2",),
    }.items():
        done = train(tmp_path / name, *words, *more)
        assert done.returncode == 0, done.stderr
        rows = record.read_metrics(tmp_path / name)
        losses[name] = [row["loss"] for row in rows if row["phase"] == "validation"]
    assert len(losses["here"]) == 3
    assert losses["here"] == losses["there"]
    assert losses["here"][1:] != losses["without"][1:]
