"""The operations that are replaced: with which kernel, where, and of which PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch_deterministic_kernels import detection, grid, indexed, linear, losses

GPU = ("cuda",)
ANY = ("cpu", "cuda")
PRODUCT = "a matrix product for each dimension"
SUM = "a sort of the indices, a sum in their order"
ORDER = "a sort of the indices, a reduction in their order"
SAMPLES = "for each corner: a sort of the points, a sum in their order"
OURS = "the kernel"
INDUCTOR = "Inductor's code, deterministic"


@dataclass(frozen=True)
class Operation:
    """An operation of PyTorch, and the kernel that replaces its own.

    Attributes:
        operator: the operator with namespace and overload, such as `aten::median.dim`.
        used_by: what calls it.
        source: the file of PyTorch's kernel, below aten/src/ATen/native/cuda
            (torchvision/csrc/ops for torchvision::), whose formula is computed.
        refused_as: its name in PyTorch's error message; empty if PyTorch does not
        refuse it.
        devices: types of the devices on which PyTorch's kernel is not deterministic.
        cost: what the kernel does for a call.
        compiled: what runs where Inductor compiles the call.
        note: for which calls it is needed, if not for all.
        until: version of PyTorch that has a deterministic kernel itself; None: 2.15 has
        none.
        kernel: the kernel, with the operator's signature.
        is_checked_on_meta: whether PyTorch's meta function checks arguments first. Some
            refuse deterministic algorithms, too, or weights that PyTorch takes: the
            kernel checks there.
    """

    operator: str
    used_by: str
    source: str
    refused_as: str
    cost: str
    kernel: Callable[..., Any]
    compiled: str = OURS
    devices: tuple[str, ...] = GPU
    note: str = ""
    until: str | None = None
    is_checked_on_meta: bool = True

    @property
    def name(self) -> str:
        """The name without namespace and overload, which `enable(except_=...)`
        takes."""
        return self.operator.rpartition(":")[2].partition(".")[0]


def _resizing(
    name: str,
    used_by: str,
    source: str,
    resize: str,
    note: str = "",
    refused_as: str = "",
) -> Operation:
    run = partial(linear.upsample, resize=resize, is_antialiased="_aa" in name)
    refused_as = refused_as or f"{name}_out_cuda"
    return Operation(
        f"aten::{name}", used_by, source, refused_as, PRODUCT, run, note=note
    )


def _padding(
    name: str, mode: str, source: str, refused_as: str, note: str = ""
) -> Operation:
    is_decomposed = mode == "reflect"
    return Operation(
        f"aten::{name}",
        f'F.pad(mode="{mode}")',
        source,
        refused_as,
        "sums of slices",
        partial(linear.padded, reflects=mode == "reflect"),
        note=note,
        compiled=INDUCTOR if is_decomposed else OURS,
    )


def _reducing(
    operator: str, used_by: str, source: str, refused_as: str, run: Any
) -> Operation:
    is_written = operator.partition(".")[0].endswith("_")
    kernel = partial(indexed.in_place, run) if is_written else run
    return Operation(operator, used_by, source, refused_as, ORDER, kernel)


DIRECT = "direct calls: F.interpolate takes another path under deterministic algorithms"
DIRECT_PAD = (
    "direct calls: on a GPU, F.pad takes another path under deterministic algorithms"
)
LAST = "the last value at an index counts"
FLOATS = "of floating-point tensors"

OPERATIONS = (
    # Linear and separable
    _resizing(
        "upsample_linear1d_backward",
        'F.interpolate(mode="linear")',
        "UpSampleLinear1d.cu",
        "upsample_bilinear2d",
        "direct calls where Inductor compiles",
    ),
    _resizing(
        "upsample_bilinear2d_backward",
        'F.interpolate(mode="bilinear")',
        "UpSampleBilinear2d.cu",
        "upsample_bilinear2d",
        DIRECT,
    ),
    _resizing(
        "upsample_trilinear3d_backward",
        'F.interpolate(mode="trilinear")',
        "UpSampleTrilinear3d.cu",
        "upsample_bilinear2d",
        DIRECT,
    ),
    _resizing(
        "upsample_bicubic2d_backward",
        'F.interpolate(mode="bicubic")',
        "UpSampleBicubic2d.cu",
        "upsample_bicubic2d",
        "from 2.15 on, direct calls, as for bilinear",
    ),
    _resizing(
        "_upsample_bilinear2d_aa_backward",
        'F.interpolate(mode="bilinear", antialias=True)',
        "UpSampleBilinear2d.cu",
        "_upsample_bilinear2d_aa",
        refused_as="upsample_bilinear2d_aa_backward_out_cuda",
    ),
    _resizing(
        "_upsample_bicubic2d_aa_backward",
        'F.interpolate(mode="bicubic", antialias=True)',
        "UpSampleBilinear2d.cu",
        "_upsample_bicubic2d_aa",
        refused_as="upsample_bicubic2d_aa_backward_out_cuda",
    ),
    Operation(
        "aten::_adaptive_avg_pool2d_backward",
        "F.adaptive_avg_pool2d",
        "AdaptiveAveragePooling.cu",
        "adaptive_avg_pool2d_backward_cuda",
        PRODUCT,
        partial(linear.adaptive_avg_pool, dimensions=2),
        note="for an output of size 1, PyTorch takes a mean",
    ),
    Operation(
        "aten::_adaptive_avg_pool3d_backward",
        "F.adaptive_avg_pool3d",
        "AdaptiveAveragePooling3d.cu",
        "adaptive_avg_pool3d_backward_cuda",
        PRODUCT,
        partial(linear.adaptive_avg_pool, dimensions=3),
        note="for an output of size 1, PyTorch takes a mean",
    ),
    Operation(
        "aten::avg_pool3d_backward",
        "F.avg_pool3d",
        "AveragePool3d.cu",
        "avg_pool3d_backward_cuda",
        PRODUCT,
        linear.avg_pool3d,
        INDUCTOR,
    ),
    _padding(
        "reflection_pad1d_backward",
        "reflect",
        "ReflectionPad.cu",
        "reflection_pad1d_backward_out_cuda",
    ),
    _padding(
        "reflection_pad3d_backward",
        "reflect",
        "ReflectionPad.cu",
        "reflection_pad3d_backward_out_cuda",
    ),
    *(
        _padding(
            f"replication_pad{n}d_backward",
            "replicate",
            "ReplicationPadding.cu",
            f"replication_pad{n}d_backward_cuda",
            DIRECT_PAD,
        )
        for n in (1, 2, 3)
    ),
    # Sums and writes at indices
    Operation(
        "aten::max_pool3d_with_indices_backward",
        "F.max_pool3d",
        "DilatedMaxPool3d.cu",
        "max_pool3d_with_indices_backward_cuda",
        SUM,
        partial(indexed.max_pool, dimensions=3, keeps_format=True),
        note=(
            "from 2.15 on, with return_indices=True on a GPU, PyTorch takes another"
            " path"
        ),
    ),
    Operation(
        "aten::adaptive_max_pool2d_backward",
        "F.adaptive_max_pool2d",
        "AdaptiveMaxPooling2d.cu",
        "adaptive_max_pool2d_backward_cuda",
        SUM,
        partial(indexed.max_pool, dimensions=2, keeps_format=True),
    ),
    Operation(
        "aten::adaptive_max_pool3d_backward",
        "F.adaptive_max_pool3d",
        "AdaptiveMaxPooling3d.cu",
        "",
        SUM,
        partial(indexed.max_pool, dimensions=3),
        note="adds atomically, without an error, where sizes are no multiples",
    ),
    Operation(
        "aten::fractional_max_pool2d_backward",
        "F.fractional_max_pool2d",
        "FractionalMaxPool2d.cu",
        "fractional_max_pool2d_backward_cuda",
        SUM,
        partial(indexed.max_pool, dimensions=2),
    ),
    Operation(
        "aten::fractional_max_pool3d_backward",
        "F.fractional_max_pool3d",
        "FractionalMaxPool3d.cu",
        "fractional_max_pool3d_backward_cuda",
        SUM,
        partial(indexed.max_pool, dimensions=3),
    ),
    Operation(
        "aten::max_unpool2d",
        "F.max_unpool1d, F.max_unpool2d",
        "MaxUnpooling.cu",
        "max_unpooling2d_forward_out",
        SUM,
        partial(indexed.max_unpool, dimensions=2),
        devices=ANY,
        note=LAST,
        compiled="refused by PyTorch while it compiles",
        is_checked_on_meta=False,
    ),
    Operation(
        "aten::max_unpool3d",
        "F.max_unpool3d",
        "MaxUnpooling.cu",
        "max_unpooling3d_forward_out",
        SUM,
        partial(indexed.max_unpool, dimensions=3),
        devices=ANY,
        note=LAST,
        compiled="refused by PyTorch while it compiles",
        is_checked_on_meta=False,
    ),
    Operation(
        "aten::put_",
        "Tensor.put_, Tensor.put",
        "IndexKernel.cu",
        "put_",
        SUM,
        indexed.put,
        devices=ANY,
        note=LAST,
        compiled="index_put of PyTorch, which sorts",
    ),
    Operation(
        "aten::_embedding_bag_dense_backward",
        'F.embedding_bag(mode="max")',
        "EmbeddingBag.cu",
        "embedding_bag_backward_cuda_max",
        SUM,
        indexed.embedding_bag,
    ),
    Operation(
        "aten::grid_sampler_2d_backward",
        "F.grid_sample",
        "GridSampler.cu",
        "grid_sampler_2d_backward_cuda",
        SAMPLES,
        grid.backward,
    ),
    Operation(
        "aten::grid_sampler_3d_backward",
        "F.grid_sample",
        "GridSampler.cu",
        "grid_sampler_3d_backward_cuda",
        SAMPLES,
        grid.backward,
    ),
    Operation(
        "aten::cudnn_grid_sampler_backward",
        "F.grid_sample",
        "../cudnn/GridSampler.cpp",
        "cudnn_grid_sampler_backward",
        SAMPLES,
        grid.cudnn_backward,
        note="refused in 2.15",
    ),
    *(
        _reducing(
            f"aten::{name}",
            f"Tensor.{name}, {FLOATS}",
            "Indexing.cu",
            "index_reduce_cuda",
            indexed.index_reduce,
        )
        for name in ("index_reduce", "index_reduce_")
    ),
    *(
        _reducing(
            f"aten::{name}.two",
            f'Tensor.{name}(reduce="prod"), {FLOATS}',
            "ScatterGatherKernel.cu",
            "scatter_reduce_cuda_prod_",
            indexed.scatter_reduce,
        )
        for name in ("scatter_reduce", "scatter_reduce_")
    ),
    *(
        _reducing(
            f"aten::{name}.reduce",
            f'Tensor.{name}(reduce="multiply"), {FLOATS}',
            "ScatterGatherKernel.cu",
            "scatter_reduce_cuda_kernel",
            indexed.scatter_reduce,
        )
        for name in ("scatter", "scatter_")
    ),
    # Reductions and losses
    Operation(
        "aten::bincount",
        "torch.bincount with weights",
        "SummaryOps.cu",
        "_bincount_cuda",
        SUM,
        indexed.bincount,
    ),
    Operation(
        "aten::histc",
        "torch.histc of float32 and float64",
        "SummaryOps.cu",
        "_histc_cuda with floating point input",
        "a count of integers",
        indexed.histc,
        is_checked_on_meta=False,
    ),
    Operation(
        "aten::median.dim",
        "torch.median with dim",
        "Sorting.cu",
        "median CUDA with indices output",
        "a stable sort",
        indexed.median,
        note="of equal values, always the same index, maybe another than PyTorch's",
        is_checked_on_meta=False,
    ),
    Operation(
        "aten::nanmedian.dim",
        "torch.nanmedian with dim",
        "Sorting.cu",
        "median CUDA with indices output",
        "a stable sort",
        partial(indexed.median, ignores_nan=True),
        note="of equal values, always the same index, maybe another than PyTorch's",
        is_checked_on_meta=False,
    ),
    Operation(
        "aten::nll_loss2d_forward",
        "F.cross_entropy, F.nll_loss of images",
        "NLLLoss2d.cu",
        "nll_loss2d_forward_out_cuda_template",
        "a gather and two sums",
        losses.nll_loss2d,
        INDUCTOR,
        is_checked_on_meta=False,
    ),
    Operation(
        "aten::_ctc_loss_backward",
        "F.ctc_loss",
        "LossCTC.cu",
        "ctc_loss_backward_gpu",
        "the forward pass of the reversed sequences, a matrix product",
        losses.ctc_loss,
    ),
    # torchvision
    Operation(
        "torchvision::_roi_pool_backward",
        "torchvision.ops.roi_pool",
        "cuda/roi_pool_kernel.cu",
        "",
        SUM,
        detection.roi_pool,
    ),
    Operation(
        "torchvision::_ps_roi_align_backward",
        "torchvision.ops.ps_roi_align",
        "cuda/ps_roi_align_kernel.cu",
        "",
        "products with matrices of each region",
        detection.ps_roi_align,
    ),
    Operation(
        "torchvision::_ps_roi_pool_backward",
        "torchvision.ops.ps_roi_pool",
        "cuda/ps_roi_pool_kernel.cu",
        "",
        "products with matrices of each region",
        detection.ps_roi_pool,
    ),
    Operation(
        "torchvision::_deform_conv2d_backward",
        "torchvision.ops.deform_conv2d",
        "cuda/deform_conv2d_kernel.cu",
        "",
        SAMPLES,
        detection.deform_conv2d,
    ),
)
