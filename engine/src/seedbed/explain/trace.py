"""The operations of a training step as they run: where in the model, what went in and out."""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from seedbed import fingerprint
from seedbed.operations.place import Place, Places
from seedbed.operations.refusals import REFUSED

# What these return is memory that nobody has written yet.
_UNWRITTEN = ("aten.empty", "aten.new_empty", "aten.resize")
_NUMBERS = (bool, int, float, complex, str, torch.dtype)


@dataclass(frozen=True)
class Event:
    """One operation as it ran.

    Attributes:
        inputs, outputs: hashes of the tensors; those changed in place count among the outputs, and
            so do those that they are views of.
        numbers: the arguments that are no tensors, as text.
        taken: dtype and shape of each input, as text.
        names: of the inputs that the model or the optimizer holds, "" for the others.
        is_view: whether it made nothing but another view of what it was given.
        draws: whether it drew random numbers.
        refusal: what deterministic algorithms, if they only warn, said of it, or "".
    """

    place: Place
    operation: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    numbers: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    is_view: bool = False
    draws: bool = False
    refusal: str = ""


class Tracer(Places):  # type: ignore[no-untyped-call]
    """Notes each operation while it is active."""

    def __init__(self, model: nn.Module, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        super().__init__(model)
        self.events: list[Event] = []
        self.warned: Sequence[warnings.WarningMessage] = ()
        self._parameters = list(model.named_parameters())
        self._known = {_address(tensor): name for name, tensor in state(model, optimizers)}
        self._workspaces: dict[int | None, Tensor] = {}  # held, so that no other takes their place

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation between hashing what goes in and what comes out."""
        leaves = tree_leaves((args, kwargs))
        taken = [t for t in _tensors(leaves) if _address(t) not in self._workspaces]
        inputs, names = hashes(taken), self._names_of(taken)
        warned_before = len(self.warned)
        result = func(*args, **kwargs)
        warned = [str(each.message) for each in self.warned[warned_before:]]
        given = _tensors(tree_leaves(result))
        if "rnn" in str(func):  # it writes parts of its workspace, and reads no others
            workspaces = [t for t in given if t.dtype is torch.uint8 and t.numel()]
            self._workspaces |= {_address(t): t for t in workspaces}
            given = [t for t in given if t.dtype is not torch.uint8]
        # Not every schema says what is changed in place: batch norm's running averages are not in
        # native_batch_norm's.
        after = hashes(taken)
        changed = [t for t, x, y in zip(taken, inputs, after, strict=True) if x != y]
        given += changed + [t._base for t in changed if t._base is not None]
        returned = [each.alias_info for each in func._schema.returns]
        self.events.append(
            Event(
                *(self.place, str(func), inputs),
                outputs=() if str(func).startswith(_UNWRITTEN) else hashes(given),
                numbers=tuple(str(x) for x in leaves if isinstance(x, _NUMBERS)),
                taken=tuple(map(_shape, taken)),
                names=names,
                is_view=any(alias is not None and not alias.is_write for alias in returned),
                draws=torch.Tag.nondeterministic_seeded in func.tags,
                refusal=next((text for text in warned if REFUSED.search(text)), ""),
            )
        )
        return result

    def _names_of(self, tensors: Sequence[Tensor]) -> tuple[str, ...]:
        """Return what the model or the optimizer calls tensors, "" where it knows none."""
        known = self._known | {None: ""}
        if self.place.phase == "update":
            gradients = [(name, p.grad) for name, p in self._parameters if p.grad is not None]
            known |= {_address(tensor): f"gradient of {name}" for name, tensor in gradients}
        return tuple(known.get(_address(t), "") for t in tensors)


@contextmanager
def traced(
    model: nn.Module, optimizers: Iterable[torch.optim.Optimizer] = ()
) -> Iterator[list[Event]]:
    """Collect the operations that run meanwhile."""
    tracer = Tracer(model, optimizers)
    with warnings.catch_warnings(record=True) as tracer.warned, tracer:
        warnings.simplefilter("always")
        yield tracer.events


def state(
    model: nn.Module, optimizers: Iterable[torch.optim.Optimizer] = ()
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that a model and optimizers keep from step to step, with their names."""
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    tensors = [*model.named_parameters(), *model.named_buffers()]
    yield from ((name, tensor) for name, tensor in tensors if not is_lazy(tensor))
    groups = ((each, group) for each in optimizers for group in each.param_groups)
    for optimizer, group in groups:
        for parameter in group["params"]:
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    yield f"{key} of {names.get(parameter, 'a parameter')}", value


def hashes(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Hash the bits of each tensor."""
    return tuple(fingerprint.of_lists([[x] for x in tensors]).tolist()) if tensors else ()


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    """Return the tensors among values that have bits."""
    tensors = [x for x in values if isinstance(x, Tensor) and not is_lazy(x)]
    return [x for x in tensors if not x.is_meta and not x._is_zerotensor()]


def _address(tensor: Tensor) -> int | None:
    """Return where a tensor's memory begins, None for one that has none or lies in parts."""
    return tensor.data_ptr() if tensor.layout is torch.strided and tensor.numel() else None


def _shape(tensor: Tensor) -> str:
    shape = "nested" if tensor.is_nested else tuple(tensor.shape)
    return f"{str(tensor.dtype).removeprefix('torch.')} {shape}"
