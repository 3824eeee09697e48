"""A look at a run before its first step: what would fail, or pass in silence, hours later."""

from seedbed.errors import InputError
from seedbed.training.evaluate import measure, values_of
from seedbed.training.loop import Logger
from seedbed.training.shards import Shards
from seedbed.training.trainable import trained_by
from seedbed.worker.parts import Parts, evaluation_batches

_MOST_STEPS_ASKED = 200  # of `Method.trainable`


def look(parts: Parts, run_logger: Logger) -> None:
    """Print what is never trained; evaluate one batch, and see that what is followed is there."""
    training = parts.training
    needed = [name for name, p in training.model.named_parameters() if p.requires_grad]
    left_out = [name for name in needed if name not in training.to_train]
    if left_out:
        run_logger.log(
            f"warning: optimizer: {len(left_out)} of {len(needed)} parameters that need gradients "
            f"are in no optimizer and are never trained, such as {left_out[0]}; give them to one, "
            "or freeze them by requires_grad_(False)"
        )
    for name, optimizer in training.optimizers.items():
        for number, group in enumerate(optimizer.param_groups):
            if not group["params"]:
                run_logger.log(
                    f"warning: {name}: its parameter group {group.get('name', number)} is empty; "
                    "look at what chooses its parameters by name"
                )
    if training.overrides("trainable"):
        last = parts.plan.total_steps
        for step in {*range(1, last, max(1, last // _MOST_STEPS_ASKED)), last}:
            trained_by(training, step)
    batch = list(evaluation_batches(parts.settings, parts.sources.validation, parts.shards, 1))
    gathered = parts.shards.gather(lambda: measure(training, batch, Shards()))
    rows = [row for each in gathered for row in each]
    try:
        values = values_of(training, rows)
    except InputError:
        raise
    except Exception:  # some values are of whole sets alone: one batch may be too little for them
        return
    training.monitored(values)
