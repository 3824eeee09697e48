"""Loader workers that cannot send a batch, raise, die or take long: the run ends, and
says why."""

import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    TensorDataset,
    default_collate,
    get_worker_info,
)

from seedbed import record
from seedbed.errors import InputError, LoaderWorkerDied
from seedbed.loading import seeded_loader
from seedbed.pipeline import deaths
from seedbed.pipeline.positions import Position, Shuffled
from seedbed.pipeline.source import Batch, Source
from seedbed.pipeline.workers import Loading, _Sent, load
from tests import tiny
from tests.data.loading import PRESET, loaded
from tests.end_to_end.live import begin, interrupted, rows, until
from tests.running import QUICK, command, refusal
from tests.tiny.data import Noisy

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
WAITING = "waiting"  # a file in the run folder
# of a run that is stopped: nothing else reads the sample in which it is
ONLY_TRAINING = ("trainer.rehearse_resume=false", "data.compare_splits=false")
LOST = (
    "data.num_workers: expected loader workers that live as long as the run, got one"
    " that {}lower data.num_workers, data.prefetch_factor or data.batch_size"
)
DEATH = LOST.format("was killed by SIGKILL, perhaps because memory ran out; ")
EXIT = LOST.format(
    "exited with status 3; look for what it printed, set data.num_workers=0, or "
)


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
            case "exits" if Path(self.folder).exists():
                sys.exit(0)
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
    assert done.returncode == 1, done.stderr
    assert done.stderr == f"error: {DEATH}\n"


def test_evaluating_says_that_a_loader_worker_was_killed(tmp_path: Path) -> None:
    """In one line, too, with status 1: the request was valid."""
    words = words_of("killed", tmp_path / "go", test=None)
    assert ended(tmp_path / "run", *words).returncode == 0
    (tmp_path / "go").touch()
    folder = str(tmp_path / "run")
    done = command("scripts/evaluate.py", folder, "--split", "train")
    assert done.returncode == 1, done.stderr
    assert done.stderr == f"error: {DEATH}\n"


def test_evaluating_fails_if_code_calls_exit(tmp_path: Path) -> None:
    """With a traceback to its line: a script would go on without an evaluation."""
    words = words_of("exits", tmp_path / "go", test=None, num_workers=0)
    assert ended(tmp_path / "run", *words).returncode == 0
    (tmp_path / "go").touch()
    folder = str(tmp_path / "run")
    done = command("scripts/evaluate.py", folder, "--split", "train", "--json")
    assert done.returncode == 1, done.stderr
    assert "sys.exit(0)" in done.stderr
    assert "SystemExit: 0" in done.stdout


class Ending(Noisy):
    """Noisy samples; once a file exists, the loader worker that loads sample 7 ends."""

    def __init__(self, samples: int, how: str, when: Path) -> None:
        super().__init__(samples)
        self.how = how
        self.when = when

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if index == 7:
            while not self.when.exists():
                time.sleep(0.01)
            if self.how == "exits":
                os._exit(3)
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def disturbs(seconds: float) -> bool:
    """Return whether a RuntimeError is raised in other code in the next seconds."""
    end = time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            time.sleep(0.01)
    except RuntimeError:
        return True
    return False


PLACES = [Position(0, np.arange(4 * n, 4 * n + 4)) for n in range(3)]


def begin_to_load(how: str, method: str, folder: Path) -> Iterator[Batch]:
    """Load until a loader worker has sent batch 0; let another one end in batch 1."""
    source = Source(Ending(12, how, folder / "go"), "train", 0)
    batches = load(source, PLACES, Loading(2, start_method=method), PRESET)
    next(batches)
    (folder / "go").touch()
    return batches


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize(
    ("how", "death"), [("killed", DEATH), ("exits", EXIT)], ids=["killed", "exits"]
)
def test_a_death_is_raised_where_a_batch_is_awaited(
    how: str, death: str, method: str, tmp_path: Path
) -> None:
    """Not in code that a step runs, which may handle RuntimeErrors of its own."""
    batches = begin_to_load(how, method, tmp_path)
    assert not disturbs(seconds=2)
    with pytest.raises(LoaderWorkerDied) as raised:
        list(batches)
    assert str(raised.value) == death


def test_a_death_is_raised_while_a_batch_is_awaited(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Negative control of the test above: what PyTorch's handler would do anywhere."""
    batches = begin_to_load("killed", "fork", tmp_path)
    monkeypatch.setattr(deaths._handler, "raises", True)
    assert disturbs(seconds=60)
    with pytest.raises(LoaderWorkerDied):
        list(batches)


def test_a_death_is_found_although_other_code_took_its_status(tmp_path: Path) -> None:
    """Such as a callback that waits for any child process."""
    batches = begin_to_load("killed", "fork", tmp_path)
    assert not disturbs(seconds=2)
    for pid in deaths._handler.pids:
        with suppress(ChildProcessError):
            os.waitpid(int(pid or 0), os.WNOHANG)
    with pytest.raises(LoaderWorkerDied, match="got one that ended; look for what"):
        list(batches)


def test_deaths_in_other_loaders_are_left_to_pytorch(tmp_path: Path) -> None:
    list(load(Source(Noisy(12), "train", 0), PLACES, Loading(1), PRESET))
    dataset = Ending(12, "killed", tmp_path / "go")
    batches = iter(DataLoader(dataset, batch_size=4, num_workers=1))
    next(batches)
    (tmp_path / "go").touch()
    assert disturbs(seconds=60)


def test_a_death_is_raised_where_a_loop_of_ones_own_awaits_a_batch(
    tmp_path: Path,
) -> None:
    loader = seeded_loader(Ending(12, "killed", tmp_path / "go"), 4, 0, workers=2)
    assert 7 not in loader.ids(1)
    batches = iter(loader)
    next(batches)
    (tmp_path / "go").touch()
    assert not disturbs(seconds=2)
    with pytest.raises(
        LoaderWorkerDied, match=r"^workers: .*; lower workers, prefetch"
    ):
        list(batches)


class Handling:
    """Lets a loader worker die while this is unpickled, and handles what is raised."""

    def __init__(self, go: Path) -> None:
        self.go = go

    def __reduce__(self) -> Any:
        return let_a_worker_die, (self.go,)


def let_a_worker_die(go: Path) -> bool:
    go.touch()
    return disturbs(seconds=2)


def test_what_unpickles_a_batch_cannot_handle_a_death(tmp_path: Path) -> None:
    class Source_(Source):
        def __getitem__(self, position: Position) -> Any:
            if position.ids[0]:
                return super().__getitem__(position)
            return Handling(tmp_path / "go")

    source = Source_(Ending(12, "killed", tmp_path / "go"), "train", 0)
    with pytest.raises(LoaderWorkerDied) as raised:
        next(load(source, PLACES, Loading(2), PRESET))
    assert str(raised.value) == DEATH


@pytest.mark.long
@pytest.mark.parametrize("workers", [1, 0])
def test_a_run_stops_while_it_waits_for_a_batch(workers: int, tmp_path: Path) -> None:
    """On the first signal, with a checkpoint after the last step."""
    folder = tmp_path / "run"
    words = (*words_of("waits", folder, num_workers=workers), *ONLY_TRAINING)
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
