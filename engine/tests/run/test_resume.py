"""Resuming a run: the same bits wherever it stopped; changes are printed or refused."""

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import yaml
from torch import Tensor, nn
from torch.utils.data import Dataset

from seedbed import environment, launch, record
from seedbed.methods import Make, Supervised
from seedbed.record import Change, code, plots, untrusted
from seedbed.run.run_logger import RunLogger
from seedbed.training import checkpoint, digests
from tests import tiny
from tests.made_up_runs import contents
from tests.run import runs
from tests.run.runs import EARLY_STOPPING, LSTM, StopAt, resumed, work
from tests.running import command, refusal, train
from tests.training.test_checkpoint import Killed
from tests.ways import differences

pytestmark = pytest.mark.usefixtures("this_process_trains")

whole = partial(runs.whole, *LSTM)


def begun(folder: Path, *overrides: str) -> Path:
    return runs.begun(folder, *LSTM, *overrides)


def stopped(folder: Path, check: int = 9, *overrides: str) -> Path:
    """Return a tiny run that was interrupted at a check."""
    assert work(begun(folder, *overrides), StopAt(check)) == 143
    return folder


@pytest.mark.parametrize(
    ("every", "overrides"),
    [pytest.param(1, (), marks=pytest.mark.long), (7, EARLY_STOPPING)],
)
def test_a_run_stopped_at_any_point_ends_with_the_same_bits(
    every: int, overrides: tuple[str, ...], tmp_path: Path
) -> None:
    """Between any two steps, in any validation, in the test; early stopping keeps its
    count."""
    reference = whole(*overrides)
    counted = StopAt()
    assert work(begun(tmp_path / "counted", *overrides), counted) == 0
    assert counted.checks > 20
    # the last one in the test
    for check in {*range(1, counted.checks, every), counted.checks}:
        resumed(tmp_path / str(check), reference, check, *LSTM, *overrides)


