"""The monitored value says which weights are the best; a best value goes with its
metric."""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import seedbed
from seedbed import record
from seedbed.errors import InputError
from seedbed.record import Change, Monitor
from seedbed.run import restore
from seedbed.training import checkpoint
from seedbed.training.state import Progress
from tests import tiny
from tests.made_up_runs import edit_summary
from tests.run.runs import SHORT, begun, of_method, whole, work
from tests.running import ENGINE, command
from tests.tiny.data import Noisy
from tests.ways import differences

pytestmark = pytest.mark.usefixtures("this_process_trains")

# 6 steps per epoch, a validation after each; the last one is after 24.
VAE = of_method("VAE", "~data.task", "trainer.max_steps=24", "schedule=constant")


@pytest.mark.parametrize("last_step", [12, 14])  # just validated, or not
def test_a_resume_that_monitors_another_value_starts_a_new_best(
    last_step: int, tmp_path: Path
) -> None:
    """The weights it resumes from are measured anew if they were validated. No step
    depends on it.

    Negative control: the old best, a loss, is higher than any value of the new metric.
    """
    folder = begun(tmp_path / "run", *VAE)
    assert work(folder, last_step=last_step) == 143
    old = checkpoint.load(folder / "checkpoints" / "best.pt")
    assert work(folder, settings={"trainer.monitor": "kl", "trainer.mode": "max"}) == 0
    summary = record.read_summary(folder)
    rows = [row for row in record.read_metrics(folder) if row["phase"] == "validation"]
    assert [int(row["step"]) for row in rows] == [6, 12, 18, 24]
    measured = {
        int(row["step"]): float(row["kl"])
        for row in rows
        if int(row["step"]) >= last_step
    }
    best = checkpoint.load(folder / "checkpoints" / "best.pt")
    assert old["monitor"] == "loss"
    assert best["monitor"] == summary["metric_name"] == "kl"
    assert best["metric"] == max(measured.values()) == measured[best["step"]]
    assert (
        best["metric"]
        == summary["metrics"]["validation_kl"]
        == summary["objective"]["value"]
    )
    assert (summary["best_step"], summary["tested_step"]) == (
        best["step"],
        best["step"],
    )
    assert summary["resumes"][0]["best_starts_anew"] == last_step
    assert record.new_best_steps(summary) == [last_step]
    assert old["metric"] > max(measured.values())
    found = {each.partition(": ")[0] for each in differences(whole(*VAE), folder)}
    assert not {"last.pt", "fingerprints.csv"} & found


