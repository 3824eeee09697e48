"""Replacements have the values, derivatives, formats and exceptions of PyTorch's own
kernels.

They are registered for the CPU here, whose kernels PyTorch has for each operation that
it refuses on a GPU.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision.ops
from torch import Tensor
from torch._subclasses import FakeTensorMode
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
from torch_deterministic_kernels.grid import cudnn_backward

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
TOLERANCE = {
    torch.bfloat16: 2e-2,
    torch.float16: 3e-3,
    torch.float32: 2e-4,
    torch.float64: 1e-10,
}
Make = Callable[..., Tensor]  # a random tensor of a shape


def gradients(function: Callable[..., Any], *inputs: Tensor) -> list[Tensor]:
    """Return the outputs of a function, and gradients of a weighted sum of the
    first."""
    leaves = [each.detach().requires_grad_() for each in inputs]
    outputs = function(*leaves)
    outputs = [outputs] if isinstance(outputs, Tensor) else [*outputs]
    weights = torch.linspace(0.5, 1.5, outputs[0].numel()).view(outputs[0].shape)
    weights = torch.empty_like(outputs[0]).copy_(weights)  # in the format of the output
    found = torch.autograd.grad((outputs[0] * weights).sum(), leaves)
    return [*(each.detach() for each in outputs), *found]


def maker(dtype: torch.dtype, channels_last: bool) -> Make:
    """Return a function that makes tensors of the same values each time it is asked
    for."""
    generator = torch.Generator().manual_seed(0)

    def make(*shape: int) -> Tensor:
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        if channels_last and len(shape) in formats:
            return drawn.contiguous(memory_format=formats[len(shape)])
        return drawn

    return make


def indices(high: int, *shape: int) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(1))


def resized(
    mode: str, antialias: bool = False
) -> Iterator[Callable[[Make], list[Tensor]]]:
    """Yield resizings up and down, of odd sizes, of one pixel, by sizes and by
    scales."""
    dimensions = {"linear": 1, "trilinear": 3}.get(mode, 2)
    sizes = [((7, 5, 4), (11, 9, 3)), ((7, 5, 6), (7, 11, 13)), ((1, 1, 1), (3, 4, 2))]
    # of several blocks
    sizes += [((300, 5, 2), (90, 7, 4)), ((140, 3, 2), (300, 2, 3))]
    scales: list[Any] = [{"scale_factor": 1.5}, {"scale_factor": 0.6}]
    # PyTorch's CPU kernels skip dimensions of the same size in the forward pass
    if not antialias:
        scales += [{"scale_factor": 1.1, "recompute_scale_factor": False}]
    sized: list[Any] = [(size, {"size": out[:dimensions]}) for size, out in sizes]
    for size, how in sized + [((5, 6, 7), scale) for scale in scales]:
        for align in (False, True):
            f = partial(
                F.interpolate,
                mode=mode,
                align_corners=align,
                antialias=antialias,
                **how,
            )
            yield lambda make, f=f, size=size: gradients(
                f, make(2, 3, *size[:dimensions])
            )


def pooled(
    name: str, dimensions: int, *options: Any
) -> Iterator[Callable[[Make], list[Tensor]]]:
    """Yield a function on odd and even sizes, with each of its options, batched and
    not."""
    for option, size in product(options, [(7, 5, 6), (6, 6, 6), (9, 4, 8)]):
        f = partial(getattr(F, name), **option)
        shape = (2, 3, *size[:dimensions])
        yield lambda make, f=f, shape=shape: gradients(f, make(*shape))
        # which takes no such input of four dimensions, channels last
        if name != "max_pool3d":
            yield lambda make, f=f, shape=shape: gradients(f, make(*shape[1:]))
        else:
            yield lambda make, f=f, shape=shape: gradients(
                f, make(*shape)[0].contiguous()
            )


def fractional(dimensions: int) -> Iterator[Callable[[Make], list[Tensor]]]:
    def run(make: Make) -> list[Tensor]:
        x = make(2, 3, *(7, 5, 6)[:dimensions])
        starts = torch.full((2, 3, dimensions), 0.3, dtype=x.dtype)
        how = {
            "kernel_size": 2,
            "output_size": (4, 3, 4)[:dimensions],
            "_random_samples": starts,
        }
        return gradients(
            partial(getattr(F, f"fractional_max_pool{dimensions}d"), **how), x
        )

    yield run


def padded(mode: str, dimensions: int) -> Iterator[Callable[[Make], list[Tensor]]]:
    for amounts in ([2, 1, 0, 3, 1, 1], [0, 0, 2, 2, 3, 0], [-1, 2, 1, -1, 0, 1]):
        f = partial(F.pad, pad=amounts[: 2 * dimensions], mode=mode)
        shape = (2, 3, 5, 6, 4)[: 2 + dimensions]
        yield lambda make, f=f, shape=shape: gradients(f, make(*shape))


def sampled(
    dimensions: int, modes: Sequence[str]
) -> Iterator[Callable[[Make], list[Tensor]]]:
    paddings = ("zeros", "border", "reflection")
    for mode, padding, align in product(modes, paddings, (False, True)):
        f = partial(F.grid_sample, mode=mode, padding_mode=padding, align_corners=align)
        size = (5, 7, 4)[:dimensions]
        points = (6, 3, 5)[:dimensions]

        def run(
            make: Make, f: Any = f, size: Any = size, points: Any = points
        ) -> list[Tensor]:
            grid = make(2, *points, dimensions).contiguous()
            return gradients(f, make(2, 3, *size), grid * 0.8)

        yield run


def unpooled(dimensions: int) -> Iterator[Callable[[Make], list[Tensor]]]:
    pool = getattr(F, f"max_pool{dimensions}d")
    unpool = getattr(F, f"max_unpool{dimensions}d")

    def run(make: Make, kernel: int, stride: int) -> list[Tensor]:
        x = make(2, 3, *(8, 6, 8)[:dimensions])
        values, places = pool(x, kernel, stride, return_indices=True)
        size = x.shape[-dimensions:]
        return gradients(lambda v: unpool(v, places, kernel, stride, 0, size), values)

    yield lambda make: run(make, 2, 2)
    yield lambda make: run(make, 3, 1)  # overlapping: equal values at equal indices


def reduced(
    name: str, kinds: Sequence[str]
) -> Iterator[Callable[[Make], list[Tensor]]]:
    for kind, dim, with_self in product(kinds, (0, 1, -1), (True, False)):

        def run(make: Make, how: Any = (kind, dim, with_self)) -> list[Tensor]:
            kind, dim, with_self = how
            x = make(5, 4, 6)
            source = make(5, 4, 6)
            index = (
                indices(3, 5, 4, 6)
                if name == "scatter_reduce"
                else indices(3, x.shape[dim])
            )
            run = getattr(torch.Tensor, name)
            each = run(x, dim, index, source, kind, include_self=with_self)
            written = x.clone()
            getattr(written, f"{name}_")(
                dim, index, source, kind, include_self=with_self
            )
            if (kind, x.dtype) != ("prod", torch.float64):
                return [each, written]
            f = partial(run, dim=dim, index=index, reduce=kind, include_self=with_self)
            key = "src" if name == "scatter_reduce" else "source"
            return [each, written, *gradients(lambda a, b: f(a, **{key: b}), x, source)]

        yield run


def multiplied(make: Make) -> list[Tensor]:
    x = make(5, 4)
    index = indices(5, 3, 4)
    source = make(3, 4)
    return [
        x.scatter(0, index, source, reduce="multiply"),
        x.scatter_reduce_(0, index, source, "prod"),
    ]


def put(make: Make) -> list[Tensor]:
    x = make(2, 3, 4, 5)
    index = indices(100, 30)
    found = [
        x.clone().put_(index, make(30)),
        x.clone().put_(index - 100, make(30), True),
    ]
    turned = make(6, 7).T.put_(indices(40, 5, 2), make(5, 2))  # not contiguous
    distinct = torch.arange(120).flip(0)[::4]
    written = gradients(lambda a, b: (a * 1).put_(distinct, b), x, make(30))
    return [*found, turned, *written]


def embedded(mode: str) -> Iterator[Callable[[Make], list[Tensor]]]:
    # with an empty bag
    ids = indices(7, 20)
    offsets = torch.tensor([0, 3, 3, 9])
    yield lambda make: gradients(
        lambda w: F.embedding_bag(ids, w, offsets, mode=mode), make(7, 4)
    )
    f = partial(F.embedding_bag, mode=mode, padding_idx=2)
    yield lambda make: gradients(lambda w: f(ids.view(5, 4), w), make(7, 4))


def counted(make: Make) -> list[Tensor]:
    values = make(200)
    halves = [values, values[:0]]
    found = [
        torch.histc(x, 9, low, high) for x in halves for low, high in ((-1, 2), (0, 0))
    ]
    weights = values.abs()
    return [
        *found,
        indices(9, 200).bincount(weights),
        indices(9, 200).bincount(weights, 20),
    ]


def ordered(make: Make) -> list[Tensor]:
    """Return values alone: which index of equal values is returned is PyTorch's
    choice."""
    x = make(6, 7, 5)
    x[2, 3] = torch.nan
    found = []
    for dim, keepdim in product((0, 1, -1), (False, True)):
        for f in (torch.median, torch.nanmedian):
            values, index = f(x, dim=dim, keepdim=keepdim)
            at = index if keepdim else index.unsqueeze(dim)
            assert torch.equal(
                x.gather(dim, at).nan_to_num(9), values.view(at.shape).nan_to_num(9)
            )
            found += [values]
        found += (
            gradients(lambda x, dim=dim: x.median(dim)[0], make(6, 7))[:1]
            if dim < 1
            else []
        )
    return [*found, *torch.median(x[0, 0, 0], dim=0)]


def losses(reduction: str, weighted: bool) -> Iterator[Callable[[Make], list[Tensor]]]:
    def run(make: Make) -> list[Tensor]:
        target = indices(4, 2, 5, 3)
        target[0, 0] = -100
        weight = make(4).abs() if weighted else None
        f = partial(F.nll_loss, target=target, weight=weight, reduction=reduction)
        return gradients(lambda x: f(x.log_softmax(1)), make(2, 4, 5, 3))

    yield run


def ctc(
    one_dimensional: bool, zero_infinity: bool
) -> Iterator[Callable[[Make], list[Tensor]]]:
    """Yield the loss of sequences of all lengths, of repeated labels, and of none."""

    def run(make: Make) -> list[Tensor]:
        lengths = [9, 12, 7, 12, 3]
        ends = [4, 5, 0, 1, 3]
        targets = indices(4, 5, 5) + 1
        targets[0, :2], targets[4, :3] = 2, 1  # the last needs more steps than it has
        if one_dimensional:
            targets = torch.cat(
                [row[:end] for row, end in zip(targets, ends, strict=True)]
            )
        how = (
            (targets, lengths, ends)
            if not one_dimensional
            else (targets, torch.tensor(lengths), torch.tensor(ends))
        )
        f = partial(F.ctc_loss, reduction="none", zero_infinity=zero_infinity)
        kept = slice(None) if zero_infinity else slice(0, 4)
        return gradients(lambda x: f(x.log_softmax(2), *how)[kept], make(12, 5, 6))

    yield run


def regions(name: str) -> Iterator[Callable[[Make], list[Tensor]]]:
    boxes = torch.tensor(
        [[0, 1, 1, 6, 7], [1, 2.2, 0.4, 9, 3], [1, 3, 3, 3.1, 3.2], [0, -4, 2, 30, 9]]
    )
    ratios = [{"sampling_ratio": 2}, {"sampling_ratio": -1}]
    options: list[Any] = ratios if name == "ps_roi_align" else [{}]
    for option, scale in product(options, (1.0, 0.5)):
        f = partial(
            getattr(torchvision.ops, name),
            output_size=(2, 3),
            spatial_scale=scale,
            **option,
        )
        yield lambda make, f=f: gradients(
            lambda x: f(x, boxes.to(x.dtype)), make(2, 12, 8, 11)
        )


def deformed() -> Iterator[Callable[[Make], list[Tensor]]]:
    """Yield convolutions with each kind of groups, and points at pixels, between, and
    outside."""
    options: list[Any] = [
        ({"stride": (2, 1), "padding": (1, 2), "dilation": (1, 2)}, 1, 1, (4, 10)),
        ({"padding": 1}, 2, 3, (7, 9)),
        ({}, 3, 2, (5, 7)),
    ]
    for (how, groups, offset_groups, out), masked in product(options, (True, False)):
        f = partial(torchvision.ops.deform_conv2d, **how)
        shapes = [
            (2, 6, 7, 8),
            (2, 12 * offset_groups, *out),
            (6, 6 // groups, 3, 2),
            (6,),
        ]
        shapes += [(2, 6 * offset_groups, *out)] * masked

        def run(make: Make, f: Any = f, shapes: Any = shapes) -> list[Tensor]:
            images, offset, *others = (make(*shape) for shape in shapes)
            offset[0] = offset[0].round()
            given = [images, offset * 2, *others]
            return gradients(
                lambda *each: f(*each[:4], mask=[*each[4:], None][0]), *given
            )

        yield run


CASES: dict[str, Sequence[Callable[[Make], list[Tensor]]]] = {
    "upsample_linear1d_backward": [*resized("linear")],
    "upsample_bilinear2d_backward": [*resized("bilinear")],
    "upsample_trilinear3d_backward": [*resized("trilinear")],
    "upsample_bicubic2d_backward": [*resized("bicubic")],
    "_upsample_bilinear2d_aa_backward": [*resized("bilinear", True)],
    "_upsample_bicubic2d_aa_backward": [*resized("bicubic", True)],
    "_adaptive_avg_pool2d_backward": [
        *pooled(
            "adaptive_avg_pool2d", 2, {"output_size": (3, 2)}, {"output_size": (8, 5)}
        )
    ],
    "_adaptive_avg_pool3d_backward": [
        *pooled("adaptive_avg_pool3d", 3, {"output_size": (3, 2, 7)})
    ],
    "avg_pool3d_backward": [
        *pooled(
            "avg_pool3d",
            3,
            {"kernel_size": 2},
            {"kernel_size": (3, 2, 3), "stride": (1, 2, 2)},
            {
                "kernel_size": 3,
                "padding": 1,
                "ceil_mode": True,
                "count_include_pad": False,
            },
            {"kernel_size": 3, "padding": 1, "divisor_override": 5},
        )
    ],
    "reflection_pad1d_backward": [*padded("reflect", 1)],
    "reflection_pad3d_backward": [*padded("reflect", 3)],
    "replication_pad1d_backward": [*padded("replicate", 1)],
    "replication_pad2d_backward": [*padded("replicate", 2)],
    "replication_pad3d_backward": [*padded("replicate", 3)],
    "adaptive_max_pool2d_backward": [
        *pooled("adaptive_max_pool2d", 2, {"output_size": (3, 2)})
    ],
    "adaptive_max_pool3d_backward": [
        *pooled("adaptive_max_pool3d", 3, {"output_size": (3, 2, 3)})
    ],
    "fractional_max_pool2d_backward": [*fractional(2)],
    "fractional_max_pool3d_backward": [*fractional(3)],
    "max_pool3d_with_indices_backward": [
        *pooled(
            "max_pool3d",
            3,
            {"kernel_size": 3, "stride": 1},
            {"kernel_size": 2},
            {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True},
            {"kernel_size": 2, "dilation": 2},
        )
    ],
    "max_unpool2d": [*unpooled(2)],
    "max_unpool3d": [*unpooled(3)],
    "put_": [put],
    "_embedding_bag_dense_backward": [
        *embedded("max"),
        *embedded("sum"),
        *embedded("mean"),
    ],
    "grid_sampler_2d_backward": [*sampled(2, ("bilinear", "nearest", "bicubic"))],
    "grid_sampler_3d_backward": [*sampled(3, ("bilinear", "nearest"))],
    "index_reduce": [*reduced("index_reduce", ("prod", "mean", "amax", "amin"))],
    "scatter_reduce.two": [*reduced("scatter_reduce", ("prod", "mean", "sum"))],
    "scatter.reduce": [multiplied],
    "bincount": [counted],
    "histc": [counted],
    "median.dim": [ordered],
    "nanmedian.dim": [ordered],
    "nll_loss2d_forward": [
        *losses("mean", True),
        *losses("sum", True),
        *losses("mean", False),
        *losses("none", True),
    ],
    "_ctc_loss_backward": [*ctc(False, False), *ctc(True, False), *ctc(False, True)],
    "torchvision::_roi_pool_backward": [*regions("roi_pool")],
    "torchvision::_ps_roi_align_backward": [*regions("ps_roi_align")],
    "torchvision::_ps_roi_pool_backward": [*regions("ps_roi_pool")],
    "torchvision::_deform_conv2d_backward": [*deformed()],
}


SAME_DTYPE = (
    "histc",
)  # in half precision, which PyTorch has on the CPU alone, its own kernel runs
ORDERED = ("median.dim", "nanmedian.dim")


def cast(tree: Any, dtype: torch.dtype) -> Any:
    """Return copies of tensors, those of numbers with a fraction in a dtype."""
    return changed(
        tree, lambda x: x.to(dtype, copy=True) if x.is_floating_point() else x.clone()
    )


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, channels_last: bool) -> None:
    """As PyTorch's in float64 of the same arguments, up to rounding, for each dtype."""
    forget()
    for number, run in enumerate(CASES[name]):
        with Calls(name) as noted:
            run(maker(torch.float64, channels_last))
        assert noted.calls, number
        for dtype, (func, *arguments) in product(DTYPES, noted.calls):
            if name == "_ctc_loss_backward" and dtype.itemsize == 2:
                continue  # not implemented on any device
            given = cast(arguments, dtype)
            args, kwargs = cast(given, dtype if name in SAME_DTYPE else torch.float64)
            expected = func(*args, **kwargs)
            with replacing(name):
                args, kwargs = given
                found = func(*args, **kwargs)
            if name in ORDERED:  # which index is returned, of equal values, differs
                found = found[0]
                expected = expected[0]
            torch.testing.assert_close(
                found,
                expected,
                atol=TOLERANCE[dtype],
                rtol=TOLERANCE[dtype],
                equal_nan=True,
                check_dtype=False,
                msg=lambda text, at=(number, dtype): f"case {at}: {text}",
            )
    assert name_of(name) in called()


