"""Try operations again and again on the same inputs, and see whether they are deterministic.

Each operation runs forward and backward under two determinism presets in turn, so that whatever
else the machine does slows both alike. Before each run every generator is seeded alike, and memory
of the sizes that the run will ask for is filled with something new: an operation that reads
memory it never wrote is found out.
"""

import statistics
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from seedbed import determinism, rng
from seedbed.probe.operation import Input, Operation


@dataclass
class Trial:
    """What the runs of one operation under one preset gave.

    Attributes:
        raised: the first line of the error that stopped it, or "".
        raised_in: "forward", "backward", or "" where nothing was raised.
        differs_in: where bits first differed from those of the first run: as `raised_in`.
        largest_difference: of a value from that of the first run; 0 if only the sign of a zero or
            the payload of a NaN differs, infinite where a NaN or an infinity came or went.
        seconds: of each run, the first one included.
        first: outputs and gradients of the first run.
    """

    raised: str = ""
    raised_in: str = ""
    differs_in: str = ""
    largest_difference: float = 0.0
    seconds: list[float] = field(default_factory=list)
    first: dict[str, list[Tensor]] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Finding:
    """What was found about one operation on one device.

    Attributes:
        unavailable: why the operation cannot run on this device at all, or "".
    """

    operation: str
    device: str
    fast: Trial
    strict: Trial
    unavailable: str = ""

    @property
    def slowdown(self) -> "Slowdown | None":
        """What strict costs, warm-up aside; None if one of the presets raised."""
        if self.unavailable or self.fast.raised or self.strict.raised:
            return None
        pairs = zip(self.strict.seconds[1:], self.fast.seconds[1:], strict=True)
        ratios = [strict / fast for strict, fast in pairs]
        quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        return Slowdown(quartiles[1], quartiles[0], quartiles[2])


class Slowdown(NamedTuple):
    """The time under strict over the time under fast, run for run: median and quartiles."""

    median: float
    lower: float
    upper: float


class Refused(Exception):
    """An operation raised an error: in which phase, and the first line of what it said."""

    def __init__(self, phase: str, error: BaseException) -> None:
        super().__init__((str(error).strip() or type(error).__name__).splitlines()[0])
        self.phase = phase


def devices() -> list[str]:
    """Return the kinds of device that are there."""
    found = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.mps.is_available()}
    return [device for device, there in found.items() if there]


def probe(
    operation: Operation,
    device: str,
    fast: Mapping[str, Any],
    strict: Mapping[str, Any],
    repeats: int,
) -> Finding:
    """Run an operation 1 + `repeats` times under each preset, in turn; the first run warms up.

    Args:
        operation: an entry of the catalogue.
        device: "cpu", "cuda" or "mps".
        fast, strict: two presets, as in configs/determinism/.
        repeats: at least 1.
    """
    trials = Trial(), Trial()
    with _flags_restored():
        _apply(fast)
        try:
            case = _Case(operation, device)
            case.run()
        except Refused as error:
            return Finding(operation.name, device, *trials, unavailable=str(error))
        for repeat in range(1 + repeats):
            turns = (0, 1) if repeat % 2 == 0 else (1, 0)
            for turn in turns:
                _apply((fast, strict)[turn])
                _try_once(case, trials[turn], garbage=repeat)
    return Finding(operation.name, device, *trials)


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors have the same shape, type and bits (NaN payloads count)."""
    alike = a.shape == b.shape and a.dtype == b.dtype
    return alike and torch.equal(_bytes(a), _bytes(b))


def largest_difference(a: Tensor, b: Tensor) -> float:
    """Return the largest absolute difference; infinite where only one of two is a number."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    dtype = torch.complex128 if a.is_complex() else torch.float64
    x, y = a.detach().cpu().to(dtype), b.detach().cpu().to(dtype)
    equal = (x == y) | (x.isnan() & y.isnan())
    difference = (x - y).abs().masked_fill(equal, 0.0).nan_to_num(nan=float("inf"))
    return float(difference.max()) if difference.numel() else 0.0


