"""Comparison of the samples of different splits, before the first step of a run.

All data sets are built from the same random numbers, so code that generates its samples
there gives the same ones to every split: this is refused. Other samples that are also
in training are counted, as far as two seconds reach. They are read without
augmentation, by a fork: the run does not change. `data.compare_splits=false` leaves all
of it out.
"""

import copy
import itertools
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from seedbed import determinism, signals
from seedbed.config import Settings
from seedbed.errors import InputError, one_line
from seedbed.names import TRANSFORMS
from seedbed.pipeline.positions import order_of_epoch
from seedbed.pipeline.source import Source
from seedbed.pipeline.streams import StreamSource
from seedbed.pipeline.tensors import contents
from seedbed.pipeline.workers import reopen_files
from seedbed.words import as_words

# for all samples; for the first few of each split, if slow
_SECONDS = 2
_LIMIT_SECONDS = 10
_LEAST = 4  # samples of each split, without which nothing is said about them
_SHARED = 64  # samples of equal indices that are read first in each split
_BATCH = 256  # samples that `fetch` loads at a time

Hashes = dict[int, tuple[int, int]]  # by index: of the whole sample, and of its inputs


class Comparison(NamedTuple):
    """What a comparison found, and why it is not complete."""

    # pairs of splits with the same samples
    repeated: list[tuple[str, str]] = []  # noqa: RUF012
    line: str = ""  # on other samples that are also in training
    problem: str = ""


class _TimeIsUp(BaseException):
    """Reading a sample takes too long; no data set catches this."""


def check(
    settings: Settings, sources: Mapping[str, Source], log: Callable[[str], None]
) -> None:
    """Log which samples are also in training; raise InputError if a split repeats
    another one.

    Log also what could not be compared, and why.
    """
    if not settings.data.compare_splits:
        return
    specs = {split: settings.data.spec(split) for split in sources}
    given = {
        split: source for split, source in sources.items() if specs[split] is not None
    }
    read = {
        k: source for k, source in given.items() if not isinstance(source, StreamSource)
    }
    if left_out := [split for split in given if split not in read]:
        names = " and ".join(left_out)
        log(
            f"data: the samples of {names} are not compared with other splits: iterable"
            " data sets"
        )
    comparison = _in_fork(read, settings.plain["determinism"])
    for a, b in comparison.repeated:
        if specs[a] != specs[b]:
            raise InputError(
                f"data.{b}: expected other samples than those of data.{a}, got the same"
                f" ones from {type(sources[b].dataset).__name__}; if it draws them,"
                " give it an argument for the split, and draw from"
                ' rng.generator(rng.key(seed, "data", number of the split)), as all'
                " splits are built from the same random numbers; if they shall be the"
                " same, set data.compare_splits=false"
            )
        log(f"data: {b} has the samples of {a}, as their configurations are equal")
    if comparison.line and not any("train" in pair for pair in comparison.repeated):
        log(comparison.line)
    if comparison.problem:
        log(
            "warning: data: samples of different splits could not all be compared:"
            f" {comparison.problem}"
        )


def _in_fork(sources: Mapping[str, Source], preset: Mapping[str, Any]) -> Comparison:
    """Return `_compare(sources)` from a forked process: nothing that it does changes
    this one."""
    if len(sources) < 2:
        return Comparison()
    results, answer = multiprocessing.Pipe(duplex=False)

    def run() -> None:
        signals.ignore()
        signal.signal(signal.SIGALRM, _raise_time_is_up)
        signal.alarm(_LIMIT_SECONDS)
        reopen_files()
        # several would wait for threads that a fork lacks
        determinism.apply(preset, threads=1)
        sys.stdout = sys.stderr = open(os.devnull, "w")
        answer.send(_compare(sources))

    process = multiprocessing.get_context("fork").Process(target=run, daemon=True)
    try:
        process.start()
    except OSError as error:  # for lack of memory
        return Comparison(problem=f"no process can be forked ({error.strerror})")
    answer.close()
    try:
        if results.poll(_LIMIT_SECONDS + _SECONDS):
            return results.recv()  # type: ignore[no-any-return]
        return Comparison(
            problem=f"a sample was not read within {_LIMIT_SECONDS} seconds"
        )
    except EOFError:
        return Comparison(problem="the process that read them died")
    finally:
        process.kill()  # it may wait for something that no signal handler interrupts
        process.join()


def _raise_time_is_up(*_: object) -> None:
    raise _TimeIsUp


def _compare(sources: Mapping[str, Source]) -> Comparison:
    """Compare as many samples as can be read in the time given."""
    until = time.monotonic() + _SECONDS
    counts = {split: len(source) for split, source in sources.items()}
    seen: dict[str, Hashes] = {split: {} for split in sources}
    least = min(counts.values())
    problem = ""
    unread = {
        split: _hashes(source, _ids(counts[split], least))
        for split, source in sources.items()
    }

    def few() -> bool:
        return any(
            len(hashes) < min(_LEAST, counts[split]) for split, hashes in seen.items()
        )

    split = ""
    try:
        while any(len(seen[split]) < counts[split] for split in seen):
            if time.monotonic() > until and not few():
                break
            # in turn, as the time may not suffice for all
            for split, hashes in unread.items():
                seen[split].update(itertools.islice(hashes, 1))
    except _TimeIsUp:
        problem = (
            f"a sample of data.{split} was not read within {_LIMIT_SECONDS} seconds"
        )
    # the run itself shows errors of the user's code, if it reads that
    except Exception as error:
        problem = f"{one_line(error)} in data.{split}"
    pairs = itertools.combinations(seen, 2)
    repeated = [(a, b) for a, b in pairs if _repeats(seen[a], seen[b])]
    return Comparison(repeated, "" if few() else _overlap(seen, sources), problem)


