"""Verdicts of the rehearsal on models, methods, optimizers and data sets with state.

Each is trained in real processes: from beginning to end, stopped and resumed, and
rehearsed. It is refused if and only if the bits of the resumed run differ.
"""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from seedbed import config, record, testing
from seedbed.methods import Callback, Run, Seen
from seedbed.run import rehearse
from tests import tiny
from tests.end_to_end.live import begin, processes, until
from tests.run import cases
from tests.run.cases import (
    EVALUATIONS,
    HARMFUL,
    HARMLESS,
    LATE,
    LEFT_BY_STEPS,
    SAMPLES,
    words,
)
from tests.run.runs import METHODS, of_method
from tests.running import ROOT, composed, refusal, train
from tests.tiny.data import Noisy
from tests.ways import differences

OFF = "trainer.rehearse_resume=false"


def ran(place: Path, name: str, *more: str) -> dict[str, str]:
    """Train a case in all ways, in folders of their names; return the error of each, if
    any."""
    rehearsed, plain = (
        config.check(config.resolve(composed(*words(name, *each))))
        for each in (more, (OFF, *more))
    )
    stopped = [(place / "resumed", plain)]
    testing.train([(place / "rehearsed", rehearsed), (place / "whole", plain)], stopped)
    summaries = {
        way: record.read_summary(place / way)
        for way in ("rehearsed", "whole", "resumed")
    }
    return {way: str(summary["error"] or "") for way, summary in summaries.items()}


def each(named: dict[str, Any]) -> list[Any]:
    """Return the names of cases; all but every fourth are marked `long`."""
    return [
        name if number % 4 == 0 else pytest.param(name, marks=pytest.mark.long)
        for number, name in enumerate(named)
    ]


@pytest.mark.parametrize("name", each(HARMFUL))
def test_what_a_resume_changes_is_refused(name: str, tmp_path: Path) -> None:
    errors = ran(tmp_path, name)
    line = errors["rehearsed"]
    assert line.startswith(
        ("model:", "method:", "optimizer:", "data.train:", "schedule:")
    ), line
    assert "resume check failed" in line
    assert not (tmp_path / "rehearsed" / "checkpoints").exists(), (
        "refused before it began"
    )
    later = "data.validation: expected the same samples in each validation"
    if any(error.startswith(later) for error in errors.values()):
        return  # its validation set keeps state as well
    assert errors["whole"] == errors["resumed"] == ""
    assert differences(tmp_path / "whole", tmp_path / "resumed") != []


@pytest.mark.parametrize("name", each(LATE))
def test_what_begins_later_is_found_by_a_real_resume(name: str, tmp_path: Path) -> None:
    assert set(ran(tmp_path, name).values()) == {""}
    assert differences(tmp_path / "whole", tmp_path / "resumed") != []


@pytest.mark.parametrize("name", each(HARMLESS))
def test_what_a_resume_does_not_change_passes_to_the_same_bits(
    name: str, tmp_path: Path
) -> None:
    assert set(ran(tmp_path, name).values()) == {""}
    assert differences(tmp_path / "whole", tmp_path / "resumed") == []
    assert differences(tmp_path / "whole", tmp_path / "rehearsed") == []
    assert not (tmp_path / "rehearsed" / ".rehearsal").exists()


@pytest.mark.parametrize("name", each(EVALUATIONS))
def test_an_evaluation_that_keeps_state_is_refused(name: str, tmp_path: Path) -> None:
    """Negative control: without a rehearsal and with one validation, it trains to its
    end."""
    errors = ran(tmp_path, name, "trainer.validate_every_epochs=0")
    is_data = EVALUATIONS[name].held_out is not None
    assert errors["rehearsed"].startswith(
        "data.validation:" if is_data else "method:"
    ), errors
    assert errors["whole"] == ""


