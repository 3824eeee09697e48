"""Evaluate a checkpoint of a run on a data set: `python -m seedbed.tools.evaluation FOLDER`."""

import sys
from pathlib import Path

from seedbed import record
from seedbed.errors import InputError, exit_status, printable
from seedbed.tools import places, request, weights
from seedbed.training.evaluate import evaluate
from seedbed.training.shards import Shards
from seedbed.training.state import Evaluation, TrainingState
from seedbed.worker import assemble, parts, run_logger


def main() -> int:
    """Evaluate what the request of this process asks for, and print the loss and the metric."""
    settings, asked = request.read()
    run, split = Path(asked["run"]), asked["split"]
    assemble.prepare_backends(settings["determinism"])
    source = weights.source_of(settings, split)
    path = run / "checkpoints" / f"{asked['checkpoint']}.pt"
    training, step = weights.of_checkpoint(settings, path, source)
    shards = Shards()
    result = evaluate(training, parts.evaluation_batches(settings, source, shards), shards)
    print(
        printable(
            f"{path} (step {step}) on {split} of {settings['data']['name']}, "
            f"{len(source):,} samples, {training.device}"
        )
    )
    for name, value in result.values.items():
        print(printable(f"{split}_{name} {value!r}"))
    if not asked["overrides"] and split != "train":
        print(beside_the_record(run, split, step, result))
    if asked["predictions"]:
        write_predictions(Path(asked["predictions"]), result, training)
    return 0


def write_predictions(out: Path, result: Evaluation, training: TrainingState) -> None:
    """Write each sample's prediction.

    Raises:
        InputError: the method makes none.
    """
    if result.predictions is None:
        raise InputError(
            "--predictions: expected a method that makes predictions, got "
            f"{type(training.method).__name__}; leave the option out"
        )
    places.write(
        "--predictions", out, run_logger.predictions_csv(result.targets, result.predictions)
    )
    print(f"predictions: {out}")


def beside_the_record(run: Path, split: str, step: int, result: Evaluation) -> str:
    """Return a line that compares an evaluation with what the run recorded of these weights."""
    recorded = recorded_rows(record.read_metrics(run), split, step)
    if recorded is None:
        return f"metrics.csv has no {split} evaluation of step {step} to compare with"
    found = {name: repr(value) for name, value in result.values.items()}
    if found == recorded:
        return f"the same bits as metrics.csv has of step {step}"
    values = ", ".join(f"{name} {cell}" for name, cell in recorded.items())
    return printable(f"other bits than metrics.csv has of step {step}: {values}")


def recorded_rows(metrics: list[record.Row], split: str, step: int) -> dict[str, str] | None:
    """Return the values of an evaluation of a split after a step; None if there is none."""
    rows = [row for row in metrics if row["phase"] == split and row["step"] == str(step)]
    return record.values_of(rows[-1]) if rows else None


if __name__ == "__main__":
    sys.exit(exit_status(main))
