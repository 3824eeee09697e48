"""Learning rates that fall on a plateau of validations; schedulers of PyTorch are
refused."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR

from seedbed import config, record
from seedbed.config.settings import Plateau
from seedbed.explain import replay
from seedbed.methods import Make, Supervised
from seedbed.training import checkpoint, schedules
from tests.run.runs import SHORT, begun, of_method, refused, resumed, whole, work
from tests.running import command, refusal, train
from tests.ways import differences

pytestmark = pytest.mark.usefixtures("this_process_trains")
# 6 steps per epoch, and a learning rate with which the loss does not fall for long.
WORDS = of_method(
    "Supervised",
    "schedule=plateau",
    "schedule.patience=1",
    "schedule.factor=0.5",
    "optimizer.lr=0.3",
    "trainer.max_steps=60",
    "trainer.monitor=loss",
    module="seedbed.methods",
)
PEAK = 0.3


def rates_of(run: Path) -> list[float]:
    rows = record.read_metrics(run)
    return [float(row["learning_rate"]) for row in rows if row["phase"] == "train"]


def expected_rates(run: Path, patience: int) -> list[float]:
    """Return the learning rate of each step that torch's scheduler has for the run's
    values."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], PEAK)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.5, patience=patience)
    rates = []
    for row in record.read_metrics(run):
        if row["phase"] == "validation":
            scheduler.step(float(row["loss"]))
        elif row["phase"] == "train":
            rates.append(optimizer.param_groups[0]["lr"])
    return rates


def test_learning_rates_are_those_of_torch() -> None:
    """Negative control: another patience has other rates."""
    run = whole(*WORDS)
    rates = rates_of(run)
    assert rates == expected_rates(run, 1) != expected_rates(run, 2)
    assert len({*rates}) > 2, "negative control: the rates fell several times"


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize("threshold", [0.0, 0.1])
def test_each_value_counts_as_in_torch(higher: bool, threshold: float) -> None:
    """Equal values, small gains, NaN and infinities; down to the smallest factor."""
    values = [
        1.0,
        1.0,
        1.05,
        0.97,
        2.0,
        float("nan"),
        2.0,
        2.1,
        float("inf"),
        0.5,
        0.4,
        0.4,
        0.4,
    ]
    mine, theirs = (
        torch.optim.SGD([nn.Parameter(torch.ones(1))], PEAK) for _ in range(2)
    )
    plateau = Plateau(
        "plateau", 0.0, factor=0.5, patience=1, threshold=threshold, min_factor=0.25
    )
    scheduler = ReduceLROnPlateau(
        theirs, "max" if higher else "min", 0.5, 1, threshold, min_lr=PEAK / 4
    )
    noted: dict[str, float] = {}
    monitor = record.Monitor("f1", higher)
    for value in values * 2:
        noted = schedules.note_validation(
            plateau, noted, value, monitor, {"optimizer": mine}
        )
        schedules.set_learning_rates({"optimizer": mine}, 1.0)
        scheduler.step(value)
        assert mine.param_groups[0]["lr"] == theirs.param_groups[0]["lr"]
    assert mine.param_groups[0]["lr"] == PEAK / 4


@pytest.mark.long
def test_a_run_stopped_after_a_fall_has_the_same_bits(tmp_path: Path) -> None:
    """Stopped before and after the first two falls; also with a validation that is
    repeated."""
    reference = whole(*WORDS)
    rates = rates_of(reference)
    falls = [step for step in range(1, len(rates)) if rates[step] != rates[step - 1]]
    words = ("trainer.replay_every_steps=7",)
    stops = []
    for number, step in enumerate((falls[0] - 6, falls[0] + 3, falls[1] + 3)):
        folder = tmp_path / str(number)
        # one for each step and for each batch of a validation
        check = step + step // 3 + 3
        resumed(folder, whole(*WORDS, *words), check, *WORDS, *words)
        assert "last.pt: optimizer" not in differences(reference, folder)
        stops.append(record.read_summary(folder)["resumes"][0]["step"])
    assert stops[0] < falls[0] < stops[1] < falls[1] < stops[2]