class Computed(Dataset[tuple[Tensor, int]]):
    """As many samples as asked for, each computed from its index."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.sin(torch.arange(tiny.FEATURES) * float(index)), index % 3


@pytest.mark.parametrize("samples", [10**6, 10**9])
def test_a_run_stopped_within_a_long_epoch_ends_with_the_same_bits(
    tmp_path: Path, samples: int
) -> None:
    """Also where the order of an epoch is computed in parts, not sorted as a whole."""
    train = {"_target_": f"{__name__}.Computed", "samples": samples}
    data = tiny.DATA | {"train": train, "compare_splits": False}
    words = (*runs.SHORT, *tiny.overrides(data=data))
    reference = runs.whole(*words)
    resumed(tmp_path / "run", reference, 9, *words)


def test_zeros_that_a_power_cut_left_in_tables_are_written_over(tmp_path: Path) -> None:
    """The run ends with the same bits."""
    folder = stopped(tmp_path / "run")
    for name in ("metrics.csv", "fingerprints.csv"):
        with (folder / name).open("ab") as table:
            table.write(b"9,0." + bytes(untrusted.MAX_LINE_BYTES))
    assert work(folder) == 0
    assert differences(whole(), folder) == []


def results(run: Path) -> tuple[dict[str, Any], dict[int, float]]:
    rows = [row for row in record.read_metrics(run) if row["phase"] == "test"]
    return record.read_summary(run), {
        int(row["step"]): float(row["loss"]) for row in rows
    }


def test_the_best_weights_are_tested_and_the_last_ones_stay() -> None:
    """Testing other weights changes no bit of training. tools/test_evaluate.py tests
    both again.

    Negative control, also for early stopping: a run whose last weights are the best.
    """
    run = whole(*EARLY_STOPPING)
    other = whole(*EARLY_STOPPING, "trainer.test_weights=last")
    (summary, losses), (last, last_losses) = results(run), results(other)
    assert (summary["best_step"], summary["tested_step"], summary["steps"]) == (
        12,
        12,
        20,
    )
    assert list(losses) == [20, 12]
    assert losses[12] < losses[20]
    assert summary["metrics"]["test_loss"] == losses[12]
    assert summary["last_metrics"]["test_loss"] == losses[20]
    rows = {(row["phase"], row["step"]): row for row in record.read_metrics(run)}
    for name, step in (("metrics", "12"), ("last_metrics", "20")):
        assert summary[name]["validation_loss"] == float(
            rows["validation", step]["loss"]
        )
    train_loss = float(rows["train", "20"]["loss"])
    assert summary["last_metrics"]["train_loss"] == train_loss
    names = {
        f"{phase}_{name}"
        for phase in ("validation", "test")
        for name in ("loss", "mse")
    }
    assert set(summary["metrics"]) == names
    assert (last["tested_step"], last_losses) == (20, {20: losses[20]})
    assert last["metrics"]["test_loss"] == losses[20]
    assert {**last["metrics"], "train_loss": train_loss} == last["last_metrics"]
    assert last["last_metrics"] == summary["last_metrics"]
    assert last["fingerprints"]["weights"] == summary["fingerprints"]["weights"]
    assert set(differences(run, other)) == {
        "metrics.csv",
        "test_predictions.csv",
        "summary: metrics",
        "summary: objective",
        "summary: fingerprints",
    }
    summary, losses = results(whole())
    assert (summary["best_step"], summary["tested_step"], list(losses)) == (
        14,
        14,
        [14],
    )
    assert summary["stopped_early"] is None


@pytest.mark.parametrize(
    ("words", "name", "section"),
    [
        ((), "validation_mse", "metrics"),
        (("trainer.monitor=loss",), "validation_loss", "metrics"),
        (("objective=test_loss",), "test_loss", "metrics"),
        (("objective=last_test_loss",), "test_loss", "last_metrics"),
    ],
)
def test_the_objective_is_of_the_weights_that_count(
    words: tuple[str, ...], name: str, section: str
) -> None:
    """By default it is the monitored value. Negative control: the last weights' is
    another."""
    run = whole(*EARLY_STOPPING, *words)
    summary = record.read_summary(run)
    assert (
        launch.objective(run) == summary["objective"]["value"] == summary[section][name]
    )
    assert summary["metrics"][name] != summary["last_metrics"][name]


RARELY = ("trainer.log_every_steps=3", "trainer.max_steps=14")  # 4 steps per epoch


def test_means_of_an_epoch_stand_in_the_row_of_its_last_step(tmp_path: Path) -> None:
    """Of the loss over all steps, of named values over those that are logged; a run
    that was stopped within an epoch has the same ones. Negative control: single steps
    have other values."""
    run = whole(*RARELY)
    every, rarely = (
        {
            int(row["step"]): row
            for row in record.read_metrics(each)
            if row["phase"] == "train"
        }
        for each in (whole(), run)
    )
    assert [*rarely] == [3, 4, 6, 8, 9, 12, 14]
    assert {step for step, row in rarely.items() if row["loss_epoch"]} == {4, 8, 12}
    for last, logged in ((4, (3, 4)), (8, (6, 8)), (12, (9, 12))):
        losses = [float(every[step]["loss"]) for step in range(last - 3, last + 1)]
        assert float(rarely[last]["loss_epoch"]) == sum(losses) / 4 != losses[-1]
        values = [float(every[step]["mse"]) for step in logged]
        assert float(rarely[last]["mse_epoch"]) == sum(values) / 2 != values[-1]
    assert "learning_rate_epoch" not in rarely[4]
    for last_step in (6, 7):
        folder = begun(tmp_path / str(last_step), *RARELY)
        assert work(folder, last_step=last_step) == 143
        assert work(folder) == 0
        assert differences(run, folder) == []


def test_what_is_written_down_comes_when_planned_and_changes_no_bit() -> None:
    """Validation, logging, fingerprints and checkpoints, at any interval, and in the
    last step."""
    often = (
        "trainer.validate_every_epochs=2",
        "trainer.log_every_steps=4",
        "fingerprint.every_steps=3",
        "trainer.checkpoint_every_steps=0",
    )
    other = whole(*often)
    assert not {"last.pt: model", "last.pt: optimizer"} & set(
        differences(whole(), other)
    )
    rows = [(row["phase"], int(row["step"])) for row in record.read_metrics(other)]
    assert [step for phase, step in rows if phase == "train"] == [4, 8, 12, 14]
    assert [step for phase, step in rows if phase == "validation"] == [8, 14]


@pytest.mark.parametrize(
    "word",
    [
        "trainer.rehearse_resume=True",
        "trainer.replay_every_steps=5",
        "trainer.device=cpu",
        "determinism.fingerprint_every_steps=7",
        "trainer.validate_every_epochs=2",
        "trainer.test_weights=last",
    ],
)
def test_settings_that_change_no_step_may_change_on_resume(
    word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is printed, and the weights are those of the whole run. What decides which
    weights are the best is in the record as a change."""
    key, _, value = word.partition("=")
    folder = stopped(tmp_path / "run")
    assert work(folder, settings={key: yaml.safe_load(value)}) == 0
    assert "changed since step" in capsys.readouterr().out
    found = {each.partition(": ")[0] for each in differences(whole(), folder)}
    assert not {"last.pt", "fingerprints.csv"} & found, found
    [resume] = record.read_summary(folder)["resumes"]
    selects = key in ("trainer.validate_every_epochs", "trainer.test_weights")
    assert resume["can_alter_bits"] == [key] * selects


