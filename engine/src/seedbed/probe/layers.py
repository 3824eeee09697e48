"""The layers and losses that `probe.py` tries, one entry each."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from seedbed.probe.operation import (
    IMAGE,
    LINE,
    ROW_INDEX,
    ROW_SOURCE,
    ROWS,
    SOURCE,
    VOLUME,
    Input,
    Operation,
    floats,
    integers,
)


def layers() -> tuple[Operation, ...]:
    """Return every layer and loss, family by family."""
    return (
        *_convolutions(),
        *_pooling(),
        *_padding(),
        *_resizing(),
        *_losses_and_embeddings(),
        *_recurrent(),
        *_attention(),
    )


def _convolutions() -> tuple[Operation, ...]:
    image = floats(16, 16, 28, 28)
    return (
        Operation(
            "conv1d",
            lambda x, w: F.conv1d(x, w, padding=2),
            (floats(16, 32, 256), floats(32, 32, 5)),
        ),
        Operation("conv2d", lambda x, w: F.conv2d(x, w, padding=1), (image, floats(32, 16, 3, 3))),
        Operation(
            "conv2d depthwise",
            lambda x, w: F.conv2d(x, w, padding=1, groups=16),
            (image, floats(16, 1, 3, 3)),
        ),
        Operation(
            "conv2d dilated",
            lambda x, w: F.conv2d(x, w, padding=2, dilation=2),
            (image, floats(32, 16, 3, 3)),
        ),
        Operation(
            "conv3d",
            lambda x, w: F.conv3d(x, w, padding=1),
            (floats(4, 8, 12, 12, 12), floats(16, 8, 3, 3, 3)),
        ),
        Operation(
            "conv_transpose1d",
            lambda x, w: F.conv_transpose1d(x, w, stride=2),
            (floats(16, 32, 128), floats(32, 32, 5)),
        ),
        Operation(
            "conv_transpose2d",
            lambda x, w: F.conv_transpose2d(x, w, stride=2),
            (floats(16, 16, 14, 14), floats(16, 16, 3, 3)),
        ),
        Operation(
            "conv_transpose3d",
            lambda x, w: F.conv_transpose3d(x, w, stride=2),
            (floats(4, 8, 6, 6, 6), floats(8, 8, 3, 3, 3)),
        ),
        Operation("unfold", lambda x: F.unfold(x, 3), (image,)),
        Operation("fold", lambda x: F.fold(x, (28, 28), 3), (floats(16, 9 * 16, 26 * 26),)),
    )


def _pooling() -> tuple[Operation, ...]:
    # Kernels of 3 with a stride of 2 overlap: several windows add to one input's gradient.
    # The fractional pools get their offsets, so that only the pooling itself is tried.
    return (
        Operation("max_pool1d", lambda x: F.max_pool1d(x, 3, 2), (LINE,)),
        Operation("max_pool2d", lambda x: F.max_pool2d(x, 3, 2), (IMAGE,)),
        Operation("max_pool3d", lambda x: F.max_pool3d(x, 3, 2), (VOLUME,)),
        Operation("avg_pool1d", lambda x: F.avg_pool1d(x, 3, 2), (LINE,)),
        Operation("avg_pool2d", lambda x: F.avg_pool2d(x, 3, 2), (IMAGE,)),
        Operation("avg_pool3d", lambda x: F.avg_pool3d(x, 3, 2), (VOLUME,)),
        Operation("lp_pool1d", lambda x: F.lp_pool1d(x, 2, 3, 2), (LINE,)),
        Operation("lp_pool2d", lambda x: F.lp_pool2d(x, 2, 3, 2), (IMAGE,)),
        Operation("lp_pool3d", lambda x: F.lp_pool3d(x, 2, 3, 2), (VOLUME,)),
        Operation("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 7), (LINE,)),
        Operation("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, 5), (IMAGE,)),
        Operation("adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, 5), (VOLUME,)),
        Operation("adaptive_max_pool1d", lambda x: F.adaptive_max_pool1d(x, 7), (LINE,)),
        Operation("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, 5), (IMAGE,)),
        Operation("adaptive_max_pool3d", lambda x: F.adaptive_max_pool3d(x, 5), (VOLUME,)),
        Operation(
            "fractional_max_pool2d",
            lambda x, u: F.fractional_max_pool2d(x, 3, 13, _random_samples=u.detach().abs()),
            (IMAGE, floats(16, 16, 2)),
        ),
        Operation(
            "fractional_max_pool3d",
            lambda x, u: F.fractional_max_pool3d(x, 3, 5, _random_samples=u.detach().abs()),
            (VOLUME, floats(4, 8, 3)),
        ),
        # Indices with repetitions, as overlapping windows give them.
        Operation(
            "max_unpool1d",
            lambda x, i: F.max_unpool1d(x, i, [2]),
            (floats(16, 16, 128), integers(16, 16, 128, below=256)),
        ),
        Operation(
            "max_unpool2d",
            lambda x, i: F.max_unpool2d(x, i, [2] * 2),
            (floats(16, 16, 14, 14), integers(16, 16, 14, 14, below=28 * 28)),
        ),
        Operation(
            "max_unpool3d",
            lambda x, i: F.max_unpool3d(x, i, [2] * 3),
            (floats(4, 8, 6, 6, 6), integers(4, 8, 6, 6, 6, below=12**3)),
        ),
    )


def _padding() -> tuple[Operation, ...]:
    def pad(mode: str, dimensions: int, x: Input) -> Operation:
        return Operation(
            f"{mode} pad {dimensions}d", lambda x: F.pad(x, [5] * 2 * dimensions, mode), (x,)
        )

    return tuple(
        pad(mode, dimensions, x)
        for mode in ("reflect", "replicate", "circular", "constant")
        for dimensions, x in ((1, LINE), (2, IMAGE), (3, VOLUME))
    )


def _resizing() -> tuple[Operation, ...]:
    def resize(mode: str, x: Input, factor: float = 2.0, antialias: bool = False) -> Operation:
        dimensions = len(x.shape) - 2
        return Operation(
            f"interpolate {mode} {dimensions}d{' antialias' * antialias}",
            lambda x: F.interpolate(x, scale_factor=factor, mode=mode, antialias=antialias),
            (x,),
        )

    shapes = (LINE, IMAGE, VOLUME)
    grid = floats(16, 28, 28, 2)

    def sample(mode: str, padding: str) -> Operation:
        return Operation(
            f"grid_sample {mode} {padding}",
            lambda x, g: F.grid_sample(x, g, mode, padding, align_corners=False),
            (IMAGE, grid),
        )

    return (
        *(resize(mode, x) for mode in ("nearest", "nearest-exact", "area") for x in shapes),
        resize("linear", LINE),
        resize("bilinear", IMAGE),
        resize("bicubic", IMAGE),
        resize("trilinear", VOLUME),
        *(resize(mode, IMAGE, 0.5, True) for mode in ("bilinear", "bicubic", "lanczos")),
        *(sample(mode, "zeros") for mode in ("bilinear", "nearest", "bicubic")),
        *(sample("bilinear", padding) for padding in ("border", "reflection")),
        Operation(
            "grid_sample 3d",
            lambda x, g: F.grid_sample(x, g, align_corners=False),
            (VOLUME, floats(4, 12, 12, 12, 3)),
        ),
        Operation(
            "affine_grid",
            lambda t: F.affine_grid(t, [16, 1, 28, 28], align_corners=False),
            (floats(16, 2, 3),),
        ),
    )


def _losses_and_embeddings() -> tuple[Operation, ...]:
    def bag(mode: str) -> Operation:
        return Operation(
            f"embedding_bag {mode}",
            lambda w, i: F.embedding_bag(i, w, mode=mode),
            (ROWS, integers(500, 20, below=100)),
        )

    def ctc(x: Tensor, targets: Tensor) -> Tensor:
        lengths = torch.full((16,), 50, device=x.device), torch.full((16,), 20, device=x.device)
        return F.ctc_loss(x.log_softmax(2), targets + 1, *lengths)

    return (
        Operation(
            "nll_loss",
            lambda x, t: F.nll_loss(x, t),
            (floats(10_000, 10), integers(10_000, below=10)),
        ),
        Operation(
            "nll_loss 2d",
            lambda x, t: F.nll_loss(x, t),
            (floats(16, 10, 28, 28), integers(16, 28, 28, below=10)),
        ),
        Operation(
            "cross_entropy",
            lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
            (floats(10_000, 10), integers(10_000, below=10)),
        ),
        Operation("mse_loss", lambda x, y: F.mse_loss(x, y), (SOURCE, SOURCE)),
        Operation("ctc_loss", ctc, (floats(50, 16, 30), integers(16, 20, below=29))),
        Operation("embedding", lambda w, i: F.embedding(i, w), (ROWS, ROW_INDEX)),
        Operation(
            "embedding padding, scaled",
            lambda w, i: F.embedding(i, w, padding_idx=0, scale_grad_by_freq=True),
            (ROWS, ROW_INDEX),
        ),
        *map(bag, ("sum", "mean", "max")),
        Operation("dropout", lambda x: F.dropout(x, 0.5), (SOURCE,)),
        Operation(
            "multinomial", lambda x: (x.detach() + 1).multinomial(100, True), (floats(64, 1000),)
        ),
        Operation("batch_norm", lambda x: F.batch_norm(x, None, None, training=True), (IMAGE,)),
        Operation(
            "layer_norm",
            lambda x, w: F.layer_norm(x, (64,), w),
            (ROW_SOURCE, floats(64)),
        ),
        Operation("group_norm", lambda x, w: F.group_norm(x, 4, w), (IMAGE, floats(16))),
    )


def _recurrent() -> tuple[Operation, ...]:
    kinds: dict[str, Callable[..., nn.Module]] = {"RNN": nn.RNN, "LSTM": nn.LSTM, "GRU": nn.GRU}

    def recurrent(name: str, dropout: float) -> Operation:
        return Operation(
            f"{name} dropout" if dropout else name,
            lambda module, x: module(x)[0],
            (floats(30, 16, 32),),
            module=lambda: kinds[name](32, 64, num_layers=2, dropout=dropout),
        )

    return tuple(recurrent(name, dropout) for name in kinds for dropout in (0.0, 0.5))


def _attention() -> tuple[Operation, ...]:
    # bfloat16, because the flash and cuDNN kernels take no float32.
    heads = (floats(4, 8, 128, 64, dtype=torch.bfloat16),) * 3

    def attention(name: str, kernel: SDPBackend, dropout: float = 0.0) -> Operation:
        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with sdpa_kernel(kernel):
                return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)

        return Operation(f"attention {name}", call, heads)

    return (
        Operation(
            "attention default",
            lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
            heads,
        ),
        attention("math", SDPBackend.MATH),
        attention("math dropout", SDPBackend.MATH, 0.1),
        attention("flash", SDPBackend.FLASH_ATTENTION),
        attention("flash dropout", SDPBackend.FLASH_ATTENTION, 0.1),
        attention("memory-efficient", SDPBackend.EFFICIENT_ATTENTION),
        attention("cuDNN", SDPBackend.CUDNN_ATTENTION),
    )
