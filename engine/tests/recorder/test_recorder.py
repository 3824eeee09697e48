"""The record of a user-defined loop is like any other, and correct however the loop
ends."""

import itertools
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from seedbed import fingerprint, record, rng
from seedbed.config import build
from seedbed.errors import InputError, one_line
from seedbed.loading import seeded_loader
from seedbed.methods import Seen
from seedbed.names import STAGES
from seedbed.recorder import Recorder
from tests import made_up_runs, pages
from tests.run import runs
from tests.running import TEMPLATE, command, refusal
from tests.tiny.data import Noisy
from tests.tiny.models import Convolution

STEPS = 8
SAMPLES = 48
BATCH = 8


def loop(recorder: Recorder, model: nn.Module, optimizer: Any, seed: int = 0) -> None:
    loader = seeded_loader(Noisy(SAMPLES), BATCH, seed)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    for step, (points, labels) in enumerate(itertools.islice(batches, STEPS), 1):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(points), labels)
        loss.backward()
        optimizer.step()
        recorder.step(step, loader.ids(step), (points, labels), loss, model, optimizer)


def recorded(folder: Path, seed: int = 0) -> Path:
    model = Convolution(outputs=3, channels=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    with Recorder(folder, {"seed": seed, "lr": 0.01}) as recorder:
        loop(recorder, model, optimizer, seed)
        recorder.validation(
            STEPS, loss=0.5 + seed, accuracy=torch.tensor(0.75 + seed / 100)
        )
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("runs") / "a")


def step(recorder: Recorder, number: Any, losses: Any = 1.0) -> None:
    """Record a step of several networks and optimizers."""
    networks = {"critic": nn.Linear(1, 1), "generator": nn.Linear(1, 2)}
    optimizers = [
        torch.optim.SGD(each.parameters(), lr=0.25) for each in networks.values()
    ]
    recorder.step(number, None, None, losses, networks, optimizers)


@pytest.mark.usefixtures("this_process_trains")
def test_a_plain_loop_has_the_fingerprints_of_a_run_of_the_template(
    tmp_path: Path,
) -> None:
    """With the same model, data, order, draws and clipping, all steps and stages have
    equal bits.

    tests/compare checks that `compare` names the first stage that differs.
    """
    size = {"outputs": 3, "channels": 4}
    model = {"name": "own", "_target_": "tests.tiny.models.Convolution", **size}
    run = runs.trained(
        tmp_path / "a",
        *runs.of_method(
            "Supervised", "schedule=constant", module="seedbed.methods", model=model
        ),
        *(f"trainer.max_steps={STEPS}", "trainer.gradient_clip_norm=0.05"),
        "++data.task.label_smoothing=0.0",
    )
    settings: Any = record.read_config(run)
    rng.seed_globals(rng.key(0, "init"))
    own = build.build(settings.model, "model")
    options = {
        k: v for k, v in settings.optimizer.items() if k not in ("name", "_target_")
    }
    optimizer = torch.optim.AdamW(own.parameters(), **options)
    with Recorder(tmp_path / "b", settings) as recorder:

        def clip(*_: Any) -> None:
            recorder.note_gradients(own)
            assert nn.utils.clip_grad_norm_(own.parameters(), 0.05) > 0.05

        optimizer.register_step_pre_hook(clip)
        loop(recorder, own, optimizer)
    rows = record.read_fingerprints(run)
    assert rows == record.read_fingerprints(tmp_path / "b")
    assert len(rows) == STEPS
    assert all(row[stage] for row in rows for stage in STAGES)


def test_parts_of_any_kind_are_seen_by_their_bits(tmp_path: Path) -> None:
    """Arrays count as tensors; numbers and strings count, the types of containers do
    not. Gradients are those given to `note_gradients`, if it was called."""
    x = torch.ones(2, 3)
    y = np.arange(2)
    model = nn.Linear(2, 1)
    same = [
        (x, y),
        [x, torch.arange(2)],
        {"x": x.numpy(), "y": y},
        (x.T.clone().T, (y,)),
    ]
    others = [
        (x, -y),
        (x, y, 1),
        (x, y, 2),
        (x, y, "text"),
        (x, np.array(["a", "b"])),
        (x, np.array([None, {}])),
        (x, True),
        {"a": [[{"b": x}]]},
        Seen("", x, "cat", {}),
        Seen("", x, "dog", {}),
        [{"a", "b"}],
        Image.new("L", (2, 2)),
    ]
    model(torch.ones(1, 2)).sum().backward()
    with Recorder(tmp_path / "a") as recorder:
        for step, given in enumerate(same + others, 1):
            recorder.step(step, given, given, 1.0, model, None)
        recorder.note_gradients(model)
        model.zero_grad()
        recorder.step(step + 1, None, None, 1.0, model, None)
    rows = record.read_fingerprints(tmp_path / "a")
    for stage in ("sample_ids", "batch"):
        seen = [row[stage] for row in rows[:-1]]
        assert len({*seen[: len(same)]}) == 1
        assert len({*seen}) == 1 + len(others)
    assert rows[-1]["gradients"] == rows[0]["gradients"] != ""


