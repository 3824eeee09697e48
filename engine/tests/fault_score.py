"""The score on injected faults: python -m tests.fault_score [SEED ...].

Each fault is injected at a random step and place of a small model; the faulty replay is
compared with a clean one (if the fault is unseeded, with a second faulty one). A
flipped bit that the next operation discards leaves nothing to be found, but still
counts as missed.
"""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch

from seedbed import compare, determinism, names
from seedbed.config import Settings
from seedbed.determinism.running import read_preset
from seedbed.explain.difference import first_difference
from seedbed.explain.replay import Trace, replay
from seedbed.pipeline.positions import Shuffled, positions
from tests import faults
from tests.faults import FAULTS
from tests.running import typed

LAST_STEP = 7
BATCH = 8
NAMES = [name for name, _ in faults.Net().named_parameters()]


class Result(NamedTuple):
    """An injected fault, and the difference that was found."""

    name: str
    step: int
    found: str
    right_step_and_stage: bool
    right_operation: bool


def preset(name: str) -> dict[str, Any]:
    """Return a preset, adapted to this process: no variables, one thread, its interop
    threads."""
    here = {
        "env": {},
        "fill_uninitialized_memory": True,
        "interop_threads": torch.get_num_interop_threads(),
        "threads": 1,
    }
    return read_preset(name) | here


def settings(**changes: dict[str, Any]) -> Settings:
    """Return settings with the parts of tests.faults; `model={"fault": ...}` changes
    one."""
    images = {"_target_": "tests.faults.Images", **changes.get("data", {})}
    return typed(
        seeds=dict.fromkeys(names.STREAMS, 0) | changes.get("seeds", {}),
        determinism=preset("strict"),
        trainer={
            "device": "cpu",
            "max_epochs": 1,
            "max_steps": None,
            "validate_every_epochs": 0,
        },
        schedule={"warmup_fraction": 0.0, "final_fraction": 1.0},
        data={
            "batch_size": BATCH,
            "task": {"name": "classification"},
            "train": images,
            "validation": {"_target_": "tests.faults.Images"},
            "collate": "tests.faults.collate",
        },
        model={
            "name": "net",
            "_target_": "tests.faults.Net",
            **changes.get("model", {}),
        },
        optimizer={
            **{"name": "adam", "_target_": "tests.faults.Adam", "lr": 0.01},
            **changes.get("optimizer", {}),
        },
    )


@contextmanager
def flags(**settings: Any) -> Iterator[None]:
    """Apply the strict preset, with some settings, and restore the previous flags at
    the end."""
    before = determinism.in_force()
    determinism.apply(preset("strict") | settings)
    try:
        yield
    finally:
        determinism.apply(before)


def inject(name: str, seed: int) -> Result:
    """Inject a fault at a random step and place, and search for it."""
    fault = FAULTS[name]
    draw = random.Random(f"{seed} {name}")
    step = draw.randint(2, LAST_STEP)
    block = draw.randrange(3)
    index = draw.randrange(len(NAMES))
    faulty = {
        "fault": name,
        "step": step,
        "where": block if fault.part == "model" else index,
    }
    if fault.part == "data":
        *_, place = positions(Shuffled(faults.SAMPLES, BATCH, 0), 0, step)
        faulty = {"fault": name, "sample_id": int(place.ids[draw.randrange(BATCH)])}
    clean = settings()
    wrong = clean if fault.part == "order" else settings(**{fault.part: faulty})

    def traces(last: int) -> tuple[Trace, Trace]:
        first = replay(wrong if fault.unseeded else clean, last)
        with faults.order(step, BATCH) if fault.part == "order" else nullcontext():
            return first, replay(wrong, last)

    difference = compare.first_difference(*(trace.rows for trace in traces(LAST_STEP)))
    if difference is None:
        return Result(name, step, "nothing", False, False)
    found = first_difference(*(trace.events for trace in traces(difference.step)))
    right = difference.located and (difference.step, difference.stage) == (
        step,
        fault.stage,
    )
    said = f"step {difference.step}, {difference.stage}"
    if found is not None:
        said += f"; {found.event.place.phase}: {found.event.operation}"
        said += f" in module {found.event.place.module!r}, {found.reason}"
    texts = fault.operation, fault.module or "", fault.says
    operation, module, says = (
        text.format(i=block, name=NAMES[index]) for text in texts
    )
    fits = (
        found is not None
        and found.event.place.phase == fault.phase
        and found.event.operation.startswith(operation)
        and (fault.module is None or found.event.place.module == module)
        and says in found.reason
    )
    return Result(name, step, said, right, fits)


def false_alarms(pairs: int, seed: int) -> int:
    """Return the number of pairs of clean replays in which a difference was found."""
    alarms = 0
    for pair in range(pairs):
        side = settings(seeds=dict.fromkeys(names.STREAMS, seed + pair))
        step = random.Random(f"{seed} {pair}").randint(1, LAST_STEP)
        a = replay(side, step)
        b = replay(side, step)
        stages = compare.first_difference(a.rows, b.rows)
        alarms += stages is not None or first_difference(a.events, b.events) is not None
    return alarms


def main() -> int:
    """Print the score of each seed, and each fault that was missed."""
    seeds = [int(text) for text in sys.argv[1:]] or [0]
    with flags():
        for seed in seeds:
            found = [inject(name, seed) for name in FAULTS]
            stages = sum(result.right_step_and_stage for result in found)
            operations = sum(result.right_operation for result in found)
            print(
                f"seed {seed}: right step and stage {stages} of {len(found)}, "
                f"right operation or phase {operations} of {len(found)}"
            )
            for r in found:
                if not (r.right_step_and_stage and r.right_operation):
                    print(f"  missed: {r.name} at step {r.step}: found {r.found}")
        print(
            f"false alarms in 50 pairs of honest replays: {false_alarms(50, seeds[0])}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
