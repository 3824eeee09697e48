"""Evaluate a checkpoint of a run on a data set: `python -m seedbed.tools.evaluation FOLDER`."""

import json
import sys
from pathlib import Path

from seedbed import config, offline, record, signals
from seedbed.config import options
from seedbed.errors import InputError, exit_status
from seedbed.tools import weights
from seedbed.training.evaluate import evaluate
from seedbed.training.shards import Shards
from seedbed.worker import assemble, parts, run_logger


def main() -> int:
    """Answer the request of a folder: what was evaluated, and the values."""
    folder = Path(sys.argv[1])
    signals.release()  # which `request.start` held back
    offline.enforce()
    settings = config.typed(record.read_config(folder))
    asked = record.read_json(folder / "request.json")
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
    }
    if asked["predictions"]:
        if result.predictions is None:
            raise InputError("--predictions: expected a method that makes some, got another")
        table = run_logger.predictions_csv(result.targets, result.predictions)
        options.write(Path(asked["predictions"]), table)
    (folder / "answer.json").write_text(json.dumps(row))
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
