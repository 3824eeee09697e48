"""Building from `_target_`: only what trusted packages define."""

import functools
from typing import Any

import pytest
import torch

from seedbed.config import build
from seedbed.errors import InputError

TRUSTED = ("torch.nn", "torch.optim", "seedbed.data", "torchvision.models")


def test_nested_targets_are_built_and_arguments_kept() -> None:
    """A module inside a module comes from the same YAML."""
    built = build.build(
        {
            "_target_": "torch.nn.Bilinear",
            "name": "x",
            "in1_features": 2,
            "in2_features": 3,
            "out_features": 4,
        },
        "model",
        TRUSTED,
    )
    assert built.weight.shape == (4, 2, 3)


def test_a_class_can_be_an_argument() -> None:
    """`_partial_` hands on the class itself, or one with arguments; without it, it is built."""
    norm = {"_target_": "torch.nn.BatchNorm2d", "_partial_": True}
    spec = {"_target_": "torchvision.models.resnet18", "norm_layer": {**norm, "momentum": 0.5}}
    assert build.build(spec, "model", TRUSTED).bn1.momentum == 0.5
    assert build.build({**spec, "norm_layer": norm}, "model", TRUSTED).bn1.momentum == 0.1
    with pytest.raises(InputError, match=r"model\.norm_layer: expected arguments of BatchNorm2d"):
        build.build({**spec, "norm_layer": {**norm, "momentun": 0.5}}, "model", TRUSTED)
    with pytest.raises(InputError, match=r"model\.norm_layer\._target_: expected a class"):
        build.build({**spec, "norm_layer": {**norm, "_target_": "os.system"}}, "model", TRUSTED)
    with pytest.raises(InputError, match=r"model\.norm_layer: expected the arguments"):
        build.build({**spec, "norm_layer": {"_target_": norm["_target_"]}}, "model", TRUSTED)


def test_a_typo_is_named_and_not_the_argument_that_it_should_be() -> None:
    """Both are wrong; the typo is what its author must see. Negative control: without it."""
    spec = {"_target_": "torch.nn.Linear", "in_feature": 2, "out_features": 3}
    with pytest.raises(
        InputError, match=r"^data\.in_feature: .* got another; did you mean in_feat"
    ):
        build.build(spec, "data", TRUSTED)
    del spec["in_feature"]
    missing = r"^data: expected the arguments of Linear, got no in_features; .* \+data.in_features="
    with pytest.raises(InputError, match=missing):
        build.build(spec, "data", TRUSTED)


def test_positional_arguments_come_first() -> None:
    """An optimizer gets its parameters."""
    parameter = torch.nn.Parameter(torch.zeros(2))
    optimizer = build.build(
        {"_target_": "torch.optim.SGD", "name": "sgd", "lr": 0.5}, "optimizer", TRUSTED, [parameter]
    )
    assert optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "builtins.eval",
        "torch.nn.modules.module.torch.hub.load",  # reachable through torch.nn, not defined there
        "torch.nn.functional.torch.load",
        "torch.hub.load",
        "torch.nn.init.normal_",  # a function among classes
        "seedbed.data.workers.os.system",
        "torch.nn.NoSuchThing",
        "torch.nn",
        "Linear",
        "",
    ],
)
def test_what_is_not_defined_in_a_trusted_package_is_refused(target: str) -> None:
    """Being reachable through a trusted package is not being one of its classes."""
    with pytest.raises(InputError, match=r"model\._target_: expected a class"):
        build.build({"_target_": target}, "model", TRUSTED)


@pytest.mark.parametrize(
    "spec",
    [
        {"_target_": "torch.nn.Linear", "in_features": "2", "out_features": 2},
        {"_target_": "torch.nn.Dropout", "p": 2},
        {"_target_": "torch.nn.Linear", "in_features": 10**15, "out_features": 1},  # no memory
        {"no": "target"},
        5,
        None,
    ],
)
def test_arguments_that_a_library_refuses_are_a_message(spec: Any) -> None:
    """What is wrong with a library's class comes from the configuration: one line, no traceback."""
    with pytest.raises(InputError, match=r"^model: expected .*, got .*; see [^\n]*$"):
        build.build(spec, "model", TRUSTED)


def test_a_defect_inside_a_users_class_is_not_disguised() -> None:
    """Negative control: what goes wrong in code of one's own keeps its traceback."""
    with pytest.raises(ZeroDivisionError):
        build.build({"_target_": f"{__name__}.Broken"}, "model", (__name__,))


class Broken:
    """A model that somebody has not finished."""

    def __init__(self) -> None:
        _ = 1 / 0


def takes_more(function: Any) -> Any:
    """Let a constructor take a keyword more, as decorators of libraries do."""

    @functools.wraps(function)
    def constructor(self: Any, *args: Any, more: int = 0, **arguments: Any) -> None:
        function(self, *args, **arguments)
        self.more = more

    return constructor


class Decorated:
    @takes_more
    def __init__(self, size: int) -> None:
        self.size = size


def test_what_a_decorated_constructor_takes_is_given_to_it() -> None:
    """Its own signature counts, not that of the function inside."""
    spec = {"_target_": f"{__name__}.Decorated", "size": 1, "more": 2}
    assert vars(build.build(spec, "model", [__name__])) == {"size": 1, "more": 2}
