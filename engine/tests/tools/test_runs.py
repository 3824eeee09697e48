"""The table of runs has the values of all readable records, and nothing else is
read."""

import csv
import datetime
import json
import os
import time
from pathlib import Path

import pytest

from seedbed.listing import labels, terminal
from tests import made_up_runs
from tests.end_to_end.live import begin
from tests.running import command, refusal, trained

SCRIPT = "scripts/runs.py"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Three runs: two of a sweep, one of another model."""
    folder = tmp_path / "runs"
    for seed, accuracy in ((2, 0.97), (10, 0.99)):
        made_up_runs.write_result(
            folder / "sweep" / f"seed={seed}", seed, accuracy=accuracy
        )
        with open(folder / "sweep" / f"seed={seed}" / "config.yaml", "a") as config:
            config.write(f"schedule: {{name: cosine, warmup: {seed}}}\n")
    made_up_runs.write_result(
        folder / "lstm", 3, model="lstm", accuracy=0.9512345678901234
    )
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


def test_the_csv_is_whole_where_nobody_reads_the_table(
    runs: Path, tmp_path: Path
) -> None:
    """After `runs.py --csv FILE | head -0` it has all rows with all digits, as --json
    does."""
    out = tmp_path / "runs.csv"
    reader, writer = os.pipe()
    os.close(reader)
    process = begin(
        "-m", "seedbed", "runs", str(runs), "--csv", str(out), stdout=writer
    )
    os.close(writer)
    assert (process.communicate()[1], process.returncode) == ("", 141)
    rows = json.loads(command(SCRIPT, str(runs), "--json").stdout)
    digits = [row["test_accuracy"] for row in csv.DictReader(out.open())]
    assert digits == [repr(row["test_accuracy"]) for row in rows]
    assert "0.9512345678901234" in digits


def test_tags_and_notes_are_shown(tmp_path: Path) -> None:
    """They are of real runs and change no bit; a run without them has no column for
    them."""
    words = ("trainer.max_steps=1", "tags=[base,small]", "notes='wider, as in (3)'")
    a = trained(tmp_path / "a", *words)
    b = trained(tmp_path / "b", "trainer.max_steps=1")
    assert command("scripts/compare.py", str(a), str(b)).returncode == 0
    columns = ("--columns", "run,tags,notes")
    [_, row, _] = command(SCRIPT, str(tmp_path), *columns).stdout.splitlines()
    assert row.split(None, 1)[1] == "[base, small]  wider, as in (3)"
    assert "notes" not in command(SCRIPT, str(b)).stdout.splitlines()[0]


def test_values_of_unfinished_runs_are_no_results(runs: Path, tmp_path: Path) -> None:
    """They are no cells of a result, in the table, CSV and JSON, but can be asked for.
    Negative
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
    """Each has one line on stderr, the other runs are shown; aliases are not expanded,
    and escape sequences in a foreign record are shown as text."""
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
    assert "did you mean model.name" in refused(runs, "--where", "model.nam=cnn")
    assert "did you mean seconds" in refused(runs, "--sort", "second")
    assert "--where: expected KEY=VALUE" in refused(runs, "--where", "=1")
    assert "--where: expected KEY=VALUE" in refused("--where", " ", "--tag", "a")
    assert "--since: expected a date" in refused(runs, "--since", "yesterday")
    assert "--tag, --note: expected folders" in refused("--tag", "a")
    assert "outside runs" in refused(runs, "--csv", inside)
    assert inside.read_bytes() == before


@pytest.mark.parametrize("width", [200, 80, 40, 10])
@pytest.mark.parametrize("asked", [False, True])
def test_a_table_fits_the_terminal(width: int, asked: bool) -> None:
    """At any width, with columns that were asked for, too; what is left out is named.
    Settings go first. Negative control: a pipe has no width."""
    columns = ["run", "seed", *(f"model.setting_{n}" for n in range(20)), "test_loss"]
    rows = [
        {**dict.fromkeys(columns, 1), "run": f"runs/{'long_' * 30}seed={n}"}
        for n in (1, 2)
    ]
    lines = terminal.table(rows, columns, width, asked)
    assert max(map(len, lines)) <= width
    header, first, second, *notes = lines
    assert first != second  # the end of a path tells runs apart
    if width >= 80 and not asked:
        shown = header.split()
        assert (shown[0], shown[-1]) == ("run", "test_loss")
        assert shown[1:-1] == columns[1 : len(shown) - 1]
    assert "setting_19" in "".join(notes).replace(" ", "")
    assert len(terminal.table(rows, columns, None, asked)[0]) > 300


