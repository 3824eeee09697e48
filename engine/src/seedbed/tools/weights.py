"""The model of a run with the weights of a checkpoint, and the samples to evaluate it on."""

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from seedbed import config, rng
from seedbed.data.source import Source
from seedbed.tools import request
from seedbed.training import checkpoint, evaluate
from seedbed.training.state import TrainingState
from seedbed.worker import assemble, sources


def load(run: str | Path, checkpoint: str = "best", trust: Sequence[str] = ()) -> nn.Module:
    """Return the model of a run with its weights, on the CPU and in evaluation mode.

    The global generators are left unchanged.

    Args:
        checkpoint: `best` or `last`.
        trust: names that the run may use, in addition to those in configs/.

    Raises:
        InputError: the folder is not a run, has no such checkpoint, or names something untrusted.
    """
    overrides = ["trainer.device=cpu", "trainer.compile=false"]
    settings = config.check(request.settings_of(Path(run), overrides, trust))
    path = Path(run) / "checkpoints" / f"{checkpoint}.pt"
    with rng.restored():
        training, *_ = of_checkpoint(settings, path, "validation")
    return training.model.eval()


def of_checkpoint(
    settings: config.Settings, path: Path, split: str
) -> tuple[TrainingState, Source, int]:
    """Return the training state with the weights of best.pt or last.pt, samples, and the step.

    The samples of the split are loaded as for evaluation, also those of the training split.

    Raises:
        InputError: there is no such checkpoint, or it belongs to another model.
    """
    source = sources.build_sources(settings, evaluating=True)[split]
    device = assemble.choose_device(settings.trainer.device)
    state = checkpoint.load(path, device)
    training = assemble.build_training_state(settings, device, source)
    with checkpoint.fitting(path):
        step = state["step"] if path.name == checkpoint.BEST else state["progress"]["step"]
        evaluate.restore(training, state)
    return training, source, int(step)
