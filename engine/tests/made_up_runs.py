"""Run folders made without training: records of any length and results, in
milliseconds."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from seedbed.names import STAGES, STREAMS
from seedbed.record import FINGERPRINT_FIELDS, FORMAT_VERSION, METRIC_FIELDS

FIELDS = (*METRIC_FIELDS, "accuracy")  # of a made-up metrics.csv
Row = dict[str, str]
Tree = dict[str, Any]
CONFIG: Tree = {
    "seed": 0,
    "seeds": dict.fromkeys(STREAMS, 0),
    "data": {
        "name": "mnist5k",
        "root": "data",
        "num_workers": 0,
        "train": {"root": "data"},
    },
    "model": {"name": "cnn"},
    "optimizer": {"name": "adamw", "lr": 0.003, "betas": [0.9, 0.999]},
    "determinism": {"name": "strict", "threads": 2, "on_nondeterministic": "error"},
    "trainer": {"max_epochs": 10, "precision": "float32", "log_every_steps": 1},
    "fingerprint": {"every_steps": 1},
}
ENVIRONMENT: Tree = {
    "versions": {"python": "3.11.2", "torch": "2.15.0"},
    "cpu": {"model": "Made Up 9000", "threads": 2},
    "env": {"PYTHONHASHSEED": "0"},
    "git": {"commit": "0123456789abcdef", "dirty": False},
    "imported_files": {"a.py": "a" * 64},
    "data_sha256": {"images": "00ff"},
}


def hash_of(*what: object) -> str:
    """Return 16 hexadecimal digits, a hash of the arguments, such as a step and a
    stage."""
    return hashlib.sha256(repr(what).encode()).hexdigest()[:16]


def fingerprint_rows(steps: int, every: int = 1) -> list[Row]:
    """Return the rows of the fingerprints.csv of a model without buffers."""
    return [
        {"step": str(step)}
        | {
            stage: "" if stage == "buffers" else hash_of(step, stage)
            for stage in STAGES
        }
        for step in range(every, steps + 1, every)
    ]


def metrics(steps: int) -> list[Row]:
    """Return the rows of a metrics.csv: training, and validation after every 20
    steps."""
    rows = []
    for step in range(1, steps + 1):
        row = {
            "step": f"{step}",
            "epoch": f"{step / 20}",
            "loss": f"{1 / step}",
            "accuracy": "0.5",
        }
        rows.append({**row, "phase": "train", "learning_rate": "0.003"})
        if step % 20 == 0:
            rows.append({**row, "phase": "validation"})
    return rows


def write_run(
    folder: Path,
    steps: int = 40,
    *,
    config: Tree | None = None,
    environment: Tree | None = None,
    fingerprints: list[Row] | None = None,
    rows: list[Row] | None = None,
    summary: Tree | None = None,
) -> Path:
    """Write a run folder, with the same defaults for every run; return the folder."""
    folder.mkdir(parents=True)
    OmegaConf.save(OmegaConf.merge(CONFIG, config or {}), folder / "config.yaml")
    whole = OmegaConf.to_container(OmegaConf.merge(ENVIRONMENT, environment or {}))
    (folder / "environment.json").write_text(json.dumps(whole))
    fingerprints = fingerprint_rows(steps) if fingerprints is None else fingerprints
    write_csv(folder / "fingerprints.csv", FINGERPRINT_FIELDS, fingerprints)
    write_csv(folder / "metrics.csv", FIELDS, metrics(steps) if rows is None else rows)
    what: Tree = {
        "format_version": FORMAT_VERSION,
        "status": "finished",
        "error": None,
        "metric_name": "accuracy",
        "steps": steps,
        "fingerprints": {"weights": hash_of(steps, "weights"), "predictions": "00" * 8},
    }
    (folder / "summary.json").write_text(json.dumps(what | (summary or {})))
    return folder


def write_result(
    folder: Path,
    seed: int = 0,
    *,
    seeds: Mapping[str, int] | None = None,
    accuracy: float = 0.98,
    model: str = "cnn",
    weights: str | None = None,
    fold: int | None = None,
    config: Tree | None = None,
    environment: Tree | None = None,
    **summary: Any,
) -> Path:
    """Write a run folder of a sweep with an accuracy; return it.

    Without `environment`, it has no environment.json.
    """
    streams = dict.fromkeys(STREAMS, seed) | {"split": 0} | dict(seeds or {})
    held_out = {} if fold is None else {"fold": fold}
    settings = {
        **{"seed": seed, "seeds": streams, "objective": "validation_loss"},
        "data": {
            "train": {"seed": streams["split"], **held_out},
            "validation": held_out,
        },
        "model": {"name": model, **{f"channels_{i}": 32 for i in range(90)}},
    }
    weights = weights or hash_of(streams, fold)
    values = {
        "validation_accuracy": accuracy,
        "test_accuracy": accuracy,
        "test_loss": 0.1,
    }
    results = {
        **{
            "seed": seed,
            "task": "classification",
            "higher_is_better": True,
            "seconds": 8.0,
        },
        **{"steps": 40, "tested_step": 40, "best_step": 40, "metrics": values},
        "fingerprints": {
            **{"weights": weights, "predictions": weights, "all_steps": weights},
            "validation_targets": hash_of(fold),
        },
        **summary,
    }
    settings = OmegaConf.merge(settings, config or {})
    tables: Tree = {"fingerprints": [], "rows": []}
    write_run(
        folder, config=settings, environment=environment, summary=results, **tables
    )
    write_results(folder, results["metrics"])
    if environment is None:
        (folder / "environment.json").unlink()
    return folder


def write_results(run: Path, values: Mapping[str, Any] | None) -> None:
    """Write the results of a run into its summary and, as rows of their own, its
    metrics.csv."""
    edit_summary(run, metrics=values, last_metrics=values)
    step = json.loads((run / "summary.json").read_text())["tested_step"]
    rows = {}
    for key, value in (values or {}).items():
        phase, _, name = key.partition("_")
        row = rows.setdefault(
            phase, {"step": str(step), "epoch": "2.0", "phase": phase}
        )
        row[name] = repr(value) if isinstance(value, float) else ""
    names = dict.fromkeys([*FIELDS, *(name for row in rows.values() for name in row)])
    write_csv(run / "metrics.csv", (*names,), [*rows.values()])


def write_csv(path: Path, fields: tuple[str, ...], rows: list[Row]) -> None:
    """Write a table of a record as the training process does."""
    lines = [fields, *([row.get(field, "") for field in fields] for row in rows)]
    path.write_text("".join(",".join(line) + "\n" for line in lines))


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the bytes of each file of a folder except .lock, which names its
    process."""
    files = (
        path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"
    )
    return {path: path.read_bytes() for path in files}


def edit_summary(run: Path, **changes: object) -> None:
    path = run / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