def test_rows_are_written_before_the_end(tmp_path: Path) -> None:
    """A killed process loses only the rows since the last write."""
    with Recorder(tmp_path / "a", write_every_steps=3) as recorder:
        for number in range(1, 8):
            step(recorder, number)
        assert [row["step"] for row in record.read_metrics(tmp_path / "a")] == list(
            "123456"
        )
        recorder.flush()
        assert len(record.read_fingerprints(tmp_path / "a")) == 7


def test_compare_and_runs_read_it(run: Path, tmp_path: Path) -> None:
    """verify.py, which would have to repeat the loop, refuses the record in one
    line."""
    other = recorded(tmp_path / "b", seed=1)
    picture = tmp_path / "c.png"
    done = command("scripts/compare.py", str(run), str(other), "--plot", str(picture))
    assert done.returncode == 1, done.stderr
    assert "diverge at step 1: sample ids" in done.stdout
    assert "seed" in done.stdout.partition("can change bits")[2]
    assert picture.exists()
    assert (run / "loss_curve.png").exists()
    assert "0.75" in command("scripts/runs.py", str(run)).stdout
    assert "seedbed.Recorder" in refusal(command("scripts/verify.py", str(run)))


# How a process ends, and the status in its record.
ENDS = {
    "raise RuntimeError('no')": "failed",
    "raise KeyboardInterrupt": "interrupted",
    "pass": "interrupted",
    "recorder.close()": "finished",
    "import os; os._exit(1)": "running",
    "import os\nif os.fork() == 0: sys.exit(0)\nos.wait(); recorder.close()": (
        "finished"
    ),
}
EACH_IN_A_PROCESS = """
import os, sys, seedbed
seedbed.Recorder  # imports torch, once for all
for number, end in enumerate(sys.argv[2:]):
    if os.fork() == 0:
        recorder = seedbed.Recorder(f"{sys.argv[1]}/{number}")
        exec(end)
        sys.exit()
    os.wait()
"""


@pytest.mark.long
def test_a_process_that_does_not_close_it(tmp_path: Path) -> None:
    """The status is right without `with`, too; after a kill it is `running`, as in any
    run."""
    command("-c", EACH_IN_A_PROCESS, str(tmp_path), *ENDS)
    summaries = [
        record.read_summary(tmp_path / str(number)) for number in range(len(ENDS))
    ]
    assert [summary["status"] for summary in summaries] == list(ENDS.values())


def test_a_device_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unwritten rows are lost; the summary has the loop's error, or else the
    device's."""
    failure = torch.AcceleratorError("assert")
    monkeypatch.setattr(fingerprint, "rows", MagicMock(side_effect=failure))
    for name, error in {"a": RuntimeError("no"), "b": None}.items():
        with pytest.raises(torch.AcceleratorError):
            Recorder(tmp_path / name).__exit__(None, error, None)
        summary = record.read_summary(tmp_path / name)
        assert (summary["status"], summary["error"]) == (
            "failed",
            one_line(error or failure),
        )


def test_what_cannot_be_recorded_is_refused(run: Path, tmp_path: Path) -> None:
    """Existing folders and steps, impossible resumes, unusable values, calls after
    `close`."""
    folder = tmp_path / "a"
    trained = made_up_runs.write_run(tmp_path / "trained")
    with Recorder(folder) as recorder:
        step(recorder, 1)
        for message, late in {
            "expected the record of a Recorder": lambda: Recorder(
                trained, resume_from=1
            ),
            r"folder: expected a new one, got .*resume_from": lambda: Recorder(run),
            "expected a run folder": lambda: Recorder(tmp_path / "none", resume_from=3),
            f"from: expected from 0 to {STEPS}": lambda: Recorder(
                run, resume_from=STEPS + 1
            ),
            "from: .* got -1": lambda: Recorder(run, resume_from=-1),
            "settings: .* instead of a mapping": lambda: Recorder(tmp_path / "none", 5),
            "still alive": lambda: Recorder(folder, resume_from=1),
            "step: expected an integer of at least 2, .* got 1": lambda: step(
                recorder, 1
            ),
            "step: expected an integer of at least 2, .* got 2.0": lambda: step(
                recorder, 2.0
            ),
            "an integer of at least 1": lambda: recorder.validation(0, loss=1.0),
            "metric: .* got phase": lambda: recorder.validation(1, phase=1.0),
            "losses.* got phase": lambda: step(recorder, 2, {"phase": 1.0}),
            "losses.* got a_b, a_b": lambda: step(
                recorder, 2, {"a b": 1.0, "a,b": 2.0}
            ),
            "loss.loss: expected a scalar": lambda: step(recorder, 2, torch.ones(3)),
        }.items():
            with pytest.raises(InputError, match=message):
                late()
    recorder.close()
    for late in (lambda: step(recorder, 2), lambda: recorder.validation(1, 0.5)):
        with pytest.raises(InputError, match="close"):
            late()
    with pytest.raises(InputError, match="from 0 to 1") as kept:
        Recorder(folder, resume_from=2)
    # although a traceback is kept, as in notebooks
    Recorder(folder, resume_from=1).close()
    assert kept.traceback


