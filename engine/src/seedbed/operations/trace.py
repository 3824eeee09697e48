"""The operations of a training step as they run: where in the model, what went in and out."""

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from seedbed import determinism, fingerprint
from seedbed.operations.place import Place, is_refusal, locate

# What these return is memory that nobody has written yet.
_UNWRITTEN = ("aten.empty", "aten.new_empty", "aten.resize")
_NUMBERS = (bool, int, float, complex, str, torch.dtype)


@dataclass(frozen=True)
class Event:
    """One operation as it ran.

    Attributes:
        inputs, outputs: hashes of the tensors; those changed in place count among the outputs, and
            so do those that they are views of.
        refusal: what deterministic algorithms said when they refused it, or "".
        own_generator: whether it drew from a generator other than torch's global ones.
        numbers: the arguments that are no tensors, as text.
        taken, given: dtype and shape of each input and output, as text.
        names: of the inputs that the model or the optimizer holds, "" for the others.
        is_view: whether it made nothing but another view of what it was given.
        draws: whether it drew random numbers.
    """

    place: Place
    operation: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    refusal: str = ""
    own_generator: bool = False
    numbers: tuple[str, ...] = ()
    taken: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    is_view: bool = False
    draws: bool = False


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes each operation while it is active, refused ones too, which run all the same."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Iterable[torch.optim.Optimizer],
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[Event] = []
        self._model = model
        self._parameters = list(model.named_parameters())
        self._known = {_address(t): name for name, t in state(model, optimizers)}
        self._made_at: dict[int, Place] = {}
        self._workspaces: dict[int | None, Tensor] = {}  # held, so that no other takes their place

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation between hashing what goes in and what comes out."""
        kwargs = kwargs or {}
        place = self._place()
        if place is None:
            return func(*args, **kwargs)
        leaves = tree_leaves((args, kwargs))
        taken = [t for t in _tensors(leaves) if _address(t) not in self._workspaces]
        inputs, names = hashes(taken), self._names(taken)
        result, refusal = run_even_if_refused(lambda: func(*args, **kwargs))
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
        self.events.append(
            Event(
                *(place, str(func), inputs),
                outputs=() if str(func).startswith(_UNWRITTEN) else hashes(given),
                refusal=refusal,
                own_generator=any(
                    isinstance(x, torch.Generator) and not _is_global(x) for x in leaves
                ),
                numbers=tuple(str(x) for x in leaves if isinstance(x, _NUMBERS)),
                taken=tuple(map(_shape, taken)),
                given=tuple(map(_shape, given)),
                names=names,
                is_view=_is_view(func),
                draws=torch.Tag.nondeterministic_seeded in func.tags,
            )
        )
        return result

    def _names(self, tensors: Sequence[Tensor]) -> tuple[str, ...]:
        """Return what the model or the optimizer calls tensors, "" where it knows none."""
        gradients = {
            _address(parameter.grad): f"gradient of {name}"
            for name, parameter in self._parameters
            if parameter.grad is not None
        }
        known = self._known | gradients | {None: ""}
        return tuple(known.get(_address(t), "") for t in tensors)

    def _place(self) -> Place | None:
        """Return where the operation was called; in a backward pass, where its forward pass was.

        None for what only takes fingerprints.
        """
        node = torch._C._current_autograd_node()
        if node is not None:
            made = self._made_at.get(node._sequence_nr(), Place("", "", "backward"))
            return replace(made, phase="backward")
        frames = list(traceback.walk_stack(sys._getframe(2)))
        files = [frame.f_code.co_filename for frame, _ in frames]
        if fingerprint.__file__ in files:
            return None
        place = locate(reversed(frames), self._model)
        if any("torch/optim" in f or "clip_grad" in f for f in files):
            return replace(place, module="", phase="update")
        # An operation that will be differentiated has just been given the number before this one;
        # one that will not be finds there what was given to another.
        self._made_at.setdefault(torch._C._autograd._get_sequence_nr() - 1, place)
        return place


@contextmanager
def traced(
    model: nn.Module, optimizers: Iterable[torch.optim.Optimizer] = ()
) -> Iterator[list[Event]]:
    """Collect the operations that run meanwhile."""
    tracer = Tracer(model, optimizers)
    with tracer:
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


def differing(first: Sequence[Event], again: Sequence[Event]) -> list[tuple[Event, str]]:
    """Return the operations where two runs of one step part, and what is to be said of each.

    An operation that gave something else because it was given something else is not to blame;
    but the first one is named anyway: what it was given did not come out of an operation.
    """
    found: list[tuple[Event, str]] = []
    for a, b in zip(first, again, strict=False):
        if a.operation != b.operation:
            return [*found, (b, f"another operation, {a.operation}, ran here before")]
        if a.outputs == b.outputs:
            continue
        if a.inputs == b.inputs:
            found.append((b, "gives other bits for the same inputs"))
        elif not found:
            found.append((b, "gets other bits, which no operation made, and passes them on"))
    if len(first) != len(again) and not found:
        longer = max(first, again, key=len)
        found.append((longer[min(len(first), len(again))], "runs in one run of the step only"))
    return found


def run_even_if_refused(run: Callable[[], Any]) -> tuple[Any, str]:
    """Return a result, and what deterministic algorithms said if they refused it, or ""."""
    try:
        return run(), ""
    except RuntimeError as error:
        if not is_refusal(error):
            raise
        refusal = str(error)
    determinism.apply({"on_nondeterministic": "allow"})
    try:
        return run(), refusal
    finally:
        determinism.apply({"on_nondeterministic": "error"})


def _tensors(values: Sequence[Any]) -> list[Tensor]:
    return [x for x in values if isinstance(x, Tensor) and not is_lazy(x)]


def hashes(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Hash the bits of each tensor."""
    return tuple(fingerprint.of_lists([[_plain(x)] for x in tensors]).tolist()) if tensors else ()


def _plain(tensor: Tensor) -> Tensor:
    """Return a dense tensor with the bits of one of any kind; an empty one if it has none."""
    if tensor.is_meta or tensor._is_zerotensor():
        return torch.zeros(0)
    if tensor.is_nested:
        tensor = tensor.to_padded_tensor(0.0)
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    tensor = tensor.resolve_conj().resolve_neg()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _is_view(operation: Any) -> bool:
    """Return whether an operation gives views: what it returns is what it takes, not written."""
    returned = [each.alias_info for each in operation._schema.returns]
    return any(alias is not None and not alias.is_write for alias in returned)


def _address(tensor: Tensor) -> int | None:
    """Return where a tensor's memory begins, None for one that has none or lies in parts."""
    return tensor.data_ptr() if tensor.layout is torch.strided and tensor.numel() else None


def _shape(tensor: Tensor) -> str:
    shape = "nested" if tensor.is_nested else tuple(tensor.shape)
    return f"{str(tensor.dtype).removeprefix('torch.')} {shape}"


def _is_global(generator: torch.Generator) -> bool:
    return any(generator is g for g in (torch.default_generator, *torch.cuda.default_generators))
