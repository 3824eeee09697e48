"""The comparison with other tools says what was tried."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import templates
import templates_tools
from templates import DIFFERENT, SAME, Failed, Trials
from templates_tools import Tool


def made_up(**weights: str) -> Tool:
    """Return a tool whose weights are those of a change, by its name; None: it fails."""

    def train(folder: Path, change: Mapping[str, Any]) -> tuple[bool, str]:
        folder.mkdir(parents=True, exist_ok=True)
        name = "resumed" if change.get("resume") else next(iter(change), "first")
        if change.get("signal") and not change.get("resume"):
            return False, "killed"
        if weights.get(name) == "fails":
            return False, "Traceback\n  at put_\nRuntimeError: it | failed\nmore"
        (folder / "weights.txt").write_text(weights.get(name, "w"))
        return True, ""

    digest = templates_tools._digest
    return Tool("made up", train, digest, templates_tools._has_digest, Path(), {})


@pytest.mark.parametrize(
    ("weights", "cell"), [({}, SAME), ({"workers": "x"}, DIFFERENT)], ids=["same", "other"]
)
def test_a_cell_says_whether_weights_are_the_same(
    tmp_path: Path, weights: dict[str, str], cell: str
) -> None:
    """One cell for each outcome of a comparison."""
    change = templates.compared({}, {"workers": 2})
    assert change(Trials(made_up(**weights), tmp_path)) == cell


def test_a_resumed_run_is_compared_with_one_that_was_not_stopped(tmp_path: Path) -> None:
    """Also where it ends otherwise, and where it cannot be resumed."""
    cell = templates.resumed(templates.signal.SIGKILL)
    assert cell(Trials(made_up(), tmp_path / "a")) == SAME
    assert cell(Trials(made_up(resumed="x"), tmp_path / "b")) == DIFFERENT
    row = templates.Row("killed", cell)
    failed = templates.outcome(row, Trials(made_up(resumed="fails"), tmp_path / "c"))
    assert failed == "fails: `RuntimeError: it / failed`"


def test_a_refusal_is_told_from_another_failure(tmp_path: Path) -> None:
    """A failure that does not name the operation is no refusal."""
    assert templates.refused(Trials(made_up(refused="fails"), tmp_path / "a")) == "a traceback"
    assert templates.refused(Trials(made_up(), tmp_path / "b")) == "trains"
    with pytest.raises(Failed):
        templates.across_processes(Trials(made_up(processes="fails"), tmp_path / "c"))


def test_files_that_record_are_found(tmp_path: Path) -> None:
    """Checkpoints are no record that a person reads."""
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "last").write_bytes(b"a 1.2.3")
    assert templates.recorded(tmp_path, b"1.2.3") == "none"
    (tmp_path / "versions.txt").write_bytes(b"a 1.2.3")
    assert templates.recorded(tmp_path, b"1.2.3") == "`versions.txt`"


@pytest.mark.long
def test_our_own_column_is_tried(tmp_path: Path) -> None:
    """Seedbed trains, stops at the refused operation, and another seed gives other weights."""
    trials = Trials(templates_tools.tools(None)[0], tmp_path)
    assert trials.tool.name == "Seedbed"
    assert templates.compared({}, {"seed": 2})(trials) == DIFFERENT
    assert templates.resumed(templates.signal.SIGKILL)(trials) == SAME
    assert "put_: expected an operation with a deterministic" in templates.refused(trials)
