"""Evaluate a checkpoint of a run on a data set: `python -m seedbed.tools.evaluation FOLDER`."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from seedbed import record
from seedbed.config import options
from seedbed.errors import InputError, exit_status
from seedbed.tools import request, weights
from seedbed.training.evaluate import evaluate
from seedbed.training.shards import Shards
from seedbed.worker import assemble, parts, run_logger


def main() -> int:
    """Answer the request of this process with a row: what was evaluated, and what was found."""
    folder, settings, asked = request.read()
    run, split = Path(asked["run"]), asked["split"]
    assemble.prepare_backends(settings)
    source = weights.source_of(settings, split)
    path = run / "checkpoints" / f"{asked['checkpoint']}.pt"
    training, step = weights.of_checkpoint(settings, path, source)
    shards = Shards()
    result = evaluate(training, parts.evaluation_batches(settings, source, shards), shards)
    row = {
        "checkpoint": asked["checkpoint"],
        "step": step,
        "split": split,
        "data": settings.data.name,
        "samples": len(source),
        "device": str(training.device),
        **{f"{split}_{name}": value for name, value in result.values.items()},
        "as_recorded": None,
    }
    if not asked["overrides"] and split != "train":
        row["as_recorded"] = _is_as_recorded(run, split, step, result.values)
    if asked["predictions"]:
        if result.predictions is None:
            raise InputError(
                "--predictions: expected a method that makes predictions, got "
                f"{type(training.method).__name__}; leave the option out"
            )
        table = run_logger.predictions_csv(result.targets, result.predictions)
        options.write(Path(asked["predictions"]), table)
    (folder / "answer.json").write_text(json.dumps(row))
    return 0


def _is_as_recorded(run: Path, split: str, step: int, values: Mapping[str, Any]) -> bool | None:
    """Return whether the run recorded the same bits of these weights; None if it recorded none."""
    rows = [r for r in record.read_metrics(run) if (r["phase"], r["step"]) == (split, str(step))]
    if not rows:
        return None
    recorded = record.values_of(rows[-1])  # with what callbacks logged
    return all(recorded.get(name) == repr(value) for name, value in values.items())


if __name__ == "__main__":
    sys.exit(exit_status(main))
