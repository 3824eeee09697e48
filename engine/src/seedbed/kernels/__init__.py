"""Deterministic kernels for operations that PyTorch refuses under deterministic algorithms.

They replace PyTorch's kernels below autograd and autocast, for the devices where these are not
deterministic (docs/replaced.md has each, and what PyTorch 2.11 to 2.15 refuse).
"""

import sys
import traceback
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import torch

from seedbed import project
from seedbed.errors import InputError
from seedbed.kernels import detection, grid, indexed, linear, losses


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
# By operator and overload, of the namespace aten unless it is named.
REPLACEMENTS = {
    # Linear and separable
    "_adaptive_avg_pool2d_backward": Replacement(partial(linear.adaptive_avg_pool, dimensions=2)),
    "_adaptive_avg_pool3d_backward": Replacement(partial(linear.adaptive_avg_pool, dimensions=3)),
    "avg_pool3d_backward": Replacement(linear.avg_pool3d),
    "reflection_pad1d_backward": _pad(True),
    "reflection_pad3d_backward": _pad(True),
    "replication_pad1d_backward": _pad(False),
    "replication_pad2d_backward": _pad(False),
    "replication_pad3d_backward": _pad(False),
    # Sums over an index
    "adaptive_max_pool2d_backward": _pool(2, keeps_format=True),
    "adaptive_max_pool3d_backward": _pool(3),
    "fractional_max_pool2d_backward": _pool(2),
    "fractional_max_pool3d_backward": _pool(3),
    "max_pool3d_with_indices_backward": _pool(3, keeps_format=True),
    "max_unpool2d": Replacement(indexed.max_unpool, _EVERYWHERE),
    "max_unpool3d": Replacement(indexed.max_unpool, _EVERYWHERE),
    "put_": Replacement(indexed.put, _EVERYWHERE),
    "_embedding_bag_dense_backward": _kept(indexed.embedding_bag),
    "grid_sampler_2d_backward": Replacement(grid.backward),
    "grid_sampler_3d_backward": Replacement(grid.backward),
    "cudnn_grid_sampler_backward": Replacement(grid.cudnn_backward),
    "index_reduce": _kept(indexed.index_reduce),
    "index_reduce_": _kept(indexed.in_place(indexed.index_reduce)),
    "scatter_reduce.two": _kept(indexed.scatter_reduce),
    "scatter_reduce_.two": _kept(indexed.in_place(indexed.scatter_reduce)),
    "scatter.reduce": _kept(indexed.scatter_reduce),
    "scatter_.reduce": _kept(indexed.in_place(indexed.scatter_reduce)),
    # Reductions and order statistics
    "bincount": _kept(indexed.bincount),
    "histc": _kept(indexed.histc),
    "median.dim": Replacement(indexed.median),
    "nanmedian.dim": Replacement(partial(indexed.median, ignores_nan=True)),
    # Losses
    "nll_loss2d_forward": _kept(losses.nll_loss2d),
    "_ctc_loss_backward": Replacement(losses.ctc_loss),
    # Of torchvision
    "torchvision::_roi_pool_backward": Replacement(detection.roi_pool),
    "torchvision::_ps_roi_align_backward": Replacement(detection.ps_roi_align),
    "torchvision::_ps_roi_pool_backward": Replacement(detection.ps_roi_pool),
    "torchvision::_deform_conv2d_backward": _kept(detection.deform_conv2d),  # refused
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
            raise InputError(
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
            called[name] = _place()
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


def _place() -> str:
    """Return the line of user code that called the running operation, as far as it is known."""
    if torch._C._current_autograd_node() is not None:
        return "in the backward pass"
    for frame, line in traceback.walk_stack(sys._getframe(2)):
        file, module = frame.f_code.co_filename, str(frame.f_globals.get("__name__"))
        if not (module.startswith("seedbed.") or project.is_installed(file)):
            return f"{file}:{line}"
    return "in a library"


def news() -> list[str]:
    """Return a line for each operation replaced since the last call."""
    new = [name for name in called if name not in _printed]
    _printed.update(new)
    return [f"deterministic replacement: {name}, {called[name]}" for name in new]
