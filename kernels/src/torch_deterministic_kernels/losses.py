"""Losses whose sums PyTorch's CUDA kernels compute in no fixed order."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from torch_deterministic_kernels.checks import first_outside, require, scalar_type
from torch_deterministic_kernels.precision import exact, wide

# reductions
_NONE = 0
_MEAN = 1


def nll_loss2d(
    log_probs: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
) -> Any:
    """Return `F.nll_loss` of images, of shape (N, C, H, W), and the sum of the used
    weights.

    Formula: https://pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html
    """
    if reduction == _NONE or not log_probs.is_floating_point():
        return NotImplemented
    classes = _classes(log_probs, target, weight)
    is_used = target != ignore_index
    safe = torch.where(is_used, target, 0)
    outside = first_outside(safe, 0, classes if target.numel() else 1)
    require(outside is None, f"Target {outside} is out of bounds.", IndexError)
    weights = (
        wide(log_probs).new_ones(())
        if weight is None
        else wide(weight).reshape(-1)[safe]
    )
    weights = torch.where(is_used, weights, 0)
    losses = -wide(log_probs).gather(1, safe[:, None])[:, 0] * weights
    total = weights.sum()
    loss = torch.where(is_used, losses, 0).sum()
    loss = loss / total if reduction == _MEAN else loss
    return loss.to(log_probs.dtype), total.to(log_probs.dtype)


def _classes(log_probs: Tensor, target: Tensor, weight: Tensor | None) -> int:
    """Return the number of classes, if the shapes and dtypes fit."""
    text = (
        "only batches of spatial inputs supported (4D tensors), but got input of"
        " dimension:"
    )
    require(log_probs.dim() == 4, f"{text} {log_probs.dim()}")
    text = (
        "only batches of spatial targets supported (3D tensors) but got targets of"
        " dimension:"
    )
    require(target.dim() == 3, f"{text} {target.dim()}")
    shapes = [*log_probs.shape], [*target.shape]
    is_fitting = log_probs.shape[:1] + log_probs.shape[2:] == target.shape
    require(is_fitting, f"size mismatch (got input: {shapes[0]} , target: {shapes[1]}")
    kind = scalar_type(target)
    classes = log_probs.shape[1]
    text = f"expected target dtype to be Long or Byte, but got {kind}"
    require(kind in ("Long", "Byte"), text)
    require(kind == "Long", f"expected scalar type Long but found {kind}")
    if weight is not None:
        text = "weight tensor should be defined either for all or no classes"
        require(weight.numel() == classes, text)
        found = scalar_type(weight)
        expected = scalar_type(log_probs)
        require(found == expected, f"expected scalar type {expected} but found {found}")
    return classes


def ctc_loss(
    gradient: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    losses: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor:
    """Return the gradient of `F.ctc_loss` for log_probs of shape (T, N, C).

    The backward variables of each sequence are the forward variables of its reverse,
    for which PyTorch's kernel of the forward pass is deterministic. Formulas 7 to 16 of
    https://www.cs.toronto.edu/~graves/icml_2006.pdf
    """
    steps, count, classes = log_probs.shape
    states = log_alpha.shape[2]
    device = log_probs.device
    lengths = torch.tensor(input_lengths, device=device)
    ends = torch.tensor(target_lengths, device=device)
    labels = torch.arange(states // 2, device=device).expand(count, -1)
    is_label = labels < ends[:, None]
    if targets.dim() == 1:  # one after the other
        starts = torch.tensor([0, *accumulate(target_lengths)][:-1], device=device)
        places = torch.where(is_label, labels + starts[:, None], 0)
        targets = targets[places] if targets.numel() else torch.zeros_like(places)
    else:
        targets = targets[:, : states // 2]
    targets = torch.where(is_label, targets, blank)
    time = torch.arange(steps, device=device).expand(count, -1)
    state = torch.arange(states, device=device).expand(count, -1)
    is_valid = (time < lengths[:, None])[:, :, None] & (state <= 2 * ends[:, None])[
        :, None
    ]

    def reverse(indices: Tensor, last: Tensor) -> Tensor:
        return (last[:, None] - indices).clamp(min=0)

    by_sample = log_probs.movedim(1, 0)  # (N, T, C)
    back = reverse(time, lengths - 1)
    row = torch.arange(count, device=device)[:, None]
    reversed_targets = targets.gather(1, reverse(labels, ends - 1))
    of_reverse = torch.ops.aten._ctc_loss(
        by_sample[row, back].movedim(1, 0),
        reversed_targets,
        input_lengths,
        target_lengths,
        blank,
    )[1]
    log_beta = of_reverse[
        row[:, :, None], back[:, :, None], reverse(state, 2 * ends)[:, None]
    ]
    extended = torch.full_like(state, blank)
    extended[:, 1::2] = targets
    seen = by_sample.gather(2, extended[:, None].expand(-1, steps, -1))
    is_valid &= (log_alpha != -torch.inf) & (log_beta != -torch.inf)
    posterior = (log_alpha + log_beta - seen + losses[:, None, None]).exp()
    posterior = torch.where(is_valid, posterior, 0)
    is_class = extended[:, :, None] == torch.arange(classes, device=device)
    posterior = exact(posterior)
    occupancy = (posterior @ is_class.to(posterior.dtype)).to(log_probs.dtype)
    result = by_sample.exp() - occupancy
    is_undefined = losses.isnan() | (losses == torch.inf)
    result = result.masked_fill(is_undefined[:, None, None], torch.nan)
    result = result * gradient[:, None, None]
    if zero_infinity:
        result = result.masked_fill((losses == torch.inf)[:, None, None], 0)
    result = result.masked_fill((time >= lengths[:, None])[:, :, None], 0)
    return result.movedim(0, 1).contiguous()