@pytest.mark.parametrize("name", each(LEFT_BY_STEPS))
def test_state_that_only_an_evaluation_reads_is_refused(
    name: str, tmp_path: Path
) -> None:
    """A resumed run may evaluate before its first step, and evaluate.py never takes
    one.

    Negative controls: without a rehearsal it trains to its end, to the same weights
    when resumed; the same state in a buffer is among the cases that pass.
    """
    errors = ran(tmp_path, name)
    assert errors["rehearsed"].startswith(
        "method: resume check failed: evaluations differ (validation values)"
    ), errors
    assert errors["whole"] == errors["resumed"] == ""
    assert differences(tmp_path / "whole", tmp_path / "resumed") == []


def test_samples_that_change_from_validation_to_validation_are_refused(
    tmp_path: Path,
) -> None:
    """Those beyond the batches of a rehearsal, in the second validation, also after a
    resume.

    Negative control: one validation alone.
    """
    line = refusal(train(tmp_path / "run", *words("late draws")))
    assert line.startswith(
        "data.validation: expected the same samples in each validation, got"
    )
    assert record.read_summary(tmp_path / "run")["steps"] == 4
    once = words("late draws", "trainer.validate_every_epochs=0")
    assert train(tmp_path / "once", *once).returncode == 0


def test_test_passes_with_other_samples_are_refused(tmp_path: Path) -> None:
    """The best and the last weights are tested on the same samples.

    Negative controls: one pass alone, and a preset that only warns, whose record has
    the hashes.
    """
    worst_is_best = ("trainer.monitor=validation_loss", "trainer.mode=max")
    two_passes = words("late draws", "data.validation.case=plain", *worst_is_best)
    line = refusal(train(tmp_path / "run", *two_passes))
    assert line.startswith(
        "data.test: expected the same samples for the best weights as for the"
    )
    one_pass = train(tmp_path / "once", *two_passes, "trainer.test_weights=last")
    assert one_pass.returncode == 0, one_pass.stderr
    done = train(tmp_path / "warn", *two_passes, "determinism.on_nondeterministic=warn")
    assert done.returncode == 0, done.stderr
    hashes = [
        record.read_summary(tmp_path / n)["fingerprints"] for n in ("once", "warn")
    ]
    assert hashes[0]["validation_samples"] == hashes[1]["validation_samples"]
    assert hashes[0]["test_samples"] != hashes[1]["test_samples"]


def test_a_refusal_names_the_first_stage_that_differs_and_what_a_step_changes(
    tmp_path: Path,
) -> None:
    """Negative control: nothing is refused if no bits are promised."""
    line = refusal(train(tmp_path / "counts", *words("counts")))
    assert line.startswith(
        "model: resume check failed: a run that is resumed after step 1 differs in step"
        " 2 (loss)"
    )
    assert "model.calls" in line
    line = refusal(train(tmp_path / "steps", *words("CountingSteps")))
    assert line.startswith("schedule: resume check failed")
    done = train(
        tmp_path / "warn", *words("counts", "determinism.on_nondeterministic=warn")
    )
    assert done.returncode == 0, done.stderr


def test_what_no_file_brings_back_is_named_under_every_preset(tmp_path: Path) -> None:
    """By the entry and its type, or by the optimizer state whose layout does not
    fit."""
    for number, more in enumerate(((), ("determinism.on_nondeterministic=warn",))):
        line = refusal(train(tmp_path / str(number), *words("NumPyScale", *more)))
        assert "optimizer.state.scale: expected tensors, numbers, strings" in line, line
    unlike = refusal(train(tmp_path / "unlike", *words("unlike")))
    assert unlike.startswith("optimizer: expected exp_avg of shape, dtype and strides")


def test_values_that_restart_in_a_resumed_run_are_named_and_change_no_bit(
    tmp_path: Path,
) -> None:
    """Negative control: a method that logs only values of the step prints nothing."""
    found = [
        train(tmp_path / name, *words(name)).stdout for name in ("Smoothing", "plain")
    ]
    assert ["warning: smooth restarts" in text for text in found] == [True, False]


