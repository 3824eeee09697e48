"""Loading of batches by position, in the training process or in loader workers.

A batch is the same function of its position in all of them. A loader worker has one thread and the
preset's flags, and leaves signals to the training process.
"""

import atexit
import fcntl
import itertools
import multiprocessing
import os
import pickle
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from numpy.typing import NDArray
from torch.multiprocessing import reductions
from torch.utils.data import DataLoader, Dataset

from seedbed import determinism, logs, offline, signals
from seedbed.data import imports
from seedbed.data.positions import Position
from seedbed.data.source import Batch, Source
from seedbed.data.tensors import map_tensors
from seedbed.errors import InputError

_PIPED_BYTES = 1 << 20
_NUMPY_KNOWS = {torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8, torch.bool}


@dataclass(frozen=True)
class Loading:
    """How batches are loaded; none of these settings can change their content."""

    num_workers: int = 0
    persistent_workers: bool = True
    prefetch_factor: int = 2
    start_method: str = "fork"
    pin_memory: bool = False


def load(
    source: Source, positions: Iterable[Position], how: Loading, preset: Mapping[str, Any]
) -> Iterator[Batch]:
    """Yield a batch for each position, in order.

    Persistent loader workers serve all positions; otherwise new ones are started for each epoch.
    """
    if how.num_workers == 0:
        for batch in map(source.__getitem__, positions):
            yield map_tensors(_pinned, batch) if how.pin_memory else batch
        return
    for _, group in itertools.groupby(positions, lambda at: how.persistent_workers or at.epoch):
        yield from _load_by_workers(source, group, how, preset)


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose copy to a GPU waits for nothing: CUDA's of up to 64 KiB never do."""
    size = tensor.numel() * tensor.element_size()
    return tensor.pin_memory() if size > 1 << 16 else tensor


def _load_by_workers(
    source: Source, positions: Iterable[Position], how: Loading, preset: Mapping[str, Any]
) -> Iterator[Batch]:
    no_more, stop_loading = multiprocessing.Pipe(duplex=False)
    _loading.add(stop_loading)
    loader: DataLoader[Any] = DataLoader(
        _Sent(source),
        sampler=positions,
        batch_size=None,
        num_workers=how.num_workers,
        collate_fn=identity,
        worker_init_fn=partial(_start_worker, preset, torch.get_default_dtype(), no_more),
        prefetch_factor=how.prefetch_factor,
        multiprocessing_context=how.start_method,
        pin_memory=how.pin_memory,
        # The base seed of the workers' generators, which are seeded again before every sample.
        generator=torch.Generator().manual_seed(0),
    )
    try:
        # Start with stop signals blocked, since workers cannot ignore them while importing. The
        # forkserver and the resource tracker, which serve them, keep the signals blocked for good.
        with signals.held():
            if how.start_method != "fork":
                resource_tracker.ensure_running()  # this unblocks SIGINT and SIGTERM
            try:
                multiprocessing.get_context(how.start_method).Lock()
            except OSError as error:  # a half-built loader's destructor would hide it
                raise InputError(
                    "data.num_workers: expected shared memory for loader workers, got "
                    f"{error.strerror}; enlarge /dev/shm, or set data.num_workers=0"
                ) from error
            with signals.held():
                batches = iter(loader)
        for batch in batches:
            if isinstance(batch, InputError):
                raise batch
            yield batch
    finally:
        stop_loading.send(None)


def identity(batch: Any) -> Any:
    """Return a batch unchanged; DataLoader's default would convert arrays in it to tensors."""
    return batch


class _Sent(Dataset[Any]):
    """A source in a loader worker; it returns an InputError, as DataLoader would add a traceback.

    One that is not forked imports the project when it unpickles the source: seeded before that.
    """

    def __init__(self, source: Source) -> None:
        self._source = source

    def __getstate__(self) -> tuple[int | None, bytes]:
        return imports.seed_in_force(), bytes(ForkingPickler.dumps(self._source))

    def __setstate__(self, state: tuple[int | None, bytes]) -> None:
        seed, source = state
        if seed is not None:
            imports.seed_imports(seed)
        self._source = pickle.loads(source)

    def __getitem__(self, position: Position) -> Any:
        try:
            return self._source[position]
        except InputError as error:
            return error


_loading: WeakSet[Connection] = WeakSet()


@atexit.register
def _stop_loading() -> None:
    """End loader workers before Python waits for them at exit, as they ignore its SIGTERM."""
    for stop_loading in _loading:
        stop_loading.send(None)


def _start_worker(
    preset: Mapping[str, Any], dtype: torch.dtype, end: Connection, number: int
) -> None:
    """Set up a loader worker: flags of the preset, and an end with its parent alone.

    Ctrl-C and a cluster's SIGTERM reach the whole process group, but loader workers must live until
    the training process has saved its checkpoint.
    """
    signals.ignore()
    reopen_files()
    logs.start_loader_worker(number)
    threading.Thread(target=_end_in_time, args=[end], daemon=True).start()
    offline.enforce()
    determinism.apply(preset, threads=1)
    torch.set_default_dtype(dtype)  # a model may have set it; a spawned worker lacks it
    ForkingPickler.register(torch.Tensor, _reduced)


def reopen_files() -> None:
    """Give this process file positions of its own: forks share those of files opened before."""
    for path in Path("/proc/self/fd").glob("*"):  # none where there is no /proc
        with suppress(OSError):
            number = int(path.name)
            is_file = stat.S_ISREG(os.fstat(number).st_mode)
            if is_file and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                own = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
                os.dup2(own, number, inheritable=os.get_inheritable(number))
                os.close(own)


def _reduced(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Send a small tensor through the pipe as bytes: shared memory costs a file handle each."""
    plain = tensor.is_cpu and tensor.dtype in _NUMPY_KNOWS and not tensor.requires_grad
    dense = plain and tensor.layout is torch.strided and not tensor.is_nested
    if not dense or tensor.nbytes > _PIPED_BYTES or not tensor.is_contiguous():
        return reductions.reduce_tensor(tensor)  # type: ignore[no-any-return, no-untyped-call]
    return _of_bytes, (tensor.view(-1).numpy(), tuple(tensor.shape), tensor.stride())


def _of_bytes(flat: NDArray[Any], shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    # Cloned to get the alignment of PyTorch's own memory, on which the choice of kernels may
    # depend. Strides matter even for dimensions of size 1: they tell the memory format.
    return torch.from_numpy(flat).clone().as_strided(shape, stride)


def _end_in_time(no_more: Connection) -> None:
    """End this process when its parent was killed, or has stopped loading but waits for it.

    It could wait forever to hand over a batch. A forkserver outlives the parent, and others that
    the parent forked may hold open the pipe that `join` waits on, so both are checked. The parent
    waits at its exit if it did not load every batch, or if an exception keeps the loader alive.
    """
    parent, pid = multiprocessing.parent_process(), os.getppid()
    while os.getppid() == pid and (parent is None or parent.is_alive()):
        if no_more.poll(1):  # never received: it is for all loader workers
            time.sleep(1)  # PyTorch may end them in order first
            os._exit(0)
    os._exit(1)
