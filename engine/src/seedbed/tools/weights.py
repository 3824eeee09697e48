"""The model of a run with the weights of a checkpoint, and the samples to evaluate it on."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from torch import nn

from seedbed import config, rng, weights
from seedbed.data.source import Source
from seedbed.errors import InputError
from seedbed.tools import changed, request
from seedbed.training import checkpoint, evaluate
from seedbed.training.state import TrainingState
from seedbed.worker import assemble, sources


def load(run: str | Path, checkpoint: str = "best", trust: Sequence[str] = ()) -> nn.Module:
    """Return the model of a run with its weights, on the CPU and in evaluation mode.

    The global generators are left unchanged. A warning names code and data that changed since the
    run was recorded.

    Args:
        checkpoint: `best` or `last`.
        trust: names that the run may use, in addition to those in configs/.

    Raises:
        InputError: the folder is not a run, names something untrusted, or has no such checkpoint,
            or one with other weights than those recorded.
    """
    overrides = ["trainer.device=cpu", "trainer.compile=false"]
    settings = config.check(request.settings_of(Path(run), overrides, trust))
    path = Path(run) / "checkpoints" / f"{checkpoint}.pt"
    with rng.restored():
        training, *_, lines = of_checkpoint(settings, path, "validation")
    for line in lines:
        warnings.warn(line, stacklevel=2)
    return training.model.eval()


def of_checkpoint(
    settings: config.Settings, path: Path, split: str
) -> tuple[TrainingState, Source, int, list[str]]:
    """Return the training state with the weights of best.pt or last.pt, samples, and the step.

    The samples of the split are loaded as for evaluation, also those of the training split. Last
    come lines on what changed since the run was recorded.

    Raises:
        InputError: there is no such checkpoint, or it belongs to another model or run.
    """
    built = sources.build_sources(settings, evaluating=True)
    source = built[split]
    device = assemble.choose_device(settings.trainer.device)
    state = checkpoint.load(path, device)
    training = assemble.build_training_state(settings, device, source)
    with checkpoint.fitting(path):
        step = state["step"] if path.name == checkpoint.BEST else state["progress"]["step"]
        checkpoint.restore_model(training.model, state)
    run = path.parents[1]
    lines = list(changed.since(run, settings, lambda: built["train"].dataset))
    try:
        weights.require_recorded(run, path, state, training.model)
    except InputError as error:
        if training.strict:
            raise
        lines.append(str(error))  # an evaluation may have changed the weights, which is allowed
    with checkpoint.fitting(path):
        evaluate.restore(training, state)
    return training, source, int(step), lines
