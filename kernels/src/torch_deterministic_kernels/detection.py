"""Backward passes of torchvision's pools of regions of interest (RoI) and deformable
convolution.

They have its signatures. Average pools are products with matrices of weights, one for
the height and one for the width of each region. Formulas: torchvision/csrc/ops/cpu in
https://github.com/pytorch/vision.
"""

from math import prod

import torch
from torch import Tensor

from torch_deterministic_kernels.grid import BILINEAR, ZEROS, gradients, taps
from torch_deterministic_kernels.indexed import add_at
from torch_deterministic_kernels.precision import exact, wide


def _sampling(starts: Tensor, ends: Tensor, bins: int, size: int, ratio: int) -> Tensor:
    """Return the weights (regions, bins, size) of samples interpolated between
    pixels."""
    width = (ends - starts) / bins
    counts = width.ceil() if ratio <= 0 else torch.full_like(width, ratio)
    counts = torch.where(width.isfinite(), counts, 0)
    samples = torch.arange(max([int(counts.max()), 1]), device=starts.device)
    # a region whose end is before its start has no samples
    divisors = counts.clamp(min=1)
    within = (samples + 0.5) * (width / divisors)[:, None]
    first = starts[:, None] + torch.arange(bins, device=starts.device) * width[:, None]
    at = first[:, :, None] + within[:, None]  # (regions, bins, samples)
    is_used = (samples < counts[:, None])[:, None] & (at >= -1) & (at <= size)
    at = at.clamp(0, size - 1)
    pixels = torch.arange(size, device=starts.device)
    weights = (1 - (at[..., None] - pixels).abs()).clamp(min=0)
    return torch.where(is_used[..., None], weights, 0).sum(2) / divisors[:, None, None]


def _gathered(
    gradient: Tensor, rows: Tensor, columns: Tensor, rois: Tensor, batch_size: int
) -> Tensor:
    """Return the weighted sums, for each image, over its regions; each bin has its
    channels."""
    of_images = []
    for image in range(batch_size):
        own = torch.where((rois[:, 0] == image)[:, None, None, None], wide(gradient), 0)
        factors = map(exact, (rows, own, columns))
        summed = torch.einsum("kph,kcpq,kqw->cpqhw", *factors)
        of_images.append(summed.flatten(0, 2))
    return torch.stack(of_images).to(gradient.dtype)


def ps_roi_align(
    gradient: Tensor,
    rois: Tensor,
    channel_mapping: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
) -> Tensor:
    """Return the gradient of `torchvision.ops.ps_roi_align` for its input."""
    if not gradient.numel():
        return gradient.new_zeros(batch_size, channels, height, width)
    left, top, right, bottom = (wide(rois)[:, 1:] * spatial_scale - 0.5).unbind(1)
    rows = _sampling(top, bottom, pooled_height, height, sampling_ratio)
    columns = _sampling(left, right, pooled_width, width, sampling_ratio)
    return _gathered(gradient, rows, columns, rois, batch_size)


def ps_roi_pool(
    gradient: Tensor,
    rois: Tensor,
    channel_mapping: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
) -> Tensor:
    """Return the gradient of `torchvision.ops.ps_roi_pool` for its input."""
    if not gradient.numel():
        return gradient.new_zeros(batch_size, channels, height, width)
    scaled = wide(rois)[:, 1:] * spatial_scale
    boxes = scaled.sign() * (scaled.abs() + 0.5).floor()  # as C rounds
    # infinity becomes what it is in PyTorch
    left, top, right, bottom = boxes.int().unbind(1)
    rows, columns = (
        _members(start, end, bins, size, scaled.dtype)
        for start, end, bins, size in (
            (top, bottom, pooled_height, height),
            (left, right, pooled_width, width),
        )
    )
    return _gathered(gradient, rows, columns, rois, batch_size)


def _members(
    starts: Tensor, ends: Tensor, bins: int, size: int, dtype: torch.dtype
) -> Tensor:
    """Return the weights (regions, bins, size) of the mean of the pixels of each bin.

    Starts and ends are int32, and overflow as in PyTorch.
    """
    width = ((ends - starts).clamp(min=1).to(dtype) / bins)[:, None]
    number, pixels = (torch.arange(n, device=starts.device) for n in (bins, size))
    first = (number * width).floor().int() + starts[:, None]
    last = ((number + 1) * width).ceil().int() + starts[:, None]
    is_member = ((pixels >= first[..., None]) & (pixels < last[..., None])).to(dtype)
    return is_member / is_member.sum(2, keepdim=True).clamp(min=1)


