"""docs/examples/anything.md with Lightning."""

import sys

import timm
import torch
import torchvision
import transformers
from common import digits, fit, loaders
from digits_cnn import Digits
from torchvision.transforms import ToTensor

from project.data.points import Points
from project.lazy import Lazy
from project.models.dense import Dense
from project.probe import LinearProbe


class Of(Digits):
    def __init__(self, model) -> None:
        super().__init__()
        self.model = model


class WithLBFGS(Of):
    def configure_optimizers(self):
        options = {"lr": 1.0, "max_iter": 8, "line_search_fn": "strong_wolfe"}
        return torch.optim.LBFGS(self.parameters(), **options)


class Transformer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        config = transformers.ViTConfig(
            image_size=32,
            patch_size=8,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_labels=4,
        )
        self.model = transformers.ViTForImageClassification(config)

    def forward(self, images):
        return self.model(images).logits


def colours(size: int):
    return torchvision.datasets.FakeData(
        size, image_size=(3, 32, 32), num_classes=4, transform=ToTensor()
    )


if __name__ == "__main__":
    fit(WithLBFGS(Dense(2, 2, 16)), loaders(Points(1000), Points(500), 500), gradient_clip_val=None)
    if "compile" in sys.argv:
        fit(
            torch.compile(Digits()), loaders(digits(), digits("validation")), precision="bf16-mixed"
        )
    lazy = Of(Lazy(10, 64))
    lazy.model(digits()[0][0][None])
    fit(lazy, loaders(digits(), digits("validation")))
    fit(Of(LinearProbe(4)), loaders(colours(256), colours(64), 16))
    fit(Of(torchvision.models.resnet18(num_classes=4)), loaders(colours(256), colours(64), 16))
    vit = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=2, num_classes=4)
    fit(Of(vit), loaders(colours(256), colours(64), 16))
    fit(Of(Transformer()), loaders(colours(256), colours(64), 16))
