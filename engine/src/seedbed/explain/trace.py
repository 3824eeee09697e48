"""Trace of a training step: how its batch is loaded, then each operation and the kept
tensors."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from inspect import getattr_static
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from seedbed import fingerprint
from seedbed.operations import Place, Places
from seedbed.pipeline.positions import Position
from seedbed.pipeline.source import Source

# These return uninitialized memory.
_UNWRITTEN = ("aten.empty", "aten.new_empty", "aten.resize")
_NUMBERS = (bool, int, float, complex, str)
_ARGUMENTS = (Tensor, torch.dtype, *_NUMBERS)
# Phases besides the passes of the model.
ORDER = "data order"
LOADING = "sample loading"
AUGMENTATION = "augmentation"
COLLATE = "collate"
BEFORE = "before the step"
AFTER = "after the step"


@dataclass(frozen=True)
class Event:
    """One operation as it ran, or a tensor that is kept between steps."""

    place: Place
    operation: str
    inputs: tuple[int, ...]  # hashes of tensors
    # also of tensors changed in place, and those that they are views of
    outputs: tuple[int, ...]
    arguments: tuple[str, ...] = ()  # numbers, and dtype and shape of tensors
    # of inputs that the model or an optimizer holds, "" for others
    names: tuple[str, ...] = ()
    is_view: bool = False  # it only made a view of an input
    draws: bool = False  # it drew random numbers


class Tracer(Places):  # type: ignore[no-untyped-call]
    """Dispatch mode that adds an `Event` for each operation."""

    def __init__(self, model: nn.Module, optimizers: Iterable[Optimizer]) -> None:
        super().__init__(model)
        self.events: list[Event] = []
        self._model = model
        self._optimizers = optimizers
        # names by address, and their phase
        self._known = dict[int, str]()
        self._known_in = ""

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        leaves = tree_leaves((args, kwargs))
        taken = _tensors(func, leaves)
        inputs = hashes(taken)
        names = self._names_of(taken)
        result = func(*args, **kwargs)
        # Not every schema names the tensors changed in place: native_batch_norm's omits
        # the running averages. By id, a result that is also a changed input or a base
        # counts once.
        after = hashes(taken)
        changed = [t for t, x, y in zip(taken, inputs, after, strict=True) if x != y]
        bases = [t._base for t in changed if t._base is not None]
        given = {
            id(t): t for t in (*_tensors(func, tree_leaves(result)), *changed, *bases)
        }
        returned = [each.alias_info for each in func._schema.returns]
        self.events.append(
            Event(
                *(self.place, str(func), inputs),
                outputs=(
                    ()
                    if str(func).startswith(_UNWRITTEN)
                    else hashes([*given.values()])
                ),
                arguments=tuple(_text(x) for x in leaves if isinstance(x, _ARGUMENTS)),
                names=names,
                is_view=any(
                    alias is not None and not alias.is_write for alias in returned
                ),
                draws=torch.Tag.nondeterministic_seeded in func.tags,
            )
        )
        return result

    def _names_of(self, tensors: Sequence[Tensor]) -> tuple[str, ...]:
        """Return the names of tensors that the model or an optimizer holds, "" for
        others."""

        # of its memory, or its id if it has none or several
        def address(tensor: Tensor) -> int:
            in_memory = tensor.layout is torch.strided and tensor.numel()
            return tensor.data_ptr() if in_memory else id(tensor)

        if self.place.phase != self._known_in:  # gradients exist once the update begins
            self._known_in = self.place.phase
            parameters = self._model.named_parameters()
            gradients = [
                (f"gradient of {k}", p.grad)
                for k, p in parameters
                if p.grad is not None
            ]
            named = (*_state(self._model, self._optimizers), *gradients)
            self._known = {address(tensor): name for name, tensor in named}
        return tuple(self._known.get(address(t), "") for t in tensors)


@contextmanager
def traced(
    model: nn.Module, optimizers: Iterable[Optimizer] = ()
) -> Iterator[list[Event]]:
    """Collect the operations that run in the context, and the state before and after
    them."""

    def state(phase: str) -> Iterator[Event]:
        for name, tensor in _state(model, optimizers):
            bits = hashes([tensor])
            yield Event(Place("", "", phase), name, bits, bits, names=(name,))

    tracer = Tracer(model, optimizers)
    tracer.events += state(BEFORE)
    with tracer:
        yield tracer.events
    tracer.events += state(AFTER)


def _state(
    model: nn.Module, optimizers: Iterable[Optimizer]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and value of each tensor that a model and optimizers keep between
    steps."""
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    yield from (*model.named_parameters(), *model.named_buffers())
    for optimizer in optimizers:
        for parameter in (
            p for group in optimizer.param_groups for p in group["params"]
        ):
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    yield f"{key} of {names.get(parameter, 'a parameter')}", value


