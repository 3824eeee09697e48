"""PyTorch's own samples of its operations (OpInfo) have the same values and
gradients."""

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from tests.replacing import called, forget, replacing

SAMPLES = 60  # of an operation and dtype, evenly among those that PyTorch yields
TOLERANCE = {
    torch.bfloat16: 3e-2,
    torch.float32: 1e-4,
    torch.float64: 1e-9,
    torch.complex64: 1e-5,
}
# Names, with the variant where there are several, and the kernels that they call.
NAMES = {
    "nn.functional.interpolate.linear": "upsample_linear1d_backward",
    "nn.functional.interpolate.bilinear": "upsample_bilinear2d_backward",
    "nn.functional.interpolate.bicubic": "upsample_bicubic2d_backward",
    "nn.functional.interpolate.trilinear": "upsample_trilinear3d_backward",
    "nn.functional.adaptive_avg_pool2d": "_adaptive_avg_pool2d_backward",
    "nn.functional.adaptive_avg_pool3d": "_adaptive_avg_pool3d_backward",
    "nn.functional.adaptive_max_pool2d": "adaptive_max_pool2d_backward",
    "nn.functional.adaptive_max_pool3d": "adaptive_max_pool3d_backward",
    "nn.functional.avg_pool3d": "avg_pool3d_backward",
    "nn.functional.max_pool3d": "max_pool3d_with_indices_backward",
    "nn.functional.fractional_max_pool2d": "fractional_max_pool2d_backward",
    "nn.functional.fractional_max_pool3d": "fractional_max_pool3d_backward",
    "nn.functional.max_unpool1d": "max_unpool2d",
    "nn.functional.max_unpool2d": "max_unpool2d",
    "nn.functional.max_unpool3d": "max_unpool3d",
    "nn.functional.pad.reflect": "reflection_pad3d_backward",
    "nn.functional.pad.replicate": "replication_pad3d_backward",
    "nn.functional.grid_sample": "grid_sampler_2d_backward",
    "nn.functional.embedding_bag": "_embedding_bag_dense_backward",
    "nn.functional.nll_loss": "nll_loss2d_forward",
    "nn.functional.cross_entropy": "nll_loss2d_forward",
    "nn.functional.ctc_loss": "_ctc_loss_backward",
    "put": "put_",
    "index_reduce.prod": "index_reduce",
    "index_reduce.mean": "index_reduce",
    "index_reduce.amax": "index_reduce",
    "index_reduce.amin": "index_reduce",
    "scatter_reduce.prod": "scatter_reduce.two",
    "scatter": "",  # most samples have no reduce
    "bincount": "",  # nor weights
    "histc": "histc",
    "median": "median.dim",
    "nanmedian": "nanmedian.dim",
}
ROUNDED = {
    (
        "nn.functional.grid_sample",
        torch.bfloat16,
    ): "PyTorch's CPU kernel rounds coordinates",
    ("histc", torch.bfloat16): "left to PyTorch, which has it on the CPU alone",
}


@cache
def operations() -> dict[str, Any]:
    from torch.testing._internal.common_methods_invocations import op_db

    return {".".join(filter(None, [op.name, op.variant_test_name])): op for op in op_db}


def results(op: Any, sample: Any) -> list[Tensor]:
    """Return outputs, and gradients of all that have them, on copies of a sample."""

    def leaf(x: Any) -> Any:
        return (
            x.detach().clone().requires_grad_(x.requires_grad)
            if isinstance(x, Tensor)
            else x
        )

    torch.manual_seed(0)  # fractional pools draw
    given, args, kwargs = tree_map(leaf, (sample.input, sample.args, sample.kwargs))
    outputs = [
        x for x in tree_leaves(op(given, *args, **kwargs)) if isinstance(x, Tensor)
    ]
    leaves = [
        x
        for x in tree_leaves((given, args, kwargs))
        if isinstance(x, Tensor) and x.requires_grad
    ]
    roots = [x for x in outputs if x.requires_grad]
    found = [x.detach() for x in outputs]
    if leaves and roots:
        ones = [torch.ones_like(x) for x in roots]
        found += torch.autograd.grad(
            roots, leaves, ones, allow_unused=True, materialize_grads=True
        )
    return found


def of_interest(op: Any, found: list[Tensor]) -> list[Tensor]:
    """Return all but the index of a median: of equal values, it may be another."""
    return found[:1] if "median" in op.name else found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_samples(name: str, dtype: torch.dtype) -> None:
    if (name, dtype) in ROUNDED:
        pytest.skip(ROUNDED[name, dtype])
    op = operations()[name]
    if dtype not in op.supported_dtypes("cpu"):
        pytest.skip(f"not implemented for {dtype}")
    differentiable = dtype in op.supported_backward_dtypes("cpu")
    samples = list(op.sample_inputs("cpu", dtype, requires_grad=differentiable))
    forget()
    for sample in samples[:: max(1, len(samples) // SAMPLES)]:
        expected = of_interest(op, results(op, sample))
        with replacing():
            found = of_interest(op, results(op, sample))
        torch.testing.assert_close(
            found,
            expected,
            rtol=TOLERANCE[dtype],
            atol=TOLERANCE[dtype],
            equal_nan=True,
        )
    is_expected = differentiable or not NAMES[name].endswith("backward")
    if dtype.is_floating_point and is_expected and NAMES[name]:
        assert NAMES[name] in called()
