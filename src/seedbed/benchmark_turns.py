"""Steps of training without the process around them, for timing kinds of steps in turns.

Two processes may differ in speed by tens of percent for no reason of theirs; steps that take turns
in one process do not.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from seedbed import assemble, training
from seedbed.data import loader
from seedbed.shards import Shards


def steps(
    settings: Mapping[str, Any], learner: training.Learner, total: int
) -> Iterator[Callable[[bool], None]]:
    """Yield for each of some steps the function that loads its batch and takes it.

    The function is told whether to take the step's fingerprints.
    """
    source = assemble.build_sources(settings).train
    shards = Shards()
    size, seed = settings["data"]["batch_size"], settings["seeds"]["order"]
    positions = loader.training_positions(len(source), size, seed, 0, total)
    how = assemble.loading(settings, learner.device)
    batches = loader.load(source, positions, how, settings["determinism"])
    for number in range(1, total + 1):

        def take(with_rungs: bool, step: int = number) -> None:
            training.train_step(learner, [next(batches)], step, shards, False, with_rungs)

        yield take
