"""Keys of `trainer` that shorten, accumulate, validate and keep, as their names say."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seedbed import record
from seedbed.pipeline.positions import Shuffled, positions
from seedbed.pipeline.samplers import Sampled
from seedbed.pipeline.streams import StreamOrder
from tests import tiny
from tests.run.runs import SHORT, refused, resumed, trained, whole
from tests.running import command, refusal, train
from tests.ways import differences

pytestmark = pytest.mark.usefixtures("this_process_trains")
NORMED = {"name": "normed", "_target_": "tests.tiny.models.Convolution", "channels": 4}
NORM = (
    *SHORT,
    *tiny.overrides({**NORMED, "outputs": tiny.CLASSES}),
    "trainer.accumulate=2",
)
TINY = (*SHORT, *tiny.OVERRIDES)  # 48 samples in batches of 8, so 6 steps in an epoch


def steps(folder: Path, phase: str) -> list[int]:
    return [
        int(row["step"]) for row in record.read_metrics(folder) if row["phase"] == phase
    ]


def fingerprints(folder: Path, stage: str) -> list[str]:
    return [row[stage] for row in record.read_fingerprints(folder)]


def test_an_epoch_has_the_first_batches_of_its_order(tmp_path: Path) -> None:
    """Negative control: without the limit, the second epoch begins after six steps."""
    short = trained(tmp_path / "short", *TINY, "trainer.limit_train_batches=4")
    assert [
        row["epoch"]
        for row in record.read_metrics(short)
        if row["phase"] == "validation"
    ] == [
        "1.0",
        "2.0",
        "3.0",
        "3.5",
    ]
    free = whole(*TINY)
    ids = [fingerprints(each, "sample_ids") for each in (short, free)]
    assert ids[0][:4] == ids[1][:4]
    assert ids[0][4:8] == ids[1][6:10]
    assert ids[0] != ids[1]


def test_overfitting_repeats_the_samples_of_a_few_batches(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", *TINY, "trainer.overfit_batches=2")
    ids = fingerprints(run, "sample_ids")
    assert ids == ids[:2] * 7
    assert len(set(ids)) == 2


def test_evaluations_have_the_first_batches_of_their_sets(tmp_path: Path) -> None:
    """In evaluate.py, which must say what metrics.csv says, too."""
    words = ("trainer.limit_validation_batches=1", "trainer.limit_test_batches=1")
    # of a process of its own: other tests of this one import modules
    run = tmp_path / "run"
    assert train(run, *TINY, *words).returncode == 0
    assert len((run / "test_predictions.csv").read_text().splitlines()) == 1 + 16
    done = command(
        "scripts/evaluate.py",
        str(run),
        "--split",
        "validation",
        "--json",
        "--checkpoint",
        "last",
        "--trust",
        "tests.tiny",
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    summary = record.read_summary(run)
    assert answer["validation_loss"] == summary["last_metrics"]["validation_loss"]
    assert answer["samples"] == 16
    free = record.read_summary(whole(*TINY))
    assert answer["validation_loss"] != free["last_metrics"]["validation_loss"]


def test_validations_and_kept_checkpoints_come_every_so_many_steps(
    tmp_path: Path,
) -> None:
    """Neither changes a step; a run that is stopped and resumed has the same files."""
    often = ("trainer.validate_every_steps=4", "trainer.keep_checkpoint_every_steps=5")
    run = trained(tmp_path / "run", *TINY, *often)
    assert steps(run, "validation") == [4, 6, 8, 12, 14]
    assert list(record.kept_checkpoints(run)) == [5, 10]
    assert record.read_summary(run)["kept_steps"] == [5, 10]
    assert fingerprints(run, "weights") == fingerprints(whole(*TINY), "weights")
    resumed(tmp_path / "stopped", run, 11, *TINY, *often)
    bits = [
        (each / "checkpoints/step_5.pt").exists()
        for each in (run, tmp_path / "stopped")
    ]
    assert bits == [True, True]


def test_kept_checkpoints_are_evaluated_and_verified(tmp_path: Path) -> None:
    """A kept file has the weights of its step, and a replay can start from it."""
    run = tmp_path / "run"
    done = train(run, *TINY, "trainer.keep_checkpoint_every_steps=3")
    assert done.returncode == 0, done.stderr
    state = torch.load(run / "checkpoints/step_3.pt", weights_only=True)
    assert state["progress"]["step"] == 3
    trust = ("--trust", "tests.tiny")
    done = command(
        "scripts/evaluate.py", str(run), "--checkpoint", "step_3", "--json", *trust
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step"] == 3
    done = command("scripts/evaluate.py", str(run), "--checkpoint", "4", *trust)
    assert "a step that was kept (3, 6, 9, 12), got 4" in refusal(done)
    done = command(
        "scripts/verify.py", str(run), "--from-step", "3", "--steps", "4", *trust
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "REPRODUCED" in done.stdout
    assert "steps 4 to 7" in done.stdout
    done = command("scripts/verify.py", str(run), "--from-step", "4", *trust)
    assert "3 or 6 or 9 or 12 or 14, got 4" in done.stderr


def test_the_weights_of_the_best_validations_are_kept(tmp_path: Path) -> None:
    """As metrics.csv ranks them, also after a resume; they evaluate to its values. No
    step changes, and best.pt is the first of them."""
    best = ("trainer.validate_every_steps=2", "trainer.keep_best=3")
    run = tmp_path / "run"
    assert train(run, *TINY, *best).returncode == 0
    rows = [row for row in record.read_metrics(run) if row["phase"] == "validation"]
    ranked = sorted(rows, key=lambda row: (-float(row["accuracy"]), int(row["step"])))[
        :3
    ]
    summary = record.read_summary(run)
    assert summary["best_steps"] == [int(row["step"]) for row in ranked]
    assert summary["best_step"] == summary["best_steps"][0]
    assert [*record.best_checkpoints(run)] == sorted(summary["best_steps"])
    assert fingerprints(run, "weights") == fingerprints(whole(*TINY), "weights")
    trust = ("--trust", "tests.tiny")
    third = ranked[-1]
    words = ("--checkpoint", third["step"], "--split", "validation", "--json", *trust)
    done = command("scripts/evaluate.py", str(run), *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["validation_loss"] == float(third["loss"])
    resumed(tmp_path / "stopped", run, 9, *TINY, *best)
    for step, path in record.best_checkpoints(run).items():
        again = record.best_checkpoints(tmp_path / "stopped")[step]
        states = [torch.load(file, weights_only=True) for file in (path, again)]
        for name, tensor in states[0]["model"].items():
            assert torch.equal(tensor, states[1]["model"][name])
    state = torch.load(
        record.best_checkpoints(run)[summary["best_steps"][2]], weights_only=True
    )
    first = torch.load(run / "checkpoints/best.pt", weights_only=True)
    assert any(not torch.equal(a, first["model"][n]) for n, a in state["model"].items())


ORDERS: dict[str, Any] = {
    "shuffled": lambda k: Shuffled(48, 8 * k, 1),
    "streams": lambda k: StreamOrder(2, 8 * k, k, [31, 17]),
    "sampler": lambda k: Sampled(Halves(), 48, 1, k, k),
}


class Halves:
    def batches(
        self, _epoch: int, n: int, draws: np.random.Generator
    ) -> list[np.ndarray]:
        return np.split(draws.permutation(n), n // 8)


@pytest.mark.parametrize("order", ORDERS)
def test_a_step_accumulates_the_next_batches_of_the_order(order: str) -> None:
    """A batch may be interleaved from streams; several of them are still those that
    come next."""
    one = ORDERS[order](1)
    three = ORDERS[order](3)
    assert three.steps_per_epoch * 3 == one.steps_per_epoch
    for number, joined in enumerate(positions(three, 0, 4)):
        single = [each.ids for each in positions(one, 3 * number, 3 * number + 3)]
        assert joined.ids.tolist() == np.concatenate(single).tolist()


def test_accumulation_enlarges_the_batch(tmp_path: Path) -> None:
    """Up to rounding and what is drawn, the update is that of one larger batch."""
    words = (*TINY, "model.dropout=0", "schedule=constant")
    both = [
        trained(tmp_path / name, *words, *more, "trainer.max_steps=3")
        for name, more in {
            "accumulated": ("trainer.accumulate=3",),
            "large": ("data.batch_size=24",),
        }.items()
    ]
    losses = [
        [
            float(row["loss"])
            for row in record.read_metrics(each)
            if row["phase"] == "train"
        ]
        for each in both
    ]
    assert len(losses[0]) == 3
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    # As in one larger batch, an epoch has a third of the steps.
    assert steps(both[0], "validation") == steps(both[1], "validation")


@pytest.mark.long
def test_batch_norm_accumulates_on_one_process_alone(tmp_path: Path) -> None:
    """Its statistics follow the order of the slices, which is fixed; two processes
    would share the slices, and are refused, also on a resume. Negative control: without
    a norm, they are not.
    """
    run = whole(*NORM)
    trained(tmp_path / "again", *NORM)
    assert differences(run, tmp_path / "again") == []
    resumed(tmp_path / "stopped", run, 5, *NORM)
    more = ("trainer.accumulate=2", "schedule=constant", "trainer.max_steps=3")
    for name, words in {"norm": NORM, "none": TINY}.items():
        done = train(tmp_path / name, *words, *more)
        assert done.returncode == 0, done.stderr
        longer = ("trainer.max_steps=5", "trainer.processes=2")
        done = command("scripts/resume.py", str(tmp_path / name), *longer)
        if name == "norm":
            assert done.returncode == 2, done.stdout
            assert (
                "expected state that no forward pass changes with several"
                in done.stderr
            )
        else:
            assert done.returncode == 0, done.stderr


def test_too_few_batches_for_a_step_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*TINY, "trainer.accumulate=3", "trainer.limit_train_batches=2")
    line = refused(tmp_path / "run", capsys, *words)
    assert line.startswith(
        "trainer.limit_train_batches: expected at least trainer.accumulate (3)"
    )
