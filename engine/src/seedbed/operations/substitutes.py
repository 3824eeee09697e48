"""What to use instead of an operation that PyTorch refuses under deterministic algorithms.

Names are those that PyTorch 2.15 puts into its error messages. Except where the text says
otherwise, a substitute computes the same function: tests/engine/operations/test_substitutes.py
holds each recipe
against the operation that it stands in for.
"""

import re
from dataclasses import dataclass

_DOCS = (
    "https://docs.pytorch.org/docs/stable/generated/torch.use_deterministic_algorithms.html"
    "#torch.use_deterministic_algorithms"
)
_ATEN = "https://github.com/pytorch/pytorch/blob/v2.15.0/aten/src/ATen/native"
_CUDNN_RNN = "https://github.com/pytorch/pytorch/issues/74177"
_ATTENTION = (
    "https://docs.pytorch.org/docs/stable/generated/"
    "torch.nn.functional.scaled_dot_product_attention.html"
)


@dataclass(frozen=True)
class Substitute:
    """A way out of one refusal.

    Attributes:
        operation: regular expression, searched in the error's text.
        instead: what to write, as code on `x`, the operation's input.
        source: where it is written that the operation is refused, or the substitute repeats.
    """

    operation: str
    instead: str
    source: str


SUBSTITUTES = (
    Substitute(
        r"adaptive_avg_pool[23]d_backward",
        "x.mean((-2, -1), keepdim=True) for an output of size 1; where the input size is a "
        "multiple of the output size, x.unflatten(-1, (out_w, -1)).unflatten(-3, (out_h, -1))"
        ".mean((-3, -1))",
        _DOCS,
    ),
    Substitute(
        r"avg_pool3d_backward",
        "two torch.nn.functional.avg_pool2d, which repeats: one over height and width "
        "(x.flatten(1, 2)), then one of kernel (k, 1) over depth",
        _DOCS,
    ),
    Substitute(
        r"(adaptive|fractional)_max_pool[23]d_backward|max_pool[23]d(_with_indices)?_backward",
        "the pool's own indices and gather, whose gradient repeats: with torch.no_grad(): "
        "i = pool(x, return_indices=True)[1]; x.flatten(2).gather(2, i.flatten(2)).view(i.shape)",
        _DOCS,
    ),
    Substitute(
        r"avg_pool2d_backward",
        "x.unflatten(-1, (-1, k)).unflatten(-3, (-1, k)).mean((-3, -1)) where windows of size k "
        "do not overlap and cover the input",
        _DOCS,
    ),
    Substitute(
        r"max_unpool(ing)?[123]?d",
        "torch.zeros(n, c, h * w, device=x.device).scatter(2, indices.flatten(2), x.flatten(2))"
        ".view(n, c, h, w), and likewise with a depth",
        _DOCS,
    ),
    Substitute(
        r"upsample_\w*_backward|upsample_\w*_aa",
        "two matrix products, since resizing is linear: w_h @ x @ w_w.mT with w_h = "
        "torch.nn.functional.interpolate(torch.eye(h)[None, None], (out_h, h), mode=..., "
        "antialias=...)[0, 0]; without antialias, interpolate() itself repeats in 2 and 3 "
        "dimensions (give a 3-d input one row: x[:, :, None])",
        "https://github.com/pytorch/pytorch/blob/v2.15.0/torch/nn/functional.py",
    ),
    Substitute(
        r"reflection_pad[123]d_backward",
        "index_select along each dimension: i = torch.arange(-left, n + right, device=x.device); "
        "x.index_select(-1, n - 1 - (n - 1 - i.abs()).abs())",
        _DOCS,
    ),
    Substitute(
        r"replication_pad[123]d_backward",
        "torch.nn.functional.pad(x, ..., mode='replicate'), which repeats, or index_select along "
        "each dimension: x.index_select(-1, torch.arange(-left, n + right, "
        "device=x.device).clamp(0, n - 1))",
        _DOCS,
    ),
    Substitute(
        r"nll_loss2d",
        "the same loss with the classes last: torch.nn.functional.cross_entropy("
        "logits.movedim(1, -1).flatten(0, -2), target.flatten())",
        f"{_ATEN}/cuda/NLLLoss2d.cu",
    ),
    Substitute(
        r"ctc_loss_backward",
        "the CPU's: torch.nn.functional.ctc_loss(log_probs.cpu(), targets.cpu(), ...), or cuDNN's: "
        "int32 targets on the CPU, concatenated, blank=0, every input as long as the batch",
        "https://docs.pytorch.org/docs/stable/generated/torch.nn.CTCLoss.html",
    ),
    Substitute(
        r"embedding_bag_backward\w*_max",
        "torch.nn.functional.embedding(ids, weight).max(dim=1).values for ids of (bags, bag size)",
        _DOCS,
    ),
    Substitute(
        r"histc",
        "torch.bincount(((x - low) * bins / (high - low)).long().clamp(max=bins - 1), "
        "minlength=bins) for x in [low, high]",
        _DOCS,
    ),
    Substitute(
        r"bincount",
        "torch.zeros(n, device=x.device).index_add(0, x, weights)",
        _DOCS,
    ),
    Substitute(
        r"(median|kthvalue)",
        "values, indices = x.sort(dim=dim, stable=True), then the entry (n - 1) // 2 (median) or "
        "k - 1 (kthvalue)",
        _DOCS,
    ),
    Substitute(
        r"grid_sampler",
        "the neighbours by index, weighted: x[:, :, row, column], whose gradient repeats, for "
        "each of the corners around a grid point",
        _DOCS,
    ),
    Substitute(
        r"index_reduce|scatter_reduce|scatter_\w*(prod|amax|amin|mean|multiply)",
        "a dense mask for max (also min, prod): torch.where(torch.nn.functional.one_hot(index, n)"
        ".bool().T, src, -torch.inf).amax(1); for mean, index_add and a division by "
        "torch.bincount(index, minlength=n)",
        _DOCS,
    ),
    Substitute(
        r"\bput_?\b",
        "flat = x.flatten().index_put((index,), source, accumulate=...), then flat.view(x.shape)",
        _DOCS,
    ),
    Substitute(
        r"index_put",
        "the CPU's: x.cpu().index_put((index.cpu(),), values.cpu(), accumulate=True)",
        _DOCS,
    ),
    Substitute(
        r"embedding\w*_backward",
        "torch.nn.functional.one_hot(ids, rows).to(weight.dtype) @ weight",
        _DOCS,
    ),
    Substitute(
        r"quantized_resize",
        "a new tensor of the wanted size",
        _DOCS,
    ),
    Substitute(
        r"cuDNN SDPA is not deterministic|cudnn_attention|num_splits_key",
        "another attention kernel: torch.nn.attention.sdpa_kernel(SDPBackend.MATH), or "
        "torch.backends.cuda.enable_cudnn_sdp(False)",
        _ATTENTION,
    ),
    Substitute(
        r"cudnn_rnn|RNN dropout|LSTM dropout|GRU dropout",
        "one-layer recurrent modules with a torch.nn.Dropout between them: cuDNN keeps its "
        "dropout state to itself, so a resumed run cannot restore it",
        _CUDNN_RNN,
    ),
    Substitute(
        r"CuBLAS|CUBLAS_WORKSPACE_CONFIG",
        "CUBLAS_WORKSPACE_CONFIG=:4096:8, set before the process starts",
        "https://docs.nvidia.com/cuda/cublas/#results-reproducibility",
    ),
)


def find_substitute(error_text: str) -> Substitute | None:
    """Return the first entry of the table whose operation the text names, if there is one."""
    named = re.search(r"(.*) does not have a deterministic implementation", error_text)
    operation = named[1] if named else error_text
    return next((s for s in SUBSTITUTES if re.search(s.operation, operation)), None)


def substitute_for(error_text: str) -> str | None:
    """Return what to use instead of the operation that an error names, or None if unknown.

    Args:
        error_text: the text of the error that deterministic algorithms raised.
    """
    found = find_substitute(error_text)
    return found.instead if found else None