@pytest.mark.long
def test_longer_runs_and_replays_have_the_same_bits(tmp_path: Path) -> None:
    """The last validation, which only the shorter run makes, is not counted, or is
    refused."""
    words = (*WORDS, "trainer.validate_every_epochs=2", "trainer.max_steps=null")
    undone = []
    for epochs, longer in ((5, 8), (13, 16)):
        folder = tmp_path / f"{epochs}"
        planned = tmp_path / f"{epochs} planned"
        assert train(folder, *words, f"trainer.max_epochs={epochs}").returncode == 0
        assert train(planned, *words, f"trainer.max_epochs={longer}").returncode == 0
        noted = checkpoint.load(folder / "checkpoints" / "last.pt")["progress"][
            "plateau"
        ]
        done = command("scripts/resume.py", str(folder), f"trainer.max_epochs={longer}")
        undone.append(noted["without_gain"] > 0)
        if not undone[-1]:
            assert "learning rates" in refusal(done)
        else:
            assert (done.returncode, done.stderr) == (0, "")
            assert differences(planned, folder) == []
    assert undone == [True, False]
    step = checkpoint.load(planned / "checkpoints" / "previous.pt")["progress"]["step"]
    trust = ("--trust", "tests.tiny", "--from-step", str(step))
    assert command("scripts/verify.py", str(planned), *trust).returncode == 0


class Scheduled(Supervised):
    """Has a scheduler, which it keeps in a list or only by a function, and steps in
    validations."""

    def __init__(self, kept: bool, steps: bool) -> None:
        self.kept = kept
        self.steps = steps

    def configure_optimizers(
        self, model: nn.Module, make: Make
    ) -> torch.optim.Optimizer:
        optimizer = make(model.named_parameters())
        scheduler = StepLR(optimizer, 1, gamma=0.5)
        self.schedulers = [scheduler] if self.kept else []
        self.step = scheduler.step
        return optimizer

    def compute(self, values: Any) -> Any:
        if self.steps:
            with warnings.catch_warnings():
                # it steps before the optimizer, for PyTorch
                warnings.simplefilter("ignore")
                self.step()
        return super().compute(values)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("++method.kept=true", "++method.steps=false"), "method: expected a schedule"),
        (
            ("++method.kept=false", "++method.steps=true"),
            "schedule: expected learning rates that",
        ),
    ],
)
def test_a_scheduler_of_torch_is_refused(
    words: tuple[str, ...],
    line: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Wherever it is kept, if it takes a step. Negative control: one that never
    does."""
    plain = of_method("Scheduled", "trainer.max_steps=8", module=__name__)
    assert refused(tmp_path / "run", capsys, *plain, *words).startswith(line)
    idle = ("++method.kept=false", "++method.steps=false")
    assert work(begun(tmp_path / "idle", *plain, *idle)) == 0


def test_a_plateau_without_validations_is_refused(tmp_path: Path) -> None:
    words = (*SHORT, "schedule=plateau", "trainer.validate_every_epochs=0")
    assert refusal(train(tmp_path, *words)).startswith(
        "trainer.validate_every_epochs: expected"
    )


def test_a_replay_has_the_learning_rates_of_the_run() -> None:
    """From the beginning and from a checkpoint. Negative control: not without the
    validations."""
    run = whole(*WORDS)
    rates = rates_of(run)
    last = 60
    assert len({*rates[40:]}) > 1, (
        "negative control: they fell after the first checkpoint below"
    )
    settings = config.check(record.read_config(run))
    rows = record.read_metrics(run)
    recorded = [
        {k: v for k, v in row.items() if v} for row in record.read_fingerprints(run)
    ]

    def replayed(
        step: int, *checkpoints: Path, validations: Any = rows
    ) -> list[record.Row]:
        trace = replay.replay(settings, step, checkpoints, validations=validations)
        assert len(trace.rows) == step - trace.start
        return trace.rows

    assert replayed(last) == recorded
    for name in record.LAST_CHECKPOINTS:
        path = run / "checkpoints" / name
        start = checkpoint.progress_of(checkpoint.load(path)).step
        if start < last:
            assert replayed(last, path) == recorded[start:]
    assert replayed(last, validations=()) != recorded, "negative control"
