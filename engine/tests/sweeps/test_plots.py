"""The picture of a sweep says what its runs say of themselves."""

from typing import Any

from seedbed.sweeps import plots
from seedbed.sweeps.groups import Group, Run
from tests.running import ROOT


def test_the_points_are_named_by_what_they_are() -> None:
    """Seeds, folds, or runs where both are combined."""

    def of(*seeds: tuple[int, ...]) -> str:
        summary = {"metrics": {"test_loss": 1.0}}
        runs = [Run("r", ROOT, seeds=(*streams, (), fold), summary=summary)
                for *streams, fold in seeds]  # fmt: skip
        return plots._count(Group("", "test_loss", runs))

    assert of((0,) * 6 + (-1,)) == "1 seed"
    assert of((0,) * 6 + (-1,), (1,) * 6 + (-1,)) == "2 seeds"
    assert of((0,) * 6 + (0,), (0,) * 6 + (1,)) == "2 folds"
    assert of((0,) * 6 + (0,), (1,) * 6 + (1,)) == "2 runs"
    assert of((0,) * 6 + (-1,), (0, 1, 0, 0, 0, 0, -1), (1, 0, 0, 0, 0, 0, -1)) == "3 runs"


def group(settings: dict[str, Any]) -> Group:
    return Group("", "test_loss", [Run("0", ROOT, settings)])


def test_a_title_names_models_and_data_sets_as_far_as_runs_do() -> None:
    """Runs of loops of one's own may name neither: then there is no title."""
    cnn = group({"model.name": "cnn", "data.name": "mnist5k"})
    assert plots._title([cnn, group({"model.name": "lstm"}), cnn]) == "cnn, lstm on mnist5k"
    assert plots._title([group({"model.name": "cnn"})]) == "cnn"
    assert plots._title([group({"lr": 0.1})]) == ""


def test_ticks_say_values_and_the_axis_says_their_keys() -> None:
    """Negative control: what is no value of the same keys everywhere stays as it is."""
    assert plots.tick_labels(["lr=0.1", "lr=0.2"]) == (["0.1", "0.2"], "lr")
    grid = [f"lr={lr}, model={model}" for lr in (1, 2) for model in ("a", "b")]
    assert plots.tick_labels(grid) == (["1\na", "1\nb", "2\na", "2\nb"], "lr, model")
    for labels in (["3 seeds"], ["lr=1", "wd=1"], ["betas=[0.9, 0.99]", "betas=[0.8, 0.99]"]):
        assert plots.tick_labels(labels) == (labels, "")
