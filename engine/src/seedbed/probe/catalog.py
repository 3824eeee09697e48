"""The operations that `probe.py` tries, one entry each; to try another, add an entry.

Every operation that PyTorch's documentation, its reproducibility notes or its source name as
nondeterministic on some device is here, and beside them what training commonly uses. Sizes are
such that many threads write to the same place, and that a run takes milliseconds on a CPU.

Source: https://docs.pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms.html
"""

import torch

from seedbed.probe.layers import layers
from seedbed.probe.operation import (
    INDEX,
    ROW_INDEX,
    ROW_SOURCE,
    ROWS,
    SOURCE,
    TABLE,
    Operation,
    floats,
    integers,
)


def catalogue() -> tuple[Operation, ...]:
    """Return every operation, family by family."""
    return (
        *_indexing(),
        *_scatter_and_count(),
        *_order_and_scan(),
        *layers(),
        *_algebra(),
        *_uninitialized_memory(),
    )


def _indexing() -> tuple[Operation, ...]:
    row, rows = (ROWS, ROW_INDEX), (ROWS, ROW_INDEX, ROW_SOURCE)
    flat = (TABLE, INDEX, SOURCE)
    return (
        Operation("index_add", lambda x, i, s: x.index_add(0, i, s), rows),
        Operation("index_copy", lambda x, i, s: x.index_copy(0, i, s), rows),
        Operation("index_fill", lambda x, i: x.index_fill(0, i, 0.5), row),
        Operation("index_select", lambda x, i: x.index_select(0, i), row),
        Operation("index_put", lambda x, i, s: x.index_put((i,), s), flat),
        Operation("index_put accumulate", lambda x, i, s: x.index_put((i,), s, True), flat),
        Operation("x[index tensor]", lambda x, i: x[i], (TABLE, INDEX)),
        Operation("x[list of index tensors]", lambda x, i: x[[i, i % 64]], row),
        Operation("index_reduce prod", lambda x, i, s: x.index_reduce(0, i, s, "prod"), rows),
        Operation("index_reduce mean", lambda x, i, s: x.index_reduce(0, i, s, "mean"), rows),
        Operation("index_reduce amax", lambda x, i, s: x.index_reduce(0, i, s, "amax"), rows),
        Operation("index_reduce amin", lambda x, i, s: x.index_reduce(0, i, s, "amin"), rows),
        Operation("put", lambda x, i, s: x.clone().put_(i, s), flat),
        Operation("put accumulate", lambda x, i, s: x.clone().put_(i, s, accumulate=True), flat),
        Operation("take", lambda x, i: x.take(i), (TABLE, INDEX)),
        Operation("gather", lambda x, i: x.gather(0, i), (TABLE, INDEX)),
        Operation("repeat_interleave", lambda x: x.repeat_interleave(64, 0), (ROWS,)),
        Operation("masked_scatter", lambda x, s: x.masked_scatter(x > 0, s), (SOURCE, SOURCE)),
    )


def _scatter_and_count() -> tuple[Operation, ...]:
    flat = (TABLE, INDEX, SOURCE)

    def reduce(how: str) -> Operation:
        return Operation(
            f"scatter_reduce {how}", lambda x, i, s: x.scatter_reduce(0, i, s, how), flat
        )

    return (
        Operation("scatter tensor", lambda x, i, s: x.scatter(0, i, s), flat),
        Operation("scatter number", lambda x, i: x.scatter(0, i, 0.5), (TABLE, INDEX)),
        Operation("scatter_add", lambda x, i, s: x.scatter_add(0, i, s), flat),
        *map(reduce, ("sum", "prod", "mean", "amax", "amin")),
        Operation(
            "segment_reduce",
            lambda x: torch.segment_reduce(x, "sum", lengths=torch.tensor([50, 50]).to(x.device)),
            (ROWS,),
        ),
        Operation("bincount", lambda i: i.bincount(), (INDEX,)),
        Operation("bincount weights", lambda i, w: i.bincount(w.detach()), (INDEX, SOURCE)),
        Operation("histc", lambda x: x.detach().histc(100, -1, 1), (SOURCE,)),
        Operation("unique", lambda i: torch.unique(i, return_counts=True), (INDEX,)),
    )


