"""Made-up run folders, for reports that need many runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seedbed import rng
from tests import made_up_runs


def write_run(
    folder: Path,
    seed: int = 0,
    *,
    seeds: Mapping[str, int] | None = None,
    accuracy: float = 0.98,
    preset: str = "strict",
    model: str = "cnn",
    weights: str | None = None,
    epochs: int = 10,
    fold: int | None = None,
    **summary: Any,
) -> Path:
    """Write a run folder that says it reached an accuracy."""
    streams = dict.fromkeys(rng.STREAMS, seed) | {"split": 0} | dict(seeds or {})
    train: dict[str, Any] = {"seed": streams["split"]}
    data: dict[str, Any] = {"train": train}
    if fold is not None:
        data = {"train": train | {"fold": fold}, "validation": {"fold": fold}}
    refusing = "error" if preset in ("strict", "portable") else "allow"
    config = {
        **{"seed": seed, "seeds": streams, "objective": "validation_loss", "data": data},
        "model": {"name": model, **{f"channels_{i}": 32 for i in range(90)}},
        "determinism": {"name": preset, "on_nondeterministic": refusing},
    }
    weights = weights or f"{hash((*streams.values(), fold)) & (2**64 - 1):016x}"
    results = {
        **{"seed": seed, "task": "classification", "higher_is_better": True, "seconds": 8.0},
        "metrics": {"validation_accuracy": accuracy, "test_accuracy": accuracy, "test_loss": 0.1},
        "fingerprints": {"weights": weights, "predictions": weights, "all_steps": weights},
    }
    rows = []
    for epoch in range(1, epochs + 1):
        row = {"step": f"{epoch * 62}", "epoch": f"{float(epoch)}", "loss": "0.1"}
        rows.append({**row, "phase": "train", "learning_rate": "0.001", "accuracy": "0.97"})
        reached = 1 - (1 - accuracy) * (1 + 4 / epoch**2)
        rows.append({**row, "phase": "validation", "accuracy": repr(reached)})
    made_up_runs.write_run(
        folder, config=config, fingerprints=[], rows=rows, summary=results | summary
    )
    (folder / "environment.json").unlink()
    return folder
