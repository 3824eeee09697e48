"""Building from `_target_`: what YAML got wrong is one line, an error in Python a traceback."""

from pathlib import Path
from typing import Any

import pytest

from seedbed.config import build
from seedbed.errors import InputError


def test_nested_targets_are_built_and_descriptions_left_out() -> None:
    """A module inside a module comes from the same YAML."""
    norm = {"_target_": "torch.nn.BatchNorm2d", "_partial_": True}
    spec = {"_target_": "torchvision.models.resnet18", "norm_layer": norm, "name": "x"}
    assert build.build(spec, "model").bn1.momentum == 0.1
    spec["norm_layer"] = {**norm, "momentum": 0.5}
    assert build.build(spec, "model").bn1.momentum == 0.5
    parts = [{"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 3}]
    assert (
        build.build({"_target_": f"{__name__}.Kept", "parts": parts}, "model").parts[0].bias
        is not None
    )


class Kept:
    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts


@pytest.mark.parametrize(
    "target", ["torch.nn.NoSuchThing", "nosuch.Model", "torch.nosuch.X", "torch.nn", "Linear", ""]
)
def test_a_name_of_nothing_is_refused(target: str) -> None:
    with pytest.raises(InputError, match=r"^model\._target_: expected a class that can be import"):
        build.build({"_target_": target}, "model")


def test_the_nearest_name_of_the_module_is_named() -> None:
    with pytest.raises(InputError, match="did you mean Linear"):
        build.build({"_target_": "torch.nn.Liner"}, "model")


LINEAR = {"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 2}


@pytest.mark.parametrize(
    "spec",
    [
        {**LINEAR, "in_feature": 2},
        {"_target_": "torch.nn.Linear", "in_features": 2},
        {**LINEAR, "in_features": "2"},
        {**LINEAR, "in_features": 10**15},  # no memory
        {"_target_": "torch.nn.Dropout", "p": 2},
        {"_target_": f"{__name__}.Kept", "part": 2},
        {"_target_": f"{__name__}.Kept", "parts": {**LINEAR, "_partial_": True, "x": 1}},
        {"no": "target"},
        5,
    ],
)
def test_arguments_that_a_class_does_not_take_are_one_line(spec: Any) -> None:
    """By their names for every class; by their values for PyTorch's, which have no fault."""
    with pytest.raises(InputError, match=r"^model(\.parts)?: expected [^\n]*, got [^\n]*$"):
        build.build(spec, "model")


class Broken:
    """A model that somebody has not finished."""

    def __init__(self) -> None:
        _ = 1 / 0


def test_an_error_in_a_users_constructor_keeps_its_traceback() -> None:
    """With a note of the key; negative control of the one line."""
    with pytest.raises(ZeroDivisionError) as caught:
        build.build({"_target_": f"{__name__}.Broken"}, "model")
    assert caught.traceback[-1].name == "__init__"
    assert "model" in caught.value.__notes__[0]


def test_an_error_in_a_users_module_keeps_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that it lacks is not its own name; control: the module that is not there."""
    (tmp_path / "half_done.py").write_text("import nosuchpackage\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="nosuchpackage"):
        build.build({"_target_": "half_done.Model"}, "model")
    with pytest.raises(InputError):
        build.build({"_target_": "half_undone.Model"}, "model")
