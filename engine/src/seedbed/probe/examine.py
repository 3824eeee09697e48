"""Whether one's own model and data keep the promise: the same first steps, again and again.

python -m seedbed.probe.examine FOLDER

FOLDER/config.yaml is a resolved configuration. Each time, data, model and optimizer are built
anew, and the first steps are taken with every operation traced. Listed with its place is what
deterministic algorithms refuse, what differs from the first time, and what randomness was drawn
that no stream keys.
"""

import sys
import traceback
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from seedbed import config, determinism, record
from seedbed.data import tensors
from seedbed.data.positions import Position, positions
from seedbed.data.source import Batch, Source
from seedbed.errors import InputError, exit_status
from seedbed.operations.place import is_refusal, locate
from seedbed.operations.substitutes import substitute_for
from seedbed.operations.trace import Event, differing, hashes, run_even_if_refused, traced
from seedbed.probe.randomness import Lookout, entropy_noted
from seedbed.training.shards import Shards
from seedbed.training.state import TrainingState
from seedbed.training.step import train_step
from seedbed.worker import assemble

STEPS = 2
REPEATS = 3


@dataclass(frozen=True)
class Remark:
    """One thing that was found.

    Attributes:
        where: a module's path, "" for what is outside every module, or a phase: "data.train".
        phase: forward, backward, update, loading or building.
        what: an operation, a tensor or a generator.
        says: what is wrong with it, and what to do.
        line: `file:line` of the user's code, or "".
    """

    where: str
    phase: str
    what: str
    says: str
    line: str = ""


@dataclass
class Passage:
    """What building everything and taking the first steps gave, once."""

    weights: dict[str, Tensor] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    events: list[list[Event]] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)


def examine(settings: dict[str, Any]) -> list[Remark]:
    """Return what keeps a configuration's steps from coming back, each thing once."""
    preset = settings["determinism"]
    assemble.prepare_backends(preset)
    first = pass_through(settings)
    passages = [pass_through(settings, first) for _ in range(REPEATS - 1)]
    remarks = [remark for again in passages for remark in compare(first, again)]
    if not config.promises_bits(preset["on_nondeterministic"]):
        # Another preset may take other kernels, so this passage is compared with no other.
        determinism.apply({"on_nondeterministic": "error"})
        passages.append(pass_through(settings, first))
    found = [remark for passage in (first, *passages) for remark in passage.remarks]
    return list(dict.fromkeys(found + remarks))


def pass_through(settings: dict[str, Any], first: Passage | None = None) -> Passage:
    """Build everything and take the first steps.

    Args:
        first: an earlier passage, whose weights and batches are used in the steps, so that a
            difference in them is not found again in every operation.
    """
    found = Passage()
    seeding = settings["determinism"]["seeding"]
    device = assemble.choose_device(settings["trainer"]["device"])
    with entropy_noted() as entropy, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lookout = Lookout(device, entropy)
        source = assemble.build_sources(settings).train
        found.remarks += unseeded(lookout.drawn(seeded=seeding), "data", "building")
        training = assemble.build_training_state(settings, device, source)
        found.remarks += unseeded(lookout.drawn(seeded=seeding), "model", "building")
        found.weights = weights_of(training.model)
        start_alike(training.model, (first or found).weights)
        lookout.watch({"model": training.model, "data.train": source})
        order = assemble.build_order(settings, source)
        for index, position in enumerate(positions(order, 0, STEPS)):
            found.batches.append(load(source, position, found.remarks))
            found.remarks += unseeded(lookout.drawn(seeded=seeding), "data.train", "loading")
            batch = (first or found).batches[index]
            found.events.append(take_step(training, batch, index + 1, found.remarks))
            found.remarks += unseeded(lookout.drawn(seeded=seeding), "model", "step")
    found.remarks += [remark for events in found.events for remark in refused(events)]
    return found


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of a model's weights and buffers, without what else it keeps beside them."""
    return {name: t.clone() for name, t in model.state_dict().items() if _has_bits(t)}


