"""Unusual and invalid arguments have the results and exceptions of PyTorch's own
kernels."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision.ops
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tests.replacing import (
    BY_OPERATOR,
    Calls,
    called,
    changed,
    forget,
    name_of,
    replacing,
)
from tests.test_kernels import CASES, gradients, maker
from torch_deterministic_kernels.switch import operator_of

X = torch.arange(12.0).view(1, 1, 3, 4)
ONE = torch.ones(3)
INDEX = torch.tensor([0, 1])
CLASSES = torch.arange(24.0).view(1, 2, 3, 4)
LABELS = torch.zeros(1, 3, 4).long()
CUBE = torch.zeros(1, 1, 1, 1, 1)
unpool2d = torch.ops.aten.max_unpool2d
unpool3d = torch.ops.aten.max_unpool3d
ZERO = torch.tensor(0)
TWO = torch.tensor(2.0)


def pooling(name: str, box: Sequence[float]) -> Tensor:
    """Return the gradient of a pool of one region."""
    boxes = torch.tensor([[0.0, *box]])
    pool = getattr(torchvision.ops, name)
    return gradients(lambda x: pool(x, boxes, (2, 2)), torch.ones(1, 8, 8, 8))[1]


def not_a_number(name: str, mode: str = "bilinear") -> Sequence[Tensor]:
    make = maker(torch.float64, False)
    if name == "_ctc_loss_backward":
        x = make(6, 2, 4).log_softmax(2)
        x[2, 0, 1] = torch.nan
        targets = torch.tensor([[1, 2], [2, 2]])
        return gradients(
            lambda x: F.ctc_loss(x, targets, [6, 5], [2, 2], reduction="none"), x
        )
    grid = torch.tensor(
        [[[[torch.nan, 0.1], [0.2, 0.3], [torch.inf, 0]]]], dtype=torch.float64
    )
    run = partial(F.grid_sample, mode=mode, align_corners=False)
    return gradients(run, make(1, 2, 5, 6), grid)[1:]


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("_ctc_loss_backward", ""),
        ("grid_sampler_2d_backward", "bilinear"),
        ("grid_sampler_2d_backward", "nearest"),
        ("grid_sampler_2d_backward", "bicubic"),
    ],
)
def test_nan_is_not_hidden(name: str, mode: str) -> None:
    """Where PyTorch's gradients are NaN, these are, and no others."""
    expected = not_a_number(name, mode)
    assert mode == "nearest" or any(x.isnan().any() for x in expected)
    with replacing(name):
        torch.testing.assert_close(not_a_number(name, mode), expected, equal_nan=True)


VALID: list[tuple[str, Callable[[], object]]] = [
    *(
        (name, partial(call, *tensors))
        for name, call in (
            ("scatter_reduce.two", lambda x, i, v: x.scatter_reduce(0, i, v, "prod")),
            ("scatter.reduce", lambda x, i, v: x.scatter(0, i, v, reduce="multiply")),
            (
                "scatter_reduce_.two",
                lambda x, i, v: x.clone().scatter_reduce_(0, i, v, "prod"),
            ),
        )
        for tensors in (
            (ONE, ZERO, TWO),
            (ONE, ZERO, ONE + 2),
            (ONE, INDEX[1:], TWO),
            (TWO, ZERO, TWO),
            (TWO, ZERO.expand(2), ONE[:2] + 2),
            (ONE, INDEX[:0], TWO),
        )
    ),
    *(
        ("index_reduce", lambda t=tensors: t[0].index_reduce(0, t[1], t[2], "mean"))
        for tensors in (
            (ONE, ZERO, ONE[:1] + 2),
            (TWO, ZERO, TWO * 2),
            (TWO, ZERO[None], TWO * 2),
            (ONE, INDEX[:0], ONE[:0]),
        )
    ),
    *(
        (
            "nll_loss2d_forward",
            partial(F.nll_loss, CLASSES, LABELS, torch.ones(shape) * 3),
        )
        for shape in ((2, 1), (1, 2), (2,))
    ),
    ("bincount", lambda: INDEX[:0].bincount(ONE[:0], 3)),
    ("put_", lambda: ONE[:0].clone().put_(INDEX[:0], ONE[:0])),
    ("histc", lambda: torch.tensor([1e9, 1e9]).histc(4)),
    ("histc", lambda: torch.tensor([1e9, 1e9]).histc(4, 1e9, 1e9)),
    ("histc", lambda: torch.tensor([3.0, 3.0]).histc(5)),
    *(
        (f"torchvision::_{name}_backward", partial(pooling, name, box))
        for name in ("ps_roi_align", "ps_roi_pool")
        for box in (
            [torch.nan, 1, 4, 5],
            [1, torch.nan, 4, 5],
            [1, 1, torch.nan, 5],
            [0, 0, torch.inf, 5],
            [2, 0, torch.inf, 5],
            [-torch.inf, 0, 5, torch.inf],
            [-50, -50, 90, 90],
        )
    ),
]