@pytest.mark.parametrize("dtype", DTYPES)
def test_order(dtype: torch.dtype) -> None:
    """Medians are PyTorch's, and stand at their indices."""
    expected = ordered(maker(dtype, False))
    with replacing(*ORDERED):
        torch.testing.assert_close(
            ordered(maker(dtype, False)), expected, equal_nan=True
        )


def layouts(outputs: Any) -> list[Any]:
    """Return shape, dtype and strides of tensors; of dimensions of size 1, any stride
    will do."""
    return [
        (
            t.dtype,
            [*t.shape],
            [s for s, n in zip(t.stride(), t.shape, strict=True) if n > 1],
        )
        for t in tree_leaves(outputs)
        if isinstance(t, Tensor)
    ]


# Shapes that depend on values, formats on the device, or no fake kernel in PyTorch.
NOT_FAKE = (
    "bincount",
    "histc",
    "_embedding_bag_dense_backward",
    "fractional_max_pool3d_backward",
    "_ctc_loss_backward",
    "max_unpool2d",
)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", [name for name in CASES if name not in NOT_FAKE])
def test_formats(name: str, channels_last: bool) -> None:
    """Shapes, dtypes and strides are those of fake tensors on a GPU, as compiled code
    expects."""

    def on_gpu(x: Tensor) -> Tensor:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")

    for number, run in enumerate(CASES[name]):
        with Calls(name) as noted:
            run(maker(torch.float32, channels_last))
        for func, args, kwargs in noted.calls:
            with FakeTensorMode():
                fake = changed((args, kwargs), on_gpu)
                expected = layouts(func(*fake[0], **fake[1]))
            with replacing(name):
                assert layouts(func(*args, **kwargs)) == expected, f"case {number}"


