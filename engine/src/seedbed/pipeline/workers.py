"""Loading of batches by position, in the training process or in loader workers.

A batch is the same function of its position in all of them. A loader worker has one
thread and the preset's flags, and leaves signals to the training process.
"""

import atexit
import fcntl
import gc
import io
import itertools
import multiprocessing
import os
import pickle
import stat
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

import torch
from numpy.typing import NDArray
from torch._utils import ExceptionWrapper
from torch.multiprocessing import reductions
from torch.utils.data import DataLoader, Dataset, get_worker_info

from seedbed import determinism, logs, offline, signals
from seedbed.errors import InputError, Interrupted, one_line
from seedbed.pipeline import deaths, imports
from seedbed.pipeline.positions import Position
from seedbed.pipeline.source import Batch, Source, simple_attributes
from seedbed.pipeline.tensors import map_tensors

_PIPED_BYTES = 1 << 20
_WAIT_SECONDS = 1  # for a batch, before looking whether the run was asked to stop
_MOST_LEVELS = 20  # of a batch to look into; its objects may refer to each other
_NUMPY_KNOWS = {
    torch.float32,
    torch.float64,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
}


@dataclass(frozen=True)
class Loading:
    """How batches are loaded; none of these settings can change their content."""

    num_workers: int = 0
    persistent_workers: bool = True
    prefetch_factor: int = 2
    start_method: str = "fork"
    pin_memory: bool = False
    # of an iterable data set: one loader worker reads all batches of a stream
    streams: int = 0


def load(
    source: Source,
    positions: Iterable[Position],
    how: Loading,
    preset: Mapping[str, Any],
    asked_to_stop: Callable[[], bool] | None = None,
) -> Iterator[Batch]:
    """Yield a batch for each position, in order.

    Persistent loader workers serve all positions; otherwise new ones are started for
    each epoch.

    A batch that was loaded while a stop signal came is not used: a terminal sends
    Ctrl-C to the programs that a data set starts, too, and where one of them fails, a
    data set may take another sample. Raise Interrupted then, if `asked_to_stop` is
    given; else load the batch again.
    """
    if how.num_workers == 0:
        for position in positions:
            if asked_to_stop is None:
                batch = signals.undisturbed(partial(source.__getitem__, position))
            else:
                with signals.raising(Interrupted):
                    batch = source[position]
            yield map_tensors(_pinned, batch) if how.pin_memory else batch
        return
    for _, group in itertools.groupby(
        positions, lambda at: how.persistent_workers or at.epoch
    ):
        to_load = _by_stream(group, how.streams, how.num_workers)
        yield from _load_by_workers(source, to_load, how, preset, asked_to_stop)


class Passes:
    """Loads one pass after another over a data set; persistent loader workers serve
    all.

    Between two passes they wait, and no batch is in memory. A pass that is not read to
    its end stops them, as its batches would still arrive, and so does a data set whose
    numbers and texts have changed here since they started: forks see that.
    """

    def __init__(
        self,
        source: Source,
        how: Loading,
        preset: Mapping[str, Any],
        asked_to_stop: Callable[[], bool] | None = None,
    ) -> None:
        self._source = source
        self._how = how
        self._preset = preset
        self._asked_to_stop = asked_to_stop
        self._kept: _Kept | None = None

    def load(self, positions: Sequence[Position]) -> Iterator[Batch]:
        """Yield a batch for each position, in order."""
        how = self._how
        if not how.num_workers or not how.persistent_workers:
            yield from load(
                self._source, positions, how, self._preset, self._asked_to_stop
            )
            return
        kept = self._workers()
        self._kept = None  # until the pass has ended
        kept.turns.positions = iter(positions)
        yield from itertools.islice(kept.batches, len(positions))
        self._kept = kept

    def _workers(self) -> "_Kept":
        """Return the loader workers of the last pass, or else new ones."""
        attributes = simple_attributes(self._source.dataset)
        if self._kept is not None and self._kept.attributes == attributes:
            return self._kept
        self.close()
        turns = _Turns()
        batches = _load_by_workers(
            self._source, turns, self._how, self._preset, self._asked_to_stop
        )
        return _Kept(turns, batches, attributes)

    def close(self) -> None:
        """Stop the loader workers."""
        if self._kept is not None:
            self._kept.batches.close()
        self._kept = None


