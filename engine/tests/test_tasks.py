"""The built-in tasks take what their docstrings say."""

import torch

from seedbed.tasks import Regression


def test_regression_takes_a_number_for_each_sample() -> None:
    """Outputs (B,) are those of (B, 1): losses, metrics and predictions."""
    outputs, targets = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, 0.0])
    task = Regression()
    for shape in ((3,), (3, 1)):
        a, b = outputs.view(shape), targets.view(shape)
        assert task.losses(a, b).tolist() == [0, 4, 9]
        assert task.predictions(a).tolist() == [1, 2, 3]
