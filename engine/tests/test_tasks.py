"""The built-in tasks take what their docstrings say."""

import torch

from seedbed.tasks import Classification, Regression


def test_regression_takes_a_number_for_each_sample() -> None:
    """Outputs (B,) are those of (B, 1): losses, metrics and predictions."""
    outputs, targets = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, 0.0])
    task = Regression()
    for shape in ((3,), (3, 1)):
        a, b = outputs.view(shape), targets.view(shape)
        assert task.losses(a, b).tolist() == [0, 4, 9]
        assert task.predictions(a).tolist() == [1, 2, 3]


def test_the_metric_of_soft_targets_is_that_of_the_likeliest_class() -> None:
    """As many classes as samples are not broadcast; hard targets give the same metric."""
    task, outputs = Classification(), torch.eye(4)
    soft = torch.tensor([[0.6, 0.4, 0, 0], [0.7, 0.3, 0, 0], [0, 0, 0.9, 0.1], [0, 0, 0.8, 0.2]])
    assert task.metric(outputs, soft).tolist() == [1, 0, 1, 0]
    assert task.metric(outputs, soft.argmax(1)).tolist() == [1, 0, 1, 0]
    assert task.loss(outputs, soft).isfinite()
