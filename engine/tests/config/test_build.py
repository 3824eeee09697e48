"""Building from `_target_`: what YAML got wrong is one line, an error in Python a traceback."""

from pathlib import Path
from typing import Any

import pytest

from seedbed.config import build
from seedbed.errors import InputError

LINEAR = {"_target_": "torch.nn.Linear", "in_features": 2, "out_features": 2}


class Kept:
    def __init__(self, parts: list[Any]) -> None:
        self.parts = parts


class Broken:
    """A model that somebody has not finished."""

    def __init__(self) -> None:
        _ = 1 / 0


def test_nested_targets_are_built_and_descriptions_left_out() -> None:
    norm = {"_target_": "torch.nn.BatchNorm2d", "_partial_": True, "momentum": 0.5}
    spec = {"_target_": "torchvision.models.resnet18", "norm_layer": norm, "name": "x"}
    assert build.build(spec, "model").bn1.momentum == 0.5
    kept = build.build({"_target_": f"{__name__}.Kept", "parts": [LINEAR]}, "model")
    assert kept.parts[0].bias is not None


@pytest.mark.parametrize(
    "spec",
    [
        *({"_target_": name} for name in ("torch.nn.Liner", "nosuch.Model", "torch.nn", "X", "")),
        {**LINEAR, "in_feature": 2},
        {"_target_": "torch.nn.Linear", "in_features": 2},
        {**LINEAR, "in_features": "2"},
        {"_target_": f"{__name__}.Kept", "part": 2},
        {"_target_": f"{__name__}.Kept", "parts": {**LINEAR, "_partial_": True, "x": 1}},
        {"no": "target"},
        5,
    ],
)
def test_a_spec_that_names_no_class_or_not_its_arguments_is_one_line(spec: Any) -> None:
    """Arguments by their names for every class; by their values for PyTorch's."""
    with pytest.raises(InputError, match=r"^model(\.[a-z_]+)?: expected [^\n]*, got [^\n]*$"):
        build.build(spec, "model")


def test_a_users_error_has_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a constructor, with a note of the key, and in a module; negative control of the line."""
    with pytest.raises(ZeroDivisionError) as caught:
        build.build({"_target_": f"{__name__}.Broken"}, "model")
    assert caught.traceback[-1].name == "__init__"
    assert "model" in caught.value.__notes__[0]
    (tmp_path / "half_done.py").write_text("import nosuchpackage\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="nosuchpackage"):
        build.build({"_target_": "half_done.Model"}, "model")
