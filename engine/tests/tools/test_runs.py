"""A table of runs says what the records say, of all that can be read, and reads nothing else."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from seedbed import record
from seedbed.tools import table
from tests import fake_runs, made_up_runs
from tests.running import ROOT, command, refusal, trained


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs: two of a sweep, one of another model."""
    folder = tmp_path / "runs"
    for seed, accuracy in ((2, 0.97), (10, 0.99)):
        fake_runs.write_run(folder / "sweep" / f"seed={seed}", seed, accuracy=accuracy)
    fake_runs.write_run(folder / "lstm", 3, model="lstm", accuracy=0.9512345678901234)
    return folder


def table_of(*words: str) -> list[list[str]]:
    done = command("scripts/runs.py", *words)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_a_row_for_each_run_with_the_columns_asked_for(runs: Path) -> None:
    """Keys of the configuration, of the summary, and metrics by name; numbers sort as numbers."""
    words = ("--columns", "seed,model.name,test_accuracy,fingerprints.weights", "--sort", "seed")
    found = table_of(str(runs), *words)
    assert [row[0] for row in found] == ["seed", "2", "3", "10"]
    assert [row[1] for row in found] == ["model.name", "cnn", "lstm", "cnn"]
    assert [row[2] for row in found] == ["test_accuracy", "0.97", "0.951235", "0.99"]
    weights = json.loads((runs / "lstm" / "summary.json").read_text())["fingerprints"]["weights"]
    assert found[2][3] == weights


def test_conditions_choose_rows(runs: Path) -> None:
    """All of them must hold; numbers compare as numbers."""
    words = ("--where", "model.name=cnn", "--where", "test_accuracy>0.98", "--columns", "seed")
    assert table_of(str(runs), *words) == [["seed"], ["10"]]
    assert len(table_of(str(runs), "--where", "seed<=3")) == 3
    assert len(table_of(str(runs), "--where", "seed!=3", "--where", "status=finished")) == 3
    none = command("scripts/runs.py", str(runs), "--where", "seed>10")
    assert (none.returncode, none.stdout) == (1, "no run of 3 fulfils seed>10\n")


def test_a_table_leaves_out_what_a_terminal_has_no_room_for(runs: Path) -> None:
    """First what is the same in all runs; negative control: a table with room has every column."""
    rows = [table.read_row(path) | {"run": path.name} for path in record.runs_below(runs)]
    columns = table.default_columns(rows)
    assert {"data.name", "model.name", "test_accuracy"} <= set(columns)
    assert table.fitting(rows, columns, 1000) == columns
    widest = len(table.lines(rows, columns)[0])
    for width in range(widest, 40, -1):
        kept = table.fitting(rows, columns, width)
        assert max(map(len, table.lines(rows, kept))) <= width or len(kept) <= 3
        assert {"run", "seed", "test_accuracy"} <= set(kept)
    assert "model.name" in table.fitting(rows, columns, widest - 40), "the runs differ in it"
    assert "data.name" not in table.fitting(rows, columns, widest - 40)


def test_csv_has_all_digits(runs: Path, tmp_path: Path) -> None:
    """What is rounded for a terminal is exact in the file."""
    out = tmp_path / "runs.csv"
    table_of(str(runs), "--columns", "run,test_accuracy", "--csv", str(out))
    rows = list(csv.DictReader(out.open()))
    assert {row["test_accuracy"] for row in rows} == {"0.97", "0.99", "0.9512345678901234"}