def _order_and_scan() -> tuple[Operation, ...]:
    matrix = (floats(64, 2000),)
    ties = (integers(64, 2000, below=50),)
    return (
        Operation("cumsum", lambda x: x.cumsum(1), matrix),
        Operation("cumsum 1-d", lambda x: x.cumsum(0), (SOURCE,)),
        Operation("cumprod", lambda x: (1 + x / 100).cumprod(1), matrix),
        Operation("logcumsumexp", lambda x: x.logcumsumexp(1), matrix),
        Operation("median", lambda x: x.median(), matrix),
        Operation("median with indices", lambda x: tuple(x.median(1)), matrix),
        Operation("median with indices, ties", lambda i: tuple(i.median(1)), ties),
        Operation("nanmedian with indices", lambda x: tuple(x.nanmedian(1)), matrix),
        Operation("kthvalue", lambda x: tuple(x.kthvalue(50, 1)), matrix),
        Operation("kthvalue, ties", lambda i: tuple(i.kthvalue(50, 1)), ties),
        Operation("mode", lambda i: tuple(i.mode(1)), ties),
        Operation("sort", lambda x: tuple(x.sort(1)), matrix),
        Operation("sort, ties", lambda i: tuple(i.sort(1)), ties),
        Operation("topk", lambda x: tuple(x.topk(50, 1)), matrix),
        Operation("topk, ties", lambda i: tuple(i.topk(50, 1)), ties),
        Operation("sum", lambda x: x.sum(), (SOURCE,)),
        Operation("mean by column", lambda x: x.mean(0), (ROW_SOURCE,)),
        Operation("prod", lambda x: (1 + x / 100).prod(1), matrix),
        Operation("std", lambda x: x.std(1), matrix),
        Operation("logsumexp", lambda x: x.logsumexp(1), matrix),
    )


def _algebra() -> tuple[Operation, ...]:
    square = floats(256, 256)
    half = floats(256, 256, dtype=torch.bfloat16)
    return (
        Operation("mm", torch.mm, (square, square)),
        Operation("mm bfloat16", torch.mm, (half, half)),
        Operation("bmm", torch.bmm, (floats(16, 64, 64), floats(16, 64, 64))),
        Operation(
            "linear", torch.nn.functional.linear, (floats(64, 784), floats(128, 784), floats(128))
        ),
        Operation(
            "bmm sparse-dense",
            lambda x, y: torch.bmm(x.detach().relu().to_sparse(), y),
            (floats(16, 64, 64), floats(16, 64, 64)),
        ),
        Operation(
            "sparse.mm",
            lambda x, y: torch.sparse.mm(x.detach().relu().to_sparse(), y),
            (square, square),
        ),
        Operation("einsum", lambda x, y: torch.einsum("ij,kj->ik", x, y), (square, square)),
        Operation("baddbmm", torch.baddbmm, (floats(16, 64, 64),) * 3),
        Operation("cdist", torch.cdist, (floats(200, 16), floats(200, 16))),
        Operation("qr", lambda x: tuple(torch.linalg.qr(x)), (floats(64, 32),)),
        Operation("svd", lambda x: tuple(torch.linalg.svd(x, False)), (floats(64, 32),)),
        Operation("svd_lowrank", lambda x: tuple(torch.svd_lowrank(x, 6)), (floats(200, 100),)),
        Operation("pca_lowrank", lambda x: tuple(torch.pca_lowrank(x, 6)), (floats(200, 100),)),
        Operation("solve", torch.linalg.solve, (floats(64, 64), floats(64, 8))),
        Operation("fft", lambda x: torch.fft.rfft(x).abs(), (SOURCE,)),
    )


def _uninitialized_memory() -> tuple[Operation, ...]:
    # fill_uninitialized_memory covers these; its documentation names them.
    return (
        Operation("empty", lambda x: torch.empty(1000, device=x.device), (TABLE,)),
        Operation(
            "empty int64",
            lambda i: torch.empty(1000, dtype=torch.int64, device=i.device),
            (INDEX,),
        ),
        Operation("empty_like", lambda x: torch.empty_like(x), (TABLE,)),
        Operation("new_empty", lambda x: x.new_empty(1000), (TABLE,)),
        Operation(
            "empty_strided",
            lambda x: torch.empty_strided((10, 100), (100, 1), device=x.device),
            (TABLE,),
        ),
        Operation(
            "empty_permuted",
            lambda x: torch.empty_permuted((10, 100), (1, 0), device=x.device),
            (TABLE,),
        ),
        Operation("resize_", lambda x: torch.zeros(0, device=x.device).resize_(1000), (TABLE,)),
        Operation(
            "resize_as_",
            lambda x: torch.zeros(0, device=x.device).resize_as_(x.detach()),
            (TABLE,),
        ),
        Operation(
            "quantized resize_",
            lambda x: (
                torch.quantize_per_tensor(x.detach(), 0.1, 0, torch.qint8).resize_(500).int_repr()
            ),
            (TABLE,),
        ),
    )