@pytest.mark.parametrize(
    ("overrides", "key", "value"),
    [
        (EARLY_STOPPING, "trainer.validate_every_epochs", 2),
        ((), "data.eval_batch_size", 19),
    ],
)
def test_settings_that_steps_depend_on_are_refused_on_resume(
    overrides: tuple[str, ...],
    key: str,
    value: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Early stopping counts validations."""
    folder = stopped(tmp_path / "run", 9, *overrides)
    assert work(folder, settings={key: value}) == 2
    assert f"got {key} " in capsys.readouterr().err


def test_a_damaged_checkpoint_falls_back_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run resumes from the previous checkpoint and ends with the same bits."""
    folder = stopped(tmp_path / "run")
    (folder / "checkpoints" / "last.pt").write_bytes(b"")
    assert work(folder) == 0
    assert "last.pt: expected a checkpoint of Seedbed" in capsys.readouterr().out
    assert differences(whole(), folder) == []


def cut_checkpoints(folder: Path) -> None:
    for name in ("last.pt", "previous.pt"):
        os.truncate(folder / "checkpoints" / name, 1000)


def take_those_of_another_model(folder: Path) -> None:
    other = stopped(folder.parent / "other", 9, "model.hidden_size=5")
    shutil.rmtree(folder / "checkpoints")
    shutil.copytree(other / "checkpoints", folder / "checkpoints")


def edit_settings(folder: Path) -> None:
    path = folder / "config.yaml"
    path.write_text(path.read_text().replace("weight_decay: ", "weight_decay: 1"))


def forge_best(folder: Path) -> None:
    """Exchange the best weights for others of the same step, with their own SHA-256."""
    path = folder / "checkpoints" / checkpoint.BEST
    state = checkpoint.load(path)
    assert 0 < state["step"] < record.read_summary(folder)["steps"], (
        "else it is written again"
    )
    state["model"] = {name: 2 * x for name, x in state["model"].items()}
    state[digests.WEIGHTS] = digests.of_weights(state)
    checkpoint.save(state, path)


def edit_code(folder: Path) -> None:
    """Change the digest of the model's file in the checkpoint, as if the file had
    changed."""
    state = checkpoint.load(folder / "checkpoints" / "last.pt")
    state["origin"]["environment"]["imported_files"]["src/tiny/recurrent.py"] = "0" * 64
    checkpoint.save(state, folder / "checkpoints" / "last.pt")


@pytest.mark.parametrize(
    ("damage", "request_", "expected"),
    [
        (cut_checkpoints, {}, "last.pt"),
        (take_those_of_another_model, {}, "model.hidden_size 5 -> 4"),
        (
            take_those_of_another_model,
            {"allow_changed": True},
            "whose SHA-256 is in summary.json",
        ),
        (forge_best, {}, "best.pt: expected the weights of step"),
        (
            lambda _: None,
            {"settings": {"trainer.max_epochs": 1}, "allow_changed": True},
            "error: trainer.max_steps: expected a run of at least ",
        ),
        (lambda _: None, {"settings": {"optimizer.lr": 0.5}}, "optimizer.lr"),
        (edit_settings, {}, "optimizer.weight_decay"),
        (edit_code, {}, "src/tiny/recurrent.py"),
        (
            lambda _: os.environ.update(OMP_SCHEDULE="static"),
            {},
            "env.OMP_SCHEDULE None -> static",
        ),
    ],
)
def test_what_would_not_have_the_same_bits_is_refused(
    damage: Callable[[Path], Any],
    request_: dict[str, Any],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The refusal is one line, and the record stays unchanged."""
    monkeypatch.setenv("OMP_SCHEDULE", "")
    monkeypatch.delenv("OMP_SCHEDULE")
    folder = stopped(tmp_path / "run")
    damage(folder)
    before = contents(folder)
    capsys.readouterr()
    assert work(folder, **request_) == 2
    assert contents(folder) == before
    out, errors = capsys.readouterr()
    assert (out, errors.count("\n")) == ("", 1)
    assert expected in errors


def test_what_cannot_alter_bits_may_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The change is printed, recorded and kept, and the bits are the same."""
    folder = stopped(tmp_path / "run")
    step = record.read_summary(folder)["steps"]
    changed = {
        "data.num_workers": 1,
        "data.prefetch_factor": 5,
        "data.persistent_workers": False,
    }
    assert work(folder, StopAt(2), settings=changed) == 143
    out = capsys.readouterr().out
    assert f"changed since step {step}: data.num_workers 0 -> 1" in out
    assert record.read_config(folder).data.num_workers == 1
    assert work(folder) == 0
    assert differences(whole(), folder) == []
    first, second = record.read_summary(folder)["resumes"]
    assert first["step"] == step
    assert first["changes"]["data.num_workers"] == [0, 1]
    assert second["changes"] == {}
    assert record.altered(record.read_summary(folder)) == []


def test_rows_so_far_stay_where_later_ones_are_rarer(tmp_path: Path) -> None:
    """Also the row of the last step, which is not due at the new interval."""
    folder = stopped(tmp_path / "run")
    before = record.read_metrics(folder), record.read_fingerprints(folder)
    assert [rows[-1]["step"] for rows in before] == 2 * [
        str(record.read_summary(folder)["steps"])
    ]
    assert int(before[0][-1]["step"]) % 5
    assert (
        work(
            folder,
            settings={"trainer.log_every_steps": 5, "fingerprint.every_steps": 5},
        )
        == 0
    )
    after = record.read_metrics(folder), record.read_fingerprints(folder)
    for rows, longer in zip(before, after, strict=True):
        assert longer[: len(rows)] == rows


def test_a_change_that_can_alter_bits_is_allowed_where_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is printed and recorded with the step where it takes effect; the old code is
    kept."""
    folder = stopped(tmp_path / "run")
    edit_code(folder)
    assert work(folder, settings={"optimizer.lr": 0.5}, allow_changed=True) == 0
    assert "optimizer.lr 0.0" in capsys.readouterr().out
    assert record.read_config(folder).optimizer.lr == 0.5
    summary = record.read_summary(folder)
    assert summary["resumes"][0]["changes"]["optimizer.lr"][1] == 0.5
    step = summary["resumes"][0]["step"]
    altered = ["optimizer.lr", "src/tiny/recurrent.py"]
    [(changed_at, changes)] = record.altered(summary)
    assert (changed_at, [*changes]) == (step, altered)
    assert changes["optimizer.lr"].endswith(" -> 0.5")
    assert (folder / f"code_until_step_{step}.zip").exists()
    assert "last.pt: model" in differences(whole(), folder)


class Tuned(Supervised):
    """Passes options of its own to its optimizer, which counts its steps in another
    one."""

    def __init__(self, lr: float, momentum: float) -> None:
        self.options = {"lr": lr, "beta": momentum}

    def configure_optimizers(
        self, model: nn.Module, make: Make
    ) -> torch.optim.Optimizer:
        optimizer: Any = make(model.named_parameters(), **self.options)
        optimizer.train()
        return optimizer  # type: ignore[no-any-return]


def test_options_that_a_method_sets_are_those_of_the_changed_settings(
    tmp_path: Path,
) -> None:
    """Negative control: other options stay, such as an optimizer's own count of
    steps."""
    free = tiny.replaced("optimizer", "tests.odd_optimizers.ScheduleFree", lr=0.5)
    words = (*free, "schedule=constant", "++method.lr=0.125", "++method.momentum=0.9")
    folder = runs.begun(tmp_path, *runs.of_method("Tuned", *words, module=__name__))
    assert work(folder, StopAt(9)) == 143
    changed = {"method.lr": 0.25, "method.momentum": 0.8, "optimizer.lr": 0.75}
    assert work(folder, settings=changed, allow_changed=True) == 0
    step = record.read_summary(folder)["resumes"][0]["step"]
    train = [row for row in record.read_metrics(folder) if row["phase"] == "train"]
    rates = [float(row["learning_rate"]) for row in train]
    assert rates == [0.125] * step + [0.25] * (14 - step)
    (group,) = checkpoint.load(folder / "checkpoints" / "last.pt")["optimizer"][
        "param_groups"
    ]
    assert (group["lr"], group["beta"], group["k"]) == (0.25, 0.8, 14)


def test_a_run_without_a_checkpoint_starts_from_the_beginning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run killed before its first one says so. Negative control: a new run does
    not."""
    folder = stopped(tmp_path / "run")
    shutil.rmtree(folder / "checkpoints")
    first = capsys.readouterr().out
    assert work(folder) == 0
    for out, says in ((first, False), (capsys.readouterr().out, True)):
        assert ("from the start: it has no checkpoint" in out) is says
    assert differences(whole(), folder) == []
    assert record.read_summary(folder)["resumes"] == []


def test_the_code_of_steps_that_are_left_is_kept_for_good(tmp_path: Path) -> None:
    """Resuming again from the same or an earlier step discards the steps of the code in
    between."""
    path = tmp_path / code.ARCHIVE
    changed = [Change("src/a.py", "1", "2", kind="code")]
    path.write_bytes(b"A: steps 1 to 200")
    environment.keep_code(tmp_path, 100, [Change("seed", 0, 1)])
    for content, step in ((b"B", 200), (b"C", 200), (b"D", 150)):
        environment.keep_code(tmp_path, step, changed)
        path.write_bytes(content)
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("code_until_*")}
    assert kept == {"code_until_step_200.zip": b"A: steps 1 to 200"}
    environment.keep_code(tmp_path, 300, changed)  # negative control: D made steps
    assert (tmp_path / "code_until_step_300.zip").read_bytes() == b"D"


@pytest.mark.parametrize(
    "moment", ["before best.pt", "after best.pt", "at the very end"]
)
def test_best_weights_are_those_that_the_checkpoint_calls_the_best(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run killed before or after writing them, or while plotting, keeps the status
    running; the resumed run has them and ends with the same bits."""
    folder = begun(tmp_path / "run", *EARLY_STOPPING)
    original = checkpoint.save

    def save(state: dict[str, Any], path: Path, **options: bool) -> None:
        # none after it is better
        is_best = path.name == "best.pt" and state["step"] == 12
        if moment != "before best.pt" or not is_best:
            original(state, path, **options)
        if is_best and moment != "at the very end":
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", save)
        patch.setattr(plots, "loss_curve", Mock(side_effect=Killed))
        with pytest.raises(Killed):
            work(folder)
    assert record.read_summary(folder)["status"] == "running"
    assert work(folder) == 0
    assert differences(whole(*EARLY_STOPPING), folder) == []


def test_a_resume_that_fails_early_keeps_what_the_summary_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails by an error other than a full disk, with exit status 1."""
    run = stopped(tmp_path / "run")
    before = record.read_summary(run)
    error = FileNotFoundError(2, "No such file", "digit.png")
    monkeypatch.setattr(RunLogger, "_log_header", Mock(side_effect=error))
    assert work(run) == 1
    after = record.read_summary(run)
    assert after["error"].startswith("FileNotFoundError: ")
    assert (after["status"], after["steps"]) == ("failed", before["steps"])
    assert after["metrics"] == before["metrics"]


# 4 steps per epoch; step 12 is logged and hashed only because it is the last.
LONG = (
    *LSTM,
    "trainer.max_steps=null",
    "trainer.log_every_steps=5",
    "fingerprint.every_steps=5",
)


# In the second case, the last validation is not the best, and the longer run has none
# there.
@pytest.mark.parametrize(
    "words",
    [
        (),
        pytest.param(
            ("trainer.validate_every_epochs=2", "optimizer.lr=0"),
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_longer_run_has_the_bits_of_one_from_the_start(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    """Tables, weights, best weights and summary. Negative control: the short run
    differs."""
    folder = tmp_path / "run"
    whole = tmp_path / "whole"
    words = (*LONG, *words, "schedule=constant", "trainer.early_stopping_patience=3")
    for run, epochs in ((folder, 3), (whole, 5)):
        assert train(run, *words, f"trainer.max_epochs={epochs}").returncode == 0
    assert differences(whole, folder)
    done = command("scripts/resume.py", str(folder), "trainer.max_epochs=5")
    assert (done.returncode, done.stderr) == (0, "")
    assert differences(whole, folder) == []
    assert record.altered(record.read_summary(folder)) == []
    assert command("scripts/verify.py", str(folder)).returncode == 0


@pytest.mark.long
def test_a_run_that_stopped_early_goes_on_with_more_patience(tmp_path: Path) -> None:
    """More steps alone are refused. Negative control: less patience can alter bits."""
    early = tmp_path / "early"
    patient = tmp_path / "patient"
    words = (*LSTM, *EARLY_STOPPING)
    assert train(early, *words).returncode == 0
    more = "trainer.early_stopping_patience=4"
    assert train(patient, *words, more).returncode == 0
    for longer in (
        ("trainer.max_steps=28",),
        ("trainer.max_steps=28", f"{more[:-1]}2"),
    ):
        line = refusal(command("scripts/resume.py", str(early), *longer))
        assert line.startswith(
            "trainer.early_stopping_patience: expected more than the 2 validat"
        )
    assert "patience 2 -> 1" in refusal(
        command("scripts/resume.py", str(early), f"{more[:-1]}1")
    )
    done = command("scripts/resume.py", str(early), more)
    assert (done.returncode, done.stderr) == (0, "")
    assert differences(patient, early) == []
    assert record.read_summary(early)["steps"] == 24
    assert record.altered(record.read_summary(early)) == []


@pytest.mark.long
def test_what_cannot_go_on_is_refused_in_one_line(tmp_path: Path) -> None:
    """A schedule that depends on the length, a final validation that a longer run
    lacks, no steps left, invalid settings; the record stays unchanged."""
    stretched, odd, whole, counted = (tmp_path / str(number) for number in range(4))
    constant = ("schedule=constant", "trainer.max_epochs=1")
    norms = ("+callbacks.norms._target_=tests.tiny.methods.Norms", "optimizer.lr=0")
    three = (
        "schedule=constant",
        "trainer.max_epochs=3",
        "trainer.validate_every_epochs=2",
    )
    for folder, words in (
        (stretched, ("trainer.max_epochs=1",)),
        (odd, (*constant, "trainer.max_steps=2")),
        (whole, constant),
        (counted, (*norms, *three)),
    ):
        assert train(folder, *LONG, *words).returncode == 0
    for folder, override, reason in (
        (
            stretched,
            "trainer.max_epochs=2",
            f"{stretched} trainer.max_epochs=2 --allow-changed",
        ),
        (odd, "trainer.max_steps=4", "a longer one has as well"),
        (counted, "trainer.max_epochs=5", "callbacks' state come from it"),
        (whole, "trainer.max_epochs=1", "expected a run of more than 4 steps"),
        (whole, "data.num_workers=1", "one that finished"),
        (
            whole,
            "data.num_worker=3",
            "data.num_worker: expected a key of the run's config.yaml",
        ),
        (
            whole,
            "data.num_workers=-1",
            "data.num_workers: expected an integer from 0 to 1024",
        ),
        (whole, "nonsense", "overrides: expected Hydra's key=value syntax"),
    ):
        before = contents(folder)
        line = refusal(command("scripts/resume.py", str(folder), override))
        assert reason in line, line
        assert contents(folder) == before
