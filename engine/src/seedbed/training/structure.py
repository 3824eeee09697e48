"""Modules, weights and modes that no checkpoint holds: those of a resumed run are as built."""

from seedbed.errors import InputError
from seedbed.training.state import TrainingState

Structure = dict[str, tuple[int, bool]]


def structure(training: TrainingState) -> Structure:
    """Return by path which modules and weights there are, and in which mode; no checkpoint does."""
    chosen = training.to_train if training.overrides("trainable") else {}
    model = training.model
    modules, weights = model.named_modules(prefix="model"), model.named_parameters()
    found = {f"{path}.training": (id(module), module.training) for path, module in modules}
    return found | {
        f"model.{path}.requires_grad": (id(p), p.requires_grad and path not in chosen)
        for path, p in weights
    }


def refuse_other_structure(training: TrainingState, before: Structure) -> None:
    """Refuse a checkpoint of what a resumed run would build in another way.

    Raises:
        InputError: under a preset that promises bits; it names the first module or weight.
    """
    now = structure(training)
    if not training.strict or now == before:
        return
    path = next(path for path in {**before, **now} if before.get(path) != now.get(path))
    ids = [found.get(path, (None, None))[0] for found in (before, now)]
    what = path if ids[0] == ids[1] else path.rpartition(".")[0]
    raise InputError(
        f"{what}: expected modules, weights and modes as they are built, got others after a "
        "later step, which a resumed run would not have; freeze weights by Method.trainable, make "
        "modules in __init__, set modes in each step, or say determinism.on_nondeterministic=warn"
    )