@pytest.mark.parametrize(("name", "call"), VALID)
def test_unusual_arguments(name: str, call: Callable[[], object]) -> None:
    """What PyTorch takes is computed by the kernel, with the same results."""
    expected = call()
    forget()
    with replacing(name):
        torch.testing.assert_close(call(), expected)
    assert name_of(name) in called()


def overlapping(name: str, *args: Any, expanded: bool, **kwargs: Any) -> Tensor:
    """Call a form that writes, with entries that overlap or are those of the source."""
    x = torch.arange(1.0, 7)
    target = x[:1].expand(2) if expanded else x
    source = torch.ones(2) if expanded else x[1:3]
    first = () if name == "put_" else (0,)
    return getattr(target, name)(*first, torch.tensor([0, 1]), source, *args, **kwargs)


INVALID: list[tuple[str, Callable[[], object]]] = [
    ("put_", lambda: X.clone().put_(torch.tensor([12]), torch.ones(1))),
    ("put_", lambda: X.clone().put_(torch.tensor([1]), torch.ones(2))),
    ("put_", lambda: X.clone().put_(torch.tensor([True]), torch.ones(1))),
    ("put_", lambda: X.clone().put_(torch.tensor([1]), torch.ones(1).double())),
    ("max_unpool2d", lambda: F.max_unpool2d(X, torch.full_like(X, 99).long(), 2)),
    (
        "max_unpool2d",
        lambda: torch.ops.aten.max_unpool2d(X, X.long()[..., :2], (6, 8)),
    ),
    ("max_unpool2d", lambda: torch.ops.aten.max_unpool2d(X, X, (6, 8))),
    ("nll_loss2d_forward", lambda: F.nll_loss(X, torch.full((1, 3, 4), 7))),
    ("nll_loss2d_forward", lambda: F.nll_loss(X, torch.zeros(1, 4, 3).long())),
    ("bincount", lambda: torch.tensor([-1]).bincount(torch.ones(1))),
    ("bincount", lambda: torch.tensor([1]).bincount(torch.ones(2))),
    ("histc", lambda: X.histc(0)),
    ("histc", lambda: X.histc(3, 2, 1)),
    ("histc", lambda: (X / 0).histc(3)),
    ("median.dim", lambda: X.median(7)),
    ("median.dim", lambda: X[..., :0].median(-1)),
    ("index_reduce", lambda: X.index_reduce(3, torch.tensor([4]), X[..., :1], "prod")),
    ("index_reduce", lambda: X.index_reduce(3, torch.tensor([1]), X[..., :1], "sum")),
    (
        "index_reduce",
        lambda: X.index_reduce(3, torch.tensor([1, 2]), X[..., :1], "prod"),
    ),
    ("scatter_reduce.two", lambda: X.scatter_reduce(3, X.long(), X, "prod")),
    (
        "scatter_reduce.two",
        lambda: X.scatter_reduce(3, torch.zeros(1).long(), X, "prod"),
    ),
    *(
        (name, partial(overlapping, operation, *args, expanded=expanded, **kwargs))
        for name, operation, args, kwargs in (
            ("put_", "put_", (), {}),
            ("index_reduce_", "index_reduce_", ("prod",), {}),
            ("scatter_reduce_.two", "scatter_reduce_", ("prod",), {}),
            ("scatter_.reduce", "scatter_", (), {"reduce": "multiply"}),
        )
        for expanded in (False, True)
    ),
    *(
        (name, partial(call, dtype))
        for dtype in (torch.bool, torch.int8, torch.uint8, torch.int16, torch.float32)
        for name, call in (
            (
                "index_reduce",
                lambda d: ONE.index_reduce(0, INDEX.to(d), ONE[:2], "prod"),
            ),
            (
                "scatter_reduce.two",
                lambda d: ONE.scatter_reduce(0, INDEX.to(d), ONE, "prod"),
            ),
            (
                "scatter.reduce",
                lambda d: ONE.scatter(0, INDEX.to(d), ONE, reduce="multiply"),
            ),
            ("put_", lambda d: ONE.clone().put_(INDEX.to(d), ONE[:2])),
            ("nll_loss2d_forward", lambda d: F.nll_loss(CLASSES, LABELS.to(d))),
        )
    ),
    *(
        (name, partial(call, dtype))
        for dtype in (torch.int64, torch.bool, torch.uint8, torch.complex64)
        for name, call in (
            ("max_unpool2d", lambda d: unpool2d(CUBE[0].to(d), CUBE[0].long(), (2, 2))),
            ("max_unpool3d", lambda d: F.max_unpool3d(CUBE.to(d), CUBE.long(), 2)),
            ("nll_loss2d_forward", lambda d: F.nll_loss(CLASSES.to(d), LABELS)),
        )
    ),
    *(
        ("nll_loss2d_forward", partial(F.nll_loss, CLASSES, LABELS, weight))
        for weight in (ONE[:2].double(), ONE[:2].half(), ONE, ONE[:0])
    ),
    *(
        (name, partial(getattr(torch, name[:-4]), torch.ones(3).to(dtype), 0))
        for dtype in (torch.bool, torch.uint16, torch.complex64)
        for name in ("median.dim", "nanmedian.dim")
    ),
    ("median.dim", lambda: torch.tensor(1.0).median(5)),
    ("bincount", lambda: INDEX.bool().bincount(ONE[:2])),
    ("bincount", lambda: INDEX.bincount(ONE[:2], -1)),
    ("bincount", lambda: INDEX[None].bincount(ONE[None, :2])),
    ("bincount", lambda: ONE.bincount(ONE)),
    ("bincount", lambda: INDEX[:0].bincount(ONE[:0], -1)),
    ("index_reduce", lambda: ONE.index_reduce(0, INDEX[1], torch.tensor(2.0), "prod")),
    ("index_reduce", lambda: ONE.index_reduce(0, INDEX, ONE[:2].double(), "prod")),
    ("index_reduce", lambda: ONE.index_reduce(3, INDEX, ONE[:2], "prod")),
    ("index_reduce", lambda: ONE.index_reduce(0, INDEX[None], ONE[None, :2], "prod")),
    ("scatter_reduce.two", lambda: ONE.scatter_reduce(0, INDEX, ONE.double(), "prod")),
    ("put_", lambda: ONE[:0].clone().put_(INDEX[:1], ONE[:1])),
    ("max_unpool2d", lambda: unpool2d(CUBE[0], CUBE[0].long(), (2, 2, 2))),
    ("max_unpool2d", lambda: unpool2d(CUBE[0, 0, 0], CUBE[0, 0, 0].long(), (2, 2))),
    (
        "max_unpool2d",
        lambda: unpool2d(CUBE[:, :, 0, :0], CUBE[:, :, 0, :0].long(), (2, 2)),
    ),
    ("max_unpool2d", lambda: unpool2d(CUBE[0], CUBE[0].int(), (2, 2))),
    ("max_unpool3d", lambda: unpool3d(CUBE, CUBE.long(), [2] * 3, [0, 1, 1], [0] * 3)),
    ("max_unpool3d", lambda: unpool3d(CUBE, CUBE.long(), [2] * 3, [1, 1], [0] * 3)),
    ("max_unpool3d", lambda: unpool3d(CUBE, CUBE.long(), [2] * 3, [1] * 3, [0])),
    (
        "reflection_pad1d_backward",
        lambda: torch.ops.aten.reflection_pad1d_backward(
            X[0, :, 0], X[0, :, 0], [1, 1]
        ),
    ),
    (
        "upsample_linear1d_backward",
        lambda: torch.ops.aten.upsample_linear1d_backward(X[0], [6], [1, 1, 3], False),
    ),
    (
        "avg_pool3d_backward",
        lambda: torch.ops.aten.avg_pool3d_backward(
            CUBE, CUBE, [], [], [0], False, True, None
        ),
    ),
]


