"""The table of runs has the values of all readable records, and nothing else is read."""

import csv
import json
import os
from pathlib import Path

import pytest

from seedbed.cli import runs as runs_command
from tests import made_up_runs
from tests.end_to_end.live import begin
from tests.running import command, refusal, trained

SCRIPT = "scripts/runs.py"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs: two of a sweep, one of another model."""
    folder = tmp_path / "runs"
    for seed, accuracy in ((2, 0.97), (10, 0.99)):
        made_up_runs.write_result(folder / "sweep" / f"seed={seed}", seed, accuracy=accuracy)
        with open(folder / "sweep" / f"seed={seed}" / "config.yaml", "a") as config:
            config.write(f"schedule: {{name: cosine, warmup: {seed}}}\n")
    made_up_runs.write_result(folder / "lstm", 3, model="lstm", accuracy=0.9512345678901234)
    return folder


def table_of(*words: str) -> list[list[str]]:
    done = command(SCRIPT, *words)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()]


def test_rows_and_columns(runs: Path) -> None:
    """Columns are keys of the configuration or the summary, and metrics by name.
    Without --columns, settings that differ are shown, and equal ones are left out."""
    assert table_of(str(runs), "--columns", "seed,model.name,test_accuracy") == [
        ["seed", "model.name", "test_accuracy"],
        ["3", "lstm", "0.951235"],
        ["10", "cnn", "0.99"],
        ["2", "cnn", "0.97"],
    ]
    shown = table_of(str(runs))[0]
    assert {"run", "seed", "test_accuracy", "model.name"} <= set(shown)
    assert not {"data.train.seed", "schedule.warmup", "model.channels_0"} & set(shown)
    assert "schedule.warmup" in table_of(str(runs / "sweep"))[0]
    assert "data.name" not in shown
    assert "data.name" in table_of(str(runs / "lstm"))[0]


def test_the_csv_is_whole_where_nobody_reads_the_table(runs: Path, tmp_path: Path) -> None:
    """After `runs.py --csv FILE | head -0` it has all rows with all digits, as --json does."""
    out = tmp_path / "runs.csv"
    reader, writer = os.pipe()
    os.close(reader)
    process = begin("-m", "seedbed", "runs", str(runs), "--csv", str(out), stdout=writer)
    os.close(writer)
    assert (process.communicate()[1], process.returncode) == ("", 141)
    rows = json.loads(command(SCRIPT, str(runs), "--json").stdout)
    digits = [row["test_accuracy"] for row in csv.DictReader(out.open())]
    assert digits == [repr(row["test_accuracy"]) for row in rows]
    assert "0.9512345678901234" in digits


def test_tags_and_notes_are_shown(tmp_path: Path) -> None:
    """They are of real runs and change no bit; a run without them has no column for them."""
    words = ("trainer.max_steps=1", "tags=[base,small]", "notes='wider, as in (3)'")
    a, b = trained(tmp_path / "a", *words), trained(tmp_path / "b", "trainer.max_steps=1")
    assert command("scripts/compare.py", str(a), str(b)).returncode == 0
    columns = ("--columns", "run,tags,notes")
    [_, row, _] = command(SCRIPT, str(tmp_path), *columns).stdout.splitlines()
    assert row.split(None, 1)[1] == "[base, small]  wider, as in (3)"
    assert "notes" not in command(SCRIPT, str(b)).stdout.splitlines()[0]


def test_values_of_unfinished_runs_are_no_results(runs: Path, tmp_path: Path) -> None:
    """They are no cells of a result, in the table, CSV and JSON, but can be asked for. Negative
    control: the finished runs."""
    out = tmp_path / "runs.csv"
    # No process holds the lock of a run that was killed.
    for status, shown in (("failed",) * 2, ("interrupted",) * 2, ("running", "killed")):
        made_up_runs.edit_summary(runs / "lstm", status=status)
        lines = table_of(str(runs), "--csv", str(out))
        assert [line[lines[0].index("test_accuracy")] for line in lines[1:]] == [
            "-",
            "0.99",
            "0.97",
        ]
        rows = {row["run"]: row["test_accuracy"] for row in csv.DictReader(out.open())}
        assert rows[str(runs / "lstm")] == ""
        [row, *_] = json.loads(command(SCRIPT, str(runs), "--json").stdout)
        assert (row["status"], row["test_accuracy"]) == (shown, None)
    [_, line] = table_of(str(runs / "lstm"), "--columns", "unfinished.test_accuracy")
    assert line == ["0.951235"]
    message = refusal(command(SCRIPT, str(runs / "lstm"), "--columns", "test_accuracy"))
    assert "did you mean unfinished.test_accuracy" in message


def test_damaged_records_are_named(runs: Path) -> None:
    """Each has one line on stderr, the other runs are shown; aliases are not expanded, and escape
    sequences in a foreign record are shown as text."""
    (runs / "sweep" / "seed=2" / "summary.json").write_text("{")
    (runs / "bomb").mkdir()
    (runs / "bomb" / "config.yaml").write_text("a: &a [x]\nb: *a\n")
    (runs / "bomb" / "summary.json").touch()
    made_up_runs.write_run(runs / "evil", config={"model": {"name": "\x1b[2Jevil"}})
    done = command(SCRIPT, str(runs))
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 4
    first, second = done.stderr.splitlines()
    assert str(runs / "bomb") in first
    assert "seed=2" in second
    assert "\x1b" not in done.stdout
    assert "evil" in done.stdout


def test_invalid_requests_are_one_line(runs: Path) -> None:
    """Unknown keys, missing folders, output files inside a record."""

    def refused(*words: object) -> str:
        return refusal(command(SCRIPT, *map(str, words)))

    assert "did you mean test_accuracy" in refused(runs, "--columns", "test_acuracy")
    assert "nowhere" in refused(runs / "nowhere")
    inside = runs / "lstm" / "summary.json"
    before = inside.read_bytes()
    assert "outside runs" in refused(runs, "--csv", inside)
    assert inside.read_bytes() == before


def test_a_table_fits_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings are left out from the right, and named. Negative control: a pipe has no width."""
    columns = ["run", "seed", *(f"model.setting_{n}" for n in range(20)), "test_loss"]
    rows = [dict.fromkeys(columns, 1)]
    monkeypatch.setenv("COLUMNS", "80")
    *table, note = runs_command.fitting(rows, columns, fits=True)
    assert max(map(len, table)) <= 80
    shown = table[0].split()
    assert shown == [*columns[: len(shown) - 1], "test_loss"]
    assert "model.setting_19" in note
    assert len(runs_command.fitting(rows, columns, fits=False)[0]) > 300