class _Turns:
    """The positions of one pass after another, and None, which passes the turn, in
    between."""

    positions: Iterator[Position] = iter(())

    def __iter__(self) -> Iterator[Position | None]:
        while True:
            yield next(self.positions, None)


class _Kept(NamedTuple):
    """Loader workers between two passes."""

    turns: _Turns
    batches: Generator[Batch, None, None]
    attributes: Mapping[str, str]  # of the data set when they started


def _pinned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose copy to a GPU waits for nothing: CUDA's of up to 64 KiB
    never do."""
    size = tensor.numel() * tensor.element_size()
    return tensor.pin_memory() if size > 1 << 16 else tensor


def _load_by_workers(
    source: Source,
    to_load: Iterable[Position | None],  # None: the next loader worker's turn
    how: Loading,
    preset: Mapping[str, Any],
    asked_to_stop: Callable[[], bool] | None,
) -> Generator[Batch, None, None]:
    sent: deque[Position | None] = deque()  # to loader workers

    def send() -> Iterator[Position | None]:
        for position in to_load:
            sent.append(position)
            yield position

    no_more, stop_loading = multiprocessing.Pipe(duplex=False)
    _loading.add(stop_loading)
    loader: DataLoader[Any] = DataLoader(
        _Sent(source),
        sampler=send(),
        batch_size=None,
        num_workers=how.num_workers,
        collate_fn=identity,
        worker_init_fn=partial(
            _start_worker, preset, torch.get_default_dtype(), no_more
        ),
        prefetch_factor=how.prefetch_factor,
        multiprocessing_context=how.start_method,
        pin_memory=how.pin_memory,
        timeout=_WAIT_SECONDS,
        # The base seed of the workers' generators, which are seeded again before every
        # sample.
        generator=torch.Generator().manual_seed(0),
    )
    try:
        # Start with stop signals blocked, since workers cannot ignore them while
        # importing. The forkserver and the resource tracker, which serve them, keep the
        # signals blocked for good.
        with signals.held():
            if how.start_method != "fork":
                resource_tracker.ensure_running()  # this unblocks SIGINT and SIGTERM
            _require_shared_memory(how.start_method)
            with signals.held():
                batches = deaths.begun(partial(iter, loader))
        for loaded in _awaited(batches, asked_to_stop):
            position = sent.popleft()
            if isinstance(loaded, InputError):
                raise loaded
            if loaded is not None and position is not None:
                batch, digests = loaded
                imports.adopt(digests)
                # see `load`
                yield source[position] if signals.have_come() else batch
    finally:
        stop_loading.send(None)


def _require_shared_memory(start_method: str) -> None:
    try:
        multiprocessing.get_context(start_method).Lock()
    except OSError as error:  # a half-built loader's destructor would hide it
        raise InputError(
            "data.num_workers: expected shared memory for loader workers, got "
            f"{error.strerror}; enlarge /dev/shm, or set data.num_workers=0"
        ) from error


def _awaited(
    batches: Iterator[Any], asked_to_stop: Callable[[], bool] | None
) -> Iterator[Any]:
    """Yield what a DataLoader yields; wait for it however long it takes, unless asked
    to stop."""
    may_stop = asked_to_stop or (lambda: False)
    while True:
        try:
            batch = deaths.next_of(batches)
        except StopIteration:
            return
        except Exception as error:
            if may_stop():
                raise Interrupted from None
            if not str(error).startswith("DataLoader timed out"):
                raise
            deaths.require_alive(batches)
        else:
            if may_stop():
                raise Interrupted
            yield batch


def _by_stream(
    positions: Iterable[Position], streams: int, workers: int
) -> Iterator[Position | None]:
    """Yield positions; of streams, those that begin in one all go to the same loader
    worker.

    DataLoader hands them out in turn; None passes the turn. Another order of reading
    would be slower, as streams would be read in several loader workers, but have the
    same bits.
    """
    if not streams:
        yield from positions
        return
    worker_of: dict[int, int] = {}  # by stream
    turn = 0
    for position in positions:
        stream = int(position.ids[0]) % streams
        worker = worker_of.setdefault(stream, len(worker_of) % workers)
        while turn % workers != worker:
            yield None
            turn += 1
        yield position
        turn += 1


def identity(batch: Any) -> Any:
    """Return a batch unchanged; DataLoader's default would convert arrays in it to
    tensors."""
    return batch


class _Sent(Dataset[Any]):
    """A source in a loader worker; with a batch, it sends the digests of what it has
    imported.

    It returns an InputError, as DataLoader would add a traceback. It pickles batches
    itself: where that fails in DataLoader's thread, the training process would wait for
    the batch forever. One that is not forked imports the project when it unpickles the
    source: seeded before that.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        # how many a worker knows already, if it is forked
        self._sent = len(imports.executed)

    def __getstate__(self) -> tuple[int | None, bytes]:
        try:
            return imports.seed_in_force(), _by_value(self._source)
        except Exception as error:
            path, reason = _not_picklable(self._source.dataset, error)
            name = type(self._source.dataset).__name__
            raise InputError(
                f"{self._source.key}: expected a data set that can be pickled, as"
                " data.start_method=spawn and forkserver send it to loader workers,"
                f" got {name}.{path} with {one_line(reason)}; make it when it is first"
                " used, or set data.start_method=fork"
            ) from None

    def __setstate__(self, state: tuple[int | None, bytes]) -> None:
        seed, source = state
        self._sent = 0
        if seed is not None:
            imports.seed_imports(seed)
            imports.note_engine()
        self._source = pickle.loads(source)

    def __getitem__(self, position: Position | None) -> Any:
        if position is None:  # see `_load_by_workers`
            return None
        try:
            batch = self._source[position]
        except InputError as error:
            return error
        except Exception:
            return _failure()
        digests = imports.digests(self._sent)
        self._sent += len(digests)
        try:
            return _Pickled(bytes(ForkingPickler.dumps((batch, digests))))
        except Exception as error:
            path, reason = _not_picklable(batch, error)
            return InputError(
                f"{self._source.key}: expected batches that can be pickled, which"
                f" loader workers send, got {path} with {one_line(reason)}; set"
                " data.num_workers=0, or let data.collate return tensors, numbers and"
                " texts"
            )


