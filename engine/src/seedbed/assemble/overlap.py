"""Comparison of the samples of different splits, before the first step of a run.

All data sets are built from the same random numbers, so code that generates its samples there gives
the same ones to every split: this is refused. Other samples that are also in training are counted,
as far as two seconds reach. They are read without augmentation, by a fork: the run does not change.
"""

import copy
import itertools
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Dataset

from seedbed import determinism, rng, signals
from seedbed.config import Settings
from seedbed.data.positions import Ids
from seedbed.data.source import Source
from seedbed.data.streams import StreamSource
from seedbed.data.tensors import contents
from seedbed.data.workers import reopen_files
from seedbed.errors import InputError
from seedbed.words import as_words

_SECONDS, _LIMIT_SECONDS = 2, 10  # for all samples; until a slow one is given up
_BATCH = 256  # samples that `fetch` loads at a time

Hashes = dict[int, tuple[int, int]]  # by index: of the whole sample, and of its inputs
Found = tuple[list[tuple[str, str]], str]  # see `_compare`


def check(settings: Settings, sources: Mapping[str, Source], log: Callable[[str], None]) -> None:
    """Log which samples are also in training; raise InputError if a split repeats another one.

    Iterable data sets are left out, as is what cannot be read: the run itself shows why.
    """
    specs = {split: getattr(settings.data, split) for split in sources}
    given = {split: source for split, source in sources.items() if specs[split] is not None}
    read = {k: source for k, source in given.items() if not isinstance(source, StreamSource)}
    repeated, line = _in_fork(read, settings.plain["determinism"]) or ([], "")
    for a, b in repeated:
        if specs[a] != specs[b]:
            raise InputError(
                f"data.{b}: expected other samples than those of data.{a}, got the same ones from "
                f"{type(sources[b].dataset).__name__}, since all splits are built from the same "
                "random numbers; give it an argument for the split, and draw from "
                'rng.generator(rng.key(seed, "data", number of the split)), or give both the same '
                "configuration if they shall be the same"
            )
        log(f"data: {b} has the samples of {a}, as their configurations are equal")
    if line and not any("train" in pair for pair in repeated):
        log(line)


def _in_fork(sources: Mapping[str, Source], preset: Mapping[str, Any]) -> Found | None:
    """Return `_compare(sources)` from a forked process: nothing that it does changes this one.

    It is None if it raises an exception, takes too long, or nothing can be forked.
    """
    results, answer = multiprocessing.Pipe(duplex=False)

    def run() -> None:
        signals.ignore()
        signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends this process, whatever it waits for
        signal.alarm(_LIMIT_SECONDS)
        reopen_files()
        determinism.apply(preset, threads=1)  # several would wait for threads that a fork lacks
        sys.stdout = sys.stderr = open(os.devnull, "w")
        with suppress(Exception):
            answer.send(_compare(sources))

    process = multiprocessing.get_context("fork").Process(target=run, daemon=True)
    try:
        process.start()
    except OSError:  # for lack of memory
        return None
    answer.close()
    try:
        return results.recv()  # type: ignore[no-any-return]
    except EOFError:
        return None
    finally:
        process.join()


def _compare(sources: Mapping[str, Source]) -> Found:
    """Return the pairs of splits that repeat each other, and a line on other common samples."""
    until, counts = time.monotonic() + _SECONDS, [len(source) for source in sources.values()]
    seen: dict[str, Hashes] = {split: {} for split in sources}
    order, line = rng.permutation(0, max(counts, default=0)), ""
    unread = {split: _hashes(each, order[order < len(each)]) for split, each in sources.items()}
    with suppress(Exception):  # the run itself shows errors of the user's code
        while sum(map(len, seen.values())) < sum(counts) and time.monotonic() < until:
            for split, hashes in unread.items():  # in turn, as the time may not suffice for all
                seen[split].update(itertools.islice(hashes, 1))
        line = _overlap(seen, sources)
    pairs = itertools.combinations(seen, 2)
    return [(a, b) for a, b in pairs if _repeats(seen[a], seen[b])], line


