"""Steps of training without the process around them, for timing kinds of steps in turns.

Two processes may differ in speed by tens of percent for no reason of theirs; steps that take turns
in one process do not.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from seedbed import launch
from seedbed.errors import InputError

if TYPE_CHECKING:
    from seedbed.training.state import TrainingState


def in_a_process(script: str, name: str, config: DictConfig, steps: int, **variables: str) -> Any:
    """Call a script with `--steps` and `--here CONFIG` under the environment of its preset.

    Args:
        name: what is measured, for an error.
        variables: of the environment, beside the preset's.

    Returns:
        What it printed, which is JSON.

    Raises:
        InputError: it failed.
    """
    words = ("--steps", str(steps), "--here", json.dumps(OmegaConf.to_container(config)))
    variables["PYTHONSAFEPATH"] = ""  # a script imports what lies beside it
    done = subprocess.run(
        [sys.executable, script, *words],
        env=launch.training_environment(config) | variables,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise InputError(f"{name}: expected it to train, got the error above")
    return json.loads(done.stdout)


def steps(
    settings: Mapping[str, Any], training: "TrainingState", total: int
) -> Iterator[Callable[[bool], None]]:
    """Yield for each of some steps the function that loads its batch and takes it.

    The function is told whether to take the step's fingerprints.
    """
    # Not above: they import torch, which a process that waits can do without.
    from seedbed import fingerprint
    from seedbed.data.positions import training_positions
    from seedbed.data.workers import load
    from seedbed.training.shards import Shards
    from seedbed.training.step import train_step
    from seedbed.worker import assemble

    source = assemble.build_sources(settings).train
    shards, hasher = Shards(), fingerprint.Hasher(training.device)
    size, seed = settings["data"]["batch_size"], settings["seeds"]["order"]
    positions = training_positions(len(source), size, seed, 0, total)
    how = assemble.loading(settings, training.device)
    batches = load(source, positions, how, settings["determinism"])
    for number in range(1, total + 1):

        def take(with_stages: bool, step: int = number) -> None:
            hashed = hasher if with_stages else None
            train_step(training, [next(batches)], step, shards, False, hashed)

        yield take
