"""Kernels are right in every mode of PyTorch: autocast, TF32, functorch, compiled,
exported."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision.ops
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.replacing import OPERATIONS, called, forget, replacing
from torch_deterministic_kernels import detection, indexed, linear, losses
from torch_deterministic_kernels.precision import exact
from torch_deterministic_kernels.switch import operator_of

aten = torch.ops.aten


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(
        shape, generator=torch.Generator().manual_seed(len(shape)), dtype=dtype
    )


BOXES = torch.tensor([[0, 1, 1, 6, 7], [1, 2.2, 0.4, 7, 3.0]])
GRID = drawn(2, 3, 2, 2).tanh()
LENGTHS = torch.tensor([6, 5]), torch.tensor([2, 2])
Function = Callable[[Tensor], Tensor]
# Functions of one tensor whose gradients are products of matrices or sums, and a
# tensor.
FUNCTIONS: dict[str, tuple[Function, Tensor]] = {
    "linear": (lambda x: F.interpolate(x, 7, mode="linear"), drawn(2, 3, 5)),
    "bilinear": (
        lambda x: F.interpolate(x, (7, 9), mode="bilinear"),
        drawn(2, 3, 5, 4),
    ),
    "bicubic": (lambda x: F.interpolate(x, (7, 9), mode="bicubic"), drawn(2, 3, 5, 4)),
    "antialiased": (
        lambda x: F.interpolate(x, (3, 2), mode="bilinear", antialias=True),
        drawn(2, 3, 7, 5),
    ),
    "trilinear": (
        lambda x: F.interpolate(x, (4, 6, 5), mode="trilinear"),
        drawn(2, 3, 3, 4, 2),
    ),
    "adaptive average": (lambda x: F.adaptive_avg_pool2d(x, (3, 2)), drawn(2, 3, 7, 5)),
    "adaptive average 3d": (
        lambda x: F.adaptive_avg_pool3d(x, 2),
        drawn(2, 3, 5, 4, 3),
    ),
    "average 3d": (lambda x: F.avg_pool3d(x, 2, 1), drawn(2, 3, 4, 4, 3)),
    "reflect": (lambda x: F.pad(x, (2, 1), "reflect"), drawn(2, 3, 5)),
    "max 3d": (lambda x: F.max_pool3d(x, 3, 2, 1), drawn(2, 3, 5, 6, 7)),
    "adaptive max": (lambda x: F.adaptive_max_pool2d(x, (3, 2)), drawn(2, 3, 7, 5)),
    "ctc": (
        lambda x: F.ctc_loss(
            x.log_softmax(2), torch.tensor([[1, 2], [2, 2]]), *LENGTHS
        ),
        drawn(6, 2, 4),
    ),
    "cross entropy": (
        lambda x: F.cross_entropy(x, torch.arange(8).view(2, 2, 2) % 3),
        drawn(2, 3, 2, 2),
    ),
    "ps_roi_align": (
        lambda x: torchvision.ops.ps_roi_align(x, BOXES.to(x.dtype), (2, 2)),
        drawn(2, 8, 8, 8),
    ),
    "ps_roi_pool": (
        lambda x: torchvision.ops.ps_roi_pool(x, BOXES.to(x.dtype), (2, 2)),
        drawn(2, 8, 8, 8),
    ),
    "deform_conv2d": (
        lambda x: torchvision.ops.deform_conv2d(
            x, drawn(2, 8, 6, 6).to(x.dtype), drawn(4, 3, 2, 2).to(x.dtype)
        ),
        drawn(2, 3, 7, 7),
    ),
    "grid_sample": (
        lambda x: F.grid_sample(x, GRID.to(x.dtype), align_corners=False),
        drawn(2, 3, 5, 4),
    ),
}


def gradient(function: Function, x: Tensor) -> Tensor:
    x = x.detach().requires_grad_()
    result = function(x)
    weights = (
        torch.linspace(0.5, 1.5, result.numel()).view(result.shape).to(result.dtype)
    )
    return torch.autograd.grad((result * weights).sum(), x)[0]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_backward_pass_inside_autocast(name: str) -> None:
    """A gradient penalty's gradient in float32 is as exact as outside. Negative
    control: a product of the test's own loses precision there."""
    function, x = FUNCTIONS[name]
    expected = gradient(function, x.double())
    with replacing(), torch.autocast("cpu", torch.bfloat16, enabled=False):
        outside = gradient(function, x)
        forget()

        def float32(x: Tensor) -> Tensor:
            with torch.autocast("cpu", enabled=False):
                return function(x)

        with torch.autocast("cpu", torch.bfloat16):
            inside = gradient(float32, x)
            assert (x.flatten() @ x.flatten()).dtype is torch.bfloat16
            assert torch.is_autocast_enabled("cpu")
    assert called()
    assert torch.equal(inside, outside)
    torch.testing.assert_close(
        inside, expected, check_dtype=False, rtol=1e-4, atol=1e-5
    )


