"""Trace of a training step: each operation's place in the model, inputs and outputs."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from seedbed import fingerprint
from seedbed.operations import REFUSED, Place, Places

# These return uninitialized memory.
_UNWRITTEN = ("aten.empty", "aten.new_empty", "aten.resize")
_NUMBERS = (bool, int, float, complex, str, torch.dtype)
BEFORE, AFTER = "before the step", "after the step"


@dataclass(frozen=True)
class Event:
    """One operation as it ran, or a tensor that is kept between steps.

    Attributes:
        inputs, outputs: hashes of tensors; outputs include the tensors changed in place and those
            that they are views of.
        arguments: numbers, and dtype and shape of tensors, as text.
        names: names of the inputs that the model or an optimizer holds, "" for the others.
        is_view: whether it only made a view of an input.
        draws: whether it drew random numbers.
        refusal: the warning of deterministic algorithms about it, if they only warn, or "".
    """

    place: Place
    operation: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    arguments: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    is_view: bool = False
    draws: bool = False
    refusal: str = ""


class Tracer(Places):  # type: ignore[no-untyped-call]
    """Dispatch mode that adds an `Event` for each operation."""

    def __init__(self, model: nn.Module, optimizers: Iterable[Optimizer]) -> None:
        super().__init__(model)
        self.events: list[Event] = []
        self._model, self._optimizers = model, optimizers
        self._known, self._known_in = dict[int, str](), ""  # names by address, and their phase

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation, and hash its inputs and outputs."""
        leaves = tree_leaves((args, kwargs))
        taken = _tensors(func, leaves)
        inputs, names = hashes(taken), self._names_of(taken)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            result = func(*args, **kwargs)
        # Not every schema names the tensors changed in place: native_batch_norm's omits the running
        # averages. By id, a result that is also a changed input or a base counts once.
        after = hashes(taken)
        changed = [t for t, x, y in zip(taken, inputs, after, strict=True) if x != y]
        bases = [t._base for t in changed if t._base is not None]
        given = {id(t): t for t in (*_tensors(func, tree_leaves(result)), *changed, *bases)}
        returned = [each.alias_info for each in func._schema.returns]
        self.events.append(
            Event(
                *(self.place, str(func), inputs),
                outputs=() if str(func).startswith(_UNWRITTEN) else hashes([*given.values()]),
                arguments=tuple(_text(x) for x in leaves if isinstance(x, (Tensor, *_NUMBERS))),
                names=names,
                is_view=any(alias is not None and not alias.is_write for alias in returned),
                draws=torch.Tag.nondeterministic_seeded in func.tags,
                refusal=next(filter(REFUSED.search, (str(w.message) for w in warned)), ""),
            )
        )
        return result

    def _names_of(self, tensors: Sequence[Tensor]) -> tuple[str, ...]:
        """Return the names of tensors that the model or an optimizer holds, "" for others."""
        if self.place.phase != self._known_in:  # gradients exist once the update begins
            self._known_in = self.place.phase
            parameters = self._model.named_parameters()
            gradients = [(f"gradient of {k}", p.grad) for k, p in parameters if p.grad is not None]
            named = (*_state(self._model, self._optimizers), *gradients)
            self._known = {_address(tensor): name for name, tensor in named}
        return tuple(self._known.get(_address(t), "") for t in tensors)


@contextmanager
def traced(model: nn.Module, optimizers: Iterable[Optimizer] = ()) -> Iterator[list[Event]]:
    """Collect the operations that run in the context, and the state before and after them."""

    def state(phase: str) -> Iterator[Event]:
        for name, tensor in _state(model, optimizers):
            bits = hashes([tensor])
            yield Event(Place("", "", phase), name, bits, bits, names=(name,))

    tracer = Tracer(model, optimizers)
    tracer.events += state(BEFORE)
    with tracer:
        yield tracer.events
    tracer.events += state(AFTER)


def _state(model: nn.Module, optimizers: Iterable[Optimizer]) -> Iterator[tuple[str, Tensor]]:
    """Yield the name and value of each tensor that a model and optimizers keep between steps."""
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    yield from (*model.named_parameters(), *model.named_buffers())
    for optimizer in optimizers:
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    yield f"{key} of {names.get(parameter, 'a parameter')}", value


def hashes(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Hash the bits of each tensor."""
    return tuple(fingerprint.of_lists([[x] for x in tensors]).tolist())


def _tensors(func: Any, values: Sequence[Any]) -> list[Tensor]:
    """Return the tensors with data among the inputs or results of an operation.

    The workspace of an RNN is left out: its kernel writes only parts of it, and reads no others.
    """
    tensors = [x for x in values if isinstance(x, Tensor)]
    tensors = [x for x in tensors if not x.is_meta and not x._is_zerotensor()]
    return [x for x in tensors if "rnn" not in str(func) or x.dtype is not torch.uint8]


def _address(tensor: Tensor) -> int:
    """Return the address of a tensor's memory, or its id if it has none or several."""
    in_memory = tensor.layout is torch.strided and tensor.numel()
    return tensor.data_ptr() if in_memory else id(tensor)


def _text(argument: Any) -> str:
    """Return an argument as text; for a tensor, its dtype and shape."""
    if not isinstance(argument, Tensor):
        return str(argument)
    shape = "nested" if argument.is_nested else tuple(argument.shape)
    return f"{str(argument.dtype).removeprefix('torch.')} {shape}"
