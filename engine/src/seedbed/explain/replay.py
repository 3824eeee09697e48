"""One step of a run replayed with everything noted: its data, its operations, its state.

python -m seedbed.explain.replay FOLDER STEP OUT [CHECKPOINTS]

FOLDER/config.yaml is a resolved configuration. The run starts from the newest checkpoint before
STEP in CHECKPOINTS, or from the beginning; what is noted of STEP goes to OUT.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path

import torch

from seedbed import config, fingerprint, offline, record
from seedbed.data.positions import positions
from seedbed.errors import InputError, exit_status
from seedbed.explain.trace import Event, hashes, state, traced
from seedbed.explain.trace_data import noted
from seedbed.operations.place import Place
from seedbed.record import Row
from seedbed.training import checkpoint, schedules
from seedbed.training.shards import Shards
from seedbed.training.state import TrainingState
from seedbed.training.step import train_step
from seedbed.worker import assemble, parts

BEFORE, AFTER = "before the step", "after the step"


@dataclass(frozen=True)
class Trace:
    """What a replay noted.

    Attributes:
        start: the step of the checkpoint that it started from; 0: the beginning.
        rows: the fingerprints from there to the traced step, as in fingerprints.csv.
        events: of the traced step: its data, its state, its operations.
    """

    start: int
    rows: list[Row]
    events: list[Event]


def replay(
    settings: config.Settings,
    step: int,
    checkpoints: Path | None = None,
    before_last: Callable[[TrainingState], None] | None = None,
) -> Trace:
    """Train to a step, and note everything in the last one.

    All shards are worked on in this process, which changes no bit of a sum in a tree.

    Args:
        before_last: is called with the training state before the last step.
    """
    device = assemble.choose_device(settings.trainer.device)
    shards = Shards(settings.trainer.shards)
    source = parts.build_sources(settings)["train"]
    training = assemble.build_training_state(settings, device, source)
    order = parts.build_order(settings, source)
    plan = assemble.make_plan(settings, order.steps_per_epoch)
    start = restore(training, checkpoints, step)
    shards.begin(training, start)
    hashes, events = list[tuple[int, torch.Tensor]](), list[Event]()
    hasher = fingerprint.Hasher(device)
    for number, position in enumerate(positions(order, start, step), start + 1):
        factor = plan.learning_rate_factor(number - 1)
        schedules.set_learning_rates(training.optimizers, factor)
        places = list(shards.divide(iter([position])))
        if number < step:
            batches = [source[place] for place in places]
            stages = train_step(training, batches, number, shards, False, hasher)[2]
        else:
            if before_last is not None:
                before_last(training)
            with noted(source, events):
                batches = [source[place] for place in places]
            events += state_events(training, BEFORE)
            with traced(training.model, training.optimizers.values()) as operations:
                stages = train_step(training, batches, number, shards, False, hasher)[2]
            events += [*operations, *state_events(training, AFTER)]
        assert stages is not None  # they were asked for
        hashes.append((number, stages))
    rows = [{k: str(cell) for k, cell in row.items()} for row in fingerprint.rows(hashes)]
    return Trace(start, rows, events)


def restore(training: TrainingState, folder: Path | None, step: int) -> int:
    """Load the newest checkpoint before a step; return its step, 0 if there is none."""
    for path in [folder / name for name in record.LAST_CHECKPOINTS] if folder else []:
        with suppress(InputError):  # none, or a damaged one: the beginning is always there
            kept = checkpoint.load(path, training.device)
            if checkpoint.progress_of(kept).step < step:
                return checkpoint.restore(training, kept).step
    return 0


def state_events(training: TrainingState, phase: str) -> Iterator[Event]:
    """Yield an event for each tensor that is kept from step to step."""
    for name, tensor in state(training.model, training.optimizers.values()):
        module = name.rpartition(" of ")[2].rpartition(".")[0]
        yield Event(Place(module, "", phase), name, (), hashes([tensor]))


def read(path: Path) -> Trace:
    """Read what `main` wrote, numbers and texts; nothing in it is executed.

    Raises:
        InputError: the code of a record wrote it, which is of another version of this module.
    """
    try:
        start, rows, events = torch.load(path, weights_only=True)
        return Trace(start, rows, [Event(Place(*place), *rest) for place, *rest in events])
    except (TypeError, ValueError) as error:
        raise InputError(f"{path.name}: expected a trace of this version, got {error}") from None


def main() -> int:
    """Trace the step that the command line names."""
    folder, step, out, *checkpoints = sys.argv[1:]
    resolved = record.read_config(Path(folder))
    settings = config.check(resolved)
    offline.enforce()
    settings.trainer.compile = False  # a compiled model's operations cannot be seen
    assemble.prepare_backends(settings)
    trace = replay(settings, int(step), Path(checkpoints[0]) if checkpoints else None)
    torch.save(astuple(trace), out)
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
