"""Augmentation: a function of image, sample and key alone, and of what it is told."""

from collections.abc import Iterable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from project.data.augment import ShiftAndRotate
from seedbed import rng
from seedbed.errors import InputError


def draws(ids: Iterable[int], epoch: int = 0) -> rng.Draws:
    return rng.Draws(rng.key(0, "augment", epoch), np.array(list(ids)))


def images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, 1, 28, 28, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 60_000), min_size=2, max_size=9, unique=True), st.data())
def test_an_image_changes_in_the_same_way_in_any_batch(ids: list[int], data: st.DataObject) -> None:
    """A sample's bits do not depend on which other samples are in its batch, or on its place."""
    augment, batch = ShiftAndRotate(2, 10), images(len(ids))
    together = augment(batch, draws(ids))
    order = data.draw(st.permutations(range(len(ids))))
    shuffled = augment(batch[order], draws(np.array(ids)[order]))
    assert torch.equal(shuffled, together[order])
    one = data.draw(st.integers(0, len(ids) - 1))
    assert torch.equal(augment(batch[one : one + 1], draws([ids[one]]))[0], together[one])


def test_samples_and_epochs_change_differently() -> None:
    """Equal images change differently for other ids and other keys (so the law above can fail)."""
    augment, batch = ShiftAndRotate(2, 10), images(1).expand(3, 1, 28, 28)
    first = augment(batch, draws(range(3)))
    second = augment(batch, draws(range(3), epoch=1))
    for other in (first[1], first[2], second[0]):
        assert not torch.equal(first[0], other)


def test_two_in_a_row_draw_independently() -> None:
    """A second change of the same kind moves images by other numbers than the first one."""
    dots = torch.zeros(2000, 1, 29, 29)
    dots[:, :, 13:16, 13:16] = 1
    augment, shared = ShiftAndRotate(3, 0), draws(range(2000))
    first, second = (centre_of_mass(augment(dots, shared)) for _ in range(2))
    again = centre_of_mass(augment(dots, draws(range(2000))))
    assert abs(np.corrcoef(first[:, 0], second[:, 0])[0, 1]) < 0.1
    assert np.corrcoef(first[:, 0], again[:, 0])[0, 1] > 0.99  # negative control


def test_the_number_of_threads_changes_no_bit() -> None:
    """One thread and three compute the same bits."""
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(ShiftAndRotate(2, 10)(images(300), draws(range(300))))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*results)


def test_no_change_leaves_images_as_they_are() -> None:
    """A shift and an angle of zero at most give the image back, but for rounding."""
    batch = images(4)
    assert (ShiftAndRotate(0, 0)(batch, draws(range(4))) - batch).abs().max() < 1e-5


def centre_of_mass(batch: Tensor) -> Tensor:
    """Return where the brightness of each image lies, (B, 2): x and y in pixels."""
    weights = batch[:, 0] / batch.sum(dim=(1, 2, 3))[:, None, None]
    pixels = torch.arange(batch.shape[-1], dtype=torch.float32)
    return torch.stack([(weights.sum(1) * pixels).sum(1), (weights.sum(2) * pixels).sum(1)], dim=1)


def test_shifts_fill_the_range_and_keep_to_it() -> None:
    """Dots move by up to the largest shift along each axis, evenly in all directions."""
    dots = torch.zeros(2000, 1, 29, 29)
    dots[:, :, 13:16, 13:16] = 1
    moved = centre_of_mass(ShiftAndRotate(3, 0)(dots, draws(range(2000)))) - 14
    assert moved.abs().max() < 3.001
    assert (moved.amax(0) > 2.9).all()
    assert (moved.amin(0) < -2.9).all()
    assert moved.mean(0).abs().max() < 0.2


def test_rotations_fill_the_range_and_keep_to_it() -> None:
    """A dot 10 pixels right of the centre moves along its circle, up to the largest angle."""
    dots = torch.zeros(2000, 1, 29, 29)
    dots[:, :, 13:16, 23:26] = 1
    x, y = (centre_of_mass(ShiftAndRotate(0, 15)(dots, draws(range(2000)))) - 14).unbind(1)
    degrees = torch.rad2deg(torch.atan2(y, x))
    assert degrees.abs().max() < 15.1
    assert degrees.max() > 14
    assert degrees.min() < -14
    assert (torch.hypot(x, y) - 10).abs().max() < 0.1


def test_what_was_outside_is_black() -> None:
    """Shifting a white image brings black in at its border."""
    white = torch.ones(50, 1, 28, 28)
    assert ShiftAndRotate(4, 0)(white, draws(range(50))).amin() == 0


@pytest.mark.parametrize(
    ("shift", "rotation", "message"),
    [
        (-1, 10, r"data\.augment\.max_shift_pixels: expected a number >= 0, got -1; try 2"),
        (2, 46, r"data\.augment\.max_rotation_degrees: expected a number from 0 to 45, got 46"),
        (2, "ten", r"data\.augment\.max_rotation_degrees: expected .* got ten"),
        (float("nan"), 1, r"data\.augment\.max_shift_pixels: expected .* got nan"),
    ],
)
def test_limits_that_cannot_be_are_refused(shift: float, rotation: float, message: str) -> None:
    """A limit that is no number, or outside its range, is refused in one line."""
    with pytest.raises(InputError, match=message):
        ShiftAndRotate(shift, rotation)
