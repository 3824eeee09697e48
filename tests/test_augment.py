"""Augmentation depends only on image, sample and epoch, and keeps to its limits."""

import numpy as np
import pytest
import torch
from torch import Tensor

from project.data.augment import ShiftAndRotate
from seedbed import rng
from seedbed.errors import InputError


def draws(ids: list[int] | range, epoch: int = 0) -> rng.Draws:
    return rng.Draws(rng.key(0, "augment", epoch), np.array(ids))


def images(count: int) -> Tensor:
    return torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(0))


def dots(right: int = 0) -> Tensor:
    """Return 2,000 images with a dot `right` pixels to the right of the centre."""
    batch = torch.zeros(2000, 1, 29, 29)
    batch[:, :, 13:16, 13 + right : 16 + right] = 1
    return batch


def centre_of_mass(batch: Tensor) -> Tensor:
    """Return images' centres of mass relative to their centres, (B, 2): x and y in
    pixels."""
    weights = batch[:, 0] / batch.sum(dim=(1, 2, 3))[:, None, None]
    pixels = torch.arange(batch.shape[-1], dtype=torch.float32) - 14
    return torch.stack(
        [(weights.sum(1) * pixels).sum(1), (weights.sum(2) * pixels).sum(1)], dim=1
    )


def test_an_image_changes_in_the_same_way_in_any_batch() -> None:
    """Negative control: other samples and epochs change differently."""
    augment = ShiftAndRotate(2, 10)
    batch = images(9)
    together = augment(batch, draws(range(9)))
    for ids in ([3, 1, 8, 0, 2, 7, 5, 4, 6], *([one] for one in range(9))):
        assert torch.equal(augment(batch[ids], draws(ids)), together[ids])
    batch = images(1).expand(3, 1, 28, 28)
    first, second = (augment(batch, draws(range(3), epoch)) for epoch in (0, 1))
    for other in (first[1], first[2], second[0]):
        assert not torch.equal(first[0], other)


def test_the_number_of_threads_changes_no_bit() -> None:
    """`loading_threads: all` in configs/data/mnist5k.yaml relies on it."""
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(ShiftAndRotate(2, 10)(images(2000), draws(range(2000))))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


def test_shifts_fill_the_range_and_keep_to_it() -> None:
    """Along each axis, up to the maximum in both directions; uncovered pixels are
    black."""
    moved = centre_of_mass(ShiftAndRotate(3, 0)(dots(), draws(range(2000))))
    assert moved.abs().max() < 3.001
    assert (moved.amax(0) > 2.9).all()
    assert (moved.amin(0) < -2.9).all()
    assert moved.mean(0).abs().max() < 0.2
    assert ShiftAndRotate(4, 0)(torch.ones(50, 1, 28, 28), draws(range(50))).amin() == 0


def test_rotations_fill_the_range_and_keep_to_it() -> None:
    """A dot stays on its circle, up to the largest angle; more than 45 degrees are
    refused."""
    x, y = centre_of_mass(ShiftAndRotate(0, 15)(dots(10), draws(range(2000)))).unbind(1)
    degrees = torch.rad2deg(torch.atan2(y, x))
    assert degrees.abs().max() < 15.1
    assert degrees.max() > 14
    assert degrees.min() < -14
    assert (torch.hypot(x, y) - 10).abs().max() < 0.1
    with pytest.raises(InputError, match="^data.augment.max_rotation_degrees"):
        ShiftAndRotate(2, 46)
