"""float16 with gradient scaling: overflows skip the step, and the scale is part of the
state."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from seedbed import record
from seedbed.errors import InputError
from seedbed.methods import Supervised
from seedbed.pipeline.positions import Position
from seedbed.pipeline.source import Batch, Source
from seedbed.tasks import Classification
from seedbed.training import scaling
from seedbed.training.scaling import Scaler, Unscaled
from seedbed.training.shards import Shards
from seedbed.training.state import TrainingState
from seedbed.training.step import train_step
from tests.distributed.test_distributed import in_processes
from tests.run.runs import begun, of_method, refused, resumed, trained, work
from tests.running import QUICK, command
from tests.running import trained as trained_by_command
from tests.tiny.data import Noisy
from tests.tiny.models import Dense

FLOAT16 = ("trainer.precision=float16", "trainer.max_steps=14")


class Overflowing(Supervised):
    """Has a gradient of twice the scale in float16 where sample 0 is: too large from
    2**15 on."""

    def training_step(self, model: nn.Module, batch: Batch, optimizer: str) -> Any:
        number = next(model.parameters()).sum()
        factor = 2.0 * bool((batch.ids == 0).any())
        loss: Tensor = super().training_step(model, batch, optimizer)["loss"]
        return loss + factor * (number - number.detach()).half().float()


def words(*more: str) -> tuple[str, ...]:
    return of_method("Overflowing", *FLOAT16, *more, module=__name__)


@pytest.mark.usefixtures("this_process_trains")
def test_an_overflow_skips_the_step_and_halves_the_scale(tmp_path: Path) -> None:
    """In the record. Negative control: in all other steps the weights change."""
    folder = trained(tmp_path / "run", *words())
    rows = [row for row in record.read_metrics(folder) if row["phase"] == "train"]
    weights = [row["weights"] for row in record.read_fingerprints(folder)]
    scales = [float(row["loss_scale"]) for row in rows]
    skipped = [float(row["skipped_steps"]) for row in rows]
    skips = [bool(now - before) for before, now in itertools.pairwise([0.0, *skipped])]
    assert sum(skips) == skipped[-1] == 2, "two epochs with an overflow, one without"
    assert scales == [2.0 ** (16 - count) for count in [0.0, *skipped[:-1]]]
    kept = [before == now for before, now in itertools.pairwise(weights)]
    assert kept == skips[1:]


@pytest.mark.usefixtures("this_process_trains")
def test_a_resumed_run_has_the_scale_and_its_counter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped between and after overflows and growths, with slices and clipped
    gradients."""
    monkeypatch.setattr(scaling, "GROWS_AFTER", 3)
    more = words("trainer.shards=4", "trainer.gradient_clip_norm=0.1")
    whole = trained(tmp_path / "whole", *more)
    for check in (3, 6):
        resumed(tmp_path / str(check), whole, check, *more)


@pytest.mark.usefixtures("this_process_trains")
def test_several_optimizers_share_a_scale(tmp_path: Path) -> None:
    more = of_method("WassersteinGAN", *FLOAT16)
    resumed(tmp_path / "run", trained(tmp_path / "whole", *more), 5, *more)


def steps(
    processes: Any, scaler: Unscaled, precision: torch.dtype | None = None
) -> Any:
    """Take 14 steps over 4 slices; return the weights, and the state of the scaler."""
    torch.manual_seed(0)
    method = (
        Overflowing(Classification()) if precision else Supervised(Classification())
    )
    model = Dense(8, 3, 16, 0.1)
    training = TrainingState(
        model,
        {"optimizer": torch.optim.AdamW(model.parameters(), lr=0.01)},
        method,
        torch.device("cpu"),
        autocast=precision,
        scaler=scaler,
        gradient_clip_norm=0.1,
        strict=True,
    )
    shards = Shards(4, ranks=processes)
    source = Source(Noisy(48), "train", 0)
    shards.begin(training, 0)
    for step in range(1, 15):
        ids = np.arange(8 * step - 8, 8 * step) % 48
        places = list(shards.divide(iter([Position(step // 6, ids)])))
        train_step(
            training, [source[place] for place in places], step, shards, True, None
        )
    weights = [parameter.detach().numpy().tobytes() for parameter in model.parameters()]
    return weights, scaler.state()


def test_scales_change_no_bit_of_float32() -> None:
    """They are powers of two, and clipping comes after unscaling."""
    scaled, state = steps(None, Scaler())
    assert state["skipped_steps"] == 0
    assert scaled == steps(None, Unscaled())[0]


@pytest.mark.long
def test_any_number_of_processes_skips_the_same_steps() -> None:
    """Only one slice overflows, so that other processes know of it by the sum alone."""

    def work(processes: Any) -> Any:
        return steps(processes, Scaler(), torch.float16)

    alone = in_processes(1, work)[0]
    assert alone[1]["skipped_steps"] == 2
    for count in (2, 4):
        found = in_processes(count, work)
        assert [found[rank] for rank in range(count)] == [alone] * count


def test_gradients_that_no_scale_makes_finite_are_refused() -> None:
    """Negative control: one finite step less, and nothing is said."""
    scaler = Scaler()
    for step in range(1, 31):
        assert not scaler.accepts([torch.ones(2), torch.tensor([1.0, torch.nan])])
        scaler.end_step(step)
    assert scaler.scale == scaling.SMALLEST
    scaler.accepts([torch.tensor([torch.inf])])
    with pytest.raises(InputError, match=r"^gradients: NaN or Inf in step 31 "):
        scaler.end_step(31)


@pytest.mark.usefixtures("this_process_trains")
def test_what_cannot_be_scaled_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lbfgs = ("~optimizer", "+optimizer={name:lbfgs,_target_:torch.optim.LBFGS,lr:1.0}")
    said = refused(tmp_path / "run", capsys, *words(*lbfgs))
    assert said.startswith(
        "trainer.precision: expected float32 or bfloat16 with an optimizer whose"
    )


@pytest.mark.usefixtures("this_process_trains")
def test_bfloat16_needs_no_scale(tmp_path: Path) -> None:
    folder = begun(tmp_path / "run", *words("trainer.precision=bfloat16"))
    assert work(folder) == 0
    assert "loss_scale" not in record.read_metrics(folder)[0]


@pytest.mark.long
def test_a_run_in_float16_is_rehearsed_verified_and_evaluated(tmp_path: Path) -> None:
    run = trained_by_command(tmp_path / "run", *QUICK, "trainer.precision=float16")
    assert "REPRODUCED" in command("scripts/verify.py", str(run)).stdout
    again = trained_by_command(tmp_path / "again", *QUICK, "trainer.precision=float16")
    assert command("scripts/compare.py", str(run), str(again)).returncode == 0
    done = command("scripts/evaluate.py", str(run), "--checkpoint", "last")
    assert done.returncode == 0, done.stderr


class Converted(Dense):
    """Has weights in float16."""

    def __init__(self) -> None:
        super().__init__(8, 3, 4, 0.0)
        self.half()


@pytest.mark.usefixtures("this_process_trains")
def test_weights_in_float16_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = {"name": "half", "_target_": f"{__name__}.Converted"}
    more = of_method("Overflowing", *FLOAT16, module=__name__, model=model)
    assert refused(tmp_path / "run", capsys, *more).startswith(
        "model.0.weight: expected float32 "
    )
