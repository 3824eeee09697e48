"""Evaluate a checkpoint of a run on a data set: `python -m seedbed.tools.evaluation FOLDER`."""

import sys
from pathlib import Path

from seedbed import record
from seedbed.errors import exit_status, printable
from seedbed.tools import places, request, weights
from seedbed.training.evaluate import evaluate
from seedbed.training.shards import Shards
from seedbed.training.state import Evaluation
from seedbed.worker import assemble, parts, run_logger


def main() -> int:
    """Evaluate what the request of this process asks for, and print the loss and the metric."""
    settings, asked = request.read()
    run, split = Path(asked["run"]), asked["split"]
    assemble.prepare_backends(settings["determinism"])
    source = weights.source_of(settings, split)
    path = run / "checkpoints" / f"{asked['checkpoint']}.pt"
    training, step = weights.load(settings, path, source)
    shards = Shards()
    result = evaluate(training, parts.evaluation_batches(settings, source, shards), shards)
    name = training.task.metric_name
    print(
        printable(
            f"{path} (step {step}) on {split} of {settings['data']['name']}, "
            f"{len(source):,} samples, {training.device}"
        )
    )
    print(f"{split}_loss {result.loss!r}\n{split}_{name} {result.metric!r}")
    if not asked["overrides"] and split != "train":
        print(beside_the_record(run, split, step, result))
    if asked["predictions"]:
        out = Path(asked["predictions"])
        places.write("--predictions", out, run_logger.predictions_csv(result))
        print(f"predictions: {out}")
    return 0


def beside_the_record(run: Path, split: str, step: int, result: Evaluation) -> str:
    """Return a line that compares an evaluation with what the run recorded of these weights."""
    recorded = recorded_rows(record.read_metrics(run), split, step)
    if recorded is None:
        return f"metrics.csv has no {split} evaluation of step {step} to compare with"
    if (repr(result.loss), repr(result.metric)) == recorded:
        return f"the same bits as metrics.csv has of step {step}"
    loss, metric = recorded
    return printable(
        f"other bits than metrics.csv has of step {step}: loss {loss}, metric {metric}"
    )


def recorded_rows(metrics: list[record.Row], split: str, step: int) -> tuple[str, str] | None:
    """Return loss and metric of an evaluation of a split after a step; None if there is none."""
    rows = [row for row in metrics if row["phase"] == split and row["step"] == str(step)]
    return (rows[-1]["loss"], rows[-1]["metric"]) if rows else None


if __name__ == "__main__":
    sys.exit(exit_status(main))
