"""Python's logging and warnings in user code, in every process of a run."""

import io
import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from seedbed import logs
from seedbed.errors import LABEL
from seedbed.record.text import Tee
from tests import tiny
from tests.running import QUICK, command, train

DATA = {
    **tiny.DATA,
    "train": {"_target_": "tests.tiny.data.Telling", "samples": 48},
    "validation": {"_target_": "tests.tiny.data.Telling", "samples": 24},
}
TELLING = (*QUICK, *tiny.overrides(tiny.DENSE, DATA), "trainer.max_steps=6")
LINE = r"^\[[\d :,-]+\]\[tests\.tiny\.data{mark}\]\[INFO\] - loading sample \d+$"


def counts(text: str) -> Mapping[str, int]:
    """Return how many lines each process has logged, by its mark."""
    marks = {"": "", "loader": r" \(loader worker \d\)", "rank": r" \(rank 1\)"}
    return {
        name: len(re.findall(LINE.format(mark=mark), text, re.MULTILINE))
        for name, mark in marks.items()
    }


@pytest.mark.parametrize(
    "method", ["fork", pytest.param("spawn", marks=pytest.mark.long)]
)
def test_loader_workers_log_with_their_mark_to_terminal_and_train_log(
    method: str, tmp_path: Path
) -> None:
    """Warnings are shown once, with their origin, however many workers and
    validations."""
    words = ("data.num_workers=2", f"data.start_method={method}")
    done = train(tmp_path / "run", *TELLING, *words, "trainer.rehearse_resume=false")
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "run/train.log").read_text()
    for text in (done.stdout, log):
        found = counts(text)
        assert found["loader"] > 48
        assert found["rank"] == 0
    assert len(re.findall(r"data\.py:\d+: UserWarning: sample 3 is odd", log)) == 1
    assert "sample 3 is odd" in done.stderr


@pytest.mark.long
def test_other_ranks_log_with_their_mark(tmp_path: Path) -> None:
    words = ("trainer.processes=2", "trainer.shards=2")
    done = train(tmp_path / "run", *TELLING, *words)
    assert done.returncode == 0, done.stderr
    for text in (done.stdout, (tmp_path / "run/train.log").read_text()):
        assert min(counts(text)[mark] for mark in ("", "rank")) > 6 * 4 - 1, text


@pytest.mark.parametrize(
    ("words", "info", "debug"),
    [
        ((), True, False),
        (("hydra.verbose=true",), True, True),
        (("hydra.verbose=[tests.tiny.data]",), True, True),
        (("hydra.verbose=[other]",), True, False),
        (("hydra/job_logging=disabled",), False, False),
        (("hydra/job_logging=default",), True, False),
    ],
)
def test_hydras_keys_mean_what_hydra_says(
    words: tuple[str, ...], info: bool, debug: bool, tmp_path: Path
) -> None:
    done = train(tmp_path / "run", *TELLING, *words, "trainer.rehearse_resume=false")
    assert done.returncode == 0, done.stderr
    log = (tmp_path / "run/train.log").read_text()
    told = re.findall(r"loading sample 5$", log, re.MULTILINE)
    # Each once per epoch, validation and test; Hydra's own file handler is for the same
    # file.
    assert bool(told) == info
    assert len(told) < 10
    assert ("about sample 5" in log) == debug


@pytest.mark.long
def test_each_line_of_parallel_jobs_has_a_label(tmp_path: Path) -> None:
    """On the terminal alone: a train.log is of one job. Negative control: jobs in
    turn."""
    launcher = ("hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    for name, more in {"parallel": launcher, "turns": ()}.items():
        words = (
            "-m",
            "seed=0,1",
            f"hydra.sweep.dir={tmp_path / name}",
            *TELLING,
            *more,
        )
        done = command("train.py", *words)
        assert done.returncode == 0, done.stderr
        lines = [line for line in done.stdout.splitlines() if "loading sample" in line]
        labelled = [line for line in lines if re.match(r"\[[01]_seed=[01]\] \[", line)]
        assert labelled == (lines if name == "parallel" else [])
        assert lines
        assert "[0_seed=0] " not in (tmp_path / name / "0_seed=0/train.log").read_text()


@pytest.mark.parametrize("label", ["[a] ", ""])
def test_labelled_lines_are_written_whole(
    label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a buffer (PYTHONUNBUFFERED), jobs would write within each other's lines,
    as would progress that is written over itself. Negative control: without a label,
    `print` writes piece by piece."""
    monkeypatch.setenv(LABEL, label)
    pieces: list[str] = []
    stream = SimpleNamespace(write=pieces.append, flush=lambda: None)
    tee: Any = Tee(stream, io.StringIO())  # type: ignore[arg-type]
    print("one", "two", file=tee)
    print("three\n\r10 %", end="", file=tee, flush=True)
    print("\r99 %", end="", file=tee, flush=True)
    tee.end()
    by_piece = ["one", " ", "two", "\n", "three\n\r10 %", "", "\r99 %", ""]
    assert pieces == (
        ["[a] one two\n", "[a] three\n", "[a] 99 %\n"] if label else by_piece
    )


def test_a_warning_of_another_process_is_not_shown_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only what the log has got since the last warning is read. Negative controls: a
    warning that no process has shown, and one that stood in what had been read
    before."""
    log = tmp_path / "train.log"
    monkeypatch.setenv(logs._LOG, str(log))
    monkeypatch.setattr(logs, "_shown", set())
    monkeypatch.setattr(logs, "_read", [0])
    lines = [
        f"mine.py:3: UserWarning: {word}\n" for word in ("one", "two", "six", "ten")
    ]

    def shown(word: str) -> str:
        logs._show_once(UserWarning(word), UserWarning, "mine.py", 3)
        return capsys.readouterr().err

    log.write_text(f"step 1\n{lines[0]}")
    assert shown("one") == ""
    assert shown("two").startswith(lines[1])
    with log.open("a") as file:
        file.write(lines[2])
    assert shown("six") == ""
    log.write_text(log.read_text().replace("one", "ten"))
    assert shown("ten").startswith(lines[3])
    assert shown("ten") == "", "shown by this process"


def test_json_of_evaluate_has_no_log_lines(tmp_path: Path) -> None:
    assert train(tmp_path / "run", *TELLING).returncode == 0
    run = str(tmp_path / "run")
    done = command("scripts/evaluate.py", run, "--json", "--trust", "tests.tiny")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["split"] == "test"
