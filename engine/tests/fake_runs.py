"""Made-up run folders, for reports that need many runs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seedbed import record, rng

HEADER = ",".join((*record.METRIC_FIELDS, "accuracy"))


def write_run(
    folder: Path,
    seed: int = 0,
    *,
    seeds: Mapping[str, int] | None = None,
    accuracy: float = 0.98,
    preset: str = "strict",
    model: str = "cnn",
    status: str = "finished",
    weights: str | None = None,
    epochs: int = 10,
    fold: int | None = None,
    **summary: Any,
) -> Path:
    """Write a run folder that says it reached an accuracy."""
    folder.mkdir(parents=True)
    streams = dict.fromkeys(rng.STREAMS, seed) | {"split": 0} | dict(seeds or {})
    model_lines = "".join(f"  channels_{i}: 32\n" for i in range(90))
    refusing = "error" if preset in ("strict", "portable") else "allow"
    folds = f"  fold: {fold}\n  validation:\n    fold: {fold}\n" if fold is not None else ""
    streams_lines = "".join(f"  {stream}: {value}\n" for stream, value in streams.items())
    (folder / "config.yaml").write_text(
        f"seed: {seed}\nseeds:\n{streams_lines}objective: validation_loss\n"
        f"data:\n  name: mnist5k\n  train:\n    seed: {streams['split']}\n{folds}"
        f"model:\n  name: {model}\n{model_lines}"
        f"determinism:\n  name: {preset}\n  on_nondeterministic: {refusing}\n"
        "  env:\n    PYTHONHASHSEED: '0'\n"
    )
    weights = weights or f"{hash((*streams.values(), fold)) & (2**64 - 1):016x}"
    content = {
        "format_version": 1,
        "status": status,
        "error": None,
        "seed": seed,
        "task": "classification",
        "metric_name": "accuracy",
        "higher_is_better": True,
        "metrics": {"validation_accuracy": accuracy, "test_accuracy": accuracy, "test_loss": 0.1},
        "seconds": 8.0,
        "fingerprints": {"weights": weights, "predictions": weights, "all_steps": weights},
    }
    (folder / "summary.json").write_text(json.dumps(content | summary))
    (folder / "metrics.csv").write_text(_metrics(accuracy, epochs))
    return folder


def _metrics(accuracy: float, epochs: int) -> str:
    lines = [HEADER]
    for epoch in range(1, epochs + 1):
        lines += [f"{epoch * 62 - i},{epoch - i / 62},train,0.1,0.001,0.97" for i in (40, 20, 0)]
        reached = 1 - (1 - accuracy) * (1 + 4 / epoch**2)
        lines.append(f"{epoch * 62},{float(epoch)},validation,0.1,,{reached!r}")
    return "\n".join(lines) + "\n"