def _ids(n: int, shared: int) -> Iterator[int]:
    """Yield all ids of n samples, once, in random order; first those that other splits
    have, too.

    No more of the order is computed than is read.
    """
    first = order_of_epoch(0, 0, shared, 0, min(_SHARED, shared)).tolist()
    yield from first
    known = set(first)
    for start in range(0, n, _BATCH):
        block = order_of_epoch(0, 0, n, start, min(start + _BATCH, n)).tolist()
        yield from (sample_id for sample_id in block if sample_id not in known)


def _repeats(a: Hashes, b: Hashes) -> bool:
    """Return whether most samples are equal at the same index, but few within one
    split."""
    common = [index for index in a if index in b]
    # PyTorch's `randn` draws the last few of a shorter tensor differently.
    equal = sum(a[index][0] == b[index][0] for index in common)
    within = sum(a[one][0] == a[other][0] for one, other in itertools.pairwise(common))
    return (
        len(common) > 1 and equal > 0.75 * len(common) and within < 0.25 * len(common)
    )


def _overlap(seen: Mapping[str, Hashes], sources: Mapping[str, Source]) -> str:
    """Return a line that counts the samples of other splits whose inputs are also in
    training."""
    if "train" not in seen:
        return ""
    known = {
        inputs: index
        for index, (_, inputs) in sorted(seen["train"].items(), reverse=True)
    }
    counts = []
    first = ""
    for split in [split for split in seen if split != "train"]:
        inputs = {index: inputs for index, (_, inputs) in sorted(seen[split].items())}
        common = [index for index in inputs if inputs[index] in known]
        # inputs that are all equal say nothing
        if common and len(set(inputs.values())) > 1:
            counts.append(f"{len(common)} of {len(inputs)} {split}")
            first = (
                first or f"{split} {common[0]} is training {known[inputs[common[0]]]}"
            )
    line = (
        f"warning: data: {' and '.join(counts)} samples are also in training ({first})"
    )
    read = [
        f"{len(seen[split])} of {len(source)} {split}"
        for split, source in sources.items()
    ]
    if all(len(seen[split]) == len(source) for split, source in sources.items()):
        return line if counts else ""
    line = line if counts else "data: no sample of another split was found in training"
    return f"{line}; compared in {_SECONDS} seconds: {', '.join(read)} samples"


def _hashes(
    source: Source, ids: Iterator[int]
) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the index of each sample, and hashes of the whole sample and of its
    inputs."""
    plain = copy.copy(source)
    first = next(ids)
    ids = itertools.chain([first], ids)
    try:
        plain.dataset = _without_augmentation(source.dataset)
        next(_samples(plain, iter([first])))
    except Exception:  # it needs its transform
        plain = source
    for index, sample in _samples(plain, ids):
        is_pair = isinstance(sample, tuple | list) and len(sample) == 2
        inputs = _hash(sample[0] if is_pair else sample)
        yield index, (hash((inputs, _hash(sample[1]))) if is_pair else inputs, inputs)


def _samples(source: Source, ids: Iterator[int]) -> Iterator[tuple[int, Any]]:
    """Yield samples as the data set returns them in evaluation; `fetch` loads a batch
    at a time."""
    if not hasattr(source.dataset, "fetch"):
        for index in ids:
            one = np.array([index])
            [sample] = source.samples(0, one, one)
            yield index, sample
        return
    while batch_ids := list(itertools.islice(ids, _BATCH)):
        some = np.array(batch_ids)
        batch = source.dataset.fetch(some, None)
        if all(
            isinstance(each, Tensor) and each.shape[:1] == some.shape for each in batch
        ):
            words = [as_words(each.detach()) for each in batch]
            rows = zip(
                *(each.reshape(len(some), -1).numpy() for each in words), strict=True
            )
            yield from zip(batch_ids, rows, strict=True)
        else:  # of another structure
            yield from (
                (index, source.dataset.fetch(np.array([index]), None)) for index in some
            )


def _hash(values: Any) -> int:
    if isinstance(values, np.ndarray | np.generic) and not values.dtype.hasobject:
        arrays = [values]
    else:
        arrays = [as_words(each.detach()).numpy() for each in contents(values)]
    return hash(
        tuple((array.dtype.str, array.shape, array.tobytes()) for array in arrays)
    )


def _without_augmentation(dataset: Any) -> Any:
    """Return a shallow copy of a data set, and of those that it wraps, with no
    augmentation."""
    plain = copy.copy(dataset)
    for name in TRANSFORMS:
        if (value := getattr(plain, name, None)) is not None:
            setattr(plain, name, _unchanged if callable(value) else None)
    for name, value in list(vars(plain).items()):
        if name == "dataset" or isinstance(value, Dataset):
            setattr(plain, name, _without_augmentation(value))
    return plain


def _unchanged(*values: Any, **named: Any) -> Any:
    # What a transform was called with; albumentations take and return it by name.
    return named or (values[0] if len(values) == 1 else values)
