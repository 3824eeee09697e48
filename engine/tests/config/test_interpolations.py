"""Overrides reach the values that were made from the keys that they change."""

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from seedbed import config
from seedbed.config import interpolations
from seedbed.errors import InputError

COMPOSED: dict[str, Any] = {
    "data": {
        "root": "d",
        "mirrors": None,
        "length": 3,
        "rate": 0.5,
        "whole": {"file": "${data.root}/f", "size": [1, 2]},
        "train": {
            "root": "${..root}/images",
            "again": "${.root}",
            "dataset": "${data.whole}",
        },
        "test": {"mirrors": "${data.mirrors}", "rate": "${data.rate}"},
        "shape": ["${data.length}", 2],
        "text": "plain",
        "home": "${oc.env:HOME}",
    },
    "model": {"length": "${data[length]}", "name": "${data.root}_${.length}"},
    "width": "${twice:${data.length}}",
}
TEMPLATES = {
    "data.whole.file": "${data.root}/f",
    "data.train.root": "${data.root}/images",
    "data.train.again": "${data.train.root}",
    "data.train.dataset": "${data.whole}",
    "data.test.mirrors": "${data.mirrors}",
    "data.test.rate": "${data.rate}",
    "data.shape.0": "${data.length}",
    "model.length": "${data.length}",
    "model.name": "${data.root}_${model.length}",
    "width": "${twice:${data.length}}",
}
PLAIN = {key: text for key, text in TEMPLATES.items() if key != "width"}


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("HOME", "/home")
    OmegaConf.register_new_resolver("twice", lambda n: 2 * n, replace=True)
    composed = OmegaConf.create(COMPOSED)
    assert interpolations.templates_of(composed) == TEMPLATES
    return config.resolve(composed)


@pytest.mark.parametrize(
    "values",
    [
        {"data.root": "e"},
        {"data.length": 7},
        {"data.mirrors": ["a", "b"], "data.rate": 1},
        {"data.whole.size": [5]},
        {"data.length": 7, "model.length": 8},
        {"data.length": 7, "data.shape": [1, 1, 1]},
        {"data.train.again": "own", "data.text": "x"},
        {"data.root": "${data.text}"},
        {},
    ],
)
def test_values_are_those_of_a_new_composition(
    recorded: Any, values: dict[str, Any]
) -> None:
    """Also lists, mappings, null, relative references and texts made of several. What
    is set explicitly wins, and what is made from it follows."""
    composed = OmegaConf.create(COMPOSED)
    for key, value in {"width": 6, **values}.items():
        OmegaConf.update(composed, key, value, merge=False)
    reached = interpolations.reached(values, recorded, PLAIN)
    assert config.Request(reached).applied_to(recorded) == config.resolve(composed)
    assert json.loads(json.dumps(reached)) == reached


def test_what_cannot_be_made_again_is_asked_for(recorded: Any) -> None:
    """A value by a resolver, and one that was set by itself since. Negative control: it
    is given, or what it was made from stays."""
    with pytest.raises(
        InputError, match=r"^width: expected a new value too, as it was \$\{twice"
    ):
        interpolations.reached({"data.length": 7}, recorded, TEMPLATES)
    reached = interpolations.reached(
        {"data.length": 7, "width": 14}, recorded, TEMPLATES
    )
    assert (reached["width"], reached["model.length"]) == (14, 7)
    recorded.model.length = 5
    with pytest.raises(InputError, match=r"^model\.length: expected a new value too"):
        interpolations.reached({"data.length": 7}, recorded, PLAIN)
    interpolations.reached({"data.rate": 7}, recorded, PLAIN)


@pytest.mark.parametrize(
    ("root", "text", "message"),
    [
        ("d", "${data.root}" * 4097, "home: expected a short value"),
        ("{oc.env:HOME}", "${data.text}${data.root}", "home: expected a short value"),
        ("d", "$${data.root}", "home: expected a new value too"),
        ("d", "${data.home}${data.root}", "one made from itself"),
    ],
)
def test_nothing_is_resolved_and_time_is_bounded(
    root: str, text: str, message: str
) -> None:
    """Whatever a stranger's file says. Negative control: the tests above."""
    home = (
        text.replace("${data.root}", "")
        .replace("${data.text}", "$")
        .replace("${data.home}", "")
    )
    recorded = OmegaConf.create({"data": {"root": "", "text": "$", "home": home}})
    with pytest.raises(InputError, match=message):
        interpolations.reached({"data.root": root}, recorded, {"data.home": text})


@pytest.mark.parametrize(
    "content",
    [
        "[]",
        '{"a": 1}',
        '{"a": "no reference"}',
        '{"a b": "${c}"}',
        json.dumps({f"k{n}": "${a}" for n in range(2001)}),
        json.dumps({"a": "${a}" * 50_000}),
    ],
)
def test_a_malformed_file_is_one_line(tmp_path: Path, content: str) -> None:
    """Negative control: no file, and one as it is written."""
    assert interpolations.read(tmp_path) == {}
    path = tmp_path / interpolations.FILE
    path.write_text(json.dumps(TEMPLATES))
    assert interpolations.read(tmp_path) == TEMPLATES
    path.write_text(content)
    with pytest.raises(InputError, match=f"{interpolations.FILE}: expected") as caught:
        interpolations.read(tmp_path)
    assert len(str(caught.value)) < 400
