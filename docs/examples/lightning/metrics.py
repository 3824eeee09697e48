"""docs/examples/metrics.md with Lightning."""

import torch
from common import digits, fit, loaders
from digits_cnn import Digits
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC, MulticlassF1Score


class WithMetrics(Digits):
    def __init__(self) -> None:
        super().__init__()
        self.metrics = MetricCollection(
            {"f1": MulticlassF1Score(num_classes=10), "auroc": MulticlassAUROC(num_classes=10)}
        )

    def validation_step(self, batch, index):
        super().validation_step(batch, index)
        self.metrics.update(torch.softmax(self.model(batch[0]), dim=1), batch[1])
        self.log_dict(self.metrics)


class Balanced(Digits):
    def __init__(self) -> None:
        super().__init__()
        self.by_class = MulticlassAccuracy(num_classes=10, average=None)

    def validation_step(self, batch, index):
        super().validation_step(batch, index)
        self.by_class.update(self.model(batch[0]), batch[1])

    def on_validation_epoch_end(self):
        self.log("worst", self.by_class.compute().min())
        self.by_class.reset()


if __name__ == "__main__":
    fit(WithMetrics(), loaders(digits(), digits("validation")), monitor="f1", mode="max")
    fit(Balanced(), loaders(digits(), digits("validation")), monitor="worst", mode="max")