def roi_pool(
    gradient: Tensor,
    rois: Tensor,
    argmax: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    batch_size: int,
    channels: int,
    height: int,
    width: int,
) -> Tensor:
    """Return the gradient of `torchvision.ops.roi_pool` for its input: the sum at each
    maximum."""
    plane = height * width
    first = rois[:, 0].long()[:, None] * channels + torch.arange(
        channels, device=rois.device
    )
    places = first[:, :, None, None] * plane + argmax.clamp(min=0)
    values = torch.where(argmax >= 0, wide(gradient), 0)
    result = add_at(batch_size * channels * plane, places.flatten(), values.flatten())
    return result.view(batch_size, channels, height, width).to(gradient.dtype)


def deform_conv2d(
    gradient: Tensor,
    images: Tensor,
    weight: Tensor,
    offset: Tensor,
    mask: Tensor,
    bias: Tensor,
    stride_h: int,
    stride_w: int,
    pad_h: int,
    pad_w: int,
    dilation_h: int,
    dilation_w: int,
    groups: int,
    offset_groups: int,
    use_mask: bool,
) -> tuple[Tensor, ...]:
    """Return the gradients of `torchvision.ops.deform_conv2d` for its tensors.

    It multiplies the weights with the columns: samples of the images at points moved by
    the offsets, one for each part of the kernel and each output, times the mask. The
    products with the weights have the precision that is set for matrix products, as
    torchvision's have.
    """
    count, channels, *sizes = images.shape
    per_group, *kernel = weight.shape[1:]
    steps = (stride_h, pad_h, dilation_h), (stride_w, pad_w, dilation_w)
    moved = wide(offset).reshape(count * offset_groups, *kernel, 2, *offset.shape[2:])
    along = []
    for dimension, size in enumerate(sizes):
        at = _moved(moved[:, :, :, dimension], dimension, *steps[dimension])
        along.append([*taps(at, torch.ones_like(at), size, BILINEAR, ZEROS, False)])
    points = gradient.shape[2] * gradient.shape[3]
    errors = wide(gradient).reshape(count, groups, len(weight) // groups, points)
    weights = wide(weight).reshape(
        groups, len(weight) // groups, per_group, prod(kernel)
    )
    columns = torch.einsum("ngop,goct->ngctp", errors, weights)  # their gradient
    # Each group of channels with offsets of its own is as an image.
    images_count = count * offset_groups
    own_channels = channels // offset_groups
    samples_count = prod(kernel) * points
    of_samples = columns.reshape(images_count, own_channels, samples_count).movedim(
        1, 2
    )
    factors = of_samples.new_ones(())
    if use_mask:
        factors = wide(mask).reshape(images_count, samples_count, 1)
    grouped = images.reshape(images_count, own_channels, *sizes)
    of_images, of_points, samples = gradients(
        grouped, of_samples * factors, along, (True, True)
    )
    masked = (samples * factors).movedim(2, 1).reshape(columns.shape)
    of_points = of_points.view(images_count, prod(kernel), points, 2).movedim(3, 2)
    results = (
        (of_images, images),
        (torch.einsum("ngop,ngctp->goct", errors, masked), weight),
        (of_points, offset),
        ((samples * of_samples).sum(2) if use_mask else torch.zeros_like(mask), mask),
        (errors.sum((0, 3)), bias),
    )
    return tuple(
        x.reshape(like.shape).to(like.dtype).contiguous() for x, like in results
    )


def _moved(
    offset: Tensor, dimension: int, stride: int, pad: int, dilation: int
) -> Tensor:
    """Return the coordinates along a dimension of points, moved by offsets (N, *kernel,
    *outputs).

    Shape (N, points), those of a part of the kernel one after the other.
    """
    kernel = offset.shape[1:3]
    outputs = offset.shape[3:]
    device = offset.device
    part = torch.arange(kernel[dimension], device=device) * dilation
    start = torch.arange(outputs[dimension], device=device) * stride - pad
    shape = [1, 1, 1, 1]
    shape[dimension], shape[2 + dimension] = kernel[dimension], outputs[dimension]
    return (offset + (part[:, None] + start).view(shape)).flatten(1)
