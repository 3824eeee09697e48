"""Switch the kernels on and off: registering them with PyTorch's dispatcher."""

import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from threading import RLock
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch._prims_common.wrappers import _maybe_resize_out, _safe_copy_out
from torch.utils._pytree import tree_leaves

from torch_deterministic_kernels.callers import caller
from torch_deterministic_kernels.checks import check
from torch_deterministic_kernels.operations import OPERATIONS, Operation


class Replaced(NamedTuple):
    """An operation that a kernel computed, and what called it first."""

    operation: str  # with its overload, such as median.dim
    caller: str  # `module, file:line` as far as known


# of each operation that was replaced, in the order of the first calls
_callers = dict[str, str]()
_libraries = list[Any]()  # which keep the registrations
_lock = RLock()  # of the two lines below, and of what is registered
# what `enable` returned and has not ended; the newest is in force
_enabled = list["Enabled"]()
# names left to PyTorch by what is registered; None: all
_excepted: frozenset[str] | None = None


class Enabled:
    """The context in which `enable` was called; its end brings back the newest of the
    others."""

    def __init__(self, excepted: frozenset[str]) -> None:
        self.excepted = excepted
        self.is_entered = False

    def __enter__(self) -> None:
        self.is_entered = True
        with _lock:
            _switch([*(other for other in _enabled if other is not self), self])

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with _lock:
            _switch([other for other in _enabled if other is not self])


def enable(*, except_: Iterable[str] = ()) -> Enabled:
    """Compute the operations of `table()` by these kernels, under deterministic
    algorithms.

    That is, while `torch.use_deterministic_algorithms(True)`, also with `warn_only`;
    otherwise PyTorch's own kernels run. With a `with` statement, until its end, else
    until `disable()`. Operations named in `except_` are left to PyTorch. Like
    deterministic algorithms, kernels are enabled for all threads: of several calls, the
    newest that has not ended is in force. Raises ValueError for another name.
    """
    if isinstance(except_, str):
        raise ValueError(f"except_: expected a list of names, got the text {except_!r}")
    excepted = frozenset(except_)
    unknown = sorted(excepted - {operation.name for operation in OPERATIONS})
    if unknown:
        raise ValueError(
            f"expected names of table(), such as put_, got {', '.join(unknown)}"
        )
    enabled = Enabled(excepted)
    with _lock:
        # Of calls without a `with` statement, only the last two can still come into
        # force.
        calls = [other for other in _enabled if not other.is_entered]
        _switch([other for other in _enabled if other not in calls[:-1]] + [enabled])
    _warn_of_cpp_wrapper()
    return enabled


def disable() -> None:
    """Give all operations back to PyTorch's kernels, in all contexts."""
    _switch([])


def is_enabled() -> bool:
    """Return whether `enable` is in force."""
    return _excepted is not None


def replaced() -> list[Replaced]:
    """Return the operations that kernels have computed in this process, with their
    first calls."""
    return [Replaced(*item) for item in _callers.items()]


def _warn_of_cpp_wrapper() -> None:
    config = sys.modules.get("torch._inductor.config")  # as far as it is imported
    if getattr(config, "cpp_wrapper", False):
        text = (
            "torch._inductor.config.cpp_wrapper is on: compiled code calls PyTorch's"
            " own kernels"
        )
        warnings.warn(f"{text}, not these; switch it off.", stacklevel=3)


def _switch(enabled: list[Enabled]) -> None:
    """Put the last of some contexts in force. If that fails, all is as before."""
    with _lock:
        before = _excepted
        try:
            _register(enabled[-1].excepted if enabled else None)
        except BaseException:
            _register(before)
            raise
        _enabled[:] = enabled


def _register(excepted: frozenset[str] | None) -> None:
    """Register the kernels but for those of some names, or none."""
    global _excepted
    if excepted == _excepted:
        return
    _unregister()
    if excepted is None:
        return
    wanted = [operation for operation in OPERATIONS if operation.name not in excepted]
    try:
        register(wanted, "cpu")
        if torch.cuda.is_available():
            register(wanted, "cuda")
    except BaseException:
        _unregister()
        raise
    _excepted = excepted


def _unregister() -> None:
    global _excepted
    _excepted = None
    while _libraries:
        _libraries.pop()._destroy()


