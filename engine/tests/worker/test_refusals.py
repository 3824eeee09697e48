"""One-line refusals by the training process, before the first step where possible."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from seedbed import record
from seedbed.data.source import Batch
from seedbed.methods import Callback, Make, Supervised
from seedbed.training import checkpoint
from seedbed.worker import assemble
from tests import tiny
from tests.data.test_remedy import Albumentations
from tests.tiny.data import Noisy
from tests.tiny.models import Dense
from tests.worker.runs import METHODS, begun, of_method, refused, trained, work

pytestmark = pytest.mark.usefixtures("this_process_trains")
PLAIN = of_method("Supervised", module="seedbed.methods")


class Samples(Noisy):
    def __getitem__(self, index: int) -> Any:
        return {}["nothing"]


class Averaging(Supervised):
    """Returns one loss for a batch instead of one per sample."""

    def validation_step(self, model: nn.Module, batch: Batch) -> Any:
        return {"loss": super().validation_step(model, batch)["loss"].mean()}


class Broken(Supervised):
    """Calls a function that the model lacks, in evaluations only."""

    def validation_step(self, model: nn.Module, batch: Batch) -> Any:
        return {"loss": model.decode(batch.inputs)}


class LateHead(Supervised):
    """From step 10 on, trains a part whose name is misspelt."""

    def trainable(self, step: int) -> list[str]:
        return ["*"] if step < 10 else ["*", "haed.*"]


class Partial(Supervised):
    """Passes only biases to its optimizer."""

    def configure_optimizers(self, model: nn.Module, make: Make) -> torch.optim.Optimizer:
        return make([p for name, p in model.named_parameters() if name.endswith("bias")])


class Elsewhere(Supervised):
    """Trains a parameter that no checkpoint holds."""

    def configure_optimizers(self, model: nn.Module, make: Make) -> Any:
        return torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)


class Swapping(Supervised):
    """Replaces a layer in step 5 by one whose parameters the optimizer does not have."""

    def on_step_end(self, model: Any, step: int) -> None:
        if step == 5:
            model[3] = nn.Linear(16, 3)


class Growing(Supervised):
    """Adds another layer to its optimizer in step 5."""

    def configure_optimizers(self, model: Any, make: Make) -> Any:
        self.optimizer = make(model[0].named_parameters())
        return self.optimizer

    def on_step_end(self, model: Any, step: int) -> None:
        if step == 5:
            self.optimizer.add_param_group({"params": list(model[3].parameters())})


class LateHook(Callback):
    """Has a hook that only another library calls."""

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        raise AssertionError


def not_finite(dataset: Any) -> dict[str, Any]:
    return {"mean": [0.5, float("nan")]}


def own(method: str, *words: str) -> tuple[str, ...]:
    """Return a command line that trains with a method of this file."""
    return of_method(method, *words, module=__name__)


@pytest.mark.parametrize(
    ("words", "steps", "line"),
    [
        ((*PLAIN, f"+data.statistics._target_={__name__}.not_finite", "+model.statistics=null"), 0,
         "data.statistics: expected numbers by name"),
        ((*PLAIN, "objective=test_f1"), 0, "objective: expected one of validation_loss, valid"),
        ((*PLAIN, "trainer.monitor=f1"), 0,
         "trainer.monitor: expected a value of Supervised.validation_step, got validation_f1"),
        (of_method("VAE", "trainer.monitor=kl"), 0,
         "trainer.mode: expected min or max, since nothing says which kl is better, got null"),
        ((*PLAIN, "+callbacks.own={_target_:torch.nn.Identity}"), 0,
         "callbacks.own: expected a class that extends"),
        ((*PLAIN, f"+callbacks.late._target_={__name__}.LateHook"), 0,
         "callbacks.late: expected hooks among on_before_optimizer_step, on_step_end, "
         "on_validation_end, on_evaluation_end, got LateHook.on_validation_epoch_end, which is"),
        (of_method("Linear", module="torch.nn"), 0, "method: expected"),
        (own("LateHead"), 0, "method.trainable: expected a pattern of"),
        ((*PLAIN, f"data.validation._target_={__name__}.Unseeded"), 1,
         "data.validation: expected the same validation batch in step 2"),
        (own("Elsewhere"), 0, "method: expected parameters to train in step 1"),
        ((*PLAIN, *tiny.replaced("schedule", f"{METHODS}.Impure")), 1,
         "schedule: expected the same learning rate in step 2"),
        *((own(n), 6, "model: expected the parameters that its") for n in ("Swapping", "Growing")),
    ],
)  # fmt: skip
def test_what_cannot_be_trained_is_refused_as_soon_as_it_shows(
    words: tuple[str, ...], steps: int, line: str, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Unknown names, parameters of no optimizer, state that no checkpoint keeps."""
    assert refused(tmp_path / "run", capsys, *words).startswith(line)
    assert record.read_summary(tmp_path / "run").get("steps", 0) == steps


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ((*PLAIN, f"data.train._target_={__name__}.Samples", "data.num_workers=1"),
         'return {}["nothing"]'),
        (own("Broken"), "model.decode(batch.inputs)"),
        (own("Averaging"), "torch.cat("),
    ],
)  # fmt: skip
def test_an_error_in_a_users_code_ends_in_its_traceback(
    words: tuple[str, ...], code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 1 and a failed run; errors in evaluations are found before the first step.
    The last line names the user's line or, if the engine raised it, the page on return values."""
    assert work(begun(tmp_path / "run", *words)) == 1
    summary, error = record.read_summary(tmp_path / "run"), capsys.readouterr().err
    assert summary["status"] == "failed"
    assert code in error
    assert summary["error"] in error
    ends = {"torch.cat(": "docs/methods.md: what", "model.decode(batch.inputs)": f"{__file__}:"}
    assert ends.get(code, "KeyError: 'nothing'") in error.rstrip().splitlines()[-1]
    assert code in (tmp_path / "run" / "train.log").read_text()
    assert record.read_metrics(tmp_path / "run") == []


def test_what_is_never_trained_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run trains all the same: it may be intended. Negative control: all are trained."""
    assert work(begun(tmp_path / "run", *own("Partial"))) == 0
    printed = capsys.readouterr().out
    assert "warning: optimizer: 2 of 4 parameters that need gradients are in no opt" in printed
    assert work(begun(tmp_path / "all", *of_method("FineTuning"))) == 0
    assert "warning" not in capsys.readouterr().out


class Unseeded(Noisy):
    def __getitem__(self, index: int) -> Any:
        point, label = super().__getitem__(index)
        return point + random.SystemRandom().random(), label


class Holed(Noisy):
    """Has a NaN in one sample."""

    def __getitem__(self, index: int) -> Any:
        point, label = super().__getitem__(index)
        if index == 5:
            point[3] = torch.nan
        return point, label


class Root(nn.Module):
    """Takes the square root, also of negative numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sqrt()


class Rooted(nn.Module):
    """Has a submodule whose outputs are not finite, always or only in evaluation mode."""

    def __init__(self, in_evaluation: bool = False, **options: Any) -> None:
        super().__init__()
        self.root, self.net, self.in_evaluation = Root(), Dense(**options), in_evaluation

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x if self.in_evaluation and self.training else self.root(x))


