"""Determinism presets: the only file that touches backend flags.

A preset is a YAML file in configs/determinism/. Its flags are applied before the model is built,
and again in every loader worker (spawned workers inherit none of them); then what is really in
force is read back, recorded, and compared with what was asked.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from seedbed.errors import InputError
from seedbed.names import flatten

# Settings of a preset that are not flags of a backend: their users read them themselves.
_NOT_FLAGS = {"name", "seeding", "channels_last", "device", "fingerprint_every_steps", "env"}

# Read by the compiler when it is imported, which may never be.
INDUCTOR_VARIABLE = "TORCHINDUCTOR_DETERMINISTIC"

# What `mkl_cbwr_get` returns (mkl_types.h); MKL turns a branch that it cannot keep to into AUTO.
_MKL_BRANCHES = {1: "OFF", 2: "AUTO", 3: "COMPATIBLE", 10: "AVX2", 12: "AVX512"}


@dataclass(frozen=True)
class Flag:
    """How to read a backend flag and, unless it can only be read, how to set it."""

    get: Callable[[], Any]
    set: Callable[[Any], None] | None = None


def _attribute(owner: Any, name: str) -> Flag:
    return Flag(lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


def flags() -> dict[str, Flag]:
    """Return every flag a preset may set, by its path in the preset's YAML file."""
    import torch
    from torch import backends

    attention = backends.cuda
    return {
        "on_nondeterministic": Flag(_get_on_nondeterministic, _set_on_nondeterministic),
        "fill_uninitialized_memory": _attribute(
            torch.utils.deterministic, "fill_uninitialized_memory"
        ),
        "inductor_deterministic": Flag(_get_inductor, _set_inductor),
        "cudnn.enabled": _attribute(backends.cudnn, "enabled"),
        "cudnn.benchmark": _attribute(backends.cudnn, "benchmark"),
        "cudnn.deterministic": _attribute(backends.cudnn, "deterministic"),
        "cudnn.allow_tf32": Flag(_get_cudnn_tf32, _set_cudnn_tf32),
        "float32_matmul_precision": Flag(_get_float32_precision, _set_float32_precision),
        "reduced_precision_reduction.float16": _attribute(
            backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"
        ),
        "reduced_precision_reduction.bfloat16": _attribute(
            backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"
        ),
        "attention.flash": Flag(attention.flash_sdp_enabled, attention.enable_flash_sdp),
        "attention.memory_efficient": Flag(
            attention.mem_efficient_sdp_enabled, attention.enable_mem_efficient_sdp
        ),
        "attention.math": Flag(attention.math_sdp_enabled, attention.enable_math_sdp),
        "attention.cudnn": Flag(attention.cudnn_sdp_enabled, attention.enable_cudnn_sdp),
        "mkldnn.enabled": _attribute(backends.mkldnn, "enabled"),
        "mkldnn.deterministic": _attribute(backends.mkldnn, "deterministic"),
        "threads": Flag(torch.get_num_threads, torch.set_num_threads),
        "interop_threads": Flag(torch.get_num_interop_threads, _set_interop_threads),
        "cpu_capability": Flag(torch.backends.cpu.get_cpu_capability),
        "mkl_branch": Flag(_get_mkl_branch),
        "avx": Flag(_get_avx),
    }