def test_named_losses_and_further_metrics_are_columns(tmp_path: Path) -> None:
    """With several networks and optimizers, and after a resume; the first metric's best
    is kept."""
    with Recorder(tmp_path / "a", write_every_steps=1) as recorder:
        step(recorder, 1, {"critic": torch.tensor(1.5), "no, name": 1.0})
        recorder.validation(1, accuracy=0.75, f1=0.25)
        step(recorder, 2, {"critic": torch.tensor(9.0)})
    with Recorder(tmp_path / "a", resume_from=1) as recorder:
        step(recorder, 2, {"critic": torch.tensor(2.5), "loss": 2.0})
        recorder.validation(2, {"f1": 0.5}, accuracy=0.5)
        recorder.test(1, accuracy=0.625)  # of the best weights
    found = [record.values_of(row) for row in record.read_metrics(tmp_path / "a")]
    assert found == [
        {"loss": "2.5", "critic": "1.5", "no__name": "1.0", "learning_rate": "0.25"},
        {"accuracy": "0.75", "f1": "0.25"},
        {"loss": "2.0", "critic": "2.5", "learning_rate": "0.25"},
        {"accuracy": "0.5", "f1": "0.5"},
        {"accuracy": "0.625"},
    ]
    summary = record.read_summary(tmp_path / "a")
    assert summary["metric_name"] == "accuracy"
    assert (summary["best_step"], summary["tested_step"]) == (1, 1)
    tested = {
        "validation_accuracy": 0.75,
        "validation_f1": 0.25,
        "test_accuracy": 0.625,
    }
    assert summary["metrics"] == tested
    last = {"train_loss": 2.0, "validation_accuracy": 0.5, "validation_f1": 0.5}
    assert summary["last_metrics"] == last


def test_a_resumed_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resumed in the middle of an epoch, it has the bits of an uninterrupted loop."""
    pages.run_here(monkeypatch, tmp_path, "resume", tmp_path / "a", 20)
    pages.run_here(monkeypatch, tmp_path, "resume", tmp_path / "b", 11)
    (tmp_path / "b/metrics.csv").open("a").write("12,0")  # cut off, as by a power cut
    pages.run_here(monkeypatch, tmp_path, "resume", tmp_path / "b", 20)
    assert record.read_fingerprints(tmp_path / "a") == record.read_fingerprints(
        tmp_path / "b"
    )
    assert len(record.read_fingerprints(tmp_path / "a")) == 20
    assert record.read_metrics(tmp_path / "a") == record.read_metrics(tmp_path / "b")
    assert record.read_summary(tmp_path / "b")["resumes"][0]["step"] == 11


@pytest.mark.long
def test_several_processes(tmp_path: Path) -> None:
    """Two runs have the same bits; rank 0's record is complete even if gloo aborts at
    exit."""
    page = (TEMPLATE / "docs/own-loop.md").read_text()
    [lines] = [b for b in pages.blocks(page, "python") if "init_process_group" in b]
    start, wrap, end = lines.split("\n\n")
    script = pages.script(tmp_path, "plain")
    loop = script.read_text().replace("\nloader =", f"\n{start}\nloader =")
    loop = loop.replace("\noptimizer =", f"\n{wrap}\noptimizer =")
    script.write_text(f"{loop}{end}")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    for name in "ab":
        done = pages.run(
            tmp_path, *torchrun, str(script), str(tmp_path / name), "0", status=None
        )
        assert (
            not done.returncode or "terminate called without an active" in done.stderr
        )
        assert record.read_summary(tmp_path / name)["status"] == "finished", done.stderr
    assert record.read_fingerprints(tmp_path / "a") == record.read_fingerprints(
        tmp_path / "b"
    )
    assert len(record.read_fingerprints(tmp_path / "a")) == 8
    found = record.read_json(tmp_path / "a" / "environment.json")["processes"]
    assert found == {"count": 2, "bits_depend_on_count": 2}


def test_a_loop_with_an_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs have the same bits, although the process's generators have other
    states."""
    pages.run_here(monkeypatch, tmp_path, "rl", tmp_path / "a")
    pages.run_here(monkeypatch, tmp_path, "rl", tmp_path / "b")
    assert record.read_fingerprints(tmp_path / "a") == record.read_fingerprints(
        tmp_path / "b"
    )
    assert len(record.read_fingerprints(tmp_path / "a")) == 20
    assert record.read_summary(tmp_path / "a")["status"] == "finished"
