"""The model of a run with the weights of a checkpoint, and the samples to try it on."""

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from seedbed import config, rng
from seedbed.data.source import Source
from seedbed.tools import request
from seedbed.training import checkpoint
from seedbed.training.state import TrainingState
from seedbed.worker import assemble, sources


def load(run: str | Path, checkpoint: str = "best", trust: Sequence[str] = ()) -> nn.Module:
    """Return the model of a run with its weights, on the CPU and in evaluation mode.

    The global generators are left as they are.

    Args:
        checkpoint: `best` or `last`.
        trust: names that the run may have, beside those of files in configs/.

    Raises:
        InputError: the folder is no run, has no such checkpoint, or names what is not trusted.
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
    """Return what a run trained with the weights of best.pt or last.pt, samples, and the step.

    The samples are those of a split as an evaluation sees them, training ones, too.

    Raises:
        InputError: there is no such checkpoint, or it is one of another model.
    """
    source = sources.build_source(settings, split, "validation" if split == "train" else split)
    device = assemble.choose_device(settings.trainer.device)
    state = checkpoint.load(path, device)
    training = assemble.build_training_state(settings, device, source)
    with checkpoint.fitting(path):
        step = state["step"] if path.name == checkpoint.BEST else state["progress"]["step"]
        checkpoint.restore_model(training.model, state)
    return training, source, int(step)