class _Case:
    """An operation with its inputs on a device, ready to run again and again."""

    def __init__(self, operation: Operation, device: str) -> None:
        self.device = device
        rng.seed_globals(rng.key(0, "init"), device)
        with _refusals("building"):
            inputs = [_draw(spec, i).to(device) for i, spec in enumerate(operation.inputs)]
            module = [operation.module().to(device)] if operation.module else []
        leaves = [tensor.requires_grad_() for tensor in inputs if tensor.is_floating_point()]
        self._leaves = [*leaves, *(p for m in module for p in m.parameters())]
        self._arguments = (*module, *inputs)
        self._call = operation.call
        self._upstream: list[Tensor] = []

    def run(self) -> tuple[dict[str, list[Tensor]], float]:
        """Run forward and backward; return what came out, by phase, and the seconds it took."""
        rng.seed_globals(rng.key(0, "dropout"), self.device)
        started = self._now()
        with _refusals("forward"):
            result = self._call(*self._arguments)
            outputs = [result] if isinstance(result, Tensor) else list(result)
            self._now()
        with _refusals("backward"):
            gradients = self._backward([out for out in outputs if out.requires_grad])
            seconds = self._now() - started
        return {"forward": outputs, "backward": gradients}, seconds

    def _backward(self, outputs: list[Tensor]) -> list[Tensor]:
        if not outputs:
            return []
        if not self._upstream:
            drawn = [Input(tuple(out.shape), dtype=out.dtype) for out in outputs]
            self._upstream = [_draw(x, -1 - i).to(self.device) for i, x in enumerate(drawn)]
        found = torch.autograd.grad(outputs, self._leaves, self._upstream, allow_unused=True)
        return [gradient for gradient in found if gradient is not None]

    def _now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        elif self.device == "mps":
            torch.mps.synchronize()
        return time.perf_counter()


def _try_once(case: _Case, trial: Trial, garbage: int) -> None:
    """Run a case once more and write down in the trial what came of it."""
    if trial.raised:
        return
    _leave_garbage((t for tensors in trial.first.values() for t in tensors), garbage)
    try:
        result, seconds = case.run()
    except Refused as error:
        trial.raised, trial.raised_in = str(error), error.phase
        return
    trial.seconds.append(seconds)
    trial.first = trial.first or result
    for phase, tensors in result.items():
        for a, b in zip(trial.first[phase], tensors, strict=True):
            if not same_bits(a, b):
                trial.differs_in = trial.differs_in or phase
                trial.largest_difference = max(trial.largest_difference, largest_difference(a, b))


def _draw(spec: Input, position: int) -> Tensor:
    """Draw a tensor on the CPU, the same on every machine."""
    count = int(np.prod(spec.shape))
    numbers = rng.uniform(rng.key(0, "data", position), np.arange(count), 1)
    scaled = numbers * 2 - 1 if spec.below is None else numbers * spec.below
    return torch.from_numpy(scaled).to(spec.dtype).view(spec.shape)


def _leave_garbage(like: Iterable[Tensor], value: int) -> None:
    """Fill memory of the sizes of some tensors, and let go of it for the next run to find."""
    kept = [torch.empty(t.nbytes, dtype=torch.uint8, device=t.device).fill_(value) for t in like]
    del kept


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


@contextmanager
def _refusals(phase: str) -> Iterator[None]:
    """Turn an operation's error into a `Refused`; what it warns of is not news here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except (RuntimeError, ValueError) as error:
            raise Refused(phase, error) from error


@contextmanager
def _flags_restored() -> Iterator[None]:
    before = determinism.in_force()
    try:
        yield
    finally:
        _apply(before)


def _apply(preset: Mapping[str, Any]) -> None:
    # The number of operations side by side can be set once in a process; here it is one anyway.
    determinism.apply({**preset, "interop_threads": None})
