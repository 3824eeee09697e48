"""Batches of any type depend only on their position, not on the process that loads
them."""

import re
import signal
import threading
import time
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence, pad_sequence
from torch.utils.data import Dataset

from seedbed import fingerprint, record, rng
from seedbed.errors import InputError
from seedbed.pipeline.positions import Position, Shuffled, positions
from seedbed.pipeline.source import Batch, Source
from seedbed.pipeline.tensors import contents, move, tensors_of
from seedbed.pipeline.workers import Loading, load
from seedbed.training.shards import Shards
from seedbed.training.stages import Hashed
from tests import tiny
from tests.data.loading import PRESET, Fetched, hashes, loaded
from tests.end_to_end.live import processes
from tests.running import command, trained
from tests.tiny.data import Noisy

pytestmark = [  # there may be more loader workers than cores
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]

# two epochs and a step
SAMPLES = 24
BATCH_SIZE = 4
STEPS = 13
ORDER = Shuffled(SAMPLES, BATCH_SIZE, 0)
ANEW = {"workers": 5, "persistent_workers": False, "prefetch_factor": 7}
# Loader workers of the last two import everything anew, which takes seconds.
WAYS: list[tuple[str, dict[str, Any]]] = [
    *(("whole batches", {"workers": 2}), ("a user's", {"workers": 2})),
    *(("whole batches", ANEW), ("a user's with a collate function", ANEW)),
    ("a user's with a collate function", {"workers": 2, "start_method": "spawn"}),
    ("whole batches", {"workers": 2, "start_method": "forkserver"}),
]


class Circumstances(Noisy):
    """Samples that report threads, precision, default dtype and signal handlers while
    loading."""

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        found = [
            torch.get_num_threads() == 1,
            torch.get_float32_matmul_precision() == "high",
            torch.get_default_dtype() == torch.float64,
            signal.getsignal(signal.SIGTERM) is signal.SIG_IGN,
            signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
        ]
        return torch.tensor(found), torch.tensor(index)


class OddTensors(Noisy):
    """Batches of tensors with many layouts and dtypes, nested in dicts, lists and
    tuples."""

    def fetch(self, ids: Any, _draws: Any) -> tuple[Any, Tensor]:
        image = torch.rand(4, 1, 6, 5)
        kinds = {
            "one channel, last": image.as_strided(image.shape, (30, 1, 5, 1)),
            "three channels, last": (
                torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)
            ),
            "a view": torch.rand(3, 4).t()[::2],
            "empty": torch.rand(0, 3),
            "half": torch.rand(3).to(torch.bfloat16),
            "NaN": (
                torch.tensor([0x7FC00001, -0x80000000], dtype=torch.int32).view(
                    torch.float32
                )
            ),
            "large": torch.rand(2**18 + 1),
        }
        return (kinds, [torch.rand(()), "text"]), torch.from_numpy(ids)


