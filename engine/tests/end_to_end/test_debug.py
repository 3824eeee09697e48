"""`debug=default`, `overfit` and `profile`: short runs, in which a debugger stops in
user code."""

import json
import sys
from pathlib import Path

import pytest

from seedbed import record
from tests.running import ROOT, TEMPLATE, run, train

LINE = next(
    number
    for number, line in enumerate(
        (ROOT / "src/tiny/cnn.py").read_text().splitlines(), 1
    )
    if "return" in line
)


@pytest.mark.long
@pytest.mark.parametrize(
    "words", [["debug=default"], ["debug=default", "data.num_workers=2"], []]
)
def test_pdb_stops_in_the_model(words: list[str], tmp_path: Path) -> None:
    """Without a debug configuration, another process trains: the negative control."""
    asked = f"break src/tiny/cnn.py:{LINE}\ncontinue\nwhere\nquit\n"
    out = run(
        ROOT,
        sys.executable,
        "-m",
        "pdb",
        "train.py",
        *words,
        "trainer.max_steps=2",
        f"hydra.run.dir={tmp_path / 'run'}",
        input=asked,
        status=None,
    ).stdout
    assert (f"cnn.py({LINE})forward()" in out) == bool(words), out[-3000:]
    assert ("training_step" in out) == bool(words)  # not a look-ahead


def test_a_debugged_run_is_short_and_finishes(tmp_path: Path) -> None:
    """It is recorded like any other, and evaluates and logs each step."""
    done = train(tmp_path / "run", "debug=default")
    assert done.returncode == 0, done.stderr
    rows = record.read_metrics(tmp_path / "run")
    assert [(row["step"], row["phase"]) for row in rows] == [
        ("1", "train"),
        ("2", "train"),
        ("2", "validation"),
        ("3", "train"),
        ("4", "train"),
        ("4", "validation"),
        ("4", "test"),
    ]
    assert record.read_config(tmp_path / "run").tags == ["debug"]


def test_overfitting_lowers_the_loss_of_one_batch(tmp_path: Path) -> None:
    done = train(tmp_path / "run", "debug=overfit", "trainer.max_steps=40")
    assert done.returncode == 0, done.stderr
    rows = [
        row for row in record.read_metrics(tmp_path / "run") if row["phase"] == "train"
    ]
    assert float(rows[-1]["loss"]) < float(rows[0]["loss"])
    ids = {row["sample_ids"] for row in record.read_fingerprints(tmp_path / "run")}
    assert len(ids) == 1


@pytest.mark.long
def test_a_profile_is_a_trace_whose_path_is_printed(tmp_path: Path) -> None:
    done = train(tmp_path / "run", "debug=profile")
    assert done.returncode == 0, done.stderr
    path = tmp_path / "run/profile/training.pt.trace.json"
    assert str(path) in done.stdout
    names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
    assert {"ProfilerStep#2", "ProfilerStep#4", "aten::convolution"} <= names
    assert "ProfilerStep#5" not in names


def test_the_configurations_are_those_of_the_template() -> None:
    assert (ROOT / "configs/debug").resolve() == TEMPLATE / "configs/debug"
