"""The operations of a training step as they run: where in the model, what went in and out."""

import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from seedbed import determinism, fingerprint, refusals
from seedbed.refusals import Place

# What these return is memory that nobody has written yet.
_UNWRITTEN = ("aten.empty", "aten.new_empty", "aten.resize")


@dataclass(frozen=True)
class Event:
    """One operation as it ran.

    Attributes:
        inputs, outputs: hashes of the tensors; those changed in place count among the outputs.
        refusal: what deterministic algorithms said when they refused it, or "".
        own_generator: whether it drew from a generator other than torch's global ones.
    """

    place: Place
    operation: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    refusal: str = ""
    own_generator: bool = False


class Tracer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes each operation while it is active, and lets refused ones run with a warning."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[Event] = []
        self._model = model
        self._made_at: dict[int, Place] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation between hashing what goes in and what comes out."""
        kwargs = kwargs or {}
        place = self._place()
        taken = tree_leaves((args, kwargs))
        inputs = _hashes(taken)
        result, refusal = _run_even_if_refused(lambda: func(*args, **kwargs))
        given = tree_leaves(result) + (taken if func._schema.is_mutable else [])
        outputs = () if str(func).startswith(_UNWRITTEN) else _hashes(given)
        own = any(isinstance(x, torch.Generator) and not _is_global(x) for x in taken)
        self.events.append(Event(place, str(func), inputs, outputs, refusal, own))
        return result

    def _place(self) -> Place:
        """Return where the operation was called; in a backward pass, where its forward pass was."""
        node = torch._C._current_autograd_node()
        if node is not None:
            made = self._made_at.get(node._sequence_nr(), Place("", "", "backward"))
            return replace(made, phase="backward")
        frames = list(traceback.walk_stack(sys._getframe(2)))
        place = refusals.locate(reversed(frames), self._model)
        files = [frame.f_code.co_filename for frame, _ in frames]
        if any("torch/optim" in f or "clip_grad" in f for f in files):
            return Place("", "", "update")
        # An operation that will be differentiated has just been given the number before this one.
        self._made_at[torch._C._autograd._get_sequence_nr() - 1] = place
        return place


@contextmanager
def traced(model: nn.Module) -> Iterator[list[Event]]:
    """Collect the operations that run meanwhile."""
    tracer = Tracer(model)
    with tracer:
        yield tracer.events


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


def _run_even_if_refused(run: Any) -> tuple[Any, str]:
    """Return the result of an operation, and what refused it under deterministic algorithms."""
    try:
        return run(), ""
    except RuntimeError as error:
        if not refusals.is_refusal(error):
            raise
        refusal = str(error)
    determinism.apply({"on_nondeterministic": "allow"})
    try:
        return run(), refusal
    finally:
        determinism.apply({"on_nondeterministic": "error"})


def _hashes(values: Sequence[Any]) -> tuple[int, ...]:
    tensors = [x for x in values if isinstance(x, Tensor)]
    dense = [x if x.layout is torch.strided else x.to_dense() for x in tensors]
    return tuple(int(fingerprint.of_tensors([x])) for x in dense)


def _is_global(generator: torch.Generator) -> bool:
    return any(generator is g for g in (torch.default_generator, *torch.cuda.default_generators))
