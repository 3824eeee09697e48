"""Loader workers that cannot send a batch, raise, die or take long: the run ends, and
says why."""

import os
import pickle
import re
import signal
import subprocess
import time
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate, get_worker_info

from seedbed import record
from seedbed.errors import InputError
from seedbed.pipeline.positions import Position, Shuffled
from seedbed.pipeline.source import Source
from seedbed.pipeline.workers import _Sent
from tests import tiny
from tests.data.loading import loaded
from tests.end_to_end.live import begin, interrupted, rows, until
from tests.running import QUICK, command, refusal
from tests.tiny.data import Noisy

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
WAITING = "waiting"  # a file in the run folder


def test_a_data_set_that_is_sent_stays_where_it_is() -> None:
    """A NumPy view of its tensors, such as a sampler's, has the same memory afterwards.
    Negative control: PyTorch's pickler moves them to shared memory."""
    data = TensorDataset(torch.arange(8.0), torch.arange(8))
    before = [tensor.data_ptr() for tensor in data.tensors]
    _seed, content = _Sent(Source(data, "train", 0)).__getstate__()
    assert [tensor.data_ptr() for tensor in data.tensors] == before
    sent = pickle.loads(content).dataset.tensors
    assert all(map(torch.equal, sent, data.tensors))
    ForkingPickler.dumps(data)
    assert all(tensor.is_shared() for tensor in data.tensors)


class Parcel:
    """A batch's inputs with a function of one process."""

    def __init__(self, points: Tensor) -> None:
        self.points = points
        self.extra = {"more": [1, lambda: points]}

    def to(self, _device: Any) -> Tensor:
        return self.points


def parcels(samples: Any) -> Any:
    points, classes = default_collate(samples)
    return Parcel(points), classes


class Failing(Noisy):
    """Noisy samples; loading one of them ends in a way that `how` names."""

    def __init__(self, samples: int, how: str, folder: str = "") -> None:
        super().__init__(samples)
        self.how = how
        self.folder = folder

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        class Local(Exception):
            """Cannot be pickled, as its class is found by no name."""

        match self.how if index == 7 else "":
            case "local":
                raise Local("sample 7 is broken")
            case "stop":
                next(iter([]))
            case "killed" if (
                get_worker_info() is not None and Path(self.folder).exists()
            ):
                os.kill(os.getpid(), signal.SIGKILL)
            case "waits" if Path(self.folder).exists():
                Path(self.folder, WAITING).touch()
                time.sleep(600)
        return super().__getitem__(index)


def words_of(how: str, folder: Path | str = "", **data: Any) -> tuple[str, ...]:
    train = {
        "_target_": f"{__name__}.Failing",
        "samples": 48,
        "how": how,
        "folder": str(folder),
    }
    changed = tiny.DATA | {"train": train, "num_workers": 2} | data
    return (*QUICK, *tiny.overrides(tiny.DENSE, changed))


def ended(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return command("train.py", f"hydra.run.dir={folder}", *words, timeout_seconds=120)


def test_a_batch_that_cannot_be_pickled_ends_the_run(tmp_path: Path) -> None:
    """In one line with the attribute. The remedy works: without loader workers, the run
    trains."""
    words = words_of("", collate=f"{__name__}.parcels")
    line = refusal(ended(tmp_path / "a", *words))
    assert re.match(
        r"data.(train|validation): expected batches that can be pickled, which", line
    )
    assert "got inputs.extra['more'][1] with " in line
    assert "set data.num_workers=0" in line
    assert ended(tmp_path / "b", *words, "data.num_workers=0").returncode == 0


@pytest.mark.parametrize(
    ("rehearses", "workers"), [("true", 1), ("false", 1), ("false", 0)], ids=str
)
@pytest.mark.parametrize(
    ("how", "last"), [("local", "sample 7 is broken"), ("stop", "StopIteration")]
)
def test_an_exception_of_a_sample_is_shown(
    how: str, last: str, rehearses: str, workers: int, tmp_path: Path
) -> None:
    """With the traceback to its line, though it is no class that a loader worker can
    send.

    StopIteration is no end of the data.
    """
    words = (
        *words_of(how),
        f"trainer.rehearse_resume={rehearses}",
        f"data.num_workers={workers}",
    )
    done = ended(tmp_path / "run", *words)
    assert done.returncode == 1, done.stderr
    assert last in done.stderr
    assert f'{Path(__file__).name}", line ' in done.stderr
    assert record.read_summary(tmp_path / "run")["status"] == "failed"


def test_a_loader_worker_that_is_killed_is_named(tmp_path: Path) -> None:
    """In one line about memory, not by the line where the training process was."""
    words = words_of("killed", tmp_path)
    done = ended(tmp_path / "run", *words)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    expected = (
        "error: data.num_workers: expected loader workers that live as long as the run,"
        " got "
    )
    assert line.startswith(expected)
    # PyTorch notices the signal or, beside other work, only that the process is gone.
    assert "memory ran out" in line
    assert "; lower data.num_workers" in line


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 0])
def test_a_run_stops_while_it_waits_for_a_batch(workers: int, tmp_path: Path) -> None:
    """On the first signal, with a checkpoint after the last step."""
    folder = tmp_path / "run"
    # Only training reads the sample that blocks.
    alone = ("trainer.rehearse_resume=false", "data.compare_splits=false")
    words = (*words_of("waits", folder, num_workers=workers), *alone)
    process = begin("train.py", f"hydra.run.dir={folder}", *words)
    until((folder / WAITING).exists, process)
    time.sleep(3)  # for the steps before
    interrupted(process, signal.SIGTERM, folder)
    steps = record.read_summary(folder)["steps"]
    assert steps == rows(folder) < 6
    assert (folder / "checkpoints" / "last.pt").exists()


def test_a_batch_that_cannot_be_unpickled_is_refused() -> None:
    class Source_(Source):
        def __getitem__(self, position: Position) -> Any:
            return Unreadable("a", "b")

    with pytest.raises(
        InputError, match=r"^data\.num_workers: expected batches that can be unp"
    ):
        loaded(Source_(Noisy(24), "train", 0), Shuffled(24, 4, 0), 2, 1)


class Unreadable(Exception):
    """Pickled without the second argument of its constructor."""

    def __init__(self, one: str, _other: str) -> None:
        super().__init__(one)