class Validations(Callback):
    """Logs how many validations and evaluations there were, as far as it remembers."""

    def __init__(self, saves: bool) -> None:
        self._saves = saves
        self._counts = {"validations": 0, "evaluations": 0}

    def on_validation_end(self, run: Run, step: int) -> None:
        self._counts["validations"] += 1
        run.log("validations", self._counts["validations"])

    def on_evaluation_end(self, run: Run, step: int, seen: Seen) -> None:
        self._counts["evaluations"] += 1
        if len(seen.outputs) == SAMPLES:
            run.log("evaluations", self._counts["evaluations"])
        else:  # of a single batch, as in a rehearsal
            run.log("evaluations", -self._counts["evaluations"])

    def state_dict(self) -> dict[str, Any]:
        return dict(self._counts) if self._saves else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._counts |= state


class NeedsAllSamples(Callback):
    """Computes what a single batch does not suffice for."""

    def on_evaluation_end(self, run: Run, step: int, seen: Seen) -> None:
        if len(seen.outputs) < SAMPLES:
            raise ValueError("only one class")
        run.log("all", 1.0)


def test_what_callbacks_forget_of_evaluations_is_named(tmp_path: Path) -> None:
    """Negative controls: a callback with a state_dict, and one that a single batch
    fails."""
    validations = f"{__name__}.Validations"
    cases = {
        "forgets": f"{{_target_:{validations},saves:false}}",
        "saves": f"{{_target_:{validations},saves:true}}",
        "all": f"{{_target_:{__name__}.NeedsAllSamples}}",
    }
    warned = {}
    for name, more in cases.items():
        done = train(tmp_path / name, *words("plain", f"+callbacks.seen={more}"))
        assert done.returncode == 0, done.stderr
        lines = [
            line
            for line in done.stdout.splitlines()
            if "restarts in a resumed run" in line
        ]
        warned[name] = (
            lines[0].removeprefix("warning: ").partition(" restarts")[0]
            if lines
            else ""
        )
    assert {*warned["forgets"].split(", ")} == {
        "validation_validations",
        "validation_evaluations",
        "test_evaluations",
    }
    assert warned["saves"] == warned["all"] == ""


def test_a_run_of_one_step_is_started_in_a_rehearsal(tmp_path: Path) -> None:
    """There is no second step to resume; `limit_train_batches` makes an epoch of
    one."""
    words = ("trainer.max_epochs=1", "trainer.limit_train_batches=1")
    done = train(tmp_path / "run", *tiny.OVERRIDES, "determinism.threads=1", *words)
    assert done.returncode == 0, done.stderr
    assert record.read_summary(tmp_path / "run")["steps"] == 1


def test_a_step_that_does_not_repeat_is_refused(tmp_path: Path) -> None:
    """Unseeded draws, and files that a step changes, differ between equal runs, too."""
    for name in ("unseeded", "a file"):
        line = refusal(train(tmp_path / name, *words(name)))
        assert line.startswith("model: resume check failed"), line
        assert (
            "draw from the global generators, and look for files that a step changes"
            in line
        )


def test_memory_that_nothing_wrote_is_found_in_the_rehearsal_alone(
    tmp_path: Path,
) -> None:
    """Negative control: without filled memory there is nothing to find it by."""
    line = refusal(train(tmp_path / "run", *words("unwritten")))
    assert "while memory that nothing wrote holds NaN: look for torch.empty" in line, (
        line
    )
    plain = train(tmp_path / "plain", *words("plain"))
    flags = record.read_json(tmp_path / "plain" / "environment.json")["flags"]
    assert plain.returncode == 0
    assert flags["fill_uninitialized_memory"] is False
    kept = train(
        tmp_path / "filled",
        *words("plain", "determinism.fill_uninitialized_memory=true"),
    )
    assert kept.returncode == 0
    flags = record.read_json(tmp_path / "filled" / "environment.json")["flags"]
    assert flags["fill_uninitialized_memory"] is True


