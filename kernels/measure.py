"""Compare the kernels that strict replaces with PyTorch's own, on a GPU or a CPU.

usage: python engine/measure/replacements.py [--device cuda|cpu] [--names NAME ...] [--compiled]

Prints a table row by row: whether values are PyTorch's in float64, up to rounding; the number of
different results of 20 calls under strict and, as a negative control, under fast (1 there: these
inputs do not show that the kernel is nondeterministic, or it is not); the median times of both
kernels; with --compiled, also the different results of 20 calls of compiled code under strict.

exit status: 0 all values are right and strict has one result of each, 1 if not
"""

import argparse
import hashlib
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torchvision.ops
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

import torch_deterministic_kernels as kernels
from seedbed import determinism
from seedbed.determinism.running import read_preset

REPETITIONS = 20
BOXES = [
    [image, 4.3 * k, 3.1 * k, 4.3 * k + 40, 3.1 * k + 30] for k in range(32) for image in (0, 1)
]
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


class Noted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the calls of an operation with copies of their arguments."""

    def __init__(self, name: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.name, self.calls = name, list[Call]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # The backward pass of embedding bags calls the replaced operation out of sight.
        if kernels.plain_name(self.name).replace("_dense_", "_") == func._opname:
            self.calls.append((func, *tree_map(copied, (args, kwargs or {}))))
        return func(*args, **(kwargs or {}))


def copied(x: Any, dtype: torch.dtype | None = None) -> Any:
    if not isinstance(x, Tensor):
        return x
    return x.to(dtype, copy=True) if dtype and x.is_floating_point() else x.clone()


def cases(device: str) -> dict[str, Callable[[], Any]]:
    """Return a use of each replaced operation, at sizes at which atomic additions collide."""
    generator = np.random.default_rng(0)  # noqa: TID251  # for each case by itself

    def drawn(*shape: int) -> Tensor:
        values = generator.standard_normal(shape, np.float32)
        return torch.from_numpy(values).to(device).requires_grad_()

    def below(high: int, *shape: int) -> Tensor:
        return torch.from_numpy(generator.integers(0, high, shape)).to(device)

    def resized(mode: str, *shape: int, **how: Any) -> Callable[[], Any]:
        return lambda: F.interpolate(drawn(*shape), scale_factor=how.pop("by", 2), mode=mode, **how)

    def padded(mode: str, *shape: int) -> Callable[[], Any]:
        return lambda: F.pad(drawn(*shape), (3, 3) * (len(shape) - 2), mode)

    def unpooled(pool: Any, unpool: Any, *shape: int) -> Callable[[], Any]:
        return lambda: unpool(*pool(drawn(*shape), 2, return_indices=True), 2)

    def regions(name: str) -> Callable[[], Any]:
        boxes, operation = torch.tensor(BOXES, device=device), getattr(torchvision.ops, name)
        return lambda: operation(drawn(2, 98, 150, 200), boxes, 7)

    def deformed() -> Any:
        offset = drawn(4, 36, 62, 62)  # two groups of channels, a kernel of 3 x 3
        return torchvision.ops.deform_conv2d(drawn(4, 32, 64, 64), offset, drawn(32, 32, 3, 3))

    def sampled(*shape: int) -> Callable[[], Any]:
        dimensions = len(shape) - 2
        grid = (shape[0], *[64 if dimensions == 2 else 16] * dimensions, dimensions)
        return lambda: F.grid_sample(drawn(*shape), drawn(*grid).tanh(), align_corners=False)

    def into(kind: str) -> Callable[[], Any]:
        source, index = drawn(200_000).detach(), below(100, 200_000)
        if kind == "index":
            return lambda: drawn(100).detach().index_reduce(0, index, source, "mean")
        if kind == "put":
            return lambda: drawn(100).detach().put_(index[:20_000], source[:20_000])
        factor = 1 + source / 1000
        if kind == "multiply":
            return lambda: drawn(100).detach().scatter(0, index, factor, reduce="multiply")
        return lambda: drawn(100).detach().scatter_reduce(0, index, factor, "prod")

    def ctc() -> Any:
        lengths = torch.full((16,), 200), torch.full((16,), 30)
        return F.ctc_loss(drawn(200, 16, 60).log_softmax(2), below(59, 16, 30) + 1, *lengths)

    ties = drawn(1000, 1000).detach().round()
    starts = torch.full((8, 16, 3), 0.3, device=device)
    image, volume = (16, 32, 64, 64), (4, 16, 16, 32, 32)
    return {
        "upsample_linear1d_backward": resized("linear", 16, 64, 2000),
        "upsample_bicubic2d_backward": resized("bicubic", *image),
        "_upsample_bilinear2d_aa_backward": resized("bilinear", *image, by=0.5, antialias=True),
        "_upsample_bicubic2d_aa_backward": resized("bicubic", *image, by=0.5, antialias=True),
        "upsample_bilinear2d_backward": lambda: torch.ops.aten.upsample_bilinear2d(
            drawn(*image), (128, 128), False
        ),
        "upsample_trilinear3d_backward": lambda: torch.ops.aten.upsample_trilinear3d(
            drawn(*volume), (32, 64, 64), False
        ),
        "_adaptive_avg_pool2d_backward": lambda: F.adaptive_avg_pool2d(drawn(*image), 7),
        "_adaptive_avg_pool3d_backward": lambda: F.adaptive_avg_pool3d(drawn(*volume), 7),
        "avg_pool3d_backward": lambda: F.avg_pool3d(drawn(*volume), 3, 1),
        "reflection_pad1d_backward": padded("reflect", 16, 64, 2000),
        "reflection_pad3d_backward": padded("reflect", *volume),
        "replication_pad1d_backward": padded("replicate", 16, 64, 2000),
        "replication_pad2d_backward": padded("replicate", *image),
        "replication_pad3d_backward": padded("replicate", *volume),
        "adaptive_max_pool2d_backward": lambda: F.adaptive_max_pool2d(drawn(*image), 7),
        "adaptive_max_pool3d_backward": lambda: F.adaptive_max_pool3d(drawn(*volume), 7),
        "fractional_max_pool2d_backward": lambda: F.fractional_max_pool2d(
            drawn(8, 16, 64, 64), 3, output_ratio=(0.6, 0.6), _random_samples=starts[:, :, :2]
        ),
        "fractional_max_pool3d_backward": lambda: F.fractional_max_pool3d(
            drawn(8, 16, 16, 16, 16), 3, output_ratio=(0.6,) * 3, _random_samples=starts
        ),
        "max_pool3d_with_indices_backward": lambda: torch.ops.aten.max_pool3d_with_indices(
            drawn(*volume), [3, 3, 3], [1, 1, 1]
        ),
        "max_unpool2d": unpooled(F.max_pool2d, F.max_unpool2d, *image),
        "max_unpool3d": unpooled(F.max_pool3d, F.max_unpool3d, *volume),
        "put_": into("put"),
        "_embedding_bag_dense_backward": lambda: F.embedding_bag(
            below(100, 20_000, 10), drawn(100, 64), mode="max"
        ),
        "grid_sampler_2d_backward": sampled(*image),
        "grid_sampler_3d_backward": sampled(*volume),
        "index_reduce": into("index"),
        "scatter_reduce.two": into("scatter"),
        "scatter.reduce": into("multiply"),
        "bincount": lambda: torch.bincount(below(100, 200_000), drawn(200_000).abs().detach()),
        "histc": lambda: torch.histc(drawn(200_000).detach(), 50),
        "median.dim": lambda: torch.median(ties, 1),
        "nanmedian.dim": lambda: torch.nanmedian(ties, 1),
        "nll_loss2d_forward": lambda: F.cross_entropy(
            drawn(8, 21, 256, 256), below(21, 8, 256, 256)
        ),
        "_ctc_loss_backward": ctc,
        "torchvision::_roi_pool_backward": regions("roi_pool"),
        "torchvision::_ps_roi_align_backward": regions("ps_roi_align"),
        "torchvision::_ps_roi_pool_backward": regions("ps_roi_pool"),
        "torchvision::_deform_conv2d_backward": deformed,
    }


def digest(outputs: Any) -> str:
    found = hashlib.sha256()
    for each in tree_leaves(outputs):
        if isinstance(each, Tensor):
            flat = each.detach().cpu().contiguous().view(-1)
            found.update(flat.view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def repeated(call: Call, run: Callable[..., Any] | None = None) -> tuple[Any, int, float]:
    """Return the result of a call, the number of different ones, and the median milliseconds."""
    func, args, kwargs = call
    seen, times = set[str](), []
    for _ in range(REPETITIONS):
        given, named = tree_map(copied, (args, kwargs))
        synchronize()
        start = time.perf_counter()
        outputs = (run or func)(*given, **named)
        synchronize()
        times.append(1000 * (time.perf_counter() - start))
        seen.add(digest(outputs))
    return outputs, len(seen), statistics.median(times)


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def use(preset: str, names: list[str], device: str) -> None:
    """Apply a preset; under strict, compute these operations by their replacements."""
    determinism.apply(read_preset(preset))
    if preset == "strict" and device == "cpu":  # where few are registered
        kernels.register(names, "CPU", everywhere=True)


def row(name: str, function: Callable[[], Any], device: str, compiled: bool) -> list[str]:
    """Return the cells of an operation's row of the table."""
    use("fast", [name], device)
    with Noted(name) as noted:
        outputs = [x for x in tree_leaves(function()) if isinstance(x, Tensor)]
        if outputs[0].requires_grad:
            weights = torch.linspace(0.5, 1.5, outputs[0].numel(), device=device)
            torch.autograd.backward((outputs[0] * weights.view(outputs[0].shape)).sum())
    call = noted.calls[0]
    func, args, kwargs = call
    given, named = tree_map(lambda x: copied(x, torch.float64), (args, kwargs))
    if name == "put_":  # the last value at an index counts, as in a loop
        expected = given[0].clone()
        for place, value in zip(given[1].tolist(), given[2], strict=True):
            expected[place] = value
    else:
        expected = func(*given, **named)
    _, differing, before = repeated(call)
    use("strict", [name], device)
    found, results, after = repeated(call)
    if "median" in name:  # any index of equal values will do
        found, expected = found[0], expected[0]
    largest = max(float(x.abs().max()) for x in tree_leaves(expected) if isinstance(x, Tensor))
    near = 1e-3 * max(largest, 1e-3)
    try:
        torch.testing.assert_close(found, expected, atol=near, rtol=1e-3, check_dtype=False)
        right = "yes"
    except AssertionError as error:
        right = f"NO: {' '.join(str(error).split())[:120]}"
    cells = [name, right, str(results), str(differing), f"{after:.2f}", f"{before:.2f}"]
    cells.append(f"{after / before:.1f}")
    if compiled:
        try:
            torch._dynamo.reset()
            cells.append(str(repeated(call, torch.compile(func, dynamic=False))[1]))
        except Exception as error:  # which a run prints in one line, if it is a refusal
            cells.append(str(error).splitlines()[0][:100])
    return cells


def table(
    device: str, names: list[str] | None = None, compiled: bool = False
) -> Iterator[list[str]]:
    """Yield the head and the rows of the table."""
    head = ["operation", "values right", "results of 20, strict", "results of 20, fast"]
    head += ["ms, strict", "ms, fast", "strict / fast"]
    yield head + ["results of 20, compiled"] * compiled
    for name, function in cases(device).items():
        if not names or kernels.plain_name(name) in names:
            try:
                yield row(name, function, device, compiled)
            except Exception as error:  # the others are of interest all the same
                yield [name, f"NO: {type(error).__name__}: {str(error).splitlines()[0][:150]}"]


def main() -> int:
    """Print the table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--names", nargs="*", help="names of docs/replaced.md; default: all")
    parser.add_argument("--compiled", action="store_true", help="also call compiled code")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    rows = table(asked.device, asked.names, asked.compiled)
    print("| " + " | ".join(next(rows)) + " |\n" + "| --- " * (7 + asked.compiled) + "|")
    good = True
    for cells in rows:
        print("| " + " | ".join(cells) + " |", flush=True)
        good &= cells[1:3] == ["yes", "1"] and cells[7:] in ([], ["1"])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
