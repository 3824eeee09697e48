"""Evaluate a checkpoint of a run: `python -m seedbed.tools.evaluation FOLDER REQUEST`."""

import json
import sys
from pathlib import Path

from seedbed import config, offline, record, signals
from seedbed.config import options
from seedbed.errors import InputError, exit_status, printable
from seedbed.tools import weights
from seedbed.training.evaluate import evaluate
from seedbed.training.shards import Shards
from seedbed.worker import assemble, run_logger, sources


def main() -> int:
    """Evaluate as requested; write what was evaluated and its values to answer.json.

    The exit status is 1 if code or data changed since the run was recorded, unless allowed.
    """
    folder, asked = Path(sys.argv[1]), json.loads(sys.argv[2])
    split = asked["split"]
    signals.release()  # `request.start` held them back
    offline.enforce()
    settings = config.check(record.read_config(folder))
    assemble.prepare_backends(settings)
    path = Path(asked["run"], "checkpoints", f"{asked['checkpoint']}.pt")
    training, source, step, lines = weights.of_checkpoint(settings, path, split)
    shards = Shards()
    result = evaluate(training, sources.evaluation_batches(settings, source, shards), shards)
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
            raise InputError("--predictions: expected a method that returns them, got another")
        table = run_logger.predictions_csv(result.targets, result.predictions)
        options.write(Path(asked["predictions"]), table)
    (folder / "answer.json").write_text(json.dumps(row))
    for line in lines:
        said = "note" if asked["allow_changed"] else "warning"
        print(f"{said}: {printable(line)}", file=sys.stderr, flush=True)
    return 1 if lines and not asked["allow_changed"] else 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
