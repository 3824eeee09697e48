"""One-line refusals by the training process, before the first step where possible."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from seedbed import record, rng
from seedbed.methods import Callback, Make, Supervised
from seedbed.pipeline.source import Batch
from seedbed.training import checkpoint
from tests import tiny
from tests.run.runs import begun, of_method, refused, work
from tests.tiny.data import Noisy
from tests.tiny.models import Dense

pytestmark = pytest.mark.usefixtures("this_process_trains")
PLAIN = of_method("Supervised", module="seedbed.methods")


class Samples(Noisy):
    def __getitem__(self, index: int) -> Any:
        return {}["nothing"]


class Listing(Supervised):
    """Returns a list of optimizers without names."""

    def configure_optimizers(self, model: nn.Module, make: Any) -> Any:
        return [super().configure_optimizers(model, make)]


class Dice(Supervised):
    """Returns values of a shape, or other values, beside the task's."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def validation_step(self, model: nn.Module, batch: Batch) -> Any:
        values = super().validation_step(model, batch)
        count = len(batch.ids)
        other = {
            "one": torch.ones(1),
            "scalar": torch.tensor(0.5),
            "float": 0.5,
            "list": [0.5] * count,
            "columns": torch.ones(count, 3),
            "array": np.ones(count),
            "long pair": (torch.ones(count), 2),
            "text": "0.5",
            "pair": (0.5, 2),
            "pair of tensors": (torch.ones(1), torch.tensor(2)),
            "samples": torch.ones(count),
        }
        name, _, kind = self.kind.rpartition("=")
        return {**values, name or "dice": other[kind]}


class OwnDice(Dice):
    """Averages values of any number itself."""

    def compute(self, values: Any) -> Any:
        own = {"dice": float(values["dice"].mean())} if "dice" in values else {}
        return (
            super().compute({"loss": values["loss"], "accuracy": values["accuracy"]})
            | own
        )


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

    def configure_optimizers(
        self, model: nn.Module, make: Make
    ) -> torch.optim.Optimizer:
        return make(
            [p for name, p in model.named_parameters() if name.endswith("bias")]
        )


class Elsewhere(Supervised):
    """Trains a parameter that no checkpoint holds."""

    def configure_optimizers(self, model: nn.Module, make: Make) -> Any:
        return torch.optim.SGD([nn.Parameter(torch.ones(1))], 0.1)