def _repeats(a: Hashes, b: Hashes) -> bool:
    """Return whether most samples are equal at the same index, but few within one split."""
    common = [index for index in a if index in b]
    # PyTorch's `randn` draws the last few of a shorter tensor differently.
    equal = sum(a[index][0] == b[index][0] for index in common)
    within = sum(a[one][0] == a[other][0] for one, other in itertools.pairwise(common))
    return len(common) > 1 and equal > 0.75 * len(common) and within < 0.25 * len(common)


def _overlap(seen: Mapping[str, Hashes], sources: Mapping[str, Source]) -> str:
    """Return a line that counts the samples of other splits whose inputs are also in training."""
    known = {inputs: index for index, (_, inputs) in sorted(seen["train"].items(), reverse=True)}
    counts, first = [], ""
    for split in [split for split in seen if split != "train"]:
        inputs = {index: inputs for index, (_, inputs) in sorted(seen[split].items())}
        common = [index for index in inputs if inputs[index] in known]
        if common and len(set(inputs.values())) > 1:  # inputs that are all equal say nothing
            counts.append(f"{len(common)} of {len(inputs)} {split}")
            first = first or f"{split} {common[0]} is training {known[inputs[common[0]]]}"
    line = f"warning: data: {' and '.join(counts)} samples are also in training ({first})"
    read = [f"{len(seen[split])} of {len(source)} {split}" for split, source in sources.items()]
    if all(len(seen[split]) == len(source) for split, source in sources.items()):
        return line if counts else ""
    line = line if counts else "data: no sample of another split was found in training"
    return f"{line}; compared in {_SECONDS} seconds: {', '.join(read)} samples"


def _hashes(source: Source, ids: Ids) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yield the index of each sample, and hashes of the whole sample and of its inputs."""
    plain = copy.copy(source)
    try:
        plain.dataset = _without_augmentation(source.dataset)
        next(_samples(plain, ids[:1]))
    except Exception:  # it needs its transform
        plain = source
    for index, sample in zip(ids.tolist(), _samples(plain, ids), strict=True):
        is_pair = isinstance(sample, tuple | list) and len(sample) == 2
        inputs = _hash(sample[0] if is_pair else sample)
        yield index, (hash((inputs, _hash(sample[1]))) if is_pair else inputs, inputs)


def _samples(source: Source, ids: Ids) -> Iterator[Any]:
    """Yield samples as the data set returns them in evaluation; `fetch` loads a batch at a time."""
    if not hasattr(source.dataset, "fetch"):
        for one in ids[:, None]:
            yield from source.samples(0, one, one)
        return
    for some in np.split(ids, range(_BATCH, len(ids), _BATCH)):
        batch = source.dataset.fetch(some, None)
        if all(isinstance(each, Tensor) and each.shape[:1] == some.shape for each in batch):
            words = [as_words(each.detach()) for each in batch]
            yield from zip(*(each.reshape(len(some), -1).numpy() for each in words), strict=True)
        else:  # of another structure
            yield from (source.dataset.fetch(one, None) for one in some[:, None])


def _hash(values: Any) -> int:
    if isinstance(values, np.ndarray | np.generic) and not values.dtype.hasobject:
        arrays = [values]
    else:
        arrays = [as_words(each.detach()).numpy() for each in contents(values)]
    return hash(tuple((array.dtype.str, array.shape, array.tobytes()) for array in arrays))


def _without_augmentation(dataset: Any) -> Any:
    """Return a shallow copy of a data set, and of those that it wraps, with no augmentation."""
    plain = copy.copy(dataset)
    for name in ("transform", "transforms", "augment"):
        if (value := getattr(plain, name, None)) is not None:
            setattr(plain, name, _unchanged if callable(value) else None)
    for name, value in list(vars(plain).items()):
        if name == "dataset" or isinstance(value, Dataset):
            setattr(plain, name, _without_augmentation(value))
    return plain


def _unchanged(*values: Any, **named: Any) -> Any:
    # What a transform was called with; albumentations take and return it by name.
    return named or (values[0] if len(values) == 1 else values)
