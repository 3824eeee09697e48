"""What callbacks see of an evaluation, and the figures that they log."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread

from seedbed import record
from seedbed.methods import Callback, Run, Seen
from tests.worker.runs import of_method, resumed, trained

pytestmark = pytest.mark.usefixtures("this_process_trains")


class Confusion(Callback):
    """Keeps what it saw, and logs a figure and a number of it."""

    def on_evaluation_end(self, run: Run, step: int, seen: Seen) -> None:
        right = (seen.outputs.argmax(1) == seen.targets).float()
        torch.testing.assert_close(right, seen.values["accuracy"])
        table = seen.targets.tolist(), seen.outputs.argmax(1).tolist()
        np.savetxt(run.folder / f"{seen.phase}_{step}.txt", np.array(table))
        run.log("error_rate", 1 - right.mean())
        figure = Figure()
        figure.subplots().plot(*table)
        run.log_figure("pairs", figure)


PLAIN = of_method("FineTuning", "data.eval_batch_size=7")
SEEING = (*PLAIN, f"+callbacks.own._target_={__name__}.Confusion")


def test_callbacks_see_validation_and_test_whole_and_change_no_bit(tmp_path: Path) -> None:
    """Stopped and resumed as well; what they log of the test is a column and in the summary."""
    run = trained(tmp_path / "run", *SEEING)
    resumed(tmp_path / "stopped", run, 9, *SEEING)
    plain = trained(tmp_path / "plain", *PLAIN)
    assert record.read_fingerprints(run) == record.read_fingerprints(plain)
    assert not (plain / "figures").exists(), "negative control"

    summary = record.read_summary(run)
    metrics, step = summary["metrics"], summary["tested_step"]
    assert metrics["test_error_rate"] == pytest.approx(1 - metrics["test_accuracy"])
    assert metrics["validation_error_rate"] == pytest.approx(1 - metrics["validation_accuracy"])
    with (run / "test_predictions.csv").open() as file:
        rows = [(float(row["target"]), float(row["prediction"])) for row in csv.DictReader(file)]
    assert np.loadtxt(run / f"test_{step}.txt").T.tolist() == [list(row) for row in rows]
    assert imread(run / "figures" / f"test_pairs_{step}.png").ndim == 3
