"""Any settings become a config.yaml that readers of records accept, the same text each
time."""

import enum
import string
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from seedbed import record
from seedbed.errors import InputError
from seedbed.recorder.convert import config_yaml


@dataclass
class Arguments:
    lr: float = 1e-3
    out: Path = Path("runs/x")
    betas: tuple[float, ...] = (0.9, 0.999)


def read_back(settings: object, folder: Path) -> Any:
    (folder / "config.yaml").write_text(config_yaml(settings, 1)[0])
    return OmegaConf.to_container(record.read_config(folder))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Arguments(), {"lr": 1e-3, "out": "runs/x", "betas": [0.9, 0.999]}),
        (OmegaConf.create({"a": 1, "b": "${a}"}), {"a": 1, "b": 1}),
        ({3: {"b", "a"}}, {"3": ["a", "b"]}),
        (enum.Enum("Colour", "RED")["RED"], "RED"),
        (torch.float32, "torch.float32"),
        (np.float32(0.5), 0.5),
        (object(), "<object object>"),  # without its address
        ("${oc.env:HOME}", "$ {oc.env:HOME}"),
        ("???", "'???'"),
        (1 << 70, str(1 << 70)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_other_values(value: object, expected: object, tmp_path: Path) -> None:
    assert read_back({"value": value}, tmp_path)["value"] == expected


def test_what_no_reader_takes_is_refused() -> None:
    """A container that contains itself; too many values. Negative control: half as
    many."""
    inside: dict[str, Any] = {}
    inside["self"] = inside
    for settings in (inside, {"files": list(range(30_000))}):
        with pytest.raises(InputError, match="settings: expected values"):
            config_yaml(settings, 1)
    config_yaml({"files": list(range(15_000))}, 1)


LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
)
VALUES = st.recursive(
    LEAVES | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text(string.printable, max_size=5) | st.integers(), inner, max_size=3
        )
    ),
    max_leaves=10,
)


@given(st.dictionaries(st.text(min_size=1), VALUES, max_size=4))
def test_readers_accept_anything(settings: dict[str, Any]) -> None:
    """All settings of bounded size are accepted; tags, aliases and interpolations would
    not be."""
    with tempfile.TemporaryDirectory() as folder:
        assert set(read_back(settings, Path(folder))) >= {"recorder", "fingerprint"}
