"""The operations of a training step as they run: where in the model, what went in and out."""

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
from seedbed.operations.place import Place, Places
from seedbed.operations.refusals import REFUSED

# What these return is memory that nobody has written yet.
_UNWRITTEN = ("aten.empty", "aten.new_empty", "aten.resize")
_NUMBERS = (bool, int, float, complex, str, torch.dtype)
BEFORE, AFTER = "before the step", "after the step"


@dataclass(frozen=True)
class Event:
    """One operation as it ran, or a tensor that is kept from step to step.

    Attributes:
        inputs, outputs: hashes of the tensors; those changed in place count among the outputs, and
            so do those that they are views of.
        arguments: numbers, and dtype and shape of tensors, as text.
        names: of the inputs that the model or the optimizer holds, "" for the others.
        is_view: whether it made nothing but another view of what it was given.
        draws: whether it drew random numbers.
        refusal: what deterministic algorithms, if they only warn, said of it, or "".
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
    """Notes each operation while it is active."""

    def __init__(self, model: nn.Module, optimizers: Iterable[Optimizer]) -> None:
        super().__init__(model)
        self.events: list[Event] = []
        self._model, self._optimizers = model, optimizers
        self._known, self._known_in = dict[int, str](), ""  # names by address, in which phase

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation between hashing what goes in and what comes out."""
        leaves = tree_leaves((args, kwargs))
        taken = _tensors(func, leaves)
        inputs, names = hashes(taken), self._names_of(taken)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            result = func(*args, **kwargs)
        # Not every schema says what is changed in place: batch norm's running averages are not in
        # native_batch_norm's. Each tensor counts once, so `self` does whether it changed or not.
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
        """Return what the model or the optimizer calls tensors, "" where it knows none."""
        if self.place.phase != self._known_in:  # the gradients are there when the update begins
            self._known_in = self.place.phase
            parameters = self._model.named_parameters()
            gradients = [(f"gradient of {k}", p.grad) for k, p in parameters if p.grad is not None]
            named = (*_state(self._model, self._optimizers), *gradients)
            self._known = {_address(tensor): name for name, tensor in named}
        return tuple(self._known.get(_address(t), "") for t in tensors)


@contextmanager
def traced(model: nn.Module, optimizers: Iterable[Optimizer] = ()) -> Iterator[list[Event]]:
    """Collect the operations that run meanwhile, and the state before and after them."""

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
    """Yield the tensors that a model and optimizers keep from step to step, with their names."""
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
    """Return the tensors with bits among what an operation takes or gives.

    The workspace of an RNN is none of them: its kernel writes parts of it, and reads no others.
    """
    tensors = [x for x in values if isinstance(x, Tensor)]
    tensors = [x for x in tensors if not x.is_meta and not x._is_zerotensor()]
    return [x for x in tensors if "rnn" not in str(func) or x.dtype is not torch.uint8]


def _address(tensor: Tensor) -> int:
    """Return where a tensor's memory begins, its identity for one that has none or several."""
    in_memory = tensor.layout is torch.strided and tensor.numel()
    return tensor.data_ptr() if in_memory else id(tensor)


def _text(argument: Any) -> str:
    """Return a number as text, of a tensor its dtype and shape."""
    if not isinstance(argument, Tensor):
        return str(argument)
    shape = "nested" if argument.is_nested else tuple(argument.shape)
    return f"{str(argument.dtype).removeprefix('torch.')} {shape}"
