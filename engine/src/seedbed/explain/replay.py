"""One step of a run replayed with everything noted: its data, its operations, its state.

python -m seedbed.explain.replay FOLDER STEP OUT [CHECKPOINTS]

FOLDER/config.yaml is a resolved configuration. The run starts from the newest checkpoint before
STEP in CHECKPOINTS, or from the beginning; what is noted of STEP goes to OUT, as JSON lines.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from seedbed import config, fingerprint, offline, record
from seedbed.data.positions import Position, positions
from seedbed.data.source import Source
from seedbed.errors import InputError, exit_status
from seedbed.explain import construction
from seedbed.explain.trace_data import noted
from seedbed.operations.place import Place
from seedbed.operations.trace import Event, hashes, state, traced
from seedbed.record import Row
from seedbed.training import checkpoint, schedules
from seedbed.training.shards import Shards
from seedbed.training.state import TrainingState
from seedbed.training.step import train_step
from seedbed.worker import assemble

BEFORE, AFTER = "before the step", "after the step"
# In Trace.made, beside modules.
DATA, OPTIMIZER, METHOD, TASK = "data.train", "optimizer", "method", "data.task"


@dataclass(frozen=True)
class Trace:
    """What a replay noted.

    Attributes:
        start: the step of the checkpoint that it started from; 0: the beginning.
        rows: the fingerprints from there to the traced step, as in fingerprints.csv.
        events: of the traced step: its data, how the model was built, its state, its operations.
        made: `file:line` of the code that made modules, data set and optimizer, by their names.
    """

    start: int
    rows: list[Row]
    events: list[Event]
    made: dict[str, list[str]] = field(default_factory=dict)


def replay(settings: Mapping[str, Any], step: int, checkpoints: Path | None = None) -> Trace:
    """Train to a step, and note everything in the last one.

    All shards are worked on in this process, which changes no bit of a sum in a tree.
    """
    device = assemble.choose_device(settings["trainer"]["device"])
    shards = assemble.cut_batches(settings["trainer"])
    source = assemble.build_sources(settings).train
    with construction.watched() as built:
        training = assemble.build_training_state(settings, device, source)
    opening, made = list(built.events(training.model)), lines_of(training, source, built)
    order = assemble.build_order(settings, source)
    plan = assemble.make_plan(settings, order.steps_per_epoch)
    start = restore(training, checkpoints, step)
    shards.begin(training, start)
    fingerprint_rows, events = fingerprint.FingerprintRows(), list[Event]()
    hasher = fingerprint.Hasher(device)
    for number, position in enumerate(positions(order, start, step), start + 1):
        factor = plan.learning_rate_factor(number - 1)
        schedules.set_learning_rates(training.optimizers, factor)
        places = list(shards.divide(iter([position])))
        if number < step:
            batches = [source[place] for place in places]
            stages = train_step(training, batches, number, shards, False, hasher)[2]
        else:
            stages = take_noted(training, source, places, number, shards, hasher, events, opening)
        assert stages is not None  # they were asked for
        fingerprint_rows.add(number, stages)
    rows = [{name: str(cell) for name, cell in row.items()} for row in fingerprint_rows.take_rows()]
    return Trace(start, rows, events, made)


def lines_of(
    training: TrainingState, source: Source, built: construction.Construction
) -> dict[str, list[str]]:
    """Return where the code lies that made the parts of a run, by their names."""
    modules = dict(training.model.named_modules())
    method = training.method
    parts = {DATA: source.dataset, METHOD: method, TASK: method.task}
    found = construction.class_lines({**parts, **modules})
    optimizers = construction.class_lines(training.optimizers).values()
    found[OPTIMIZER] = [line for lines in optimizers for line in lines]
    for name, lines in built.lines(training.model).items():
        found[name] = [*lines, *found.get(name, [])]
    return found


def restore(training: TrainingState, folder: Path | None, step: int) -> int:
    """Load the newest checkpoint before a step; return its step, 0 if there is none.

    Raises:
        InputError: it is one of another model or optimizer.
    """
    for path in (folder / name for name in record.LAST_CHECKPOINTS) if folder else ():
        try:
            kept = checkpoint.load(path, training.device)
        except InputError:  # none, or a damaged one: the beginning is always there
            continue
        if checkpoint.progress_of(kept).step < step:
            try:
                return checkpoint.restore(training, kept).step
            except checkpoint.MISMATCH as error:
                raise InputError(
                    f"{path}: expected a checkpoint of this configuration, got {error}"
                ) from None
    return 0


def take_noted(
    training: TrainingState,
    source: Source,
    places: Sequence[Position],
    step: int,
    shards: Shards,
    hasher: fingerprint.Hasher,
    events: list[Event],
    opening: Sequence[Event] = (),
) -> torch.Tensor | None:
    """Take a step with its events noted; return its stages.

    Args:
        opening: events that come before the state of model and optimizer.
    """
    with noted(source, events):
        batches = [source[place] for place in places]
    events += opening
    events += state_events(training, BEFORE)
    with traced(training.model, training.optimizers.values()) as operations:
        stages = train_step(training, batches, step, shards, False, hasher)[2]
    events += operations
    events += state_events(training, AFTER)
    return stages


def state_events(training: TrainingState, phase: str) -> Iterator[Event]:
    """Yield an event for each tensor that is kept from step to step."""
    for name, tensor in state(training.model, training.optimizers.values()):
        module = name.rpartition(" of ")[2].rpartition(".")[0]
        yield Event(Place(module, "", phase), name, (), hashes([tensor]))


def write(trace: Trace, path: Path) -> None:
    """Write a trace: a line for the fingerprints, then a line for each event."""
    with open(path, "w") as file:
        first = {"start": trace.start, "rows": trace.rows, "made": trace.made}
        file.write(json.dumps(first) + "\n")
        file.writelines(json.dumps(asdict(event)) + "\n" for event in trace.events)


def read(path: Path) -> Trace:
    """Read what `write` wrote.

    Raises:
        InputError: it is of another version of this module.
    """
    try:
        first, *rest = map(json.loads, path.read_text().splitlines())
        events = [_event(values) for values in rest]
        return Trace(first["start"], first["rows"], events, first.get("made", {}))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path.name}: expected a trace as this checkout writes it, got {error}; compare with "
            "the version of Seedbed that made the runs"
        ) from None


def _event(values: dict[str, Any]) -> Event:
    values = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
    return Event(**values | {"place": Place(**values["place"])})


def main() -> int:
    """Trace the step that the command line names."""
    if len(sys.argv) not in (4, 5) or not sys.argv[2].isdecimal():
        raise InputError(
            "usage: expected python -m seedbed.explain.replay FOLDER STEP OUT [CHECKPOINTS]"
        )
    folder, step, out, *checkpoints = sys.argv[1:]
    resolved = record.read_config(Path(folder))
    config.check(resolved)
    settings: dict[str, Any] = OmegaConf.to_container(resolved)  # type: ignore[assignment]
    offline.enforce()
    settings["trainer"]["compile"] = False  # a compiled model's operations cannot be seen
    assemble.prepare_backends(settings["determinism"])
    write(replay(settings, int(step), Path(checkpoints[0]) if checkpoints else None), Path(out))
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
