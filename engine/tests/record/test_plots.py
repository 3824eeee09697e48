"""plots: pictures that show what the record says, and nothing of the machine they are drawn on."""

from pathlib import Path
from typing import Any

import pytest

from seedbed.record import plots
from tests.made_up_runs import metrics, write_run

FAILED: dict[str, Any] = {"status": "failed", "steps": 0}


pytestmark = pytest.mark.filterwarnings("error")


@pytest.mark.parametrize(
    ("rows", "summary"),
    [
        (metrics(300), {}),
        ([row | {"accuracy": ""} for row in metrics(40)], {"metric_name": "loss"}),
        ([{**row, "loss": "nan", "accuracy": "inf"} for row in metrics(40)], FAILED),
        ([], FAILED),
    ],
    ids=["usual", "loss only", "nan", "nothing"],
)
def test_every_run_with_a_row_gets_a_loss_curve(
    tmp_path: Path, rows: list[dict[str, str]], summary: dict[str, Any]
) -> None:
    """Without a warning; without a row that of an earlier attempt goes."""
    folder = write_run(tmp_path / "my$run$", rows=rows, summary=summary)
    (folder / "loss_curve.png").touch()
    assert plots.loss_curve(folder) == (folder / "loss_curve.png" if rows else None)
    assert (folder / "loss_curve.png").exists() is bool(rows)
    assert not rows or (folder / "loss_curve.png").read_bytes().startswith(b"\x89PNG")
