"""Kernels are in use while asked for and needed, and `replaced` names what they
computed."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torch_deterministic_kernels as tdk
from tests.replacing import called, forget, replacing
from torch_deterministic_kernels import switch
from torch_deterministic_kernels.operations import OPERATIONS


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    """Begin each test with deterministic algorithms and without kernels."""
    torch.use_deterministic_algorithms(True)
    forget()
    yield
    tdk.disable()
    torch.use_deterministic_algorithms(False)


def put() -> Tensor:
    return torch.zeros(3).put_(torch.tensor([1, 1]), torch.tensor([1.0, 2.0]))


def unpool() -> Tensor:
    return F.max_unpool2d(
        torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1, 1, dtype=torch.int64), 2
    )


def is_refused(operation: Any = put) -> bool:
    try:
        operation()
    except RuntimeError as error:
        return "does not have a deterministic implementation" in str(error)
    return False


def test_a_function_and_a_context_manager() -> None:
    """Contexts nest, and an exception ends one, too."""
    assert is_refused()
    with tdk.enable():
        assert tdk.is_enabled()
        assert put().tolist() == [0, 2, 0]
        with suppress(KeyError), tdk.enable(except_=["put_"]):
            assert is_refused()
            assert not is_refused(unpool)
            raise KeyError
        assert not is_refused()
    assert is_refused()
    tdk.enable()
    assert not is_refused()
    tdk.enable()
    tdk.disable()
    assert is_refused()
    assert not tdk.is_enabled()


def test_a_failure_leaves_all_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if it is the second kernel that cannot be registered."""
    register = switch._register_one
    calls = list[Any]()

    def failing(*args: Any) -> None:
        calls.append(args)
        if len(calls) == 2:
            raise AttributeError("there is no second")
        register(*args)

    monkeypatch.setattr(switch, "_register_one", failing)
    with pytest.raises(AttributeError, match="no second"):
        tdk.enable()
    assert not tdk.is_enabled()
    assert not switch._libraries
    assert is_refused(put)
    with tdk.enable(except_=["put_"]):
        calls.clear()
        with pytest.raises(AttributeError, match="no second"):
            tdk.enable()
        assert tdk.is_enabled()
        assert is_refused(put)
        assert not is_refused(unpool)
    assert not tdk.is_enabled()


def test_contexts_of_threads_that_end_out_of_order() -> None:
    """The newest context that has not ended is in force, and none after the last."""
    first = tdk.enable(except_=["max_unpool2d"])
    second = tdk.enable()
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        one.submit(first.__enter__).result()
        other.submit(second.__enter__).result()
        one.submit(first.__exit__, None, None, None).result()
        assert not is_refused(put)
        assert not is_refused(unpool)
        one.submit(first.__enter__).result()
        other.submit(second.__exit__, None, None, None).result()
        assert not is_refused(put)
        assert is_refused(unpool)
        one.submit(first.__exit__, None, None, None).result()
    assert not tdk.is_enabled()
    assert is_refused(put)


def test_contexts_of_many_threads() -> None:
    def enter(number: int) -> bool:
        with tdk.enable(except_=["histc"] if number % 2 else []):
            return tdk.is_enabled()

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(enter, range(40)))
    assert not tdk.is_enabled()
    assert not switch._libraries


def test_calls_without_contexts_do_not_pile_up() -> None:
    for _ in range(5):
        tdk.enable(except_=["put_"])
    assert len(switch._enabled) <= 2
    with tdk.enable():
        assert not is_refused(put)
    assert is_refused(put)
    assert tdk.is_enabled()


def test_an_exception_writes_nothing_and_leaves_the_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever is invalid about the arguments. The mode is that of all threads."""
    monkeypatch.delattr(torch, "set_deterministic_debug_mode")
    monkeypatch.delattr(torch, "use_deterministic_algorithms")
    with tdk.enable():
        for target in (torch.arange(6.0), torch.arange(12.0)[::2]):
            before = target.clone()
            for index, source in (([0, 9], target.new_ones(2)), ([0, 1], target[1:3])):
                for accumulate in (False, True):
                    if source.is_contiguous():
                        with pytest.raises((IndexError, RuntimeError)):
                            target.put_(torch.tensor(index), source, accumulate)
                    assert torch.equal(target, before)
    monkeypatch.undo()


def test_code_that_calls_past_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """C++ that Inductor writes calls PyTorch's kernels. Negative control: Python."""
    import torch._inductor.config

    for is_written, expected in (
        (True, pytest.warns(UserWarning, match="cpp_wrapper is on")),
        (False, nullcontext()),
    ):
        monkeypatch.setattr(torch._inductor.config, "cpp_wrapper", is_written)
        with expected, tdk.enable():
            pass


def test_the_table_can_be_pickled() -> None:
    found = pickle.loads(pickle.dumps(tdk.table()))
    assert [operation.operator for operation in found] == [
        o.operator for o in tdk.table()
    ]


def test_a_text_is_no_list_of_names() -> None:
    with pytest.raises(
        ValueError, match="except_: expected a list of names, got the text 'put_'"
    ):
        tdk.enable(except_="put_")


def test_entries_that_overlap_are_refused_as_by_pytorch() -> None:
    """Negative control: a stride of 0 along a dimension of one entry."""
    with tdk.enable():
        with pytest.raises(RuntimeError):
            torch.zeros(1).expand(3).put_(torch.tensor([0]), torch.tensor([1.0]))
        column = torch.zeros(3).as_strided((3, 1), (1, 0))
        assert column.put_(
            torch.tensor([1]), torch.tensor([2.0])
        ).flatten().tolist() == [0, 2, 0]