@pytest.mark.long
@pytest.mark.parametrize("last_step", [12, 14])
def test_a_run_whose_monitor_was_changed_is_reproduced(
    last_step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay starts a new best at the same step; earlier checkpoints are compared
    by weights.

    Negative controls: another weight in such a checkpoint, and a summary that tells of
    no new best.
    """
    monkeypatch.setenv("PYTHONPATH", str(ENGINE))
    words = (
        *VAE,
        "trainer.keep_checkpoint_every_steps=5",
        "trainer.monitor=loss",
        "optimizer.lr=0.1",
    )
    folder = begun(tmp_path / "run", *words, "trainer.mode=max")
    assert work(folder, last_step=last_step) == 143
    assert work(folder, settings={"trainer.monitor": "kl", "trainer.mode": "min"}) == 0
    summary = record.read_summary(folder)
    done = command("scripts/verify.py", str(folder), "--json")
    assert done.returncode == 0, done.stdout
    earlier = f"chain.csv: state before step {last_step}, where the best starts anew"
    assert earlier in json.loads(done.stdout)["not_compared"]
    shutil.copytree(folder, other := tmp_path / "other")
    state = checkpoint.load(other / "checkpoints" / "step_5.pt")
    next(iter(state["model"].values())).view(-1)[0] += 1
    checkpoint.save(state, other / "checkpoints" / "step_5.pt")
    done = command("scripts/verify.py", str(other))
    assert done.returncode == 1
    assert "step_5.pt: " in done.stdout
    entries = [{**entry, "best_starts_anew": None} for entry in summary["resumes"]]
    edit_summary(folder, resumes=entries)
    assert command("scripts/verify.py", str(folder)).returncode == 1


@pytest.mark.parametrize(
    ("entries", "steps"),
    [
        ([(20, 20)], [20]),
        ([(20, 20), (20, None)], [20]),
        ([(20, 20), (20, 20)], [20, 20]),
        ([(20, 20), (10, 10)], [10]),  # last.pt was damaged
        ([(8, 12), (10, None)], []),  # killed before a checkpoint of step 12
        ([(8, 12), (12, None), (30, 30)], [12, 30]),
        ([("x", True)], []),
    ],
)
def test_a_new_best_is_undone_by_a_resume_from_an_earlier_step(
    entries: list[tuple[Any, Any]], steps: list[int]
) -> None:
    resumes = [{"step": step, "best_starts_anew": anew} for step, anew in entries]
    assert record.new_best_steps({"resumes": resumes}) == steps


def test_the_old_best_weights_stay_until_there_are_new_ones_and_are_not_taken_for_them(
    tmp_path: Path,
) -> None:
    """Negative control: before the change they are loaded."""
    folder = begun(tmp_path / "run", *VAE)
    assert work(folder, last_step=14) == 143
    before = (folder / "checkpoints" / "best.pt").read_bytes()
    seedbed.load(folder, trust=["tests.tiny"])
    assert work(
        folder, settings={"trainer.monitor": "kl", "trainer.mode": "max"}, last_step=16
    )
    assert (folder / "checkpoints" / "best.pt").read_bytes() == before
    assert record.read_summary(folder)["best_step"] == 0
    with pytest.raises(
        InputError, match="expected the best weights by kl, got those of before"
    ):
        seedbed.load(folder, trust=["tests.tiny"])


MSE = Monitor("mse", higher_is_better=False)
OTHER_SAMPLES = Change("data.validation.samples", 40, 50)


@pytest.mark.parametrize(
    ("monitor", "change", "is_new"),
    [
        (MSE, None, False),
        (MSE, Change("optimizer.lr", 1, 2), False),
        (MSE, Change("data.train.samples", 1, 2), False),
        (MSE, Change("gpu.name", "a", "b", kind="environment"), False),
        (MSE, Change("data.dataset.noise", 0.0, 3.0), True),
        (MSE, Change("method.scale", 1.0, 3.0), True),
        (MSE, Change("trainer.precision", "float32", "bfloat16"), True),
        (MSE, Change("seeds.data", 0, 7), True),
        (MSE, Change("data.statistics.mean", 0.0, 1.0), True),
        (MSE, Change("data_sha256", "a", "b", kind="environment"), True),
        (MSE, Change("src/project/task.py", "a", "b", kind="code"), True),
        (MSE, Change("trainer.log_every_steps", 1, 2, alters_bits=False), False),
        (MSE, Change("trainer.monitor", None, "mse"), False),
        (Monitor("mse", higher_is_better=True), None, True),
        (Monitor("loss", higher_is_better=False), None, True),
        (MSE, OTHER_SAMPLES, True),
    ],
)
def test_a_best_value_goes_with_its_metric(
    monitor: Monitor, change: Change | None, is_new: bool
) -> None:
    """So do the counts of early stopping and of a plateau; a resume without changes
    keeps all."""
    counts = {"best_step": 4, "best_metric": 0.5, "validations_without_gain": 1}
    plateau = {"best": 0.5, "without_gain": 1.0}
    before = Progress(
        8, validated_step=8, monitor=MSE, plateau=plateau, seconds=3.0, **counts
    )
    changes = [change] if change else []
    state = {"progress": asdict(before)}
    assert restore.is_best_of_another(state, monitor, changes) is is_new
    assert checkpoint.progress_of(state) == before
    after = checkpoint.progress_of(restore.without_best(state))
    assert after == Progress(8, validated_step=7, seconds=3.0)
    assert not restore.is_best_of_another({"progress": asdict(after)}, monitor, changes)


SAMPLES = "SEEDBED_TEST_VALIDATION"


class Elsewhere(Noisy):
    """Has samples that no setting and no digest of the record knows of."""

    def __getitem__(self, index: int) -> Any:
        point, label = super().__getitem__(index)
        return point + float(os.environ.get(SAMPLES, "0")), label


@pytest.mark.parametrize("shift", ["0", "5"])
def test_other_validation_samples_start_a_new_best_where_changes_are_allowed(
    shift: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Negative control: with the same ones, the best of before stays. No step is
    another one."""
    words = (
        *SHORT,
        *tiny.overrides(tiny.DENSE),
        f"data.validation._target_={__name__}.Elsewhere",
    )
    folder = begun(
        tmp_path / "run", *words, "trainer.monitor=validation_loss", "trainer.mode=min"
    )
    assert work(folder, last_step=9) == 143
    old = checkpoint.progress_of(checkpoint.load(folder / "checkpoints" / "last.pt"))
    monkeypatch.setenv(SAMPLES, shift)
    assert work(folder, settings={"trainer.monitor": "loss"}, allow_changed=True) == 0
    summary = record.read_summary(folder)
    rows = [row for row in record.read_metrics(folder) if row["phase"] == "validation"]
    losses = {int(row["step"]): float(row["loss"]) for row in rows}
    if shift != "0":
        losses = {
            step: loss for step, loss in losses.items() if step > old.validated_step
        }
    assert old.best_step
    assert summary["best_step"] == min(losses, key=lambda step: losses[step])
    anew = None if shift == "0" else min(losses)
    assert summary["resumes"][0].get("best_starts_anew") == anew
    assert ("the validation has other samples" in capsys.readouterr().out) is (
        shift != "0"
    )


def test_why_another_monitor_is_refused_is_said() -> None:
    """Only where validations decide when training stops. Negative control: they do
    not."""
    changes = [Change("trainer.monitor", None, "validation_loss")]
    for patience in (3, None):
        settings: Any = {
            "determinism": {"on_nondeterministic": "error"},
            "schedule": {},
        }
        settings["trainer"] = {"early_stopping_patience": patience}
        state = {"origin": {"settings": settings}, "progress": {"step": 7}}
        if patience is None:
            restore.refuse_changes(Path("run"), state, changes)
        else:
            with pytest.raises(
                InputError, match="early stopping or the schedule counts validat"
            ):
                restore.refuse_changes(Path("run"), state, changes)
