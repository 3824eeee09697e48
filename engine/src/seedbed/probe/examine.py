"""Repeat the first steps of a configuration; print what keeps them from being reproducible.

python -m seedbed.probe.examine FOLDER, with a resolved configuration in FOLDER/config.yaml

Each time, data, model and optimizer are built again, and the first steps are taken with every
operation traced. Printed with their place are operations that deterministic algorithms refuse,
what differs from the first time, and random numbers that no seed controls.
"""

import sys
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from seedbed import config, determinism, record, signals
from seedbed.data import tensors
from seedbed.data.positions import positions
from seedbed.data.source import Batch
from seedbed.errors import InputError, exit_status, printable
from seedbed.operations.place import is_refusal, locate
from seedbed.operations.substitutes import substitute_for
from seedbed.operations.trace import Event, differing, hashes, run_even_if_refused, traced
from seedbed.probe.randomness import UnseededDraws
from seedbed.training.shards import Shards
from seedbed.training.state import TrainingState
from seedbed.training.step import train_step
from seedbed.worker import assemble, sources, statistics

STEPS = 2
REPEATS = 3


@dataclass(frozen=True)
class Finding:
    """One reason why the steps are not reproducible.

    Attributes:
        where: a module's path, "" for what is outside every module, or `data.train`.
        phase: forward, backward, update, step, loading or building.
        what: an operation, a tensor or a generator.
        says: what is wrong with it, and what to do.
        line: `file:line` of the user's code, or "".
    """

    where: str
    phase: str
    what: str
    says: str
    line: str = ""

    def __str__(self) -> str:
        line = f"  ({self.line})" if self.line else ""
        return f"{self.where or 'outside the modules'}, {self.phase}: {self.what} {self.says}{line}"


@dataclass
class FirstSteps:
    """What building everything and taking the first steps gave, once."""

    weights: dict[str, Tensor] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    events: list[list[Event]] = field(default_factory=list)  # of each step
    findings: list[Finding] = field(default_factory=list)


def examine(settings: config.Settings) -> list[Finding]:
    """Return what keeps a configuration's first steps from being reproducible, each thing once."""
    assemble.prepare_backends(settings)
    first = take_first_steps(settings)
    repeats = [take_first_steps(settings, first) for _ in range(REPEATS - 1)]
    differences = [each for again in repeats for each in compare(first, again)]
    if not config.promises_bits(settings.determinism.on_nondeterministic):
        # What strict would refuse. It may take other kernels, so nothing is compared with these.
        determinism.apply({"on_nondeterministic": "error"})
        repeats.append(take_first_steps(settings, first))
    findings = [each for steps in (first, *repeats) for each in steps.findings]
    return list(dict.fromkeys(findings + differences))


def take_first_steps(settings: config.Settings, first: FirstSteps | None = None) -> FirstSteps:
    """Build everything and take the first steps.

    Args:
        first: earlier ones, whose weights and batches are used, so that a difference in them is
            not reported again for every operation.
    """
    result = FirstSteps()
    device = assemble.choose_device(settings.trainer.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        draws = UnseededDraws(device, settings.determinism.seeding)

        def report(where: str, phase: str) -> None:
            says = "draws random numbers that no seed controls; use seedbed.rng.generator()"
            result.findings += [Finding(where, phase, name, says) for name in draws.since_last()]

        settings = statistics.fill(settings, Shards())
        source = sources.build_sources(settings).train
        report("data", "building")
        training = assemble.build_training_state(settings, device, source)
        report("model", "building")
        result.weights = {name: t.clone() for name, t in _weights(training.model).items()}
        load_weights(training.model, (first or result).weights)
        draws.watch({"model": training.model, "data.train": source})
        order = sources.build_order(settings, source)
        for index, position in enumerate(positions(order, 0, STEPS)):
            batch, refusal = run_even_if_refused(lambda at=position: source[at])  # type: ignore[misc]
            if refusal:
                says = refusal_text(refusal)
                result.findings.append(Finding("data.train", "loading", "a sample", says))
            result.batches.append(cast(Batch, batch))
            report("data.train", "loading")
            events = take_step(training, (first or result).batches[index], index + 1, result)
            result.events.append(events)
            report("model", "step")
    return result


def _weights(model: nn.Module) -> dict[str, Tensor]:
    """Return weights and buffers, without lazy ones and what get_extra_state returns."""
    state = model.state_dict().items()
    return {name: t for name, t in state if isinstance(t, Tensor) and not is_lazy(t)}


def load_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Load the weights of earlier steps.

    Raises:
        InputError: they are those of another model.
    """
    own = _weights(model)
    if {name: t.shape for name, t in own.items()} != {name: t.shape for name, t in weights.items()}:
        names = sorted(own.keys() ^ weights.keys()) or ["other shapes"]
        raise InputError(
            "model: expected the same parameters each time that it is built, got a difference in "
            f"{names[0]}; build it from its arguments alone"
        )
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(weights[name])


def take_step(training: TrainingState, batch: Batch, step: int, result: FirstSteps) -> list[Event]:
    """Take a step with a copy of a batch; return its operations.

    A refusal that does not come from an operation ends the step.
    """
    batch = tensors.map_tensors(torch.clone, batch)
    with traced(training.model) as events:
        try:
            train_step(training, [batch], step, Shards(), True, None)
        except RuntimeError as error:
            if not is_refusal(error):
                raise
            place = locate(traceback.walk_tb(error.__traceback__), training.model)
            says = refusal_text(str(error))
            result.findings.append(Finding(place.module, place.phase, "?", says, place.line))
    own = "draws from a generator that is not torch's global one; leave out generator="
    result.findings += [finding(e, refusal_text(e.refusal)) for e in events if e.refusal]
    result.findings += [finding(e, own) for e in events if e.own_generator]
    return events


def finding(event: Event, says: str) -> Finding:
    """Return a finding about an operation."""
    place = event.place
    return Finding(place.module, place.phase, event.operation, says, place.line)


def refusal_text(message: str) -> str:
    """Shorten PyTorch's message, and name the substitute."""
    instead = substitute_for(message)
    short = message.splitlines()[0].split(", but you set")[0]
    return f"raises under strict: {short}" + (f"; use {instead}" if instead else "")


def compare(first: FirstSteps, again: FirstSteps) -> list[Finding]:
    """Return which weights, batches and operations differ between two times."""
    findings = [
        Finding(name.rpartition(".")[0], "building", name, "starts with other values")
        for name, tensor in again.weights.items()
        if hashes([tensor]) != hashes([first.weights[name]])
    ]
    for a, b in zip(first.batches, again.batches, strict=True):
        if hashes(tensors.tensors_of(a)) != hashes(tensors.tensors_of(b)):
            says = "has other contents for the same sample ids"
            findings.append(Finding("data.train", "loading", "batch", says))
    for events, repeated in zip(first.events, again.events, strict=True):
        diverged = differing(events, repeated)
        findings += [finding(event, says) for event, says in diverged]
        if diverged:
            break  # what follows starts from other weights
    return findings


def main() -> int:
    """Examine the configuration in a folder; print each finding in a line."""
    signals.release()
    resolved = record.read_config(Path(sys.argv[1]))
    settings = config.check(resolved)
    settings.trainer.compile = False  # a compiled model's operations cannot be seen
    findings = examine(settings)
    for each in findings:
        print(printable(str(each)))
    steps = f"{REPEATS} times the first {STEPS} steps of {settings.model.name}"
    if not findings:
        preset = settings.determinism.name
        print(f"{steps} under {preset}: the same bits, nothing refused, every draw seeded")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