@pytest.mark.parametrize("names", [["putt"], ["aten::put_"], ["median.dim"]])
def test_an_unknown_name_changes_nothing(names: list[str]) -> None:
    with tdk.enable():
        with pytest.raises(
            ValueError, match=r"expected names of table\(\), such as put_, got "
        ):
            tdk.enable(except_=names)
        assert not is_refused()


def test_a_name_covers_all_overloads_and_forms() -> None:
    """Without overload or namespace: those of `Operation.name`."""
    names = {operation.name for operation in tdk.table()}
    assert {"median", "scatter", "put_", "_roi_pool_backward"} <= names
    with tdk.enable(except_=names):
        assert is_refused(put)
        assert is_refused(unpool)


@pytest.mark.parametrize("mode", ["default", "warn", "error"])
def test_only_what_was_computed_by_a_kernel_is_named(mode: str) -> None:
    """PyTorch's own kernels run, and nothing is named, where nothing has to be
    deterministic; nor is an operation that is left to PyTorch for its arguments."""
    torch.set_deterministic_debug_mode(mode)
    with tdk.enable():
        put()
    assert [item.operation for item in tdk.replaced()] == ["put_"] * (mode != "default")
    forget()
    index = torch.tensor([0, 1])
    zeros = torch.zeros(2)
    with replacing():
        torch.bincount(index)
        zeros.scatter_reduce(0, index, zeros, "sum")
        assert tdk.replaced() == []
        torch.bincount(index, zeros)
        assert called() == {"bincount"}


def test_warn_only() -> None:
    """PyTorch does not warn of what is replaced. Negative control: of what is not."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    for context, expected in (
        (tdk.enable(), nullcontext()),
        (nullcontext(), pytest.warns()),
    ):
        with context, expected:
            put()
    with (
        tdk.enable(except_=["put_"]),
        pytest.warns(UserWarning, match="put_ does not have"),
    ):
        put()


BLOCKED = """
import sys
{block}
import torch
before = torch._C._dispatch_dump("aten::put_")
import torch_deterministic_kernels as tdk
assert torch._C._dispatch_dump("aten::put_") == before, "registered by the import"
assert {block!r} or "torchvision" not in sys.modules
from torch_deterministic_kernels import switch
switch.register(tdk.table(), "cuda")
switch.register(tdk.table(), "cpu")
assert torch._C._dispatch_dump("aten::put_") != before
names = {{str(library.ns) for library in switch._libraries}}
assert ("torchvision" in names) is {found}, names
"""
NONE = "sys.modules['torchvision'] = None"
STAND_IN = "sys.modules['torchvision'] = type(sys)('torchvision')"
BROKEN = """
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == "torchvision.ops":
            raise {error}
sys.meta_path.insert(0, Broken())
"""
NO_OPERATOR = BROKEN.format(
    error='RuntimeError("operator torchvision::nms does not exist")'
)
NO_EXTENSION = BROKEN.format(error='AttributeError("no attribute extension")')


@pytest.mark.skipif(
    torch.version.cuda is None, reason="needs a PyTorch that is built for GPUs"
)
@pytest.mark.parametrize(
    ("block", "found"),
    [
        ("", True),
        (NONE, False),
        (STAND_IN, False),
        (NO_OPERATOR, True),
        (NO_EXTENSION, True),
    ],
)
def test_torchvision_is_optional_and_the_import_changes_nothing(
    block: str, found: bool
) -> None:
    """Also on a GPU, where its kernels are registered: without it, or with one that is
    broken."""
    code = BLOCKED.format(block=block, found=found)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_results_are_written_to_given_tensors() -> None:
    """`out=` has the values, shapes and exceptions of PyTorch's own."""
    x = torch.randn(4, 5)
    index = torch.tensor([[0, 1, 1, 2, 3]])

    def results() -> list[Tensor]:
        values = torch.empty(0)
        indices = torch.empty(0, dtype=torch.int64)
        torch.median(x, 1, out=(values, indices))
        counts = torch.empty(7)
        product = torch.empty(4, 5)
        torch.histc(x, 7, out=counts)
        torch.scatter_reduce(x, 0, index, x[:1], "prod", out=product)
        gradient = torch.empty(0)
        torch.ops.aten.upsample_linear1d_backward.grad_input(
            torch.ones(1, 1, 6), [6], [1, 1, 3], False, grad_input=gradient
        )
        return [values, indices, counts, product, gradient]

    torch.use_deterministic_algorithms(False)
    expected = results()
    with replacing():
        found = results()
        with pytest.raises(RuntimeError, match="dtype"):
            torch.histc(x, 7, out=torch.empty(7, dtype=torch.float64))
    torch.testing.assert_close(found, expected)
    assert called() == {
        "median.dim",
        "histc",
        "scatter_reduce.two",
        "upsample_linear1d_backward",
    }


def test_the_table_is_complete() -> None:
    for operation in OPERATIONS:
        assert all(
            [operation.used_by, operation.source, operation.cost, operation.compiled]
        )
        assert set(operation.devices) <= {"cpu", "cuda"}
    assert len({operation.operator for operation in OPERATIONS}) == len(OPERATIONS)