@pytest.mark.parametrize(("name", "call"), INVALID)
def test_invalid_arguments(name: str, call: Callable[[], object]) -> None:
    """PyTorch's own exception is raised."""
    with pytest.raises(Exception) as expected:  # noqa: PT011  # compared below
        call()
    with replacing(name), pytest.raises(type(expected.value)) as found:
        call()
    assert str(found.value) == str(expected.value).replace("-nan", "nan")


def changes(x: Any) -> list[Any]:
    """Return values near an argument that may be invalid in its place."""
    if isinstance(x, Tensor):
        dtypes = (
            torch.bool,
            torch.uint8,
            torch.int32,
            torch.int64,
            torch.float16,
            torch.float64,
        )
        found = [x.to(dtype) for dtype in dtypes if dtype != x.dtype]
        found += [x[None], x.reshape(-1)]
        found += [
            y for d in range(x.dim()) for y in (x.narrow(d, 0, 0), torch.cat([x, x], d))
        ]
        return found
    if isinstance(x, (list, tuple)) and all(isinstance(size, int) for size in x):
        return [[], [*x, 1], [*x][1:], [0, *x[1:]], [-1, *x[1:]]]
    if isinstance(x, int) and not isinstance(x, bool):
        return [x + 7, x - 7]
    return ["other"] if isinstance(x, str) else []