def hashes(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Hash the bits of each tensor."""
    return tuple(fingerprint.of_lists([[x] for x in tensors]).tolist())


def _tensors(func: Any, values: Sequence[Any]) -> list[Tensor]:
    """Return the tensors with data among the inputs or results of an operation.

    The workspace of an RNN is left out: its kernel writes only parts of it, and reads
    no others.
    """
    tensors = [x for x in values if isinstance(x, Tensor)]
    tensors = [x for x in tensors if not x.is_meta and not x._is_zerotensor()]
    return [x for x in tensors if "rnn" not in str(func) or x.dtype is not torch.uint8]


def _text(argument: Any) -> str:
    """Return an argument as text; for a tensor, its dtype and shape."""
    if not isinstance(argument, Tensor):
        return str(argument)
    shape = "nested" if argument.is_nested else tuple(argument.shape)
    return f"{str(argument.dtype).removeprefix('torch.')} {shape}"


@contextmanager
def noted(source: Source, positions: Iterable[Position]) -> Iterator[list[Event]]:
    """Collect the events of loading these positions from a source in the context.

    Callable attributes of a data set, and of those that it wraps, are assumed to be
    transforms; each transform in a `Compose` has its own events.
    """
    events = []
    for position in positions:
        order = Place("data.train", "", ORDER)
        size = f"{len(position.ids)} samples"
        events.append(Event(order, "sample ids", (), hashes_of(position), (size,)))
    with ExitStack() as undo:

        def note(holder: Any, key: Any, path: str, phase: str) -> None:
            undo.callback(holder.__setitem__, key, holder[key])
            holder[key] = _Noted(holder[key], path, phase, events)

        parts = [("data.train", source.dataset)]
        for path, owner in parts:  # grows in the loop
            for name, value in list(getattr(owner, "__dict__", {}).items()):
                where = f"{path}.{name}"
                transforms = getattr_static(value, "transforms", None)
                if isinstance(value, type):  # such as np.float32
                    continue
                if isinstance(transforms, list):
                    for i in range(len(transforms)):
                        note(transforms, i, f"{where}[{i}]", AUGMENTATION)
                elif callable(value):
                    note(vars(owner), name, where, AUGMENTATION)
                elif hasattr(value, "__getitem__") and not any(
                    value is x for _, x in parts
                ):
                    parts.append((where, value))
        if source._collate is not None:
            note(vars(source), "_collate", "data.collate", COLLATE)
        note(vars(source), "dataset", "data.train", LOADING)
        yield events


class _Noted:
    """Wrapper of a data set, transform or collate function that adds an event for each
    call."""

    def __init__(self, noted: Any, path: str, phase: str, events: list[Event]) -> None:
        self.__dict__.update(_noted=noted, _path=path, _phase=phase, _events=events)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._noted, *args, **kwargs)

    def __getitem__(self, index: Any) -> Any:
        return self._call(self._noted.__getitem__, index)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._noted, name)
        return partial(self._call, value) if name == "fetch" else value

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._noted, name, value)

    __class__ = property(lambda self: type(self._noted))  # for isinstance

    def _call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        name = getattr(function, "__name__", type(function).__name__)
        # of a module: its forward
        call = getattr(function, "forward", type(function).__call__)
        code = getattr(function, "__code__", getattr(call, "__code__", None))
        line = f"{code.co_filename}:{code.co_firstlineno}" if code else ""
        place = Place(self._path, line, self._phase)
        taken = hashes_of((args, kwargs))
        result = function(*args, **kwargs)
        self._events.append(Event(place, name, taken, hashes_of(result)))
        return result


for _name in ("__len__", "__iter__", "__contains__", "__enter__", "__exit__"):
    setattr(
        _Noted, _name, lambda self, *xs, _name=_name: getattr(self._noted, _name)(*xs)
    )


def hashes_of(value: Any) -> tuple[int, ...]:
    """Hash tensors, arrays, images, numbers and strings; other objects by their type
    alone."""
    return tuple(map(_hash, tree_leaves(value)))


def _hash(value: Any) -> int:
    if isinstance(value, Tensor):
        return hashes([value])[0]
    if hasattr(value, "__array_interface__"):  # arrays, NumPy scalars, PIL images
        array = np.ascontiguousarray(value)
        value = array.tobytes() if array.dtype != object else repr(array.tolist())
    text = (
        repr(value)
        if isinstance(value, (*_NUMBERS, bytes, type(None)))
        else type(value).__name__
    )
    return int.from_bytes(
        hashlib.blake2b(text.encode(), digest_size=8).digest(), "little"
    )
