"""Replay a run to one step, and trace the data, operations and state of that step.

python -m seedbed.explain.replay RUN STEP OUT [CHECKPOINT...]

RUN/config.yaml is a resolved configuration. The run starts from the first CHECKPOINT of a step
before STEP, or from the beginning; the trace is written to OUT.
"""

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import astuple, dataclass
from pathlib import Path

import torch

from seedbed import config, fingerprint, offline, record
from seedbed.data.positions import positions
from seedbed.errors import InputError, exit_status
from seedbed.explain.trace import Event, traced
from seedbed.explain.trace_data import noted
from seedbed.operations import Place
from seedbed.record import Row
from seedbed.training import checkpoint, schedules
from seedbed.training.shards import Shards
from seedbed.training.state import Progress, TrainingState
from seedbed.training.step import train_step
from seedbed.worker import assemble


@dataclass(frozen=True)
class Trace:
    """The trace of one replayed step.

    Attributes:
        start: the step of the checkpoint that the replay started from; 0: the beginning.
        rows: the fingerprints from `start` to the traced step, as in fingerprints.csv.
        events: the data, state and operations of the traced step.
    """

    start: int
    rows: list[Row]
    events: list[Event]


def replay(
    settings: config.Settings,
    step: int,
    checkpoints: Iterable[Path] = (),
    save: Path | None = None,
) -> Trace:
    """Train to a step, and trace the last one.

    All shards are computed in this process; their sums follow a tree, so no bit changes.

    Args:
        checkpoints: candidates to start from, newest first; see `restore`.
        save: where to write a checkpoint before the last step.
    """
    device = assemble.choose_device(settings.trainer.device)
    shards = Shards(settings.trainer.shards)
    parts = assemble.build_parts(settings, device, shards)
    source, training, plan = parts.sources["train"], parts.training, parts.plan
    start = restore(training, checkpoints, step)
    shards.begin(training, start)
    hashes, hasher = list[tuple[int, torch.Tensor]](), fingerprint.Hasher(device)
    nothing: AbstractContextManager[list[Event]] = nullcontext([])
    for number, position in enumerate(positions(parts.order, start, step), start + 1):
        schedules.set_learning_rates(training.optimizers, plan.learning_rate_factor(number - 1))
        places = list(shards.divide(iter([position])))
        is_last = number == step
        if is_last and save is not None:
            checkpoint.save(checkpoint.capture(training, Progress(step=step - 1)), save)
        with noted(source, places) if is_last else nothing as loaded:
            batches = [source[place] for place in places]
        model, optimizers = training.model, training.optimizers.values()
        with traced(model, optimizers) if is_last else nothing as operations:
            stages = train_step(training, batches, number, shards, False, hasher).stages
        assert stages is not None  # a hasher was passed
        hashes.append((number, stages))
    rows = [{k: str(cell) for k, cell in row.items()} for row in fingerprint.rows(hashes)]
    return Trace(start, rows, loaded + operations)


def restore(training: TrainingState, checkpoints: Iterable[Path], step: int) -> int:
    """Restore the first checkpoint from before `step`; return its step, or 0 if there is none."""
    for path in checkpoints:
        with suppress(InputError):  # damaged or missing: try the next
            kept = checkpoint.load(path, training.device)
            if checkpoint.progress_of(kept).step < step:
                return checkpoint.restore(training, kept).step
    return 0


def read(path: Path) -> Trace:
    """Read a trace that `main` wrote: numbers and strings, so that no code in it is executed.

    Raises:
        InputError: a record's code wrote it, with another version of this module.
    """
    try:
        start, rows, events = torch.load(path, weights_only=True)
        return Trace(start, rows, [Event(Place(*place), *rest) for place, *rest in events])
    except (TypeError, ValueError) as error:
        raise InputError(f"{path.name}: expected a trace of this version, got {error}") from None


def main() -> int:
    run, step, out, *checkpoints = sys.argv[1:]
    settings = config.check(record.read_config(Path(run)))
    offline.enforce()
    settings.trainer.compile = False  # a compiled model's operations cannot be seen
    assemble.prepare_backends(settings)
    torch.save(astuple(replay(settings, int(step), map(Path, checkpoints))), out)
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