def _failure() -> ExceptionWrapper:
    """Return the exception being handled, with its traceback, as DataLoader raises it
    again."""
    info = get_worker_info()
    where = f"in DataLoader worker process {info.id if info else ''}"
    failure = ExceptionWrapper(where=where)  # type: ignore[no-untyped-call]
    if _pickling_error(failure) is not None:  # a class that is found by no name
        failure.exc_type = RuntimeError
    return failure


def _by_value(value: Any) -> bytes:
    """Pickle a value with copies of its tensors.

    PyTorch's reducers would move them to shared memory, also here: NumPy views of them,
    such as a sampler has of the labels, would refer to memory that is free.
    """
    buffer = io.BytesIO()
    pickler = ForkingPickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = {
        kind: reducer
        for kind, reducer in pickler.dispatch_table.items()
        if getattr(reducer, "__module__", None) != reductions.__name__
    }
    pickler.dump(value)
    return buffer.getvalue()


class _Pickled:
    """A pickled batch, which is a batch again where it is received."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._content,)


def _unpickled(content: bytes) -> Any:
    try:
        return pickle.loads(content)
    except Exception as error:
        return InputError(
            "data.num_workers: expected batches that can be unpickled, got "
            f"{one_line(error)}; set data.num_workers=0"
        )


def _pickling_error(value: Any) -> Exception | None:
    try:
        ForkingPickler.dumps(value)
    except Exception as error:
        return error
    return None


def _not_picklable(value: Any, error: Exception) -> tuple[str, Exception]:
    """Return the path of the innermost part of a batch that cannot be pickled, and its
    error."""
    path = ""
    for _ in range(_MOST_LEVELS):
        parts: Iterable[tuple[str, Any]] = ()
        if hasattr(value, "_fields"):
            parts = ((f".{name}", part) for name, part in value._asdict().items())
        elif isinstance(value, Mapping):
            parts = ((f"[{key!r}]", part) for key, part in value.items())
        elif isinstance(value, list | tuple):
            parts = ((f"[{index}]", part) for index, part in enumerate(value))
        elif not isinstance(value, type):
            parts = (
                (f".{name}", part)
                for name, part in getattr(value, "__dict__", {}).items()
            )
        errors = ((name, part, _pickling_error(part)) for name, part in parts)
        inner = next(
            ((name, part, e) for name, part, e in errors if e is not None), None
        )
        if inner is None:
            break
        name, value, error = inner
        path += name
    return path.lstrip("."), error


_loading: WeakSet[Connection] = WeakSet()


@atexit.register
def _stop_loading() -> None:
    """End loader workers before Python waits for them at exit, as they ignore its
    SIGTERM."""
    for stop_loading in _loading:
        stop_loading.send(None)


def _start_worker(
    preset: Mapping[str, Any], dtype: torch.dtype, end: Connection, number: int
) -> None:
    """Set up a loader worker: flags of the preset, and an end with its parent alone.

    Ctrl-C and a cluster's SIGTERM reach the whole process group, but loader workers
    must live until the training process has saved its checkpoint.
    """
    # What the training process no longer needs is not to be finalized here: its loaders
    # would wait for their workers, and Python 3.11 fails if that happens in an import.
    gc.freeze()
    signals.ignore()
    reopen_files()
    logs.start_loader_worker(number)
    threading.Thread(target=_end_in_time, args=[end], daemon=True).start()
    offline.enforce()
    determinism.apply(preset, threads=1)
    torch.set_default_dtype(dtype)  # a model may have set it; a spawned worker lacks it
    ForkingPickler.register(torch.Tensor, _reduced)


def reopen_files() -> None:
    """Give this process file positions of its own: forks share those of files opened
    before."""
    for path in Path("/proc/self/fd").glob("*"):  # none where there is no /proc
        with suppress(OSError):
            number = int(path.name)
            is_file = stat.S_ISREG(os.fstat(number).st_mode)
            if (
                is_file
                and fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
            ):
                reopened = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                os.lseek(reopened, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
                os.dup2(reopened, number, inheritable=os.get_inheritable(number))
                os.close(reopened)


def _reduced(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Send a small tensor through the pipe as bytes: shared memory costs a file handle
    each."""
    plain = tensor.is_cpu and tensor.dtype in _NUMPY_KNOWS and not tensor.requires_grad
    dense = plain and tensor.layout is torch.strided and not tensor.is_nested
    if not dense or tensor.nbytes > _PIPED_BYTES or not tensor.is_contiguous():
        return reductions.reduce_tensor(tensor)  # type: ignore[no-any-return, no-untyped-call]
    return _of_bytes, (tensor.view(-1).numpy(), tuple(tensor.shape), tensor.stride())


def _of_bytes(
    flat: NDArray[Any], shape: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    # Cloned to get the alignment of PyTorch's own memory, on which the choice of
    # kernels may depend. Strides matter even for dimensions of size 1: they tell the
    # memory format.
    return torch.from_numpy(flat).clone().as_strided(shape, stride)


def _end_in_time(no_more: Connection) -> None:
    """End this process when its parent was killed, or has stopped loading but waits for
    it.

    It could wait forever to hand over a batch. A forkserver outlives the parent, and
    others that the parent forked may hold open the pipe that `join` waits on, so both
    are checked. The parent waits at its exit if it did not load every batch, or if an
    exception keeps the loader alive.
    """
    parent = multiprocessing.parent_process()
    pid = os.getppid()
    while os.getppid() == pid and (parent is None or parent.is_alive()):
        if no_more.poll(1):  # never received: it is for all loader workers
            time.sleep(1)  # PyTorch may end them in order first
            os._exit(0)
    os._exit(1)