WITH_GRADIENT = [
    name for name in CASES if name.endswith("backward") and name not in NOT_FAKE
]


@pytest.mark.parametrize("name", WITH_GRADIENT)
def test_gradients_with_channels_last(name: str) -> None:
    """They have the values and formats of others, also of four dimensions without a
    batch."""

    def turned(x: Tensor) -> Tensor:
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        return x.contiguous(memory_format=formats.get(x.dim(), torch.contiguous_format))

    def on_gpu(x: Tensor) -> Tensor:
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")

    for run in CASES[name]:
        with Calls(name) as noted:
            run(maker(torch.float64, False))
        for func, (gradient, *others), kwargs in noted.calls:
            args = [turned(gradient), *others]
            try:
                expected = func(*args, **kwargs)
            except RuntimeError:  # PyTorch has a format that it does not take
                continue
            with FakeTensorMode():
                fake = changed((args, kwargs), on_gpu)
                formats = layouts(func(*fake[0], **fake[1]))
            with replacing(name):
                found = func(*args, **kwargs)
            torch.testing.assert_close(found, expected)
            assert layouts(found) == formats


def differentiable(name: str) -> Any:
    """Return a function of float64 tensors, and these, of one case with an invertible
    pool."""
    make = maker(torch.float64, False)
    x = make(1, 2, 4, 5)
    grid = make(1, 3, 2, 2) * 0.7
    volume = make(1, 2, 4, 3, 3)
    line = make(1, 2, 5)
    target = indices(2, 1, 4, 5)
    functions: dict[str, Any] = {
        "upsample_linear1d_backward": (
            lambda x: F.interpolate(x, 7, mode="linear"),
            line,
        ),
        "upsample_bicubic2d_backward": (
            lambda x: F.interpolate(x, (7, 3), mode="bicubic"),
            x,
        ),
        "_upsample_bicubic2d_aa_backward": (
            lambda x: F.interpolate(x, (3, 4), mode="bicubic", antialias=True),
            x,
        ),
        "upsample_trilinear3d_backward": (
            lambda x: F.interpolate(x, (3, 4, 2), mode="trilinear"),
            volume,
        ),
        "_adaptive_avg_pool2d_backward": (
            lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
            x,
        ),
        "_adaptive_avg_pool3d_backward": (
            lambda x: F.adaptive_avg_pool3d(x, 2),
            volume,
        ),
        "avg_pool3d_backward": (lambda x: F.avg_pool3d(x, 2, 1), volume),
        "reflection_pad1d_backward": (lambda x: F.pad(x, (2, 1), "reflect"), line),
        "reflection_pad3d_backward": (
            lambda x: F.pad(x, (1, 1, 2, 0, 1, 2), "reflect"),
            volume,
        ),
        "replication_pad2d_backward": (
            lambda x: F.pad(x, (1, 2, 0, 3), "replicate"),
            x,
        ),
        "adaptive_max_pool2d_backward": (lambda x: F.adaptive_max_pool2d(x, (3, 2)), x),
        "max_pool3d_with_indices_backward": (lambda x: F.max_pool3d(x, 2, 1), volume),
        "grid_sampler_2d_backward": (
            lambda x, g: F.grid_sample(x, g, mode="bicubic"),
            x,
            grid,
        ),
        "grid_sampler_3d_backward": (
            lambda x, g: F.grid_sample(x, g),
            volume,
            make(1, 2, 2, 1, 3) * 0.7,
        ),
        "torchvision::_deform_conv2d_backward": (
            lambda x, o, w, m: torchvision.ops.deform_conv2d(x, o, w, mask=m),
            x,
            make(1, 8, 3, 4) * 0.7,
            make(2, 2, 2, 2),
            make(1, 4, 3, 4),
        ),
        "nll_loss2d_forward": (lambda x: F.nll_loss(x, target), x),
        "_ctc_loss_backward": (
            lambda x: F.ctc_loss(
                x.log_softmax(2), torch.tensor([[1, 2], [2, 2]]), [6, 5], [2, 2]
            ),
            make(6, 2, 3),
        ),
        "max_unpool2d": (
            lambda v: F.max_unpool2d(v, torch.tensor([[[[0, 7], [9, 11]]] * 2]), 2),
            make(1, 2, 2, 2),
        ),
        "put_": (lambda x, v: (x * 1).put_(torch.tensor([3, 5]), v * v), line, make(2)),
        "scatter_reduce.two": (
            lambda x, v: x.scatter_reduce(2, indices(3, 1, 2, 4), v, "prod"),
            line,
            make(1, 2, 4),
        ),
        "index_reduce": (
            lambda x, v: x.index_reduce(2, indices(3, 4), v, "prod"),
            line,
            make(1, 2, 4),
        ),
    }
    return functions[name]


