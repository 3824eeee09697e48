"""Flags of PyTorch's backends: how each is read and set. The only file that touches
them."""

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch_deterministic_kernels as kernels

from seedbed.errors import InputError

# Read by the compiler when it is imported, which may never happen.
INDUCTOR_VARIABLE = "TORCHINDUCTOR_DETERMINISTIC"

_ON_NONDETERMINISTIC = ("allow", "warn", "error")  # indexed by PyTorch's debug mode

# Values returned by `mkl_cbwr_get` (mkl_types.h); MKL replaces unsupported branches by
# AUTO.
_MKL_BRANCHES = {1: "OFF", 2: "AUTO", 3: "COMPATIBLE", 10: "AVX2", 12: "AVX512"}

# operations left to PyTorch, by determinism.replace_except
_replace_except = list[str]()

# PyTorch does not declare all of their attributes.
backends: Any = torch.backends
filling: Any = torch.utils.deterministic


class Flag(NamedTuple):
    """The getter of a backend flag and, unless it is read-only, its setter."""

    get: Callable[[], Any]
    set: Callable[[Any], None] | None = None


def flags() -> dict[str, Flag]:
    """Return every flag a preset may set, by its path in the preset's YAML file."""

    def attribute(owner: Any, name: str) -> Flag:
        return Flag(
            lambda: getattr(owner, name), lambda value: setattr(owner, name, value)
        )

    cuda = backends.cuda
    cudnn = backends.cudnn
    mkldnn = backends.mkldnn
    reduced = "allow_{}_reduced_precision_reduction"
    return {
        "on_nondeterministic": Flag(
            lambda: _ON_NONDETERMINISTIC[torch.get_deterministic_debug_mode()],
            # Unlike `use_deterministic_algorithms`, this does not import the compiler,
            # which has a flag of its own: `inductor_deterministic`.
            lambda value: torch.set_deterministic_debug_mode(
                _ON_NONDETERMINISTIC.index(value)
            ),
        ),
        "replace": Flag(kernels.is_enabled, _set_replace),
        "replace_except": Flag(lambda: _replace_except, _set_replace_except),
        "fill_uninitialized_memory": attribute(filling, "fill_uninitialized_memory"),
        "inductor_deterministic": Flag(_get_inductor, _set_inductor),
        "cudnn.enabled": attribute(cudnn, "enabled"),
        "cudnn.benchmark": attribute(cudnn, "benchmark"),
        "cudnn.deterministic": attribute(cudnn, "deterministic"),
        "cudnn.allow_tf32": Flag(_get_cudnn_tf32, _set_cudnn_tf32),
        "float32_matmul_precision": Flag(
            _get_float32_precision, _set_float32_precision
        ),
        "reduced_precision_reduction.float16": attribute(
            cuda.matmul, reduced.format("fp16")
        ),
        "reduced_precision_reduction.bfloat16": attribute(
            cuda.matmul, reduced.format("bf16")
        ),
        "attention.flash": Flag(cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
        "attention.memory_efficient": Flag(
            cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp
        ),
        "attention.math": Flag(cuda.math_sdp_enabled, cuda.enable_math_sdp),
        "attention.cudnn": Flag(cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
        "mkldnn.enabled": attribute(mkldnn, "enabled"),
        "mkldnn.deterministic": attribute(mkldnn, "deterministic"),
        "threads": Flag(torch.get_num_threads, torch.set_num_threads),
        "interop_threads": Flag(
            torch.get_num_interop_threads, torch.set_num_interop_threads
        ),
        "cpu_capability": Flag(backends.cpu.get_cpu_capability),
        "mkl_branch": Flag(_get_mkl_branch),
        # None if PyTorch does not report it.
        "avx": Flag(
            lambda: getattr(torch.cpu, "get_capabilities", dict[str, Any])().get("avx")
        ),
    }


def _set_replace(value: bool) -> None:
    if value:
        kernels.enable(except_=_replace_except)
    else:
        kernels.disable()


def _set_replace_except(names: list[str]) -> None:
    global _replace_except
    for name in names:
        if name not in {operation.name for operation in kernels.table()}:
            raise InputError(
                "determinism.replace_except: expected names of docs/replaced.md, such"
                f" as put_, got {name}"
            )
    _replace_except = names
    _set_replace(kernels.is_enabled())


def _get_cudnn_tf32() -> bool:
    cudnn = backends.cudnn
    # `cudnn.allow_tf32` cannot be read if code has set the two to different values.
    return "tf32" in (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision)


def _set_cudnn_tf32(value: bool) -> None:
    cudnn = backends.cudnn
    cudnn.allow_tf32 = value
    if not value:  # or they would follow `torch.backends.fp32_precision`
        cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = "ieee"


def _get_float32_precision() -> str:
    """Return the lowest precision of float32 in matrix products, and in oneDNN's other
    layers."""
    cuda = backends.cuda
    mkldnn = backends.mkldnn
    owners = (cuda.matmul, mkldnn.matmul, mkldnn.conv, mkldnn.rnn)
    precisions = {each.fp32_precision for each in owners}
    return (
        "medium"
        if "bf16" in precisions
        else "high"
        if "tf32" in precisions
        else "highest"
    )


def _set_float32_precision(value: str) -> None:
    torch.set_float32_matmul_precision(value)
    for layer in (backends.mkldnn.conv, backends.mkldnn.rnn):
        layer.fp32_precision = "ieee" if value == "highest" else "none"


def _get_inductor() -> bool:
    config = sys.modules.get("torch._inductor.config")
    asked = os.environ.get(INDUCTOR_VARIABLE) == "1"
    return bool(getattr(config, "deterministic", asked))


def _set_inductor(value: bool) -> None:
    os.environ[INDUCTOR_VARIABLE] = str(int(value))
    if config := sys.modules.get("torch._inductor.config"):
        config.deterministic = value  # type: ignore[attr-defined]


def _get_mkl_branch() -> str | None:
    """Return the code branch that MKL uses; None if PyTorch comes without MKL."""
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        branch: int = ctypes.CDLL(str(library)).mkl_serv_cbwr_get(1)
    except (OSError, AttributeError):
        return None
    return _MKL_BRANCHES.get(branch, str(branch))


def compile_for_each_shape(model: Any, mode: str | None) -> None:
    """Compile a model separately for each shape of its inputs, in a mode of
    torch.compile.

    The shapes seen before must not matter, since they differ after a resume. By
    default, PyTorch would compile for a limited number of shapes and run later ones
    uncompiled.
    """
    from torch._dynamo import config  # imports the compiler

    config.recompile_limit = config.accumulated_recompile_limit = 1 << 30
    model.compile(dynamic=False, mode=mode)