def test_runs_are_selected_by_any_key(runs: Path) -> None:
    """By =, !=, <, >, and by having a value or none; by several at once."""

    def found(*conditions: str) -> list[int]:
        words = [word for each in conditions for word in ("--where", each)]
        done = command(SCRIPT, str(runs), "--json", "--columns", "seed", *words)
        assert done.returncode == 0, done.stderr
        return sorted(row["seed"] for row in json.loads(done.stdout))

    assert found("seed=2") == [2]
    assert found("seed!=2") == [3, 10]
    assert found("seed<10") == [2, 3]  # as numbers: as texts, 10 is below 2
    assert found("seed>=3", "test_accuracy>0.96") == [10]
    assert found("model.name=c*") == [2, 10]
    assert found("schedule.name") == [2, 10]
    assert found("!schedule.name") == [3]
    assert found("schedule.warmup!=2") == [3, 10]
    assert found("optimizer.betas=0.999") == [2, 3, 10]
    assert found("run=*/lstm") == [3]
    assert found("started>2020", "status=finished") == [2, 3, 10]
    assert found("started>2999") == []
    # Several in one text, with spaces around signs and in a value, which has quotes.
    assert found("seed > 2 model.name=cnn") == [10]
    assert found("optimizer.betas='[0.9, 0.999]'") == [2, 3, 10]
    words = ("--where", "model.name=cnn small")
    message = refusal(command(SCRIPT, str(runs), *words))
    assert "got small; a value with spaces needs quotes" in message


def test_runs_are_sorted_and_runs_without_a_value_are_last(runs: Path) -> None:
    def seeds(*words: str) -> list[int]:
        done = command(SCRIPT, str(runs), "--json", "--columns", "seed", *words)
        return [row["seed"] for row in json.loads(done.stdout)]

    assert seeds("--sort", "seed") == [2, 3, 10]
    assert seeds("--sort", "test_accuracy", "--reverse") == [10, 2, 3]
    assert seeds("--sort", "schedule.warmup") == [2, 10, 3]
    assert seeds("--sort", "schedule.warmup", "--reverse") == [10, 2, 3]


def test_the_sort_key_is_shown(runs: Path, tmp_path: Path) -> None:
    """Whether or not it is a default column, varies or was asked for, and in a narrow
    terminal. Negative control: without --sort, it is not."""
    out = tmp_path / "runs.csv"
    for key in ("optimizer.name", "trainer.max_epochs", "schedule.warmup"):
        assert key not in table_of(str(runs))[0]
        sort = (str(runs), "--sort", key)
        assert key in table_of(*sort)[0]
        table_of(*sort, "--columns", "seed", "--csv", str(out))
        assert out.read_text().splitlines()[0] == f"seed,{key}"
    columns = ["run", *(f"model.setting_{n}" for n in range(20)), "test_loss", "z.key"]
    rows = [dict.fromkeys(columns, 123456)]
    for asked in (False, True):
        header = terminal.table(rows, columns, 40, asked, ["z.key"])[0]
        assert header.split()[-1] == "z.key"


def test_a_wrong_sort_key_is_one_line(runs: Path) -> None:
    """With the metric that was meant, or with --reverse instead of a minus."""

    def refused(*words: str) -> str:
        return refusal(command(SCRIPT, str(runs), *words))

    for option in ("--sort", "--columns"):
        for key in ("acuracy", "accuracy", "acc"):
            message = refused(option, key)
            assert f"{option}: expected a key, got {key}; did you mean" in message
            assert message.rstrip().endswith("validation_accuracy")
    for words in (("--sort", "-seed"), ("--sort=-seed",)):
        assert "give --sort seed --reverse" in refused(*words)
    assert "expected one argument" in refused("--sort", "--reverse")
    assert "expected one argument" in refused("--sort")