def changed_calls(name: str) -> Iterator[tuple[Any, list[Any], dict[str, Any]]]:
    """Yield calls of an operation in which one argument is another than in a valid
    call."""
    with Calls(name) as noted:
        CASES[name][0](maker(torch.float32, False))
    func, args, kwargs = noted.calls[0]
    for position, argument in enumerate(args):
        for other in changes(argument):
            yield func, [*args[:position], other, *args[position + 1 :]], kwargs


def outcome(func: Any, args: Any, kwargs: Any) -> Any:
    """Return dtypes and shapes of the results; or that there is an exception."""
    try:
        results = tree_leaves(func(*changed(args, Tensor.clone), **kwargs))
    except Exception:
        return "refused"
    return [(x.dtype, x.shape) for x in results if isinstance(x, Tensor)]


# Of these, users call PyTorch's CPU kernel: it checks its arguments.
PUBLIC = [name for name in CASES if not name.endswith("_backward")]


@pytest.mark.parametrize("name", PUBLIC)
def test_what_pytorch_refuses_is_refused(name: str) -> None:
    """And what it takes is computed, with the same shapes and dtypes."""
    different = list[Any]()
    for func, args, kwargs in changed_calls(name):
        expected = outcome(func, args, kwargs)
        with replacing(name):
            found = outcome(func, args, kwargs)
        if found != expected:
            different.append((changed(args, str_of), expected, found))
    assert different == []


# PyTorch reads past the end of sizes that are too few in one of them.
CHECKED = [
    name
    for name in CASES
    if BY_OPERATOR[name].is_checked_on_meta and name != "fractional_max_pool2d_backward"
]


@pytest.mark.parametrize("name", CHECKED)
def test_what_meta_functions_refuse_is_refused(name: str) -> None:
    """With the same words."""
    operator = operator_of(BY_OPERATOR[name])
    for func, args, kwargs in changed_calls(name):
        if func is not operator:  # whose lengths are tensors
            continue
        refused = refusal(operator, *changed((args, kwargs), lambda x: x.to("meta")))
        if refused is not None and not isinstance(refused, NotImplementedError):
            with replacing(name):
                found = refusal(func, args, kwargs)
            assert (type(found), str(found)) == (type(refused), str(refused))


def refusal(func: Any, args: Any, kwargs: Any) -> Exception | None:
    try:
        func(*args, **kwargs)
    except Exception as error:
        return error
    return None


def str_of(x: Tensor) -> Any:
    return f"{x.dtype} {[*x.shape]}"
