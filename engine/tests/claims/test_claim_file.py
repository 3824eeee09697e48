"""claim.yaml: what is refused in it, and by `new`."""

from pathlib import Path
from typing import Any

import pytest

from seedbed import project
from seedbed.claims import claim as claims
from seedbed.record import code
from tests import pages
from tests.claims import made_up
from tests.claims.made_up import CLAIM
from tests.running import TEMPLATE, refusal

FAST = ["determinism.on_nondeterministic=warn"]
SMOOTH = ["data.task.label_smoothing=0.0"]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"metrics": "x"},
            "metrics: expected a known key, got a new one; did you",
        ),
        ({"metric": None}, "metric: expected a validation value, such as"),
        ({"metric": "test_accuracy"}, "metric: expected a validation value"),
        (
            {"direction": "up"},
            "direction: expected one of maximize, minimize, got ",
        ),
        ({"metric": "validation_loss"}, "direction: expected minimize for a loss"),
        ({"rule": "adaptive"}, "rule: expected one of fixed, sequential"),
        ({"seeds": [1]}, "seeds: expected 2 to 1000 different integers"),
        ({"seeds": [1, 1]}, "seeds: expected 2 to 1000 different integers"),
        ({"seeds": [1, True]}, "seeds: expected 2 to 1000 different integers"),
        ({"seeds": 100000}, "seeds: expected 2 to 1000 different integers"),
        ({"seeds": [-1, 2]}, "seeds: expected 2 to 1000 different integers"),
        ({"alpha": 0}, "alpha: expected a number from 0.0001 to 0.5, got 0"),
        ({"alpha": "0.05"}, "alpha: expected a number"),
        ({"alpha": float("nan")}, "alpha: expected a number"),
        ({"smallest_difference": -1}, "smallest_difference: expected a number >= 0"),
        ({"smallest_difference": True}, "smallest_difference: expected a number >= 0"),
        ({"title": "x" * 501}, "title: expected a text of at most 500 characters"),
        ({"title": "\x1b[2J"}, "title: expected a text"),
        ({"settings": "a=b"}, "settings: expected a list of key=value"),
        ({"settings": ["seed=3"]}, "settings: expected a list of key=value, without"),
        ({"settings": ["+claim=x"]}, "settings: expected a list of key=value, without"),
        ({"settings": ["hydra.sweep.dir=x"]}, "settings: expected a list of key=value"),
        ({"settings": ["~data"]}, "settings: expected a list of key=value"),
        ({"settings": ["--cfg=job"]}, "settings: expected a list of key=value"),
        ({"variants": {"a": []}}, "variants: expected 2 to 11 variants by name"),
        ({"variants": {"a": [], "../b": []}}, "variants: expected a name of letters"),
        ({"variants": {"a": [], "b": "x"}}, "variants.b: expected a list of key=value"),
        (
            {"variants": {"a": [], "b": {"commit": "main"}}},
            "variants.b.commit: expected a commit in hexadecimal digits",
        ),
        (
            {"variants": {"a": [], "b": {"commits": "0123456"}}},
            "variants.b: expected a list of key=value, or a mapping",
        ),
    ],
)
def test_an_invalid_claim_is_one_line(
    changes: dict[str, Any], line: str, tmp_path: Path
) -> None:
    """And nothing is written. Negative control: the claim without the changes."""
    assert claims.read(made_up.write_claim(tmp_path)).title == CLAIM["title"]
    path = made_up.write_claim(tmp_path, **changes)
    assert line in refusal(made_up.called("new", path))
    assert [each.name for each in tmp_path.iterdir()] == ["claim.yaml"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("title: &a x\nrule: *a\n", "an alias or a tag in line 2"),
        ("title: !!python/name:os.system x\n", "an alias or a tag in line 1"),
        ("title: ${oc.env:HOME}\n", "${oc.env:HOME} in line 1"),
        ("alpha: 0.1\nalpha: 0.05\n", "the key 'alpha' twice"),
        ("- a\n", "a list instead of a mapping"),
        ("a: [" * 100, "expected YAML, got"),
        ("# " + "x" * 70_000, "expected a file of at most 65,536 bytes"),
    ],
)
def test_a_claim_is_data(text: str, line: str, tmp_path: Path) -> None:
    """Nothing in it is resolved or executed, and its size is bounded."""
    path = tmp_path / "claim.yaml"
    path.write_text(text)
    for action in ("new", "status", "check"):
        assert line in refusal(made_up.called(action, path))


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"settings": ["optimizer.ls=1"]},
            "variants.base: optimizer.ls: expected a",
        ),
        ({"settings": ["seed"]}, "settings: expected a list of key=value"),
        ({"settings": ["optimizer.lr=1,2"]}, "expected key=value, one value for one"),
        (
            {"variants": {"a": [], "b": []}},
            "expected other settings or other code",
        ),
        (
            {"variants": {"a": [], "b": ["seeds.split=7"]}},
            "variants.b: data.test.seed: expected 0 as a, got 7",
        ),
        (
            {"variants": {"a": [], "b": FAST}},
            "variants.b: expected a preset that promises bits",
        ),
        (
            {
                "variants": {"a": [], "b": SMOOTH},
                "metric": "validation_loss",
                "direction": "minimize",
            },
            "got another loss: data.task.label_smoothing is 0.1 and 0.0",
        ),
        (
            {"variants": {"a": [], "b": {"commit": "0" * 40}}},
            "commit: expected one of the repository",
        ),
        (
            {"settings": ["model.dropout=${div:${seed},10}"]},
            "got model.dropout=${div:${seed},10} in line 3",
        ),
    ],
)
def test_variants_that_cannot_be_compared_are_refused_before_they_train(
    changes: dict[str, Any], line: str, tmp_path: Path
) -> None:
    """In one line, and nothing is written. Negative control: another smoothing, by
    accuracy."""
    path = made_up.write_claim(tmp_path, **changes)
    assert line in refusal(made_up.called("new", path))
    assert [each.name for each in tmp_path.iterdir()] == ["claim.yaml"]
    if changes.get("variants", {}).get("b") == SMOOTH:
        made_up.write_claim(tmp_path, variants=changes["variants"])
        assert made_up.called("new", path).returncode == 0


def test_a_claim_is_fixed_in_a_committed_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody could get its code. Negative controls: `committed`; a folder without
    git."""
    path = made_up.write_claim(tmp_path)
    for dirty, commit in ((True, "0" * 40), (None, None)):
        state = ({"commit": commit, "dirty": dirty}, b"")
        monkeypatch.setattr(code, "git_state", lambda _root, it=state: it)
        done = made_up.called("new", path)
        if dirty:
            assert "in which all code and configuration is committed" in refusal(done)
        else:
            assert done.returncode == 0


def test_the_claim_of_the_page_can_be_fixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the template. Negative control: without its last key."""
    page = (TEMPLATE / "docs" / "proof.md").read_text()
    [text] = [it for it in pages.blocks(page, "yaml") if "smallest_difference" in it]
    monkeypatch.setenv(project.PROJECT, str(TEMPLATE))
    path = tmp_path / "claim.yaml"
    path.write_text("\n".join(text.splitlines()[:-1]))
    assert "alpha: expected a number" in refusal(made_up.called("new", path))
    path.write_text(text)
    printed = made_up.called("new", path).stdout
    assert "model.width=64 claim=" in printed


def test_a_claim_without_a_lock_is_refused(tmp_path: Path) -> None:
    path = made_up.write_claim(tmp_path)
    for action in ("status", "check"):
        line = refusal(made_up.called(action, path))
        assert "claim.lock.json: expected what the claim has fixed, got no file" in line
