"""The table of guarantees says what was measured."""

import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import invariance
import invariance_rows
import invariance_runs
import pytest
from invariance_runs import Measured, Row

from seedbed import compare
from seedbed.errors import InputError
from tests.made_up_runs import fingerprint_rows, write_run
from tests.running import command, refusal

QUICK = ("determinism.threads=1", "trainer.max_steps=40")


def made_up(folder: Path, overrides: Sequence[str]) -> Path:
    """Stand in for a training: `step=N` changes the gradients from there on, `fail` fails."""
    if "fail" in overrides:
        raise InputError("model: expected something else")
    rows = fingerprint_rows(40)
    for word in overrides:
        if word.startswith("step="):
            for row in rows[int(word[5:]) - 1 :]:
                row["gradients"] = "f" * 16
    return write_run(folder, fingerprints=rows)


def test_a_cell_says_what_a_comparison_says(tmp_path: Path) -> None:
    """Each cell is `same`, the first step and stage, or why there was nothing to compare."""
    experiments = {"one": [], "two": ["step=7"]}
    bases = {name: made_up(tmp_path / name, words) for name, words in experiments.items()}
    rows = [Row("nothing"), Row("something", ("step=3",)), Row("too much", ("fail",))]
    measured = invariance_runs.measure(rows, experiments, bases, tmp_path / "runs", made_up)
    assert list(measured) == [
        Measured("nothing", ("same", "same")),
        Measured("something", ("step 3, gradients", "step 3, gradients")),
        Measured("too much", ("failed: model: expected something else",) * 2),
    ]


def test_a_run_that_ended_early_is_not_the_same(tmp_path: Path) -> None:
    """Twin: equal beginnings are not enough for `same`."""
    base = compare.read(write_run(tmp_path / "base", 40))
    assert invariance_runs.verdict(base, compare.read(write_run(tmp_path / "again", 40))) == "same"
    shorter = compare.read(write_run(tmp_path / "shorter", 30))
    assert invariance_runs.verdict(base, shorter) == "30 steps instead of 40"
    stopped = write_run(tmp_path / "stopped", 40, summary={"status": "interrupted"})
    with pytest.raises(InputError, match="expected a finished run, got interrupted"):
        invariance_runs.verdict(base, compare.read(stopped))


def test_other_final_weights_are_seen_where_no_step_is(tmp_path: Path) -> None:
    """A run without fingerprints of its steps is compared by its final weights all the same."""
    base = write_run(tmp_path / "base", 40)
    summary = {"fingerprints": {"weights": "0" * 16, "predictions": "00" * 8}}
    other = write_run(
        tmp_path / "other", 40, fingerprints=fingerprint_rows(40, every=7), summary=summary
    )
    assert (
        invariance_runs.verdict(compare.read(base), compare.read(other)) == "step 40, final weights"
    )


def test_what_was_written_by_hand_is_kept(tmp_path: Path) -> None:
    """Below its mark, a page that is measured again keeps what it had; above, nothing."""
    page = tmp_path / "page.md"
    fresh = invariance_runs.kept_part(page)
    page.write_text(f"old table\n{fresh}\n## By hand\n\ntext\n")
    assert invariance_runs.kept_part(page) == f"{fresh}\n## By hand\n\ntext\n"
    page.write_text(f"new table\n{invariance_runs.kept_part(page)}")
    assert page.read_text() == f"new table\n{fresh}\n## By hand\n\ntext\n"


def test_the_page_has_every_row_and_where_it_was_measured(tmp_path: Path) -> None:
    measured = {
        part: [Measured(row.change, ("same", "same", "step 1, loss")) for row in rows]
        for part, (_, rows) in invariance_rows.parts(2).items()
    }
    where = {
        "cpu": {"model": "a CPU", "cores": 2, "capability": "AVX2", "threads": 2},
        "platform": "Linux",
        "versions": {"python": "3.11", "torch": "2.15", "numpy": "2.4"},
    }
    base = compare.read(write_run(tmp_path / "base", 40, environment=where))
    invariance.write(tmp_path / "page.md", measured, base)
    page = (tmp_path / "page.md").read_text()
    for rows in measured.values():
        for row in rows:
            assert f"| {row.change} | same | same | step 1, loss |" in page
    assert invariance_runs.circumstances(base) in page


def test_the_table_is_markdown() -> None:
    """A row for each change, a column for each experiment."""
    lines = list(
        invariance_runs.table(["CNN", "LSTM"], [Measured("threads", ("same", "step 1, loss"))])
    )
    assert lines == [
        "| what changes | CNN | LSTM |",
        "| --- | --- | --- |",
        "| threads | same | step 1, loss |",
    ]


def test_rows_have_names_of_their_own() -> None:
    """No row stands twice, and none would break the table."""
    for _, rows in invariance_rows.parts(threads=2).values():
        names = [row.change for row in rows]
        assert len(set(names)) == len(names)
        assert not any("|" in name or "\n" in name for name in names)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return invariance_rows.plainly(tmp_path_factory.mktemp("invariance") / "base", QUICK)


def said(base: Path, run: Path) -> str:
    return invariance_runs.verdict(compare.read(base), compare.read(run))


@pytest.mark.long
@pytest.mark.parametrize(
    "train",
    [
        invariance_rows.on_a_terminal,
        invariance_rows.elsewhere,
        invariance_rows.after_an_unrelated_import,
        partial(invariance_rows.in_a_sweep, seeds="1,0"),
        partial(invariance_rows.interrupted, number=signal.SIGKILL),
    ],
    ids=["terminal", "elsewhere", "import", "sweep", "kill"],
)
def test_ways_of_training_end_with_the_same_bits(
    base: Path, tmp_path: Path, train: invariance_runs.Train
) -> None:
    """A row's way of training works, and does not change a bit."""
    assert said(base, train(tmp_path / "run", QUICK)) == "same"


@pytest.mark.long
def test_another_seed_is_seen(base: Path, tmp_path: Path) -> None:
    """Twin: a way of training that changes the experiment does not give `same`."""
    run = invariance_rows.plainly(tmp_path / "run", [*QUICK, "seed=1"])
    assert said(base, run) == "step 1, sample ids"


def test_a_training_that_fails_says_why(tmp_path: Path) -> None:
    """What stops a training comes back as one line."""
    with pytest.raises(InputError, match=r"^error: data\.batch_size: expected"):
        invariance_rows.plainly(tmp_path / "run", ["data.batch_size=0"])


def test_a_word_of_no_row_is_refused() -> None:
    """--only with nothing to measure is bad input."""
    done = command("engine/measure/invariance.py", "--only", "no such row")
    assert "--only: expected a word of a row, got no such row" in refusal(done)
