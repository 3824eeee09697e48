"""A `_target_` that its module does not define is refused without importing it, and no other is."""

from pathlib import Path
from types import FunctionType

import pytest
import torch
import torchvision
from omegaconf import OmegaConf

from seedbed.config import targets
from seedbed.errors import InputError


def require(target: str) -> None:
    """Check one target."""
    targets.require_defined(OmegaConf.create({"model": {"_target_": target}}))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a package of the user's that cannot be imported."""
    folder = tmp_path / "not_imported"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise SystemExit('imported')\n")
    (folder / "nets.py").write_text(
        "from torch import nn as layers\nclass Net: pass\nif True:\n    Other = Net\n"
        "def make(): inner = 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return folder


@pytest.mark.parametrize("name", ["nets.Net", "nets.Other", "nets.make", "nets.layers"])
def test_what_a_module_defines_is_accepted(package: Path, name: str) -> None:
    """Also in a branch."""
    require(f"not_imported.{name}")


@pytest.mark.parametrize("name", ["nets.Nett", "nets.inner", "Net"])
def test_what_it_does_not_define_is_refused(package: Path, name: str) -> None:
    """In one line with the file; the negative control of the test before."""
    with pytest.raises(InputError, match=r"model\._target_: expected a class of .*py, got not_im"):
        require(f"not_imported.{name}")


def test_a_module_is_no_class(package: Path) -> None:
    """A class in it is named; negative control: a package that defines the name of its module."""
    message = "got {}, which is a module; name a class in it, such as {}"
    with pytest.raises(
        InputError, match=message.format("not_imported.nets", "not_imported.nets.Net")
    ):
        require("not_imported.nets")
    with pytest.raises(
        InputError, match=message.format("not_imported", "not_imported.MODULE.CLASS")
    ):
        require("not_imported")
    (package / "__init__.py").write_text("from not_imported.nets import Net as nets")
    require("not_imported.nets")


@pytest.mark.parametrize(("text", "line"), [(b"x = 1\ndef f(:\n", 2), (b"  x = 1\ny", 1)])
def test_a_module_that_cannot_be_compiled_is_refused_by_its_line(
    package: Path, text: bytes, line: int
) -> None:
    """Negative control: a file that Python can read, in another encoding and with its mark."""
    (package / "broken.py").write_bytes(text)
    with pytest.raises(
        InputError, match=rf"broken\.py:{line}: expected Python, got an? \w+Error \("
    ):
        require("not_imported.broken.Net")
    (package / "broken.py").write_bytes(b"# coding: latin-1\n# \xe9\nclass Net: ...")
    require("not_imported.broken.Net")
    (package / "broken.py").write_bytes(b"\xef\xbb\xbfclass Net: ...")
    require("not_imported.broken.Net")


@pytest.mark.parametrize("hides", ["from os import *", "def __getattr__(name): ...", ""])
def test_what_cannot_be_told_is_left_to_the_import(package: Path, hides: str) -> None:
    """A module whose text does not show its names, that has none, or that is not there."""
    (package / "hidden.py").write_text(hides)
    require("not_imported.hidden.Net") if hides else require("not_imported.gone.Net")
    require("no_such_package.Net")
    require("math.Net")


def test_a_package_that_is_nowhere_is_refused(package: Path, tmp_path: Path) -> None:
    """Without importing any; control: what is installed, built in, or in the checkout."""
    (tmp_path / "root" / "beside").mkdir(parents=True)

    def require_installed(target: str) -> None:
        config = OmegaConf.create({"metrics": {"f1": {"_target_": target}}})
        targets.require_installed(config, tmp_path / "root")

    for there in ("torch.nn.Linear", "math.Net", "not_imported.Net", "beside.Net"):
        require_installed(there)
    with pytest.raises(InputError, match=r"^metrics\.f1\._target_: .*; install no_such_package,"):
        require_installed("no_such_package.F1")
    argument = OmegaConf.create({"data": {"smooth_target_": "no_such_package.F1"}})
    targets.require_installed(argument, tmp_path / "root")  # it only ends like the key of a class


def test_no_class_of_a_library_is_refused() -> None:
    """Every optimizer, layer and model there is can be named where people name it."""
    names = [
        f"{place}.{name}"
        for module in (torch.optim, torch.nn, torchvision.models)
        for name, one in vars(module).items()
        if isinstance(one, type | FunctionType)
        for place in {module.__name__, one.__module__}
    ]
    assert len(names) > 300
    for name in names:
        require(name)
