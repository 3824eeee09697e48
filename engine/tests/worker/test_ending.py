"""How a run ended, in lines for a terminal."""

from pathlib import Path

from seedbed.worker import ending

NAMES = ("last_train_loss", "validation_loss", "validation_accuracy", "test_loss", "test_accuracy")


def test_the_final_metrics_fit_a_terminal(tmp_path: Path) -> None:
    """Each keeps its value beside it; negative control: one line would not do."""
    metrics = {f"{name}{number}": 0.5 for number in range(2) for name in NAMES}
    cells = [f"{name} 0.5000" for name in metrics]
    summary = {
        "status": "finished", "steps": 3, "seconds": 1.0, "samples_per_second": 8.0,
        "metrics": metrics, "fingerprints": {"weights": "0" * 16, "all_steps": "1" * 16},
    }  # fmt: skip
    lines = [line for line in ending.lines(tmp_path, summary) if "0.5000" in line]
    assert len(", ".join(cells)) > 100
    assert max(map(len, lines)) <= 100
    assert ", ".join(line.removesuffix(",") for line in lines) == ", ".join(cells)