def test_the_csv_is_whole_where_nobody_reads_the_table(runs: Path, tmp_path: Path) -> None:
    """`runs.py --csv FILE | head -0`; and --json has the same rows."""
    out = tmp_path / "runs.csv"
    reader, writer = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "seedbed", "runs", str(runs), "--csv", str(out)]
    done = subprocess.run(words, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")
    rows = json.loads(command("scripts/runs.py", str(runs), "--json").stdout)
    assert [r["test_accuracy"] for r in csv.DictReader(out.open())] == [
        repr(row["test_accuracy"]) for row in rows
    ]


def test_tags_and_notes_are_shown_and_searched(tmp_path: Path) -> None:
    """Of real runs; they change no bit, and a run without them has no column for them."""
    words = ("trainer.max_steps=1", "tags=[base,small]", "notes='wider, as in (3)'")
    a, b = trained(tmp_path / "a", *words), trained(tmp_path / "b", "trainer.max_steps=1")
    assert command("scripts/compare.py", str(a), str(b)).returncode == 0
    [_, row] = command(
        "scripts/runs.py", str(tmp_path), "--where", "tags=base", "--columns", "run,tags,notes"
    ).stdout.splitlines()
    assert row.split(None, 1)[1] == "[base, small]  wider, as in (3)"
    assert "notes" not in command("scripts/runs.py", str(b)).stdout.splitlines()[0]
    bad = command("train.py", f"hydra.run.dir={tmp_path}/c", "tags=base")
    assert refusal(bad).startswith("tags: expected a list")


def test_damaged_records_are_named_and_counted(runs: Path) -> None:
    """One line each, and the others are shown all the same; aliases are not expanded."""
    (runs / "sweep" / "seed=2" / "summary.json").write_text("{")
    (runs / "bomb").mkdir()
    (runs / "bomb" / "config.yaml").write_text("a: &a [x]\nb: *a\n")
    (runs / "bomb" / ".lock").touch()
    (runs / "no run").mkdir()
    (runs / "no run" / "config.yaml").write_text("defaults: []\n")
    done = command("scripts/runs.py", str(runs))
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 3
    first, second, count = done.stderr.splitlines()
    assert str(runs / "bomb") in first
    assert "seed=2" in second
    assert count == "unreadable records: 2 of 4"


def test_text_of_a_record_cannot_act_on_a_terminal(tmp_path: Path) -> None:
    """Escape sequences of a stranger's record are shown, not obeyed."""
    made_up_runs.write_run(tmp_path / "run", config={"model": {"name": "\x1b[2Jevil"}})
    done = command("scripts/runs.py", str(tmp_path), "--columns", "model.name")
    assert "\x1b" not in done.stdout
    assert "evil" in done.stdout


def test_invalid_requests_are_one_line(runs: Path) -> None:
    """Unknown keys, conditions that are none, folders that are not there, places of records."""
    script = "scripts/runs.py"
    assert "did you mean test_accuracy" in refusal(
        command(script, str(runs), "--columns", "test_acuracy")
    )
    assert "--where" in refusal(command(script, str(runs), "--where", "seed"))
    assert "nowhere" in refusal(command(script, str(runs / "nowhere")))
    inside = runs / "lstm" / "summary.json"
    before = inside.read_bytes()
    assert "outside run folders" in refusal(command(script, str(runs), "--csv", str(inside)))
    assert inside.read_bytes() == before


def test_no_torch_is_imported(runs: Path) -> None:
    """A table is there before a torch import would be."""
    code = (
        "import sys; sys.argv[1:] = [sys.argv[2]]\n"
        "from seedbed import cli; assert cli.run('runs') == 0\n"
        "assert 'torch' not in sys.modules and 'seedbed.tools.table' in sys.modules"
    )
    done = command("-c", code, "--", str(runs))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("word", "value", "holds"),
    [
        ("a=1", 1, True),
        ("a=1.0", 1, True),
        ("a=true", True, True),
        ("a=1", True, False),
        ("a=False", False, True),
        ("a!=TRUE", True, False),
        ("a=False", True, False),
        ("a=False", "false", False),
        ("a=Null", None, True),
        ("a=null", None, True),
        ("a<2", "text", False),
        ("a!=x", "y", True),
        ("a=[1, 2]", [1, 2], True),
        ("a=x", ["x", "y"], True),
        ("a=z", ["x", "y"], False),
        ("a!=x", ["x", "y"], False),
        ("a!=z", ["x", "y"], True),
        ("b!=1", 1, True),
        ("b<1", 0, False),
    ],
)
def test_how_values_compare(word: str, value: object, holds: bool) -> None:
    """Numbers as numbers, all else as YAML writes it; a key that is missing is unequal."""
    assert table.holds({"a": value}, *table.condition(word)) is holds