def start_alike(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Load the weights of an earlier passage.

    Raises:
        InputError: they are those of another model.
    """
    others = {name: t for name, t in model.state_dict().items() if not _has_bits(t)}
    try:
        model.load_state_dict(others | weights)
    except RuntimeError as error:
        raise InputError(
            "model: expected the same parameters each time that it is built, got "
            f"{str(error).splitlines()[-1].strip()}; build it from its arguments alone"
        ) from None


def _has_bits(value: Any) -> bool:
    """Return whether a part of a state_dict is a tensor, not get_extra_state's or a lazy
    module's."""
    return isinstance(value, Tensor) and not is_lazy(value)


def load(source: Source, position: Position, remarks: list[Remark]) -> Batch:
    """Load a batch; an operation that is refused there is added to the remarks, and runs."""
    batch, refusal = run_even_if_refused(lambda: source[position])
    if refusal:
        remarks.append(Remark("data.train", "loading", "a sample", refusal_text(refusal)))
    return cast(Batch, batch)


def take_step(
    training: TrainingState, batch: Batch, step: int, remarks: list[Remark]
) -> list[Event]:
    """Take a step with a copy of a batch; return its operations.

    A refusal above the preset of operations ends the step; it is added to the remarks.
    """
    batch = tensors.map_tensors(torch.clone, batch)
    with traced(training.model) as events:
        try:
            train_step(training, [batch], step, Shards(), True, None)
        except RuntimeError as error:
            if not is_refusal(error):
                raise
            place = locate(traceback.walk_tb(error.__traceback__), training.model)
            remarks.append(
                Remark(place.module, place.phase, "?", refusal_text(str(error)), place.line)
            )
    return events


def refused(events: Iterable[Event]) -> list[Remark]:
    """Return what is wrong with operations whatever they give: refusals, own generators."""
    remarks = []
    for event in events:
        if event.refusal:
            remarks.append(remark_on(event, refusal_text(event.refusal)))
        if event.own_generator:
            remarks.append(
                remark_on(event, "draws from a generator of its own; leave out generator=")
            )
    return remarks


def remark_on(event: Event, says: str) -> Remark:
    """Return a remark on an operation, with its place."""
    place = event.place
    return Remark(place.module, place.phase, event.operation, says, place.line)


def refusal_text(message: str) -> str:
    """Shorten PyTorch's message, and name the substitute."""
    instead = substitute_for(message)
    short = message.splitlines()[0].split(", but you set")[0]
    return f"raises under strict: {short}" + (f"; use {instead}" if instead else "")


def unseeded(names: Iterable[str], where: str, phase: str) -> list[Remark]:
    """Return remarks on randomness that was drawn outside the streams."""
    says = "is drawn from, and no stream keys it; draw from seedbed.rng.generator() instead"
    return [Remark(where, phase, name, says) for name in names]


def compare(first: Passage, again: Passage) -> list[Remark]:
    """Return what differs between two passages: weights, batches, operations."""
    remarks = [
        Remark(name.rpartition(".")[0], "building", name, "starts with other values")
        for name, tensor in again.weights.items()
        if hashes([tensor]) != hashes([first.weights[name]])
    ]
    for a, b in zip(first.batches, again.batches, strict=True):
        if hashes(tensors.tensors_of(a)) != hashes(tensors.tensors_of(b)):
            says = "has other contents for the same sample ids"
            remarks.append(Remark("data.train", "loading", "batch", says))
    for events, repeated in zip(first.events, again.events, strict=True):
        diverged = differing(events, repeated)
        remarks += [remark_on(event, says) for event, says in diverged]
        if diverged:
            break  # what follows starts from other weights
    return remarks


def main() -> int:
    """Examine the configuration in a folder and print what was found."""
    if len(sys.argv) != 2:
        raise InputError("usage: expected python -m seedbed.probe.examine FOLDER; name one folder")
    resolved = record.read_config(Path(sys.argv[1]))
    config.check(resolved)
    settings: dict[str, Any] = OmegaConf.to_container(resolved)  # type: ignore[assignment]
    settings["trainer"]["compile"] = False  # a compiled model's operations cannot be seen
    remarks = examine(settings)
    for remark in remarks:
        line = f"  ({remark.line})" if remark.line else ""
        where = remark.where or "outside the modules"
        print(f"{where}, {remark.phase}: {remark.what} {remark.says}{line}")
    steps = f"{REPEATS} times the first {STEPS} steps of {settings['model']['name']}"
    preset = settings["determinism"]["name"]
    if not remarks:
        print(f"{steps} under {preset}: all operations came back, all randomness was seeded")
    return 1 if remarks else 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