# Without second derivatives in PyTorch.
ONCE = (
    "_ctc_loss_backward",
    "grid_sampler_2d_backward",
    "grid_sampler_3d_backward",
    "torchvision::_deform_conv2d_backward",
)
GRADCHECKED = (
    "upsample_linear1d_backward",
    "upsample_bicubic2d_backward",
    "_upsample_bicubic2d_aa_backward",
    "upsample_trilinear3d_backward",
    "_adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d_backward",
    "avg_pool3d_backward",
    "reflection_pad1d_backward",
    "reflection_pad3d_backward",
    "replication_pad2d_backward",
    "adaptive_max_pool2d_backward",
    "max_pool3d_with_indices_backward",
    "nll_loss2d_forward",
    "max_unpool2d",
    "put_",
    "scatter_reduce.two",
    "index_reduce",
    *ONCE,
)


@pytest.mark.parametrize("name", GRADCHECKED)
def test_derivatives(name: str) -> None:
    """First and, where PyTorch has them, second derivatives are those of the
    function."""
    function, *inputs = differentiable(name)
    leaves = [each.requires_grad_() for each in inputs]
    forget()
    with replacing(name):
        assert torch.autograd.gradcheck(function, leaves, nondet_tol=0)
        if name not in ONCE:
            assert torch.autograd.gradgradcheck(function, leaves, nondet_tol=0)
    assert name_of(name) in called()