def test_an_error_of_the_users_code_is_shown_once_as_the_runs_own(
    tmp_path: Path,
) -> None:
    """With its traceback, status and summary, as without a rehearsal."""
    target = f"{__name__}.broken"
    texts = []
    for name, more in (("run", ()), ("off", (OFF,))):
        done = train(
            tmp_path / name, *words("plain", f"model._target_={target}", *more)
        )
        assert done.returncode == 1
        assert done.stderr.count("Traceback") == 1
        assert done.stderr.count("ZeroDivisionError") == 1
        summary = record.read_summary(tmp_path / name)
        texts.append(
            (summary["status"], summary["error"], done.stderr.splitlines()[-1])
        )
    assert texts[0] == texts[1]
    assert texts[0][:2] == ("failed", "ZeroDivisionError: division by zero")


def broken(case: str) -> Any:
    return 1 / 0


def test_one_rehearsal_serves_runs_of_other_seeds_but_not_of_other_settings(
    tmp_path: Path,
) -> None:
    """A run and its two rehearsals each build the model; then the run alone does. Nor
    does it serve those of other data, or with another switch of the processor's
    libraries."""
    builds = tmp_path / "builds"
    data = tmp_path / "data.csv"
    data.write_text("1")
    own = (f"model._target_={__name__}.counted", f"+model.file={data}")
    counts = []
    for name, more, variables in (
        ("first", "", {}),
        ("again", "", {}),
        ("seed", "seed=3", {}),
        ("lr", "optimizer.lr=0.1", {}),
        ("data", "", {}),
        ("variable", "", {"OPENBLAS_VERBOSE": "0"}),
    ):
        if name == "data":
            data.write_text("2, other data")
        asked = words("plain", *own, *filter(None, [more]))
        environment = {"TESTS_BUILDS": str(builds), **variables}
        done = train(tmp_path / name, *asked, environment=environment)
        assert done.returncode == 0, done.stderr
        counts.append(len(builds.read_text()))
    assert counts == [3, 4, 5, 8, 11, 14]


def counted(case: str, file: str) -> Any:
    with open(os.environ["TESTS_BUILDS"], "a") as builds:
        builds.write("x")
    return cases.build_model(case)


def test_notes_of_rehearsals_are_kept_for_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rehearse, "_MOST_PASSED", 3)
    for number in range(5):
        rehearse._note(tmp_path / "rehearsed" / f"{number}.json", {})
        os.utime(tmp_path / "rehearsed" / f"{number}.json", (number, number))
    assert sorted(path.stem for path in tmp_path.glob("rehearsed/*")) == ["2", "3", "4"]


def test_a_killed_training_process_leaves_no_child_of_its_rehearsal(
    tmp_path: Path,
) -> None:
    """Negative control: the child is alive until then."""
    stuck = words("plain", f"model._target_={__name__}.stuck")
    command = begin("train.py", f"hydra.run.dir={tmp_path / 'run'}", *stuck)
    until(lambda: any(tmp_path.glob("run/.rehearsal/summary.json")), command)
    [training] = processes(parent=command.pid)
    [child] = processes(parent=training)
    os.kill(training, signal.SIGKILL)
    assert command.wait(60) == 128 + signal.SIGKILL
    end = time.monotonic() + 60
    while child in processes(group=command.pid) and time.monotonic() < end:
        time.sleep(0.1)
    assert processes(group=command.pid) == []


def stuck(case: str) -> Any:
    time.sleep(600)
    return cases.build_model(case)