SEVEN = (*PLAIN, "trainer.max_steps=7")
HOLED = f"_target_={__name__}.Holed"
ROOTED = f"model._target_={__name__}.Rooted"
PLACES = {"train": "step ", "validation": "the validation after step "}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        *(
            ((f"data.{split}.{HOLED}", f"trainer.log_every_steps={often}", f"data.num_workers={n}"),
             f"data.{split}: expected finite inputs, got nan in column 3 of sample 5, in {where}")
            for split, where in PLACES.items()
            for often, n in ((1, 0), (7, 2))
        ),
        ((ROOTED, "trainer.log_every_steps=7"),
         "model.root: expected finite outputs of Root, got nan in the first forward pass"),
        ((ROOTED, "+model.in_evaluation=true"),
         "model.root: expected finite outputs of Root, got nan in the validation"),
        (tiny.replaced("optimizer", "torch.optim.SGD", lr=1e20),
         "loss: expected a finite number, got "),
        # The loss of the only step is finite, but its update is not: the run must not finish.
        (("optimizer=sgd", "optimizer.lr=1e300", "trainer.max_steps=1",
          "trainer.gradient_clip_norm=null"), "validation loss: expected a finite number, got "),
    ],
)  # fmt: skip
def test_what_is_to_blame_is_named_and_no_such_weights_are_kept(
    words: tuple[str, ...], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sample, for any loader workers and logging interval, a module, or the training itself."""
    found = refused(tmp_path, capsys, *SEVEN, *words)
    assert found.startswith(line)
    assert ("lower optimizer.lr" in found) == ("loss" in line)
    for path in (tmp_path / "checkpoints").glob("*.pt"):
        assert all(each.isfinite().all() for each in checkpoint.load(path)["model"].values())


class Tabled(Noisy):
    """Draws a table when its first sample is loaded."""

    table: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.table is None:
            self.table = torch.randn(8)
        inputs, target = super().__getitem__(index)
        return torch.as_tensor(inputs) + self.table, target


class Stream(IterableDataset[Any]):
    """Has another order in each pass, like a WebDataset that shuffles without a seed."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[Any]:
        for number in random.SystemRandom().sample(range(self.samples), self.samples):
            yield torch.randn(tiny.FEATURES) + number, number % tiny.CLASSES


TABLED = f"data.train._target_={__name__}.Tabled"
STREAM = f"data.train._target_={__name__}.Stream"


@pytest.mark.parametrize(
    "chosen",
    [(TABLED, "data.num_workers=0"), (TABLED, "data.num_workers=2"), (STREAM, "+data.streams=1")],
)
def test_a_data_set_that_reads_another_batch_is_refused(
    chosen: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With or without loader workers. Negative control: without a rehearsal, it trains."""
    words = of_method("Tokens", *chosen)
    line = refused(tmp_path / "run", capsys, *words)
    assert line.startswith("data.train: expected the same batch "), line
    assert work(begun(tmp_path / "off", *words, "trainer.rehearse_resume=false")) == 0


class Augmented(Noisy):
    """Noise from a transform with a generator of its own, as albumentations has it."""

    def __init__(self, samples: int, seed: int | None = None) -> None:
        super().__init__(samples)
        self.transforms = [Albumentations()]
        if seed is not None:
            self.transforms[0].set_random_seed(seed)

    def __getitem__(self, index: int) -> Any:
        inputs, target = super().__getitem__(index)
        return torch.as_tensor(inputs) + self.transforms[0].generator.random(), target


@pytest.mark.parametrize("seed", [(), ("+data.train.seed=0",)])
def test_the_remedy_for_a_transform_with_a_generator_is_named(
    seed: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether it is seeded in the constructor or not. Negative control: a table, above."""
    words = of_method("Tokens", f"data.train._target_={__name__}.Augmented", *seed)
    line = refused(tmp_path / "run", capsys, *words)
    assert line.startswith("data.train: expected the same batch "), line
    assert "in __getitem__, call self.transforms[0].set_random_seed(int(rng.generator()." in line
    assert "set_random" not in refused(tmp_path / "other", capsys, *of_method("Tokens", TABLED))


@pytest.mark.parametrize(
    ("words", "count"),
    [((), 1), (("trainer.max_steps=1",), 0), (("determinism=seeded",), 0),
     (("trainer.replay_every_steps=5",), 3)],
)  # fmt: skip
def test_a_run_is_built_anew_as_often_as_it_is_rehearsed(
    words: tuple[str, ...], count: int, tmp_path: Path
) -> None:
    """Once; not for a single step, nor if no bits are promised; more often on request."""
    rebuilt = assemble.Parts.rebuilt
    with patch.object(assemble.Parts, "rebuilt", autospec=True, side_effect=rebuilt) as calls:
        trained(tmp_path / "run", *of_method("Tokens", *words))
    assert [call.args[1] for call in calls.mock_calls] == [2, 5, 10][:count]