def test_autocast() -> None:
    """Autocast stays above: a loss that it computes in float32 is one, of bfloat16
    logits."""
    make = maker(torch.float32, False)
    target = indices(4, 2, 5, 3)
    logits = make(2, 4, 5, 3).bfloat16()
    names = ("nll_loss2d_forward", "grid_sampler_2d_backward")
    low = torch.bfloat16
    with replacing(*names), torch.autocast("cpu", low):
        assert F.cross_entropy(logits, target).dtype is torch.float32
        x = make(2, 4, 5, 3).bfloat16()
        grid = make(2, 3, 3, 2)
        _, of_x, of_grid = gradients(F.grid_sample, x, grid)
    assert (of_x.dtype, of_grid.dtype) == (torch.bfloat16, torch.float32)


IN_PLACE = {"index_reduce_", "scatter_reduce_.two", "scatter_.reduce"}


def test_in_place() -> None:
    """Forms that write to their first tensor have the values of those that do not."""
    make = maker(torch.float64, False)
    x = make(5, 4)
    source = make(3, 4)
    index = indices(3, 3, 4)
    expected = [
        x.index_reduce(0, index[:, 0], source, "mean"),
        x.scatter_reduce(0, index, source, "prod"),
        x.scatter(0, index, source, reduce="multiply"),
    ]
    forget()
    with replacing(*IN_PLACE):
        found = [
            x.clone().index_reduce_(0, index[:, 0], source, "mean"),
            x.clone().scatter_reduce_(0, index, source, "prod"),
            x.clone().scatter_(0, index, source, reduce="multiply"),
        ]
    torch.testing.assert_close(found, expected)
    assert called() == IN_PLACE


def test_cudnns_sampler() -> None:
    """Its gradients are those of PyTorch's with the options that cuDNN has."""
    make = maker(torch.float64, False)
    x = make(2, 3, 5, 4)
    grid = make(2, 6, 7, 2)
    gradient = make(2, 3, 6, 7)
    options = (0, 0, True, [True, True])  # bilinear, zeros around, aligned corners
    expected = torch.ops.aten.grid_sampler_2d_backward(gradient, x, grid, *options)
    torch.testing.assert_close(cudnn_backward(x, grid, gradient), expected)


def test_all_are_tested() -> None:
    elsewhere = {"cudnn_grid_sampler_backward"}
    assert BY_OPERATOR.keys() - elsewhere - IN_PLACE == CASES.keys()
