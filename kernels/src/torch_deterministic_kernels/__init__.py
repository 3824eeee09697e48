"""Deterministic kernels for operations that PyTorch refuses under deterministic algorithms.

They replace PyTorch's kernels below autograd and autocast, for the devices where these are not
deterministic (docs/replaced.md has each, and what PyTorch 2.11 to 2.15 refuse).
"""

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from torch_deterministic_kernels import detection, grid, indexed, linear, losses, places


__version__ = "1.0.0"


class Replacement(NamedTuple):
    """A kernel with the signature of an operation, and the devices that it is needed on."""

    function: Callable[..., Any]
    devices: tuple[str, ...] = ("CUDA",)
    takes_original: bool = False  # PyTorch's kernel as first argument, for what is deterministic


def _pool(dimensions: int, keeps_format: bool = False) -> Replacement:
    run = partial(indexed.max_pool, dimensions=dimensions, keeps_format=keeps_format)
    return Replacement(run)


def _pad(reflects: bool) -> Replacement:
    return Replacement(partial(linear.padded, reflects=reflects))


def _kept(function: Callable[..., Any]) -> Replacement:
    return Replacement(function, takes_original=True)


_EVERYWHERE = ("CPU", "CUDA")
# By operator and overload, of the namespace aten unless it is named. Comments name the file below
# aten/src/ATen/native/cuda with PyTorch's kernel, whose formula is computed, and for which calls or
# versions it is needed, if not for all of PyTorch 2.11 to 2.15.
REPLACEMENTS = {
    # Linear and separable
    # AdaptiveAveragePooling.cu:
    "_adaptive_avg_pool2d_backward": Replacement(partial(linear.adaptive_avg_pool, dimensions=2)),
    # AdaptiveAveragePooling3d.cu:
    "_adaptive_avg_pool3d_backward": Replacement(partial(linear.adaptive_avg_pool, dimensions=3)),
    "avg_pool3d_backward": Replacement(linear.avg_pool3d),  # AveragePool3d.cu
    "reflection_pad1d_backward": _pad(True),  # ReflectionPad.cu
    "reflection_pad3d_backward": _pad(True),  # ReflectionPad.cu
    "replication_pad1d_backward": _pad(False),  # ReplicationPadding.cu; direct calls
    "replication_pad2d_backward": _pad(False),  # ReplicationPadding.cu; direct calls
    "replication_pad3d_backward": _pad(False),  # ReplicationPadding.cu; direct calls
    # Sums over an index
    "adaptive_max_pool2d_backward": _pool(2, keeps_format=True),  # AdaptiveMaxPooling2d.cu
    "adaptive_max_pool3d_backward": _pool(3),  # AdaptiveMaxPooling3d.cu; not refused
    "fractional_max_pool2d_backward": _pool(2),  # FractionalMaxPool2d.cu
    "fractional_max_pool3d_backward": _pool(3),  # FractionalMaxPool3d.cu
    "max_pool3d_with_indices_backward": _pool(3, keeps_format=True),  # DilatedMaxPool3d.cu
    "max_unpool2d": Replacement(indexed.max_unpool, _EVERYWHERE),  # MaxUnpooling.cu
    "max_unpool3d": Replacement(indexed.max_unpool, _EVERYWHERE),  # MaxUnpooling.cu
    "put_": Replacement(indexed.put, _EVERYWHERE),  # IndexKernel.cu
    "_embedding_bag_dense_backward": _kept(indexed.embedding_bag),  # EmbeddingBag.cu
    "grid_sampler_2d_backward": Replacement(grid.backward),  # GridSampler.cu
    "grid_sampler_3d_backward": Replacement(grid.backward),  # GridSampler.cu
    # ../cudnn/GridSampler.cpp; 2.15:
    "cudnn_grid_sampler_backward": Replacement(grid.cudnn_backward),
    "index_reduce": _kept(indexed.index_reduce),  # Indexing.cu
    "index_reduce_": _kept(indexed.in_place(indexed.index_reduce)),  # Indexing.cu
    "scatter_reduce.two": _kept(indexed.scatter_reduce),  # ScatterGatherKernel.cu
    # ScatterGatherKernel.cu:
    "scatter_reduce_.two": _kept(indexed.in_place(indexed.scatter_reduce)),
    "scatter.reduce": _kept(indexed.scatter_reduce),  # ScatterGatherKernel.cu
    "scatter_.reduce": _kept(indexed.in_place(indexed.scatter_reduce)),  # ScatterGatherKernel.cu
    # Reductions and order statistics
    "bincount": _kept(indexed.bincount),  # SummaryOps.cu
    "histc": _kept(indexed.histc),  # SummaryOps.cu
    "median.dim": Replacement(indexed.median),  # Sorting.cu
    "nanmedian.dim": Replacement(partial(indexed.median, ignores_nan=True)),  # Sorting.cu
    # Losses
    "nll_loss2d_forward": _kept(losses.nll_loss2d),  # NLLLoss2d.cu
    "_ctc_loss_backward": Replacement(losses.ctc_loss),  # LossCTC.cu; Graves et al. 2006
    # Of torchvision, below torchvision/csrc/ops/cuda; not refused up to version 0.29
    "torchvision::_roi_pool_backward": Replacement(detection.roi_pool),  # roi_pool_kernel.cu
    # ps_roi_align_kernel.cu:
    "torchvision::_ps_roi_align_backward": Replacement(detection.ps_roi_align),
    # ps_roi_pool_kernel.cu:
    "torchvision::_ps_roi_pool_backward": Replacement(detection.ps_roi_pool),
    # deform_conv2d_kernel.cu:
    "torchvision::_deform_conv2d_backward": Replacement(detection.deform_conv2d),
}
REPLACEMENTS |= {name: Replacement(linear.upsample(name)) for name in linear.RESIZING}
called: dict[str, str] = {}  # the operations that a replacement computed, and the first's place
_printed = set[str]()
_setting: dict[str, Any] = {"replace": False, "replace_except": []}
_libraries: list[Any] = []  # which keep the registrations


