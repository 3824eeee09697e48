"""The run folder of a loop of one's own: begun, or resumed after a step."""

import math
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from seedbed import record
from seedbed.errors import InputError
from seedbed.loading import process_group
from seedbed.record import Origin, tables, untrusted
from seedbed.worker import environment, restore
from seedbed.worker.imports import Imports


def begin(folder: Path, resume_from: int | None) -> dict[str, Any]:
    """Create a run folder, or return the summary of the record that a loop resumes."""
    if resume_from is None:
        if existing := [name for name in record.FILES if (folder / name).exists()]:
            raise InputError(
                f"folder: expected a new one, got {folder} with {existing[0]}; name another, or "
                "give the last step of the checkpoint: Recorder(..., resume_from=STEP)"
            )
        folder.mkdir(parents=True, exist_ok=True)
        return {}
    record.require_run(folder)
    if "recorder" not in record.read_config(folder):
        raise InputError(
            f"folder: expected the record of a Recorder, got {folder}, a run of train.py; resume "
            "it with scripts/resume.py"
        )
    untrusted.require_no_way_out(folder)
    return record.read_summary(folder)


def open_tables(folder: Path, resume_from: int | None) -> tuple[record.Table, record.Table]:
    """Start metrics.csv and fingerprints.csv, or cut them back to a step."""
    if resume_from is None:
        return record.open_tables(folder)
    last = max([0, *(int(row["step"]) for row in tables.whole_rows(folder / "metrics.csv"))])
    if resume_from > last:
        raise InputError(
            f"resume_from: expected at most {last}, the last step that {folder} holds, got "
            f"{resume_from}; call flush() with each checkpoint, or name an earlier one"
        )
    return record.open_tables(folder, lambda row: int(row["step"]) <= resume_from)


def script_folder() -> Path:
    """Return the folder of the script that runs, from which the record names its code."""
    script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    is_script = script.endswith(".py") and "site-packages" not in script
    return Path(script).resolve().parent if is_script else Path.cwd()


def describe(device: torch.device, git: Any) -> dict[str, Any]:
    """Return environment.json; to be called when the loop has imported what it uses."""
    values, (_, count) = environment.describe(device), process_group()
    return values | {
        "versions": values["versions"] | environment.more_versions({}),
        "processes": {"count": count, "bits_depend_on_count": count if count > 1 else None},
        "git": git,
    }


def resumed(folder: Path, config: str, imports: Imports, step: int) -> dict[str, Any]:
    """Write the configuration of a loop that is resumed after a step.

    Returns:
        For summary.json, what has changed since the checkpoint.
    """
    before = Origin(_settings(folder), record.read_json(folder / "environment.json"), folder)
    record.write_atomically(folder / "config.yaml", config)
    imports.expect(before.imported)
    changes = record.changes(before, Origin(_settings(folder), imports.environment))
    restore.keep_code(folder, step, changes)
    return restore.entry(step, changes)


def metrics(rows: Iterable[record.Row], higher_is_better: bool) -> dict[str, Any]:
    """Return what summary.json says of a table: the last values, and the best of the first metric.

    Args:
        higher_is_better: of the first metric that an evaluation has; a loss is better if lower.
    """
    values: dict[str, float] = {}
    name, followed = "loss", list[float]()
    for row in rows:
        cells = {key: float(cell) for key, cell in record.values_of(row).items()}
        if row["phase"] == "train":
            values |= {"last_train_loss": cells["loss"]} if "loss" in cells else {}
            continue
        if name == "loss" and (others := [key for key in cells if key != "loss"]):
            name, followed = others[0], []
        values |= {f"{row['phase']}_{key}": value for key, value in cells.items()}
        if row["phase"] == "validation" and not math.isnan(cells.get(name, math.nan)):
            followed.append(cells[name])
    higher_is_better = higher_is_better and name != "loss"
    if followed:
        values[f"best_validation_{name}"] = max(followed) if higher_is_better else min(followed)
    return {"metric_name": name, "higher_is_better": higher_is_better, "metrics": values}


def _settings(folder: Path) -> dict[str, Any]:
    return OmegaConf.to_container(record.read_config(folder))  # type: ignore[return-value]
