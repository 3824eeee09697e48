"""A data set as a function from positions to batches.

The position determines order and randomness, and the generators are seeded before each
sample, so a batch does not depend on the process that loads it.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch.utils.data import Dataset, default_collate

from seedbed import rng
from seedbed.errors import InputError, is_out_of_memory, one_line
from seedbed.names import SPLITS
from seedbed.pipeline.positions import Ids, Position
from seedbed.pipeline.stored import gathered
from seedbed.pipeline.tensors import map_tensors, tensors_of

_SIMPLE = (bool, int, float, str, type(None))


class Batch(NamedTuple):
    """Samples, as collated: by default, stacked along the first dimension of every
    tensor."""

    ids: torch.Tensor
    inputs: Any
    targets: Any


class Source(Dataset[Any]):
    """A data set as a function from positions to batches."""

    def __init__(
        self,
        # map-style; with a method `fetch(ids, draws)` it loads whole batches
        dataset: Any,
        # one of SPLITS; samples of different splits have different randomness
        split: str,
        seed: int,  # of the augment stream
        # torch's default_collate if None
        collate: Callable[[list[Any]], Any] | None = None,
        seeded: bool = True,  # whether global generators are seeded before each sample
        one_thread: bool = True,  # in the training process too, as in loader workers
    ) -> None:
        self.dataset = dataset
        self._split = SPLITS.index(split)
        self.seed = seed
        self._collate = collate
        self._seeded = seeded
        self._one_thread = one_thread
        self._has_loaded = False
        self.epoch_values: Mapping[str, Any] = {}

    def __len__(self) -> int:
        return len(self.dataset)

    @property
    def key(self) -> str:
        """The key of this data set in a configuration."""
        return f"data.{SPLITS[self._split]}"

    def set_epoch_values(self, values: Mapping[str, Any]) -> bool:
        """Give the data set the values for an epoch; return whether it takes any.

        Of a part, the whole data set may take them. Each gets values of its own, to
        keep.
        """
        self.epoch_values = values
        dataset = self.dataset
        while dataset is not None and not hasattr(dataset, "set_epoch_values"):
            dataset = getattr(dataset, "dataset", None)
        if dataset is not None:
            dataset.set_epoch_values(copy.deepcopy(values))
        return dataset is not None

    def __getitem__(self, position: Position) -> Any:
        batch = self.load(position)
        # A mapping of two keys or a tensor of two rows would unpack into a pair, too.
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            size = f" of {len(batch)}" if hasattr(batch, "__len__") else ""
            is_own = self._collate is not None or hasattr(self.dataset, "fetch")
            advice = "" if is_own else "end its __getitem__ with `return x, y`, or "
            raise InputError(
                f"{self.key}: expected (input, target), got"
                f" {type(batch).__name__}{size} from {type(self.dataset).__name__};"
                f" {advice}let data.collate make a pair"
            )
        return Batch(torch.from_numpy(position.ids), *batch)

    def load(self, position: Position) -> Any:
        """Return a batch as made by the data set's `fetch`, or collated from its
        samples."""
        before = torch.get_num_threads()
        if self._one_thread:
            torch.set_num_threads(1)
        try:
            return self._load(position)
        except StopIteration as error:  # would look like the end of all batches
            raise RuntimeError("loading a sample raised StopIteration") from error
        finally:
            if self._one_thread:
                torch.set_num_threads(before)

    def _load(self, position: Position) -> Any:
        epoch, ids, repeats = position
        training = self._split == 0
        # Evaluation draws the same numbers in every epoch, so that its results are
        # comparable.
        split_and_epoch = (self._split, epoch if training else 0)
        # A sample that is repeated within an epoch is augmented differently each time.
        rows = ids if repeats is None else ids + repeats * len(self)
        is_whole = hasattr(self.dataset, "fetch")
        is_plain = not is_whole and self._collate is None
        stored = gathered(self.dataset, ids) if is_plain else None
        samples: list[Any] = []
        if not is_whole and stored is None:
            samples = self.samples(split_and_epoch[1], ids, rows)
        if self._seeded:
            again = () if repeats is None or not repeats[0] else (int(repeats[0]),)
            rng.seed_globals(
                rng.key(self.seed, "augment", *split_and_epoch, -1, int(ids[0]), *again)
            )
        if is_whole:
            key = rng.key(self.seed, "augment", epoch)
            batch = self.dataset.fetch(
                ids, rng.Draws(key, ids, rows) if training else None
            )
        elif stored is not None:
            return stored
        elif self._collate is not None:
            batch = self._collate(samples)
        else:
            return self._collated(samples, ids)
        # The tensors may be the data set's own, and models may change them in place.
        try:
            return map_tensors(torch.Tensor.clone, batch)
        except InputError as error:
            raise InputError(f"{self.key}: {error}") from error

    def _collated(self, samples: list[Any], ids: Ids) -> Any:
        try:
            return default_collate(samples)
        except (RuntimeError, TypeError) as error:
            if is_out_of_memory(error):
                raise
            for sample_id, sample in zip(ids.tolist(), samples, strict=True):
                if line := lacking(self.key, self.dataset, sample_id, sample):
                    raise InputError(line) from error
            shapes = [
                [list(tensor.shape) for tensor in tensors_of(each)] for each in samples
            ]
            other = next(
                (n for n, shape in enumerate(shapes) if shape != shapes[0]), None
            )
            got = one_line(error)
            if other is not None:
                first, second = (", ".join(map(str, shapes[n])) for n in (0, other))
                got = f"{first} in sample {ids[0]} and {second} in sample {ids[other]}"
            raise InputError(
                f"{self.key}: expected samples of tensors, numbers and texts of equal"
                f" shapes, which PyTorch stacks, got {got}; make a batch of them in a"
                " function, and name it in data.collate"
            ) from error

    def samples(self, epoch: int, ids: Ids, rows: Ids) -> list[Any]:
        """Load samples; the generators are seeded before each one, by split, epoch and
        row.

        Rows are the ids, but for other numbers where a sample is repeated in the epoch.
        """
        if not self._seeded:
            return [self.dataset[i] for i in ids.tolist()]
        samples = []
        for index, row in zip(ids.tolist(), rows.tolist(), strict=True):
            rng.seed_cpu(rng.key(self.seed, "augment", self._split, epoch, row))
            samples.append(self.dataset[index])
        if not self._has_loaded:
            self._has_loaded = True
            rng.warn_if_reseeded(
                f"{type(self.dataset).__name__}.__getitem__", "augment"
            )
        return samples


def lacking(key: str, dataset: Any, sample_id: int, sample: Any) -> str | None:
    """Return an error line for a sample that is None or has None; None for others."""
    while (inner := getattr(dataset, "dataset", None)) is not None:  # of a part
        dataset = inner
    of = f"__getitem__ of {type(dataset).__name__}"
    if sample is None:
        return (
            f"{key}: expected (input, target) from {of}, got None for sample"
            f" {sample_id}; end it with a return"
        )
    if isinstance(sample, tuple | list) and len(sample) == 2 and sample[1] is None:
        return (
            f"{key}: expected a target from {of}, got None for sample {sample_id};"
            " return -100 as the label of a sample without one (ignore_index of"
            " classification), or leave such samples out"
        )
    return None


def simple_attributes(owner: Any) -> dict[str, str]:
    """Return the numbers and texts in public attributes, by class and name.

    Also those of a data set in it, such as that of a part, and of their classes.
    """
    attributes: dict[str, str] = {}
    while owner is not None:
        kind = type(owner)
        for name, value in {**vars(kind), **getattr(owner, "__dict__", {})}.items():
            if not name.startswith("_") and isinstance(value, _SIMPLE):
                attributes[f"{kind.__name__}.{name}"] = repr(value)
        owner = getattr(owner, "dataset", None)
    return attributes