def setting(key: str) -> Any:
    """Return the value of `determinism.replace` or `determinism.replace_except` in force."""
    return _setting[key]


def set_setting(key: str, value: Any) -> None:
    """Set `determinism.replace` or `determinism.replace_except`; register what they ask for."""
    if value == _setting[key]:
        return
    for name in value if key == "replace_except" else ():
        if name not in map(plain_name, REPLACEMENTS):
            raise ValueError(
                "determinism.replace_except: expected names of docs/replaced.md, such as put_, "
                f"got {name}"
            )
    _setting[key] = value
    while _libraries:
        _libraries.pop()._destroy()
    if _setting["replace"]:
        names = [name for name in REPLACEMENTS if plain_name(name) not in setting("replace_except")]
        register(names, "CPU")
        if torch.cuda.is_available():
            register(names, "CUDA")


def plain_name(name: str) -> str:
    """Return the name of an operator without namespace and overload."""
    return name.rpartition(":")[2].partition(".")[0]


def register(names: list[str], device: str, everywhere: bool = False) -> None:
    """Register replacements for a device: those needed there, or, for tests, `everywhere`."""
    if device == "CUDA" and find_spec("torchvision"):
        import torchvision.ops  # noqa: F401  # else it would register its kernels over these
    for name in names:
        replacement, (space, _, inner) = REPLACEMENTS[name], f"aten::{name}".rpartition("::")
        space = space.rpartition("::")[2]
        if not everywhere and device not in replacement.devices:
            continue
        packet, _, overload = inner.partition(".")
        operator = getattr(getattr(getattr(torch.ops, space), packet), overload or "default")
        kernel = torch.library.get_kernel(operator, device)
        keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, device))
        library: Any = torch.library.Library(space, "IMPL")  # type: ignore[no-untyped-call]
        function = _wrapped(inner, replacement, partial(kernel.call_boxed, keys))
        library.impl(inner, function, device)
        _libraries.append(library)


def _wrapped(
    name: str, replacement: Replacement, original: Callable[..., Any]
) -> Callable[..., Any]:
    function = replacement.function
    if replacement.takes_original:
        function = partial(function, original)

    def run(*args: Any, **kwargs: Any) -> Any:
        if name not in called:
            called[name] = places.place()
        try:
            return function(*args, **kwargs)
        except (IndexError, RuntimeError, ValueError):
            mode = torch.get_deterministic_debug_mode()
            torch.set_deterministic_debug_mode("default")  # noqa: TID251  # for one call
            try:
                original(*args, **kwargs)  # raises PyTorch's exception if the arguments are invalid
            except Exception as error:
                raise error from None
            finally:
                torch.set_deterministic_debug_mode(mode)  # noqa: TID251
            raise

    return run


def news() -> list[str]:
    """Return a line for each operation replaced since the last call."""
    new = [name for name in called if name not in _printed]
    _printed.update(new)
    return [f"deterministic replacement: {name}{called[name]}" for name in new]
