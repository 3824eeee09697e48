"""Substitutes for operations that PyTorch refuses under deterministic algorithms.

The names are those in PyTorch 2.15's error messages. A substitute computes the same function:
tests/operations/test_refusals.py compares the two.
"""

import re

# Regular expression for the operation: replacement, as code on its input `x`.
SUBSTITUTES = {
    r"adaptive_avg_pool[23]d_backward": (
        "x.mean((-2, -1), keepdim=True) for an output of size 1, "
        "torch.nn.functional.avg_pool2d where the input's size is a multiple of the output's"
    ),
    r"avg_pool3d_backward": "two torch.nn.functional.avg_pool2d: over height and width, over depth",
    r"(adaptive|fractional)_max_pool[23]d_backward|max_pool[23]d(_with_indices)?_backward": (
        "the pool's own indices and gather: with torch.no_grad(): i = "
        "pool(x, return_indices=True)[1]; x.flatten(2).gather(2, i.flatten(2)).view(i.shape)"
    ),
    r"max_unpool(ing)?[123]?d": (
        "torch.zeros(n, c, h * w, device=x.device).scatter(2, indices.flatten(2), "
        "x.flatten(2)).view(n, c, h, w), and likewise with a depth"
    ),
    r"upsample_\w*_backward|upsample_\w*_aa": (
        "two matrix products, since resizing is linear: w_h @ x @ w_w.mT with w_h = "
        "interpolate(torch.eye(h)[None, None], (out_h, h), mode=..., antialias=...)[0, 0]"
    ),
    r"reflection_pad[123]d_backward": (
        "index_select along each dimension: i = torch.arange(-left, n + right); "
        "x.index_select(-1, n - 1 - (n - 1 - i.abs()).abs())"
    ),
    r"replication_pad[123]d_backward": (
        "index_select along each dimension: i = torch.arange(-left, n + right); "
        "x.index_select(-1, i.clamp(0, n - 1))"
    ),
    r"nll_loss2d": (
        "the same loss with the classes last: torch.nn.functional.cross_entropy(logits.movedim(1,"
        " -1).flatten(0, -2), target.flatten())"
    ),
    r"ctc_loss_backward": "the CPU's: torch.nn.functional.ctc_loss(log_probs.cpu(), ...)",
    r"embedding_bag_backward\w*_max": (
        "torch.nn.functional.embedding(ids, weight).max(dim=1).values for ids of (bags, bag size)"
    ),
    r"histc": "torch.bincount of ((x - low) * bins / (high - low)).long().clamp(max=bins - 1)",
    r"bincount": "torch.zeros(n, device=x.device).index_add(0, x, weights)",
    r"median|kthvalue": (
        "values, indices = x.sort(dim=dim, stable=True), then the entry (n - 1) // 2 or k - 1"
    ),
    r"grid_sampler": "the neighbours by index, x[:, :, row, column], weighted, for each corner",
    r"index_reduce|scatter_reduce|scatter_\w*(prod|amax|amin|mean|multiply)": (
        "a dense mask for max, min and prod: torch.where(torch.nn.functional.one_hot(index, "
        "n).bool().T, src, -torch.inf).amax(1); for mean, index_add and torch.bincount"
    ),
    r"\bput_?\b": "x.flatten().index_put((index,), source).view(x.shape)",
    r"cuDNN SDPA|cudnn_attention|num_splits_key": (
        "another attention kernel: torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
    ),
    r"CuBLAS|CUBLAS_WORKSPACE_CONFIG": "CUBLAS_WORKSPACE_CONFIG=:4096:8, set before Python starts",
}


def substitute_for(error_text: str) -> str | None:
    """Return the substitute for the operation named in an error message; None if unknown."""
    # Without PyTorch's advice that follows, which is the same for every operation.
    operation = error_text.partition(" does not have a deterministic implementation")[0]
    return next((text for name, text in SUBSTITUTES.items() if re.search(name, operation)), None)
