"""Compare the kernels with PyTorch's own, on a GPU; on a CPU, to try this program.

usage: python measure.py [--device cuda|cpu] [--names NAME ...] [--compiled] [--small]
[--seconds S]

Prints a row for each operation: whether values are PyTorch's in float64, up to
rounding; the number of different results in 20 calls of the kernel and, as a negative
control, of PyTorch's own (1 there: these inputs do not show that it is
nondeterministic, or it is not); the median times of both, of the operation alone and of
the forward and backward passes that it is part of; with --compiled, the different
results of 20 calls of compiled code. All operations are called one after the other, in
another order in each repetition. What does not fit into --seconds is left out, which
the table says.

exit status: 0 all values are right and all kernels have one result, 1 if not, or if
some were left out
"""

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torchvision.ops
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import torch_deterministic_kernels as tdk
from torch_deterministic_kernels import switch

REPETITIONS = 20
HEAD = (
    "operation",
    "values right",
    "results of 20",
    "PyTorch's",
    "ms",
    "PyTorch's",
    "ratio",
    "ms, forward and backward",
    "PyTorch's",
    "ratio",
    "results of 20, compiled",
)
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


@dataclass
class Case:
    """An operation, a function that uses it, and what was found."""

    operation: tdk.Operation
    use: Callable[[], Any]  # the forward pass; called with equal inputs each time
    call: Call | None = None  # the operation's call in it, or in the backward pass
    right: str = ""
    error: str = ""
    results: dict[str, set[int]] = field(default_factory=dict)  # by what was run
    times: dict[str, list[float]] = field(default_factory=dict)  # milliseconds