class Swapping(Supervised):
    """Replaces a layer in step 5 by one whose parameters the optimizer does not
    have."""

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
        (
            (
                *PLAIN,
                f"+data.statistics._target_={__name__}.not_finite",
                "+model.statistics=null",
            ),
            0,
            "data.statistics: expected numbers by name",
        ),
        (
            (*PLAIN, "objective=test_f1"),
            0,
            "objective: expected one of validation_loss, valid",
        ),
        (
            (*PLAIN, "trainer.monitor=f1", "trainer.mode=max"),
            0,
            (
                "trainer.monitor: expected a value of Supervised.validation_step, got"
                " validation_f1"
            ),
        ),
        (
            (*PLAIN, "trainer.monitor=f1"),
            0,
            (
                "trainer.mode: expected min or max, since nothing says which f1 is"
                " better, got null"
            ),
        ),
        (
            (*PLAIN, "trainer.monitor=validation_acc"),
            0,
            (
                "trainer.mode: expected min or max, since nothing says which acc is"
                " better, got null; say which, or follow one of validation_accuracy,"
                " validation_loss; did you mean accuracy"
            ),
        ),
        (
            of_method("VAE", "trainer.monitor=kl"),
            0,
            (
                "trainer.mode: expected min or max, since nothing says which kl is"
                " better, got null"
            ),
        ),
        (
            (*PLAIN, "+callbacks.own={_target_:torch.nn.Identity}"),
            0,
            "callbacks.own: expected a class that extends",
        ),
        (
            (*PLAIN, f"+callbacks.late._target_={__name__}.LateHook"),
            0,
            (
                "callbacks.late: expected hooks among on_before_optimizer_step,"
                " on_step_end, on_validation_end, on_evaluation_end, got"
                " LateHook.on_validation_epoch_end, which is"
            ),
        ),
        (of_method("Linear", module="torch.nn"), 0, "method: expected"),
        (own("LateHead"), 0, "method.trainable: expected a pattern of"),
        (own("Elsewhere"), 0, "method: expected parameters to train in step 1"),
        *(
            (own(n), 6, "model: expected the parameters that its")
            for n in ("Swapping", "Growing")
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_as_soon_as_it_shows(
    words: tuple[str, ...],
    steps: int,
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Unknown names, parameters of no optimizer, state that no checkpoint keeps."""
    assert refused(tmp_path / "run", capsys, *words).startswith(line)
    assert record.read_summary(tmp_path / "run").get("steps", 0) == steps


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (
            (*PLAIN, f"data.train._target_={__name__}.Samples", "data.num_workers=1"),
            'return {}["nothing"]',
        ),
        (own("Broken"), "model.decode(batch.inputs)"),
        (own("Listing"), "else dict(made)"),
    ],
)
def test_an_error_in_a_users_code_ends_in_its_traceback(
    words: tuple[str, ...],
    code: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit status 1 and a failed run; errors in evaluations are found before the first
    step. The last line names the user's line or, if the engine raised it, the page on
    return values."""
    assert work(begun(tmp_path / "run", *words)) == 1
    summary = record.read_summary(tmp_path / "run")
    error = capsys.readouterr().err
    assert summary["status"] == "failed"
    assert code in error
    assert summary["error"] in error
    ends = {
        "else dict(made)": "docs/methods.md: what",
        "model.decode(batch.inputs)": f"{__file__}:",
    }
    assert ends.get(code, "KeyError: 'nothing'") in error.rstrip().splitlines()[-1]
    assert code in (tmp_path / "run" / "train.log").read_text()
    table = tmp_path / "run" / "metrics.csv"
    assert not table.exists() or record.read_metrics(table.parent) == []


@pytest.mark.parametrize(
    ("method", "kind", "got"),
    [
        *(
            ("Dice", *each)
            for each in (
                ("one", "dice in validation_step, got a tensor of shape (1,)"),
                ("scalar", "dice in validation_step, got a tensor of shape ()"),
                ("float", "dice in validation_step, got float"),
                ("list", "got list"),
                ("columns", "got a tensor of shape (16, 3)"),
                ("array", "got ndarray"),
                ("long pair", "got tuple"),
                ("text", "got str"),
                ("pair", ""),
                ("pair of tensors", ""),
                ("samples", ""),
                ("predictions=one", "predictions in validation_step, got a tensor"),
            )
        ),
        *(
            ("OwnDice", *each)
            for each in (
                ("one", ""),
                ("columns", ""),
                ("scalar", "got a tensor of shape ()"),
                ("float", "got float"),
                ("predictions=float", "predictions in validation_step, got"),
            )
        ),
    ],
)
def test_a_value_that_cannot_be_averaged_over_samples_is_named(
    method: str, kind: str, got: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Negative controls: a value for each sample, a sum with its count; other numbers
    of values if `compute` is overridden."""
    words = (*own(method), f"+method.kind='{kind}'", "trainer.max_steps=2")
    if not got:
        assert work(begun(tmp_path / "run", *words)) == 0
        return
    line = refused(tmp_path / "run", capsys, *words)
    any_number = method == "OwnDice" and "predictions" not in kind
    wanted = (
        "tensor with a first dimension"
        if any_number
        else "number for each of 16 samples, as"
    )
    wanted = (
        "tensor with a row for each of 16 samples" if "predictions" in kind else wanted
    )
    assert line.startswith(f"method: expected a {wanted}")
    assert ("a compute of your own" in line) is (
        method == "Dice" and "predictions" not in kind
    )
    assert got in line


def test_what_is_never_trained_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run trains all the same: it may be intended. Negative control: all are
    trained."""
    assert work(begun(tmp_path / "run", *own("Partial"))) == 0
    printed = capsys.readouterr().out
    assert (
        "warning: optimizer: 2 of 4 parameters that need gradients are in no opt"
        in printed
    )
    assert work(begun(tmp_path / "all", *of_method("FineTuning"))) == 0
    assert "warning" not in capsys.readouterr().out


class Holed(Noisy):
    """Has a NaN in one sample."""

    def __getitem__(self, index: int) -> Any:
        point, label = super().__getitem__(index)
        if index == 5:
            point[3] = torch.nan
        return point, label


class Unlabelled(Holed):
    """Has a NaN in one sample, which has no label: the loss of its batch is finite."""

    def __getitem__(self, index: int) -> Any:
        point, label = super().__getitem__(index)
        return point, -100 if index == 5 else label


class Root(nn.Module):
    """Takes the square root, also of negative numbers."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sqrt()


class Rooted(nn.Module):
    """Has a submodule whose outputs are not finite, always or only in evaluation
    mode."""

    def __init__(self, in_evaluation: bool = False, **options: Any) -> None:
        super().__init__()
        self.root = Root()
        self.net = Dense(**options)
        self.in_evaluation = in_evaluation

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
            (
                (
                    f"data.{split}.{HOLED}",
                    f"trainer.log_every_steps={often}",
                    f"data.num_workers={n}",
                ),
                (
                    f"data.{split}: expected finite inputs, got nan in column 3 of"
                    f" sample 5, in {where}"
                ),
            )
            for split, where in PLACES.items()
            for often, n in ((1, 0), (7, 2))
        ),
        *(
            (
                (f"data.train._target_={__name__}.Unlabelled", *more),
                (
                    "data.train: expected finite inputs, got nan in column 3 of sample"
                    " 5, in step "
                ),
            )
            for more in (
                ("trainer.log_every_steps=7",),
                ("data.batch_size=48",),
                ("trainer.max_steps=1", "data.batch_size=48"),
            )
        ),
        (
            (ROOTED, "trainer.log_every_steps=7"),
            (
                "model.root: expected finite outputs of Root, got nan in the first"
                " forward pass"
            ),
        ),
        (
            (ROOTED, "+model.in_evaluation=true"),
            "model.root: expected finite outputs of Root, got nan in the validation",
        ),
        (
            tiny.replaced("optimizer", "torch.optim.SGD", lr=1e20),
            "loss: expected a finite number, got ",
        ),
        # The loss of the only step is finite, but its update is not: the run must not
        # finish.
        (
            (
                "optimizer=sgd",
                "optimizer.lr=1e300",
                "trainer.max_steps=1",
                "trainer.gradient_clip_norm=null",
            ),
            "validation loss: expected a finite number, got ",
        ),
    ],
)
def test_what_is_to_blame_is_named_and_no_such_weights_are_kept(
    words: tuple[str, ...],
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A sample, for any loader workers and logging interval, a module, or the training
    itself."""
    found = refused(tmp_path, capsys, *SEVEN, *words)
    assert found.startswith(line)
    assert ("lower optimizer.lr" in found) == ("loss" in line)
    for path in (tmp_path / "checkpoints").glob("*.pt"):
        assert all(
            each.isfinite().all() for each in checkpoint.load(path)["model"].values()
        )


class Reseeding(Dense):
    """Seeds torch in its constructor or in its forward pass, or seeds what is not
    global."""

    def __init__(self, where: str, **options: Any) -> None:
        super().__init__(**options)
        self.where = where
        self.reseed("constructor")

    def reseed(self, where: str) -> None:
        if self.where == where:
            torch.manual_seed(3)
        torch.Generator().manual_seed(3)
        with torch.random.fork_rng():
            torch.manual_seed(4)

    def forward(self, x: Tensor) -> Tensor:
        self.reseed("forward")
        return super().forward(x)


class ReseedingSamples(Noisy):
    """Seeds torch for each sample."""

    def __getitem__(self, index: int) -> Any:
        torch.manual_seed(index + 1)
        return super().__getitem__(index)


class ReseedingMethod(Supervised):
    def __init__(self) -> None:
        torch.manual_seed(5)


class ReseedingCallback(Callback):
    def __init__(self) -> None:
        torch.manual_seed(6)


def reseeding(where: str) -> tuple[str, ...]:
    return (*PLAIN, f"model._target_={__name__}.Reseeding", f"+model.where={where}")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            reseeding("constructor"),
            (
                f"model: {__name__}.Reseeding calls torch.manual_seed: seeds.init has"
                " no effect on"
            ),
        ),
        (
            reseeding("forward"),
            "model or method: Supervised.training_step calls torch.manual_seed",
        ),
        (
            own("ReseedingMethod"),
            f"method: {__name__}.ReseedingMethod calls torch.manual_seed",
        ),
        (
            (*PLAIN, f"+callbacks.own._target_={__name__}.ReseedingCallback"),
            "callbacks.own: ",
        ),
        (
            (*PLAIN, f"data.train._target_={__name__}.ReseedingSamples"),
            (
                "ReseedingSamples.__getitem__ calls torch.manual_seed: seeds.augment"
                " has no effect"
            ),
        ),
        (reseeding("nowhere"), ""),
        ((*PLAIN, "data.num_workers=2"), ""),
    ],
)
def test_code_that_seeds_torch_is_named_once(
    words: tuple[str, ...],
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Negative controls: seeds of other generators, and of a fork of the global one."""
    rng._warn.cache_clear()
    assert work(begun(tmp_path / "run", *words)) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (1 if line else 0), lines
    assert not line or lines[0].startswith(f"warning: {line}")


class Unreachable(Supervised):
    """Has an infinite loss for some samples, with finite outputs, as CTC for long
    targets."""

    def __init__(self, split: str) -> None:
        self.split = split

    def losses(self, model: nn.Module, batch: Batch, split: str) -> Tensor:
        losses: Tensor = self.task.losses(model(batch.inputs), batch.targets)
        is_long = (batch.ids == 7) | (batch.ids == 20)
        return losses.where(~is_long, torch.inf) if split == self.split else losses

    def training_step(self, model: nn.Module, batch: Batch, optimizer: str) -> Any:
        return self.losses(model, batch, "train").mean()

    def validation_step(self, model: nn.Module, batch: Batch) -> Any:
        losses = self.losses(model, batch, "validation")
        return {"loss": losses, "accuracy": losses}


@pytest.mark.parametrize(
    ("split", "words", "line"),
    [
        ("train", ("trainer.log_every_steps=1",), "in step "),
        ("train", ("trainer.log_every_steps=7",), "in step "),
        ("validation", (), "in the validation after step 6"),
    ],
)
def test_a_loss_that_is_infinite_by_itself_is_not_blamed_on_training(
    split: str,
    words: tuple[str, ...],
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The samples are named. Negative control: weights that a learning rate has ruined,
    above."""
    found = refused(
        tmp_path, capsys, *own("Unreachable", f"++method.split={split}"), *words
    )
    assert found.startswith(
        "loss: expected a finite number, got inf of finite outputs for sample"
    )
    assert line in found
    assert "zero_infinity=True" in found
    assert "optimizer.lr" not in found