def register(
    operations: Sequence[Operation], device: str, everywhere: bool = False
) -> None:
    """Register kernels for a type of device: those needed there, or, for tests,
    `everywhere`."""
    if device == "cuda":
        _import_torchvision()
    for operation in operations:
        is_needed = device in operation.devices and not is_retired(operation)
        operator = operator_of(operation)
        if operator is None or not (is_needed or everywhere):
            continue
        for form in (operator, _with_out(operator)):
            if form is not None and _has_kernel(form, device):
                _register_one(form, operation, operator, device)


def operator_of(operation: Operation) -> Any:
    """Return PyTorch's operator; None if this version, or no torchvision, has none."""
    space, _, name = operation.operator.partition("::")
    packet, _, overload = name.partition(".")
    try:
        return getattr(
            getattr(getattr(torch.ops, space), packet), overload or "default"
        )
    except AttributeError:
        return None


def is_retired(operation: Operation) -> bool:
    """Return whether this version of PyTorch has a deterministic kernel itself."""
    if operation.until is None:
        return False
    have, until = (
        version.split(".")[:2] for version in (torch.__version__, operation.until)
    )
    return [int(part) for part in have] >= [int(part) for part in until]


def _has_kernel(form: Any, device: str) -> bool:
    name = form._schema.name
    if form._schema.overload_name:
        name += f".{form._schema.overload_name}"
    has: Any = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    return bool(has(name, device.upper()))


def _import_torchvision() -> None:
    """Import torchvision if there is one, or it would register its kernels over
    these."""
    try:
        if find_spec("torchvision"):
            import torchvision.ops  # noqa: F401
    # of another version of PyTorch, or a stand-in: it has no operations to use
    except Exception:
        return


def _with_out(operator: Any) -> Any:
    """Return the form of an operator that takes its results as `out=`; None if there is
    none."""
    arguments = [argument.name for argument in operator._schema.arguments]
    packet = operator._overloadpacket
    for overload in packet.overloads():
        form = getattr(packet, overload)
        given = [
            argument.name for argument in form._schema.arguments if not argument.is_out
        ]
        if given == arguments and len(given) < len(form._schema.arguments):
            return form
    return None


def _register_one(form: Any, operation: Operation, operator: Any, device: str) -> None:
    """Register a kernel for one form of an operator: its own or the one with `out=`."""
    kernel = operation.kernel
    if operation.is_checked_on_meta:
        kernel = partial(_checked, operator, kernel)
    key = device.upper()
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    original = partial(torch.library.get_kernel(form, key).call_boxed, keys)
    outputs = [argument.name for argument in form._schema.arguments if argument.is_out]
    run = _into(outputs, kernel) if outputs else kernel
    name = operator._schema.name.partition("::")[2]
    name = ".".join(filter(None, [name, operator._schema.overload_name]))
    space = operator._schema.name.partition("::")[0]
    library: Any = torch.library.Library(space, "IMPL")  # type: ignore[no-untyped-call]
    library.impl(form, _replacing(name, run, original), key)
    _libraries.append(library)


def _replacing(
    name: str, kernel: Callable[..., Any], original: Callable[..., Any]
) -> Callable[..., Any]:
    """Return what is registered: the kernel under deterministic algorithms, else
    PyTorch's."""

    @_disable_dynamo  # else a compiled model's calls would compile the kernels, too
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.are_deterministic_algorithms_enabled():
            return original(*args, **kwargs)
        with torch._C._DisableAutocast():  # which would compute products in 16 bits
            result = kernel(*args, **kwargs)
        if result is NotImplemented:
            return original(*args, **kwargs)
        if name not in _callers:
            _callers[name] = caller()
        return result

    return run


def _checked(
    operator: Any, kernel: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    check(operator, args, kwargs)
    return kernel(*args, **kwargs)


def _into(names: Sequence[str], kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that writes the results of another to tensors that are passed by
    name."""

    def run(*args: Any, **kwargs: Any) -> Any:
        outputs = [kwargs[name] for name in names]
        inputs = {name: value for name, value in kwargs.items() if name not in names}
        results = kernel(*args, **inputs)
        if results is NotImplemented:
            return NotImplemented
        for output, result in zip(outputs, tree_leaves(results), strict=True):
            if isinstance(result, Tensor):
                _maybe_resize_out(output, result.shape)
                _safe_copy_out(copy_from=result, copy_to=output, exact_dtype=True)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return run