class Noted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the calls of an operation with copies of their arguments."""

    def __init__(self, name: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        # The backward pass of embedding bags calls the replaced operation out of sight.
        self.name, self.calls = name.replace("_dense_", "_"), list[Call]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if self.name == func._opname:
            self.calls.append((func, *tree_map(copied, (args, kwargs or {}))))
        return func(*args, **(kwargs or {}))


def copied(x: Any, dtype: torch.dtype | None = None) -> Any:
    if not isinstance(x, Tensor):
        return x
    return x.to(dtype, copy=True) if dtype and x.is_floating_point() else x.clone()


def uses(device: str, small: bool) -> dict[str, Callable[[], Any]]:
    """Return a use of each operation, in sizes at which atomic additions collide.

    Sizes of images are those in a segmentation net, of sequences in a network that
    reads text, of regions in a detector. Each use draws the same inputs whenever it is
    called.
    """
    scale = 4 if small else 1

    class Drawn:
        """Draws inputs, in an order that is the same for each use."""

        def __init__(self) -> None:
            self.generator = np.random.default_rng(0)

        def __call__(self, *shape: int) -> Tensor:
            values = self.generator.standard_normal(shape, np.float32)
            return torch.from_numpy(values).to(device).requires_grad_()

        def below(self, high: int, *shape: int) -> Tensor:
            return torch.from_numpy(self.generator.integers(0, high, shape)).to(device)

    def resized(
        mode: str, *shape: int, by: float = 2, **options: Any
    ) -> Callable[[], Any]:
        return lambda: F.interpolate(
            Drawn()(*shape), scale_factor=by, mode=mode, **options
        )

    def on(
        function: Callable[..., Any], *shape: int, **options: Any
    ) -> Callable[[], Any]:
        return lambda: function(Drawn()(*shape), **options)

    def padded(mode: str, *shape: int) -> Callable[[], Any]:
        return lambda: F.pad(Drawn()(*shape), (3, 3) * (len(shape) - 2), mode)

    def unpooled(pool: Any, unpool: Any, *shape: int) -> Callable[[], Any]:
        return lambda: unpool(*pool(Drawn()(*shape), 2, return_indices=True), 2)

    def regions(name: str) -> Callable[[], Any]:
        numbers = [(image, k) for k in range(256 // scale) for image in (0, 1)]
        corners = [[i, k % 32 * 4.3, k % 29 * 3.1] for i, k in numbers]
        boxes = torch.tensor(
            [[i, x, y, x + 40, y + 30] for i, x, y in corners], device=device
        )
        operation = getattr(torchvision.ops, name)
        return lambda: operation(Drawn()(2, 98, 150, 200), boxes, 7)

    def deformed() -> Any:
        drawn = Drawn()
        offset = drawn(4, 36, 62, 62)  # two groups of channels, a kernel of 3 x 3
        return torchvision.ops.deform_conv2d(
            drawn(4, 32, 64, 64), offset, drawn(32, 32, 3, 3)
        )

    def sampled(*shape: int) -> Callable[[], Any]:
        dimensions = len(shape) - 2
        grid = (shape[0], *[64 if dimensions == 2 else 16] * dimensions, dimensions)

        def use() -> Any:
            drawn = Drawn()
            return F.grid_sample(
                drawn(*shape), drawn(*grid).tanh(), align_corners=False
            )

        return use

    def into(kind: str) -> Callable[[], Any]:
        count = 200_000 // scale

        def use() -> Any:
            drawn = Drawn()
            target, source = drawn(100).detach(), drawn(count).detach()
            index = drawn.below(100, count)
            if kind == "index":
                return target.index_reduce(0, index, source, "mean")
            if kind == "put":
                return target.put_(index[: count // 10], source[: count // 10])
            if kind == "bincount":
                return torch.bincount(index, source.abs())
            if kind == "histc":
                return torch.histc(source, 50)
            factor = 1 + source / 1000
            if kind == "multiply":
                return target.scatter(0, index, factor, reduce="multiply")
            return target.scatter_reduce(0, index, factor, "prod")

        return use

    def ctc() -> Any:
        drawn, count = Drawn(), 32 // scale
        lengths = torch.full((count,), 200), torch.full((count,), 30)
        targets = drawn.below(95, count, 30) + 1
        return F.ctc_loss(drawn(200, count, 97).log_softmax(2), targets, *lengths)

    def ordered(function: Any) -> Callable[[], Any]:
        return lambda: function(Drawn()(1000 // scale, 1000).detach().round(), 1)

    def fractional(dimensions: int) -> Callable[[], Any]:
        starts = torch.full((8, 16, dimensions), 0.3, device=device)
        shape = (8, 16, *[64 if dimensions == 2 else 16] * dimensions)
        pool = getattr(F, f"fractional_max_pool{dimensions}d")
        ratio = (0.6,) * dimensions
        return lambda: pool(
            Drawn()(*shape), 3, output_ratio=ratio, _random_samples=starts
        )

    def bags() -> Any:
        drawn = Drawn()
        return F.embedding_bag(
            drawn.below(100, 20_000 // scale, 10), drawn(100, 64), mode="max"
        )

    def segments() -> Any:
        drawn, side = Drawn(), 512 // scale
        return F.cross_entropy(drawn(8, 21, side, side), drawn.below(21, 8, side, side))

    image, volume = (
        (16, 64, 128 // scale, 128 // scale),
        (
            4,
            32,
            16,
            64 // scale,
            64 // scale,
        ),
    )
    line = (16, 64, 2000 // scale)
    aten = torch.ops.aten
    doubled = [2 * size for size in image[2:]], [2 * size for size in volume[2:]]
    return {
        "upsample_linear1d_backward": resized("linear", *line),
        "upsample_bicubic2d_backward": resized("bicubic", *image),
        "_upsample_bilinear2d_aa_backward": resized(
            "bilinear", *image, by=0.5, antialias=True
        ),
        "_upsample_bicubic2d_aa_backward": resized(
            "bicubic", *image, by=0.5, antialias=True
        ),
        "upsample_bilinear2d_backward": lambda: aten.upsample_bilinear2d(
            Drawn()(*image), doubled[0], False
        ),
        "upsample_trilinear3d_backward": lambda: aten.upsample_trilinear3d(
            Drawn()(*volume), doubled[1], False
        ),
        "_adaptive_avg_pool2d_backward": on(
            F.adaptive_avg_pool2d, *image, output_size=7
        ),
        "_adaptive_avg_pool3d_backward": on(
            F.adaptive_avg_pool3d, *volume, output_size=7
        ),
        "avg_pool3d_backward": on(F.avg_pool3d, *volume, kernel_size=2),
        "reflection_pad1d_backward": padded("reflect", *line),
        "reflection_pad3d_backward": padded("reflect", *volume),
        "replication_pad1d_backward": padded("replicate", *line),
        "replication_pad2d_backward": padded("replicate", *image),
        "replication_pad3d_backward": padded("replicate", *volume),
        "adaptive_max_pool2d_backward": on(
            F.adaptive_max_pool2d, *image, output_size=7
        ),
        "adaptive_max_pool3d_backward": on(
            F.adaptive_max_pool3d, *volume, output_size=7
        ),
        "fractional_max_pool2d_backward": fractional(2),
        "fractional_max_pool3d_backward": fractional(3),
        "max_pool3d_with_indices_backward": on(
            F.max_pool3d, *volume, kernel_size=3, stride=2
        ),
        "max_unpool2d": unpooled(F.max_pool2d, F.max_unpool2d, *image),
        "max_unpool3d": unpooled(F.max_pool3d, F.max_unpool3d, *volume),
        "put_": into("put"),
        "_embedding_bag_dense_backward": bags,
        "grid_sampler_2d_backward": sampled(*image),
        "grid_sampler_3d_backward": sampled(*volume),
        "index_reduce": into("index"),
        "scatter_reduce": into("scatter"),
        "scatter": into("multiply"),
        "bincount": into("bincount"),
        "histc": into("histc"),
        "median": ordered(torch.median),
        "nanmedian": ordered(torch.nanmedian),
        "nll_loss2d_forward": segments,
        "_ctc_loss_backward": ctc,
        "_roi_pool_backward": regions("roi_pool"),
        "_ps_roi_align_backward": regions("ps_roi_align"),
        "_ps_roi_pool_backward": regions("ps_roi_pool"),
        "_deform_conv2d_backward": deformed,
    }


def number_of(outputs: Any) -> int:
    """Return a number of the bits of tensors, by a sum of integers, whose order does
    not matter."""
    number = 0
    for tensor in tree_leaves(outputs):
        if isinstance(tensor, Tensor):
            flat = tensor.detach().contiguous().view(-1)
            bits = flat.view(
                torch.int32 if flat.element_size() == 4 else torch.int64
            ).long()
            factors = (
                torch.arange(1, 2 * bits.numel(), 2, device=bits.device)
                * 0x9E3779B97F4A7C15
            )
            number = hash((number, int((bits * (factors ^ (bits >> 7))).sum())))
    return number


@contextmanager
def kernels(operation: tdk.Operation, device: str) -> Iterator[None]:
    """Compute an operation by its kernel, also on the CPU, where few are needed."""
    # others in the use may be refused
    torch.use_deterministic_algorithms(True, warn_only=True)
    before = len(switch._libraries)
    switch.register([operation], device, everywhere=True)
    try:
        yield
    finally:
        while len(switch._libraries) > before:
            switch._libraries.pop()._destroy()
        torch.use_deterministic_algorithms(False)


@contextmanager
def of_pytorch(operation: tdk.Operation, device: str) -> Iterator[None]:
    yield


def used(case: Case) -> Any:
    """Run the forward pass and, if there is one, the backward pass."""
    outputs = [x for x in tree_leaves(case.use()) if isinstance(x, Tensor)]
    if outputs[0].requires_grad:
        weights = torch.linspace(0.5, 1.5, outputs[0].numel(), device=outputs[0].device)
        torch.autograd.backward((outputs[0] * weights.view(outputs[0].shape)).sum())
    return [x.detach() for x in outputs]


def prepare(case: Case, device: str) -> None:
    """Note the operation's call, and compare the kernel's values with PyTorch's in
    float64."""
    with Noted(case.operation.name) as noted:
        used(case)
    case.call = noted.calls[0]
    func, args, kwargs = case.call
    given, named = tree_map(lambda x: copied(x, torch.float64), (args, kwargs))
    if case.operation.name == "put_":  # the last value at an index counts, as in a loop
        expected = given[0].clone()
        for place, value in zip(given[1].tolist(), given[2], strict=True):
            expected[place] = value
    else:
        expected = func(*given, **named)
    found = called(case, kernels, device)
    if "median" in case.operation.name:  # any index of equal values will do
        found, expected = found[0], expected[0]
    largest = max(
        float(x.abs().max()) for x in tree_leaves(expected) if isinstance(x, Tensor)
    )
    near = 1e-3 * max(largest, 1e-3)
    try:
        torch.testing.assert_close(
            found, expected, atol=near, rtol=1e-3, check_dtype=False
        )
        case.right = "yes"
    except AssertionError as error:
        case.right = f"NO: {' '.join(str(error).split())[:120]}"


def called(
    case: Case, context: Any, device: str, run: Callable[..., Any] | None = None
) -> Any:
    """Call the operation alone, and note result and time."""
    assert case.call is not None
    func, args, kwargs = case.call
    given, named = tree_map(copied, (args, kwargs))
    label = "compiled" if run else context.__name__
    with context(case.operation, device):
        return timed(case, label, lambda: (run or func)(*given, **named), is_kept=True)


def timed(case: Case, label: str, run: Callable[[], Any], is_kept: bool) -> Any:
    synchronize()
    start = time.perf_counter()
    outputs = run()
    synchronize()
    case.times.setdefault(label, []).append(1000 * (time.perf_counter() - start))
    if is_kept:
        case.results.setdefault(label, set()).add(number_of(outputs))
    return outputs


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def repeat(cases: list[Case], device: str, ends: float) -> int:
    """Call all in an order of its own each time; return how many times, before the time
    ends."""
    order = np.random.default_rng(1)
    for number in range(REPETITIONS):
        if time.monotonic() > ends:
            return number
        for index in order.permutation(len(cases)):
            case = cases[index]
            for context in (kernels, of_pytorch):
                called(case, context, device)
                if number % 4 == 0:
                    label = f"{context.__name__} in use"
                    with context(case.operation, device):
                        timed(case, label, lambda case=case: used(case), is_kept=False)  # type: ignore[misc]
    return REPETITIONS


def call_compiled(case: Case, device: str) -> None:
    assert case.call is not None
    torch._dynamo.reset()
    compiled = torch.compile(case.call[0], dynamic=False)
    try:
        for _ in range(REPETITIONS):
            called(case, kernels, device, compiled)
    except Exception as error:
        case.results["compiled"] = set()
        case.error = f"{type(error).__name__}: {str(error).splitlines()[0][:80]}"


def row(case: Case) -> list[str]:
    """Return the cells of an operation's row of the table."""
    cells = [case.operation.name, case.right]
    cells += [
        str(len(case.results.get(label, ""))) for label in ("kernels", "of_pytorch")
    ]
    for suffix in ("", " in use"):
        names = [f"{label}{suffix}" for label in ("kernels", "of_pytorch")]
        if not all(name in case.times for name in names):
            return [*cells, "left out"]
        ours, theirs = (statistics.median(case.times[name]) for name in names)
        cells += [f"{ours:.2f}", f"{theirs:.2f}", f"{ours / theirs:.1f}"]
    if "compiled" in case.results:
        cells.append(case.error or str(len(case.results["compiled"])))
    return cells