def test_runs_since_a_date(runs: Path) -> None:
    """A run started when the first file of its record was written, also if others are
    newer."""
    config = runs / "lstm" / "config.yaml"
    for days, path in ((3, config), (0, runs / "lstm" / "summary.json")):
        then = time.time() - days * 86400
        os.utime(path, (then, then))

    def count(since: str) -> int:
        done = command(SCRIPT, str(runs), "--json", "--since", since)
        return len(json.loads(done.stdout))

    assert (count("2d"), count("4d"), count("1w"), count("2020-01-31")) == (2, 3, 3, 3)
    assert count(datetime.date.today().isoformat()) == 2
    assert command(SCRIPT, str(runs), "--since", "2999-01-01").stderr.startswith(
        "none of 3 runs"
    )


def test_tags_and_notes_are_added_later(runs: Path) -> None:
    """To the runs that are shown, and to no other file of theirs; comparing does not
    read them."""
    before = made_up_runs.contents(runs)
    lstm = runs / "lstm"
    done = command(
        SCRIPT, str(runs), "--where", "model.name=lstm", "--tag", "a", "--tag", "b"
    )
    assert done.returncode == 0, done.stderr
    assert "[a, b]" in done.stdout
    command(SCRIPT, str(lstm), "--untag", "a", "--note", "weak, as expected")
    [row] = json.loads(command(SCRIPT, str(runs), "--where", "tags=b", "--json").stdout)
    assert (row["run"], row["tags"], row["notes"]) == (
        str(lstm),
        ["b"],
        "weak, as expected",
    )
    after = made_up_runs.contents(runs)
    assert {*after} - {*before} == {lstm / labels.FILE}
    assert all(after[path] == content for path, content in before.items())


def test_a_tag_that_is_not_there_is_not_removed(runs: Path) -> None:
    """It is named, and no file is written. Negative controls: one that another run has,
    and a number, which a configuration may have as a tag."""
    with open(runs / "lstm" / "config.yaml", "a") as config:
        config.write("tags: [2026, small]\n")
    before = made_up_runs.contents(runs)
    words = (str(runs), "--note", "new", "--untag")
    message = refusal(command(SCRIPT, *words, "smal"))
    assert "--untag: expected a tag of these runs, got smal; did you mean" in message
    assert made_up_runs.contents(runs) == before
    done = command(SCRIPT, *words, "2026", "--json", "--columns", "tags")
    assert done.returncode == 0, done.stderr
    assert {"tags": ["small"]} in json.loads(done.stdout)


def test_labels_of_a_strangers_record_are_data(runs: Path, tmp_path: Path) -> None:
    """Of other types, they are named on stderr; no file outside the run is written."""
    outside = tmp_path / "outside"
    outside.write_text("{}")
    (runs / "lstm" / labels.FILE).symlink_to(outside)
    assert labels.FILE in refusal(command(SCRIPT, str(runs / "lstm"), "--tag", "a"))
    assert outside.read_text() == "{}"
    (runs / "sweep" / "seed=2" / labels.FILE).write_text('{"tags": {"a": 1}}')
    done = command(SCRIPT, str(runs / "sweep"))
    assert labels.FILE in done.stderr
    assert len(done.stdout.splitlines()) == 2


def test_statistics_are_no_columns(runs: Path) -> None:
    """Nor are long values: both made the table unreadable. Negative control: a short
    one is."""
    for n, run in enumerate(sorted((runs / "sweep").iterdir())):
        with open(run / "config.yaml", "a") as config:
            config.write(
                f"method: {{statistics: {{mean: {n}}}, weights: {[n] * 50}, short:"
                f" {n}}}\n"
            )
    header = table_of(str(runs / "sweep"))[0]
    assert "method.short" in header
    assert not {"method.statistics.mean", "method.weights"} & {*header}


@pytest.mark.long
def test_verified_runs_are_marked(tmp_path: Path) -> None:
    """As long as their record is as it was; the mark is no part of it, so it cannot be
    forged."""
    run = trained(tmp_path / "run", "trainer.max_steps=4")

    def mark() -> object:
        done = command(SCRIPT, str(run), "--json", "--columns", "verified")
        return json.loads(done.stdout)[0]["verified"]

    assert mark() is None
    part = command("scripts/verify.py", str(run), "--steps", "2")
    assert (part.returncode, mark()) == (0, "steps 1 to 2")
    before = made_up_runs.contents(run)
    assert command("scripts/verify.py", str(run)).returncode == 0
    assert (mark(), made_up_runs.contents(run)) == ("yes", before)
    command("scripts/verify.py", str(run), "--steps", "2")
    assert mark() == "yes"
    with open(run / "metrics.csv", "a") as table:
        table.write("\n")
    assert mark() is None