class Seen(TorchDispatchMode):
    """Notes each operation and its results."""

    def __init__(self) -> None:
        super().__init__()
        self.results = list[tuple[str, Tensor]]()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        self.results += [(func._opname, tensor) for tensor in tensors]
        return result


@contextmanager
def precision(value: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(value)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _ctc() -> Any:
    log_probs = drawn(6, 2, 4).log_softmax(2)
    how = torch.tensor([[1, 2], [2, 2]]), [6, 5], [2, 2]
    loss, alpha = aten._ctc_loss(log_probs, *how, 0)
    return losses.ctc_loss(torch.ones(2), log_probs, *how, loss, alpha, 0)


PRODUCTS: list[Callable[[], Any]] = [
    lambda: linear.upsample(
        drawn(2, 3, 7, 9), [7, 9], [2, 3, 5, 4], False, resize="upsample_bilinear2d"
    ),
    lambda: linear.adaptive_avg_pool(drawn(2, 3, 3, 2), drawn(2, 3, 7, 5), 2),
    lambda: linear.avg_pool3d(
        drawn(2, 3, 3, 3, 2), drawn(2, 3, 4, 4, 3), [2], [1], [0], False, True, None
    ),
    lambda: detection.ps_roi_pool(
        drawn(2, 2, 2, 2), BOXES, BOXES, 1.0, 2, 2, 2, 8, 8, 8
    ),
    _ctc,
]


@pytest.mark.parametrize("run", PRODUCTS)
def test_products_are_not_rounded_to_tf32(run: Callable[[], Any]) -> None:
    """Whatever `torch.set_float32_matmul_precision` is. Negative control: float32 by
    default."""
    dtypes = dict[str, set[torch.dtype]]()
    results = []
    for value in ("highest", "high", "medium"):
        with precision(value), Seen() as seen:
            results.append(run())
            products = {
                x.dtype for name, x in seen.results if name in ("mm", "bmm", "matmul")
            }
        dtypes[value] = products
    assert dtypes == {
        "highest": {torch.float32},
        "high": {torch.float64},
        "medium": {torch.float64},
    }
    for result in results[1:]:
        assert result.dtype is torch.float32
        torch.testing.assert_close(result, results[0], rtol=1e-5, atol=1e-5)


def test_only_what_would_be_rounded_is_computed_in_float64() -> None:
    with precision("high"):
        assert exact(torch.ones(1, dtype=torch.bfloat16)).dtype is torch.float64
        assert exact(torch.ones(1, dtype=torch.complex64)).dtype is torch.complex64
    assert exact(torch.ones(1, dtype=torch.float16)).dtype is torch.float32


HUGE = 70_000  # HUGE ** 2 is beyond 2**31
INT32 = {"dtype": torch.int32, "device": "meta"}


def _bag() -> Any:
    maxima = torch.empty(3, HUGE, **INT32)
    size = torch.empty(4, **INT32)
    index = torch.empty(5, **INT32)
    gradient = torch.empty(3, HUGE, device="meta")
    return indexed.embedding_bag(
        gradient, index, index, size, maxima, HUGE, False, 2, None
    )


def _scatter() -> Any:
    target = torch.empty(HUGE, HUGE, device="meta")
    index = torch.empty(3, HUGE, **INT32)
    source = torch.empty(3, HUGE, device="meta")
    return indexed.scatter_reduce(target, 0, index, source, "prod")


def _roi() -> Any:
    gradient = torch.empty(3, HUGE, 2, 2, device="meta")
    rois = torch.empty(3, 5, device="meta")
    argmax = torch.empty(3, HUGE, 2, 2, **INT32)
    return detection.roi_pool(gradient, rois, argmax, 1.0, 2, 2, 2, HUGE, 300, 300)


@pytest.mark.parametrize("run", [_bag, _scatter, _roi])
def test_places_in_large_tensors_do_not_overflow(
    run: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No integer that is computed from int32 indices is of 32 bits, since a place may
    be beyond 2**31. On the meta device, as such a tensor has 20 GB."""
    # of values, which there are not
    monkeypatch.setattr(torch, "_assert_async", lambda _: None)
    stop = RuntimeError("its values are needed")

    def reduced(*args: Any) -> Any:
        raise stop

    monkeypatch.setattr(indexed, "_reduced", reduced)
    with Seen() as seen:
        try:
            run()
        except RuntimeError as error:
            if error is not stop:
                raise
    views = {
        "clamp",
        "detach",
        "empty",
        "expand",
        "select",
        "slice",
        "unsqueeze",
        "view",
    }
    narrow = {name for name, x in seen.results if x.dtype is torch.int32}
    assert narrow <= views
    assert {"add", "mul"} & {name for name, x in seen.results if x.dtype is torch.int64}


def test_int32_indices() -> None:
    """Where PyTorch takes them, values are the same."""
    x = drawn(5, 4)
    source = drawn(3, 4)
    index = torch.tensor([0, 3, 3])
    for convert in (Tensor.long, Tensor.int):
        expected = x.index_reduce(0, convert(index), source, "mean")
        with replacing("index_reduce"):
            found = x.index_reduce(0, convert(index), source, "mean")
        torch.testing.assert_close(found, expected)
    ids = torch.tensor([1, 2, 2, 4], dtype=torch.int32)
    offsets = torch.tensor([0, 1, 3]).int()

    def bags(weight: Tensor) -> Tensor:
        return F.embedding_bag(ids, weight, offsets, mode="max")

    expected = gradient(bags, x)
    with replacing():
        torch.testing.assert_close(gradient(bags, x), expected)


def test_a_reduction_by_scatter() -> None:
    """`reduce` is passed on as it came, to PyTorch's kernel, too."""
    x = drawn(5, 4)
    index = torch.tensor([[0, 3, 3, 1]])
    source = drawn(1, 4)
    for reduce in ("add", "multiply"):
        expected = x.scatter(0, index, source, reduce=reduce)
        integers = x.long().scatter(0, index, source.long(), reduce=reduce)
        with replacing():
            torch.testing.assert_close(
                x.scatter(0, index, source, reduce=reduce), expected
            )
            written = x.clone().scatter_(0, index, source, reduce=reduce)
            left = x.long().scatter(0, index, source.long(), reduce=reduce)
        torch.testing.assert_close(written, expected)
        assert torch.equal(left, integers)


EMPTY: dict[str, Callable[[Tensor], Any]] = {
    "max_pool3d": lambda x: F.max_pool3d(x[..., None], (2, 2, 1)),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 3),
    "adaptive_max_pool3d": lambda x: F.adaptive_max_pool3d(x[..., None], (3, 2, 1)),
    "fractional_max_pool2d": lambda x: F.fractional_max_pool2d(
        x, 2, 3, _random_samples=torch.full((len(x), 4, 2), 0.3)
    ),
    "max_unpool2d": lambda x: F.max_unpool2d(
        *F.max_pool2d(x, 2, return_indices=True), 2
    ),
    "grid_sample": lambda x: F.grid_sample(
        x, torch.zeros(len(x), 3, 2, 2), align_corners=False
    ),
    "deform_conv2d": lambda x: torchvision.ops.deform_conv2d(
        x, torch.zeros(len(x), 8, 5, 5), torch.ones(4, 4, 2, 2)
    ),
    "bilinear": lambda x: F.interpolate(x, (7, 5), mode="bilinear"),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 4),
    "avg_pool3d": lambda x: F.avg_pool3d(x[..., None], (2, 2, 1)),
    "reflect": lambda x: F.pad(x[:, 0], (1, 1), "reflect"),
    "roi_pool": lambda x: torchvision.ops.roi_pool(x, torch.zeros(0, 5), 2),
    "ps_roi_align": lambda x: torchvision.ops.ps_roi_align(x, torch.zeros(0, 5), 2),
    "nll_loss": lambda x: F.nll_loss(x, torch.zeros(len(x), 6, 6, dtype=torch.int64)),
}