def main() -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument(
        "--names", nargs="*", help="names of OPERATIONS.md; default: all"
    )
    parser.add_argument(
        "--compiled", action="store_true", help="also call compiled code"
    )
    parser.add_argument(
        "--small", action="store_true", help="smaller inputs, for a CPU"
    )
    parser.add_argument("--seconds", type=float, default=230, help="when to stop (230)")
    asked = parser.parse_args()
    ends = time.monotonic() + asked.seconds
    warnings.simplefilter("ignore")
    operations = {operation.name: operation for operation in tdk.table()}
    cases = []
    for name, use in uses(asked.device, asked.small).items():
        if not asked.names or name in asked.names:
            case = Case(operations[name], use)
            try:
                prepare(case, asked.device)
            except Exception as error:  # the others are of interest all the same
                case.right = (
                    f"NO: {type(error).__name__}: {str(error).splitlines()[0][:150]}"
                )
            cases.append(case)
    made = [case for case in cases if not case.right.startswith("NO: ") or case.call]
    repetitions = repeat(made, asked.device, ends)
    for case in made if asked.compiled else ():
        if time.monotonic() < ends - 15:
            call_compiled(case, asked.device)
    print("| " + " | ".join(HEAD) + " |\n" + "| --- " * len(HEAD) + "|")
    for case in cases:
        print("| " + " | ".join(row(case)) + " |")
    if repetitions < REPETITIONS:
        print(f"stopped after {repetitions} of {REPETITIONS} repetitions: --seconds")
    is_right = all(
        case.right == "yes" and len(case.results["kernels"]) == 1 for case in cases
    )
    is_refused = "refused by PyTorch while it compiles"
    is_same = all(
        len(case.results.get("compiled", "1")) == 1
        or case.operation.compiled == is_refused
        for case in cases
    )
    return 0 if is_right and is_same and repetitions == REPETITIONS else 1


if __name__ == "__main__":
    sys.exit(main())