def noisy_collate(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    inputs, targets = zip(*samples, strict=True)
    return torch.stack(inputs) + torch.rand(()), torch.tensor(targets)


def unstacked(
    samples: list[tuple[Tensor, Tensor]],
) -> tuple[list[Tensor], dict[str, Any]]:
    """Collate samples into lists of their own tensors, as for lengths that cannot be
    stacked."""
    return [x for x, _ in samples], {"classes": [target for _, target in samples]}


SOURCES = {
    "whole batches": Source(Fetched(SAMPLES), "train", seed=0),
    "a user's": Source(Noisy(SAMPLES), "train", seed=0),
    "a user's with a collate function": Source(
        Noisy(SAMPLES), "train", 0, noisy_collate
    ),
}


class Uneven(Dataset[Any]):
    """Sequences of different lengths."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.randn(1 + index % 4, 3), torch.randn(2)


@dataclass(frozen=True, slots=True)
class Padded:
    """A possible return type of a user-defined collate function."""

    values: Tensor
    lengths: tuple[int, ...]
    mask: Tensor


META = torch.device("meta")


class Encoding(UserDict[str, Any]):
    """A mapping with a method `to`, such as tokenizers return."""

    def to(self, device: torch.device) -> "Encoding":
        return Encoding({name: tensor.to(device) for name, tensor in self.items()})


def padded(sequences: list[Tensor]) -> Padded:
    values = pad_sequence(sequences, batch_first=True)
    return Padded(values, tuple(map(len, sequences)), values != 0)


# Functions that collate the inputs of a batch, and the number of tensors in the result.
MAKES: dict[str, tuple[Callable[[list[Tensor]], Any], int]] = {
    "packed sequence": (lambda s: pack_sequence(s, enforce_sorted=False), 4),
    "dataclass": (padded, 2),
    "mapping with to": (lambda s: Encoding(ids=padded(s).values), 1),
    "jagged": (lambda s: torch.nested.nested_tensor(s, layout=torch.jagged), 2),
}


def test_each_epoch_is_a_permutation_of_its_own() -> None:
    """All batches have the same size. Negative control: another seed has another
    order."""

    def epoch(number: int, seed: int = 0) -> list[int]:
        places = [Shuffled(23, BATCH_SIZE, seed).position(number, i) for i in range(5)]
        assert {len(place.ids) for place in places} == {BATCH_SIZE}
        return np.concatenate([place.ids for place in places]).tolist()

    assert epoch(0) == rng.permutation(rng.key(0, "order", 0), 23)[:20].tolist()
    assert len({*map(tuple, (epoch(0), epoch(1), epoch(0, seed=1)))}) == 3


@pytest.mark.parametrize(("data", "way"), WAYS)
def test_the_way_of_loading_changes_no_bit(data: str, way: dict[str, Any]) -> None:
    """Number, start method and lifetime of loader workers, and prefetching, change no
    batch."""
    here, there = (loaded(SOURCES[data], ORDER, STEPS, **how) for how in ({}, way))
    assert hashes(there) == hashes(here)


def batches(make: str, workers: int = 0) -> list[Batch]:
    def collate(samples: list[tuple[Tensor, Tensor]]) -> tuple[Any, Tensor]:
        sequences, targets = zip(*samples, strict=True)
        return MAKES[make][0](list(sequences)), torch.stack(targets)

    return loaded(Source(Uneven(), "train", 0, collate), ORDER, STEPS, workers)


@pytest.mark.parametrize("make", MAKES)
def test_no_worker_changes_a_bit_and_each_tensor_is_seen(make: str) -> None:
    """Loader workers keep bits and types; a changed value in any tensor changes the
    fingerprint."""
    here = batches(make)
    there = batches(make, 2)
    assert hashes(there) == hashes(here)
    assert type(there[0].inputs) is type(here[0].inputs)
    inputs = here[0].inputs
    assert len(tensors_of(inputs)) == MAKES[make][1]
    for tensor in tensors_of(inputs):
        before = hashes([inputs])
        flat = tensor.detach().view(-1)
        flat[0] = not flat[0] if tensor.dtype is torch.bool else flat[0] + 1
        assert hashes([inputs]) != before


def test_a_batch_moves_by_its_own_method() -> None:
    """Objects with a method `to` are moved by it; in all others, every tensor is moved.

    A packed sequence leaves its batch sizes on the CPU.
    """
    sequence = batches("packed sequence")[0].inputs
    moved = move(
        {"a": [sequence], "b": torch.zeros(1)}, torch.device("meta"), torch.clone
    )
    assert (moved["a"][0].data.is_meta, moved["b"].is_meta) == (True, True)
    assert moved["a"][0].batch_sizes.is_cpu
    assert torch.equal(moved["a"][0].batch_sizes, sequence.batch_sizes)
    encoding = move(
        batches("mapping with to")[0].inputs, torch.device("meta"), torch.clone
    )
    assert isinstance(encoding, Encoding)
    assert encoding["ids"].is_meta
    inputs = batches("dataclass")[0].inputs
    assert move(inputs, torch.device("meta"), torch.clone).mask.is_meta


def test_no_tensor_of_an_object_is_overlooked() -> None:
    """Objects of a class that cannot be pickled, with attributes, slots, items and
    cycles, have the tensors that a copy has, each as often as it occurs; one that
    cannot be copied is refused by the name of its class."""

    class Local(list[Any]):
        __slots__ = ("__dict__", "slot")

        def __init__(self) -> None:
            super().__init__([torch.ones(1)])
            self.slot = {"a": (torch.ones(2), lambda: 0)}
            self.more = [torch.ones(3), self, re.compile("a"), self[0]]

    inputs = [Local()]
    assert sorted(map(len, tensors_of(inputs))) == [1, 1, 2, 3]
    (moved,) = move(inputs, META, torch.clone)
    assert isinstance(moved, Local)
    assert moved[0].is_meta
    assert moved.slot["a"][0].is_meta
    assert moved.more[0].is_meta
    assert moved.more[1] is moved
    assert moved.more[3] is moved[0]
    shape = torch.ones(2).shape
    assert type(move([shape], META, torch.clone)[0]) is torch.Size

    class Locked:
        def __init__(self, tensor: Tensor) -> None:
            self.tensor = tensor
            self.lock = threading.Lock()

    locked = [Locked(torch.ones(2))]
    for walk in (tensors_of, contents, lambda nest: move(nest, META, torch.clone)):
        with pytest.raises(
            InputError, match=r"batch: .* got a lock \(.* cannot pickle"
        ):
            walk(locked)


def test_what_is_no_tensor_is_in_the_fingerprint_of_a_batch() -> None:
    """Texts, arrays and numbers of inputs; a batch of tensors alone keeps its
    fingerprint."""
    ids = torch.arange(2)

    def of(inputs: Any, targets: Any = ids) -> int:
        hasher = fingerprint.Hasher(torch.device("cpu"))
        Hashed(hasher).add_batches([Batch(ids, inputs, targets)], Shards())
        return int(hasher.hashes()[1])

    batches: list[Any] = [
        ["a", "b"],
        ["a", "c"],
        np.ones(2),
        np.zeros(2),
        [1, 2],
        [1, 3],
    ]
    assert len({of(batch) for batch in batches}) == len(batches)
    assert of(torch.ones(2)) == int(fingerprint.of_tensors([torch.ones(2), ids]))


def test_loading_can_fail_to_repeat() -> None:
    """Negative control: batches depend on the seed, and without seeding on loader
    workers."""

    def found(workers: int = 0, **how: Any) -> list[int]:
        rng.seed_globals(0)
        return hashes(
            loaded(Source(Noisy(SAMPLES), "train", **how), ORDER, STEPS, workers)
        )

    assert found(seed=1) != found(seed=0)
    here = found(seed=0, seeded=False)
    assert found(seed=0, seeded=False) == here, "the same history"
    assert found(workers=2, seed=0, seeded=False) != here, "another number of workers"


def test_evaluation_draws_the_same_every_time() -> None:
    """Draws in evaluation depend on the sample and the split, not on the epoch."""
    ids = np.array([1, 2])
    validation = Source(Noisy(SAMPLES), "validation", seed=0)
    assert torch.equal(
        validation[Position(0, ids)].inputs, validation[Position(4, ids)].inputs
    )
    test = Source(Noisy(SAMPLES), "test", seed=0)
    assert not torch.equal(
        validation[Position(0, ids)].inputs, test[Position(0, ids)].inputs
    )


def test_workers_get_the_preset_and_leave_signals_to_the_training_process() -> None:
    """A spawned loader worker inherits no flags, so it applies the preset; it ignores
    Ctrl-C.

    Loading uses one thread in any process; the training process keeps its number of
    threads.
    """
    preset = PRESET | {"float32_matmul_precision": "high"}
    before = torch.get_num_threads()
    places = list(positions(ORDER, 0, 1))
    source = Source(Circumstances(SAMPLES), "train", 0)
    torch.set_default_dtype(torch.float64)  # as a model may do when it is built
    torch.set_num_threads(3)
    try:
        (there,) = load(source, places, Loading(1, start_method="spawn"), preset)
        (here,) = load(source, places, Loading(), preset)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_num_threads(before)
    assert there.inputs.all()
    assert here.inputs[0].tolist() == [
        True,
        False,
        True,
        False,
        False,
    ], "negative control"


@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_tensors_arrive_from_a_worker_as_they_are_here(start_method: str) -> None:
    """Bits, dtypes and shapes are kept, and strides, by which PyTorch chooses
    kernels."""

    def told(**how: Any) -> list[Any]:
        tensors = tensors_of(
            loaded(Source(OddTensors(SAMPLES), "train", 0), ORDER, 1, **how)
        )
        return [
            (t.dtype, t.shape, t.stride(), int(fingerprint.of_tensors([t])))
            for t in tensors
        ]

    assert len(told()) == 10
    assert told(workers=1, start_method=start_method) == told()


ENDS_EARLY = """
import multiprocessing, os, signal, sys, torch
from seedbed.pipeline import workers
from seedbed.pipeline.positions import Shuffled, positions
from seedbed.pipeline.source import Source

if __name__ == "__main__":
    wide = torch.utils.data.TensorDataset(torch.zeros(64, 50_000), torch.arange(64))
    places = positions(Shuffled(64, 4, 0), 0, 16)
    how = workers.Loading(2)
    batches = workers.load(Source(wide, "train", 0), places, how, {preset!r})
    next(batches)
    print(*(child.pid for child in multiprocessing.active_children()), flush=True)
    {ending}
"""


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("batches.close(); sys.exit(len(multiprocessing.active_children()))", 0),
        ("sys.exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    ],
)
def test_no_worker_outlives_its_loading(
    ending: str, status: int, tmp_path: Path
) -> None:
    """Loader workers end with the iterator or the training process, even if that is
    killed. They ignore the signal by which Python would end them."""
    (tmp_path / "early.py").write_text(ENDS_EARLY.format(preset=PRESET, ending=ending))
    done = command(str(tmp_path / "early.py"), timeout_seconds=60)
    assert done.returncode == status, done.stderr
    workers = {int(pid) for pid in done.stdout.split()}
    assert len(workers) == 2
    deadline = time.monotonic() + 20
    while workers & {*processes()} and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not workers & {*processes()}


def test_what_changes_a_batch_in_place_changes_neither_data_set_nor_order() -> None:
    """Even if `collate` does not copy; batches from loader workers are copies in any
    case."""
    kept = [(torch.ones(1), torch.tensor(i)) for i in range(SAMPLES)]
    source = Source(kept, "train", 0, unstacked)
    batches = loaded(source, ORDER, 2)
    usual = hashes(batches)
    for tensor in tensors_of([[*batch] for batch in batches]):
        tensor.mul_(3)
    assert hashes(loaded(source, ORDER, 2)) == usual


@pytest.mark.parametrize(
    "sample", [{"x": 1.0, "y": 1}, (torch.ones(3), 1, 2), torch.ones(3)]
)
def test_samples_that_are_no_pairs_are_refused(sample: Any) -> None:
    """A mapping of two keys or a tensor of two rows would be unpacked silently."""
    position = Position(0, np.arange(2))
    with pytest.raises(
        InputError, match=r"^data\.train: expected \(input, target\), got"
    ):
        Source([sample] * 2, "train", 0)[position]
    collate = Source([sample] * 2, "train", 0, lambda samples: (torch.ones(2), samples))
    assert len(collate[position].targets) == 2


TABLE = torch.randn(48)


class Rows(Noisy):
    """Adds values that were drawn during the import of this module."""

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        point, label = super().__getitem__(index)
        return point + TABLE[index], label


@pytest.mark.long
def test_loader_workers_have_the_table_of_the_training_process(tmp_path: Path) -> None:
    """A spawned loader worker imports the module anew, but draws the same table."""
    rows = [
        f"data.{split}._target_={__name__}.Rows"
        for split in ("train", "validation", "test")
    ]
    words = (
        *tiny.OVERRIDES,
        *rows,
        "trainer.max_steps=2",
        "trainer.rehearse_resume=false",
    )
    spawned = ("data.num_workers=1", "data.start_method=spawn")
    alone = trained(tmp_path / "a", *words)
    worker = trained(tmp_path / "b", *words, *spawned)
    assert record.read_fingerprints(worker) == record.read_fingerprints(alone)


class Opened(Dataset[tuple[Tensor, int]]):
    """Reads numbers of a file that it opens when it is built, slowly."""

    def __init__(self, path: Path) -> None:
        self.file = open(path, "rb")

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.file.seek(8 * index)
        time.sleep(0.002)  # for another process to seek in the same file
        return torch.from_numpy(np.frombuffer(self.file.read(8)).copy()), index


def test_loader_workers_do_not_share_the_place_in_a_file_opened_before(
    tmp_path: Path,
) -> None:
    """Forks share it, which mixed up samples without a word; this process keeps its
    own, too."""
    path = tmp_path / "numbers"
    # beyond a buffer
    path.write_bytes(np.arange(float(SAMPLES)).tobytes() + bytes(1 << 16))
    source = Source(Opened(path), "train", 0)
    alone = hashes(loaded(source, ORDER, STEPS))
    assert hashes(loaded(source, ORDER, STEPS, workers=3)) == alone
    assert hashes(loaded(source, ORDER, STEPS)) == alone