@pytest.mark.parametrize("name", EMPTY)
def test_empty_batches(name: str) -> None:
    """They have gradients, or the exception, of PyTorch's own kernels."""

    def run() -> Any:
        try:
            return gradient(EMPTY[name], torch.zeros(0, 4, 6, 6))
        except Exception as error:
            return type(error), str(error)

    expected = run()
    with replacing():
        found = run()
    torch.testing.assert_close(found, expected, equal_nan=True)


def test_the_last_offset_of_embedding_bags() -> None:
    """On a GPU, the sizes of bags include one for the last offset (PyTorch's meta
    function)."""
    ids = torch.tensor([0, 1, 2, 2])
    offsets = torch.tensor([0, 1, 1, 4])
    weight = drawn(5, 3)

    def bags(weight: Tensor) -> Tensor:
        return F.embedding_bag(
            ids, weight, offsets, mode="max", include_last_offset=True
        )

    expected = gradient(bags, weight)
    args = (weight, ids, offsets, False, 2, False, None, True, -1)
    output, offset2bag, sizes, maxima = aten._embedding_bag(*args)
    of_gpu = torch.cat([sizes, sizes.new_zeros(1)])
    meta = aten._embedding_bag(
        *(x.to("meta") if isinstance(x, Tensor) else x for x in args)
    )
    assert len(meta[2]) in (len(of_gpu), len(sizes))  # 2.15 has those of a GPU
    values = torch.linspace(0.5, 1.5, output.numel()).view(output.shape)
    for size in (sizes, of_gpu):
        found = indexed.embedding_bag(
            values, ids, offset2bag, size, maxima, 5, False, 2, None
        )
        torch.testing.assert_close(found, expected)