def environment_variables(preset: Mapping[str, Any], current: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a training process: the current one with the preset's variables.

    Raises:
        InputError: a variable is set that the preset says must not be.
    """
    environment = dict(current)
    for name, value in preset["env"].items():
        if value is not None:
            environment[name] = str(value)
        elif name in current:
            raise InputError(
                f"{name}: expected no such environment variable under "
                f"determinism={preset['name']}, got {current[name]!r}; unset it, or say "
                f"determinism.env.{name}={current[name]}"
            )
    return environment


def apply(preset: Mapping[str, Any], threads: int | None = None) -> None:
    """Set every flag of a preset; `threads` replaces the preset's number of threads."""
    table = flags()
    for path, value in asked_flags(preset).items():
        setter = table[path].set
        if path == "threads" and threads is not None:
            value = threads
        if setter is not None and value is not None:
            setter(value)


def compile_for_each_shape(model: Any) -> None:
    """Compile a model with kernels of their own for each shape of its inputs.

    Which shapes came before must not matter, and after a resume others came before. PyTorch would
    compile for some shapes, and run those that come later as they are.
    """
    from torch._dynamo import config

    config.recompile_limit = config.accumulated_recompile_limit = 1 << 30
    model.compile(dynamic=False)


def leave_recurrent_unfilled(model: Any) -> None:
    """Let recurrent layers on a CPU leave the memory as it is that they allocate, if it is filled.

    oneDNN's LSTM asks for tens of megabytes a step, and PyTorch's kernels write what they allocate
    before they read it: what fills it first only costs time.
    """
    import torch

    flags: Any = torch.utils.deterministic
    for module in model.modules() if flags.fill_uninitialized_memory else ():
        recurrent = isinstance(module, torch.nn.RNNBase)
        if recurrent and next(module.parameters()).device.type == "cpu":
            # Functions of a module: models can be pickled.
            module.register_forward_pre_hook(partial(_fill, False))
            module.register_forward_hook(partial(_fill, True), always_call=True)


def _fill(value: bool, *_: Any) -> None:
    import torch

    flags: Any = torch.utils.deterministic
    flags.fill_uninitialized_memory = value


def asked_flags(preset: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags that a preset names, flattened to paths such as `cudnn.benchmark`."""
    return flatten({name: value for name, value in preset.items() if name not in _NOT_FLAGS})


def in_force() -> dict[str, Any]:
    """Read every flag back from the backends."""
    return {path: flag.get() for path, flag in flags().items()}


def require_in_force(preset: Mapping[str, Any]) -> None:
    """Raise InputError if code has set a flag to another value than the preset asked for.

    To be called again and again: user code runs in the same process.
    """
    for line in _differing_flags(preset):
        raise InputError(
            f"{line}, set by code of the run or of a library; remove that, set the flag for a "
            "while only, or say in the configuration what it shall be"
        )


def _differing_flags(preset: Mapping[str, Any]) -> list[str]:
    table = in_force()
    return [
        f"determinism.{path}: expected {asked}, got {table[path]} in force"
        for path, asked in asked_flags(preset).items()
        if asked is not None and table[path] != asked
    ]


def differences(preset: Mapping[str, Any]) -> list[str]:
    """Say in one line each what is in force but was not asked for."""
    lines = _differing_flags(preset)
    for name, value in preset["env"].items():
        expected = None if value is None else str(value)
        if os.environ.get(name) != expected:
            lines.append(
                f"{name}: expected {'unset' if expected is None else expected} in the environment, "
                f"got {os.environ.get(name, 'unset')}"
            )
    return lines


def _backend(name: str) -> Any:
    """Return a module whose attributes PyTorch does not declare."""
    from torch import backends

    return getattr(backends, name)


def _get_cudnn_tf32() -> bool:
    cudnn = _backend("cudnn")
    # `cudnn.allow_tf32` cannot be read where code has set the two to different values.
    return "tf32" in (cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision)


def _set_cudnn_tf32(value: bool) -> None:
    cudnn = _backend("cudnn")
    cudnn.allow_tf32 = value
    if not value:  # which would leave them what `torch.backends.fp32_precision` says
        cudnn.conv.fp32_precision = cudnn.rnn.fp32_precision = "ieee"


def _get_float32_precision() -> str:
    """Return the lowest precision of float32 in matrix products, and in oneDNN's other layers."""
    cuda, mkldnn = _backend("cuda"), _backend("mkldnn")
    owners = (cuda.matmul, mkldnn.matmul, mkldnn.conv, mkldnn.rnn)
    found = {each.fp32_precision for each in owners}
    return "medium" if "bf16" in found else "high" if "tf32" in found else "highest"


def _set_float32_precision(value: str) -> None:
    import torch

    torch.set_float32_matmul_precision(value)
    mkldnn = _backend("mkldnn")
    for each in (mkldnn.conv, mkldnn.rnn):
        each.fp32_precision = "ieee" if value == "highest" else "none"


def _get_on_nondeterministic() -> str:
    import torch

    if not torch.are_deterministic_algorithms_enabled():
        return "allow"
    return "warn" if torch.is_deterministic_algorithms_warn_only_enabled() else "error"


def _set_on_nondeterministic(value: str) -> None:
    import torch

    # Does what `use_deterministic_algorithms` does without importing the compiler, to which
    # `inductor_deterministic` speaks.
    torch.set_deterministic_debug_mode({"allow": "default"}.get(value, value))


def _get_inductor() -> bool:
    config = sys.modules.get("torch._inductor.config")
    asked = os.environ.get(INDUCTOR_VARIABLE) == "1"
    return bool(getattr(config, "deterministic", asked))


def _set_inductor(value: bool) -> None:
    os.environ[INDUCTOR_VARIABLE] = str(int(value))
    if config := sys.modules.get("torch._inductor.config"):
        config.deterministic = value  # type: ignore[attr-defined]


def _get_mkl_branch() -> str | None:
    """Return the code branch that MKL keeps to; None where PyTorch comes without MKL."""
    import torch

    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        branch: int = ctypes.CDLL(str(library)).mkl_serv_cbwr_get(1)
    except (OSError, AttributeError):
        return None
    return _MKL_BRANCHES.get(branch, str(branch))


def _get_avx() -> bool | None:
    """Return whether the processor has AVX; None where PyTorch does not say."""
    import torch

    capabilities: Mapping[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return capabilities.get("avx")


def computes_bfloat16() -> bool:
    """Return whether this processor has instructions for bfloat16, as oneDNN uses them.

    `ONEDNN_MAX_CPU_ISA` counts. True where PyTorch does not say.
    """
    import torch

    asked = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    return asked is None or bool(asked())


def _set_interop_threads(value: int) -> None:
    import torch

    if torch.get_num_interop_threads() != value:  # may be set once in a process
        torch.set_num_interop_threads(value)