def test_a_run_that_is_stopped_while_it_is_rehearsed_starts_over(
    tmp_path: Path,
) -> None:
    """SIGTERM ends it at once, with the record of an interrupted run; resuming trains
    it whole."""
    slow = words("plain", f"model._target_={__name__}.slow")
    command = [sys.executable, "train.py", f"hydra.run.dir={tmp_path / 'run'}", *slow]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while (
        not list(tmp_path.glob("run/.rehearsal/config.yaml"))
        and time.monotonic() < until
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143
    assert record.read_summary(tmp_path / "run")["status"] == "interrupted"
    assert not (tmp_path / "run" / ".rehearsal").exists()


def slow(case: str) -> Any:
    time.sleep(15)
    return cases.build_model(case)


class Unseeded(Noisy):
    def __getitem__(self, index: int) -> Any:
        point, label = super().__getitem__(index)
        return point + random.SystemRandom().random(), label


class Tabled(Noisy):
    """Draws a table when its first sample is loaded."""

    table: Any = None

    def __getitem__(self, index: int) -> Any:
        if self.table is None:
            self.table = torch.randn(8)
        inputs, target = super().__getitem__(index)
        return torch.as_tensor(inputs) + self.table, target


class Stream(IterableDataset[Any]):
    """Has another order in each pass, like a WebDataset that shuffles without a
    seed."""

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
    [
        (TABLED, "data.num_workers=0"),
        pytest.param((TABLED, "data.num_workers=2"), marks=pytest.mark.long),
        pytest.param((STREAM, "+data.streams=1"), marks=pytest.mark.long),
    ],
)
def test_a_data_set_that_reads_another_batch_is_refused(
    chosen: tuple[str, ...], tmp_path: Path
) -> None:
    """With or without loader workers. Negative control: without a rehearsal, it
    trains."""
    own = of_method("Tokens", *chosen)
    line = refusal(train(tmp_path / "run", *own, "trainer.rehearse_resume=true"))
    assert line.startswith("data.train: resume check failed"), line
    assert train(tmp_path / "off", *own).returncode == 0


@pytest.mark.parametrize(
    ("chosen", "line"),
    [
        ((f"data.validation._target_={__name__}.Unseeded",), "data.validation: "),
        (tiny.replaced("schedule", f"{METHODS}.Impure"), "schedule: "),
    ],
)
def test_other_parts_that_do_not_repeat_are_named(
    chosen: tuple[str, ...], line: str, tmp_path: Path
) -> None:
    own = of_method("Supervised", *chosen, module="seedbed.methods")
    assert refusal(
        train(tmp_path / "run", *own, "trainer.rehearse_resume=true")
    ).startswith(line)


def test_a_plateau_is_rehearsed_with_its_settings(tmp_path: Path) -> None:
    done = train(tmp_path / "run", *words("plain", "schedule=plateau"))
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "run" / ".rehearsal").exists()


@pytest.mark.long
def test_several_processes_rehearse_together(tmp_path: Path) -> None:
    """Each forks, and the forks stop after step 2: also for runs of that length, and of
    the next ones, and with the same line for lost state. Negative control: the same
    bits as on one."""
    both = ("trainer.processes=2", "trainer.shards=2")
    line = refusal(train(tmp_path / "counts", *words("counts", *both)))
    assert line.startswith(
        "model: resume check failed: a run that is resumed after step 1 differs in step"
        " 2 (loss)"
    )
    assert "model.calls" in line
    line = refusal(train(tmp_path / "refused", *words("Remembers in others", *both)))
    assert "expected state that no forward pass changes" in line, (
        "of the first child that says it"
    )
    for steps in (2, 3, 4):
        one = tmp_path / f"one_{steps}"
        two = tmp_path / f"two_{steps}"
        for folder, more in ((one, ("trainer.shards=2",)), (two, both)):
            done = train(folder, *words("plain", *more, f"trainer.max_steps={steps}"))
            assert done.returncode == 0, done.stderr
        assert differences(one, two) == []


class Forking(cases.Data):
    """Starts a process when it is built, and ends it at once."""

    def __init__(self) -> None:
        super().__init__()
        process = multiprocessing.get_context("fork").Process(
            target=time.sleep, args=(300,)
        )
        process.start()
        process.terminate()
        process.join()


def test_processes_that_user_code_forks_can_be_ended(tmp_path: Path) -> None:
    """They would inherit handlers that only note a signal, and the run would wait for
    them."""
    target = f"data.train={{_target_:{__name__}.Forking}}"
    own = ("~data.train.case", "~data.train.number", target)
    began = time.monotonic()
    assert train(tmp_path / "run", *words("plain", *own)).returncode == 0
    assert time.monotonic() - began < 120
