"""The run folder of a user-defined loop: opening it, new or resumed, and its results."""

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from seedbed import record
from seedbed.errors import InputError
from seedbed.record import plots, untrusted


@contextmanager
def opened(
    folder: Path, resume_from: int | None
) -> Iterator[tuple[dict[str, Any], record.Table, record.Table]]:
    """Lock a run folder, new or cut back to a step; yield its summary, metrics, fingerprints."""
    if resume_from is None:
        if existing := [name for name in record.FILES if (folder / name).exists()]:
            raise InputError(
                f"folder: expected a new one, got {folder} with {existing[0]}; name another, or "
                "give the last step of the checkpoint: Recorder(..., resume_from=STEP)"
            )
        folder.mkdir(parents=True, exist_ok=True)
    elif "recorder" not in untrusted.read_dict(record.require_run(folder)):
        raise InputError(
            f"folder: expected the record of a Recorder, got {folder}, a run of train.py; resume "
            "it with scripts/resume.py"
        )
    with record.lock(folder):
        if resume_from is None:
            before, both = {}, record.open_tables(folder)
        else:
            untrusted.require_no_way_out(folder)
            before = record.read_summary(folder)
            last = max((int(row["step"]) for row in record.read_metrics(folder)), default=0)
            if not 0 <= resume_from <= last:
                raise InputError(
                    f"resume_from: expected from 0 to {last}, the last step of {folder}, got "
                    f"{resume_from}; call flush() with each checkpoint, or name an earlier one"
                )
            both = record.open_tables(folder, lambda row: int(row["step"]) <= resume_from)
        with closing(both[0]), closing(both[1]):
            yield before, *both


def results(rows: Sequence[record.Row], higher_is_better: bool) -> dict[str, Any]:
    """Return the results for summary.json: last values, and the best of the first metric."""
    name, values = "loss", dict[str, float]()
    for row in rows:
        for column, cell in record.values_of(row).items():
            if row["phase"] != "train":
                values[f"{row['phase']}_{column}"] = float(cell)
                name = column if name == "loss" else name
            elif column == "loss":
                values["last_train_loss"] = float(cell)
    higher_is_better = higher_is_better and name != "loss"
    followed = [x for x in plots.points(rows, "validation", name)[1].tolist() if not math.isnan(x)]
    if followed:
        values[f"best_validation_{name}"] = max(followed) if higher_is_better else min(followed)
    return {"metric_name": name, "higher_is_better": higher_is_better, "metrics": values}


def script_folder() -> Path:
    """Return the running script's folder, or the current one: the root of recorded code paths."""
    script = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    is_script = script.endswith(".py") and "site-packages" not in script
    return Path(script).resolve().parent if is_script else Path.cwd()
