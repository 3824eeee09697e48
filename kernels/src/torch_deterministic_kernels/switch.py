"""Switch the kernels on and off: registering them with PyTorch's dispatcher."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib.util import find_spec
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._compile import _disable_dynamo
from torch._prims_common.wrappers import _maybe_resize_out, _safe_copy_out
from torch.utils._pytree import tree_leaves

from torch_deterministic_kernels.callers import caller
from torch_deterministic_kernels.operations import OPERATIONS, Operation


class Replaced(NamedTuple):
    """An operation that a kernel computed, and what called it first."""

    operation: str  # with its overload, such as median.dim
    caller: str  # `module, file:line` as far as known


_callers = dict[str, str]()  # of each operation that was replaced, in the order of the first calls
_libraries = list[Any]()  # which keep the registrations
_excepted: list[str] | None = None  # names of operations left to PyTorch; None: not enabled


class Enabled:
    """The context in which `enable` was called last; its end brings back what was before."""

    def __init__(self, before: list[str] | None) -> None:
        self._before = before

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _switch(self._before)


def enable(*, except_: Iterable[str] = ()) -> Enabled:
    """Compute the operations of `table()` by these kernels, under deterministic algorithms.

    That is, while `torch.use_deterministic_algorithms(True)`, also with `warn_only`; otherwise
    PyTorch's own kernels run. With a `with` statement, until its end, else until `disable()`.
    Operations named in `except_` are left to PyTorch. Raises ValueError for another name.
    """
    if isinstance(except_, str):
        raise ValueError(f"except_: expected a list of names, got the text {except_!r}")
    before = _excepted
    _switch(list(except_))
    return Enabled(before)


def disable() -> None:
    """Give all operations back to PyTorch's kernels."""
    _switch(None)


def is_enabled() -> bool:
    """Return whether `enable` is in force."""
    return _excepted is not None


def replaced() -> list[Replaced]:
    """Return the operations that kernels have computed in this process, with their first calls."""
    return [Replaced(*item) for item in _callers.items()]


def _switch(excepted: list[str] | None) -> None:
    global _excepted
    names = {operation.name for operation in OPERATIONS}
    for name in excepted or ():
        if name not in names:
            raise ValueError(f"expected names of table(), such as put_, got {name}")
    if excepted == _excepted:
        return
    while _libraries:
        _libraries.pop()._destroy()
    _excepted = excepted
    if excepted is not None:
        wanted = [operation for operation in OPERATIONS if operation.name not in excepted]
        register(wanted, "cpu")
        if torch.cuda.is_available():
            register(wanted, "cuda")


def register(operations: Sequence[Operation], device: str, everywhere: bool = False) -> None:
    """Register kernels for a type of device: those needed there, or, for tests, `everywhere`."""
    if device == "cuda":
        _import_torchvision()
    for operation in operations:
        is_needed = device in operation.devices and not is_retired(operation)
        operator = operator_of(operation)
        if operator is None or not (is_needed or everywhere):
            continue
        for form in (operator, _with_out(operator)):
            if form is not None and _has_kernel(form, device):
                _register_one(form, operation.kernel, operator, device)


def operator_of(operation: Operation) -> Any:
    """Return PyTorch's operator; None if this version, or no torchvision, has none."""
    space, _, name = operation.operator.partition("::")
    packet, _, overload = name.partition(".")
    try:
        return getattr(getattr(getattr(torch.ops, space), packet), overload or "default")
    except AttributeError:
        return None


def is_retired(operation: Operation) -> bool:
    """Return whether this version of PyTorch has a deterministic kernel itself."""
    if operation.until is None:
        return False
    have, until = (version.split(".")[:2] for version in (torch.__version__, operation.until))
    return [int(part) for part in have] >= [int(part) for part in until]


def _has_kernel(form: Any, device: str) -> bool:
    name = form._schema.name
    if form._schema.overload_name:
        name += f".{form._schema.overload_name}"
    has: Any = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    return bool(has(name, device.upper()))


def _import_torchvision() -> None:
    """Import torchvision if there is one, or it would register its kernels over these."""
    if find_spec("torchvision"):
        try:
            import torchvision.ops  # noqa: F401
        except (ImportError, OSError, RuntimeError):  # of another version of PyTorch: it has no use
            return


def _with_out(operator: Any) -> Any:
    """Return the form of an operator that takes its results as `out=`; None if there is none."""
    arguments = [argument.name for argument in operator._schema.arguments]
    packet = operator._overloadpacket
    for overload in packet.overloads():
        form = getattr(packet, overload)
        given = [argument.name for argument in form._schema.arguments if not argument.is_out]
        if given == arguments and len(given) < len(form._schema.arguments):
            return form
    return None


def _register_one(form: Any, kernel: Callable[..., Any], operator: Any, device: str) -> None:
    """Register a kernel for one form of an operator: its own or the one with `out=`."""
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
    """Return what is registered: the kernel under deterministic algorithms, else PyTorch's."""

    @_disable_dynamo  # else a compiled model's calls would compile the kernels, too
    def run(*args: Any, **kwargs: Any) -> Any:
        if not torch.are_deterministic_algorithms_enabled():
            return original(*args, **kwargs)
        try:
            with torch._C._DisableAutocast():  # which would compute products in 16 bits
                result = kernel(*args, **kwargs)
        except torch.OutOfMemoryError:
            raise
        except (IndexError, RuntimeError, ValueError):
            _raise_as_pytorch(original, args, kwargs)
            raise
        if result is NotImplemented:
            return original(*args, **kwargs)
        if name not in _callers:
            _callers[name] = caller()
        return result

    return run


def _raise_as_pytorch(original: Callable[..., Any], args: Any, kwargs: Any) -> None:
    """Raise the exception of PyTorch's kernel for arguments that it takes for invalid, too."""
    mode = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")  # for this call, whose result nobody sees
    try:
        original(*args, **kwargs)
    except Exception as error:
        raise error from None
    finally:
        torch.set_deterministic_debug_mode(mode)


def _into(names: Sequence[str], kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that writes the results of another to tensors that are passed by name."""

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
