"""The picture of a sweep says what its runs say of themselves."""

from typing import Any

from seedbed.sweeps import plots
from seedbed.sweeps.groups import Group, Run
from tests.running import ROOT


def group(settings: dict[str, Any]) -> Group:
    return Group("", "test_loss", [Run("0", ROOT, settings)])


def test_a_title_names_models_and_data_sets_as_far_as_runs_do() -> None:
    """Runs of loops of one's own may name neither: then there is no title."""
    cnn = group({"model.name": "cnn", "data.name": "mnist5k"})
    assert plots._title([cnn, group({"model.name": "lstm"}), cnn]) == "cnn, lstm on mnist5k"
    assert plots._title([group({"model.name": "cnn"})]) == "cnn"
    assert plots._title([group({"lr": 0.1})]) == ""