TRANSFORMED = [name for name in FUNCTIONS if not name.startswith(("ps_roi", "deform"))]


@pytest.mark.parametrize("name", TRANSFORMED)
def test_functorch(name: str) -> None:
    """Per-sample gradients by `vmap(grad)`, and Jacobians where PyTorch has them."""
    function, x = FUNCTIONS[name]
    xs = torch.stack([x, x * 2, x.flip(-1)])

    def total(x: Tensor) -> Tensor:
        return (function(x) ** 2).sum()

    per_sample = torch.func.vmap(torch.func.grad(total))
    expected = per_sample(xs)
    forget()
    with replacing():
        torch.testing.assert_close(per_sample(xs), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(
            torch.func.jacrev(function)(x),
            torch.stack(
                [
                    torch.func.vjp(function, x)[1](row.view(function(x).shape))[0]
                    for row in torch.eye(function(x).numel())
                ]
            ).view(*function(x).shape, *x.shape),
        )
    assert called()


@pytest.mark.parametrize(
    "name", ["bilinear", "average 3d", "reflect", "max 3d", "adaptive max"]
)
def test_a_gradient_penalty(name: str) -> None:
    """The second backward pass has PyTorch's values, and the same bits twice."""
    function, x = FUNCTIONS[name]

    def penalty() -> Tensor:
        leaf = x.detach().requires_grad_()
        [first] = torch.autograd.grad(
            (function(leaf) ** 2).sum(), leaf, create_graph=True
        )
        return torch.autograd.grad((first**2).sum(), leaf)[0]

    expected = penalty()
    with replacing():
        found = penalty()
        again = penalty()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert torch.equal(found, again)


COMPLEX: list[tuple[Callable[..., Tensor], Tensor]] = [
    (lambda x: F.pad(x, (2, 1), "reflect"), drawn(2, 3, 5, dtype=torch.complex64)),
    (
        lambda x: F.pad(x, (2, 1, 0, 1), "replicate"),
        drawn(2, 3, 5, 4, dtype=torch.complex64),
    ),
    (
        lambda x: (x * 1).put_(torch.tensor([1, 3]), x[0, 0, :2]),
        drawn(2, 3, 5, dtype=torch.cfloat),
    ),
]


@pytest.mark.parametrize(("function", "x"), COMPLEX)
def test_complex_numbers(function: Callable[..., Tensor], x: Tensor) -> None:
    def run() -> Tensor:
        leaf = x.detach().requires_grad_()
        return torch.autograd.grad(
            (function(leaf) * (1 + 2j)).abs().pow(2).sum(), leaf
        )[0]

    torch.use_deterministic_algorithms(False)
    expected = run()
    forget()
    with replacing():
        torch.testing.assert_close(run(), expected)
    assert called()


LAYOUTS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    lambda x: torch.stack([x, x], -1)[..., 1],
    lambda x: x[:1].expand_as(x),
    lambda x: x.movedim(1, -1).contiguous().movedim(-1, 1),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", TRANSFORMED)
def test_strides(name: str, layout: Callable[[Tensor], Tensor]) -> None:
    """The values do not depend on the strides of inputs."""
    function, x = FUNCTIONS[name]
    x = layout(x)
    with replacing():
        torch.testing.assert_close(
            gradient(function, x), gradient(function, x.contiguous())
        )


class Layers(nn.Module):
    """Layers whose backward passes are replaced on a GPU."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(x, (9, 7), mode="bicubic")
        x = F.adaptive_avg_pool2d(F.adaptive_max_pool2d(x, 5), 3)
        x = F.max_pool3d(x[None], 2, 1)[0]
        return (x * 1).put(torch.arange(4), x.flatten()[:4] * 2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_code_calls_the_kernels(backend: str) -> None:
    x = drawn(2, 3, 5, 4)
    model = Layers()
    expected = gradient(model, x)
    names = {"_adaptive_avg_pool2d_backward", "max_pool3d_with_indices_backward"}
    names |= {"adaptive_max_pool2d_backward"}  # bicubic resizing is decomposed
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend)
    forget()
    with replacing():
        found = gradient(compiled, x)
        again = gradient(compiled, x)
    torch.testing.assert_close(found, expected)
    assert torch.equal(found, again)
    assert called() >= names


class Unpool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        values, indices = F.max_pool2d(x, 2, return_indices=True)
        x = F.max_unpool2d(values, indices, 2)
        return x.put(torch.arange(4), x.flatten()[:4] * 2).median(1).values


def test_exported_code_calls_the_kernels() -> None:
    """Also if it was exported before deterministic algorithms were asked for."""
    x = drawn(2, 3, 4, 4)
    expected = Unpool()(x)
    program = torch.export.export(Unpool(), (x,))
    forget()
    with replacing():
        torch.testing.assert_close(program.module()(x), expected)
        assert called() >= {"max_unpool2d", "median.dim"}


def test_what_inductor_compiles_itself() -> None:
    """The table says so, for this version of PyTorch."""
    from torch._inductor.decomposition import decompositions
    from torch._inductor.lowering import fallbacks, lowerings

    # Their lowerings call the kernel: under deterministic algorithms, or by default.
    calls = {"scatter", "scatter_", "scatter_reduce", "scatter_reduce_", "median"}
    for operation in OPERATIONS:
        operator = operator_of(operation)
        is_lowered = operator in lowerings and operator not in fallbacks
        is_inductors = (
            operator in decompositions or is_lowered
        ) and operation.name not in calls
        # decomposed for some arguments, to index_put
        if operation.name != "index_reduce":
            assert (operation.compiled != "the kernel") == is_inductors, (
                operation.operator
            )
