"""The chain of a run's checkpoints and its plan: written as training goes, and
contradicted."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from seedbed import compare, record
from seedbed.record import chain, code, untrusted
from tests.end_to_end.live import begin, until
from tests.made_up_runs import edit_summary
from tests.running import QUICK, command, refusal, trained

KEEPING = (
    *("trainer.keep_checkpoint_every_steps=5", "trainer.validate_every_steps=5"),
    *("schedule=constant", "data.batch_size=100"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of 12 steps whose checkpoints of steps 5 and 10 are kept."""
    return trained(tmp_path_factory.mktemp("chain") / "run", *KEEPING)


@pytest.fixture
def copy(run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(run, tmp_path / "copy"))


def rows(folder: Path) -> dict[int, tuple[str, str]]:
    """Return the hashes of each checkpoint in a chain, by step."""
    return {
        s: (row["weights"], row["state"])
        for s, row in chain.checkpoints(folder).items()
    }


def lines(folder: Path) -> list[str]:
    recorded = compare.read(folder)
    return [*chain.contradictions(folder, recorded.origin, recorded.summary)]


def test_a_run_has_a_chain_of_its_plan_and_checkpoints(run: Path) -> None:
    """The plan comes before step 1, the last checkpoint last; summary.json has the
    weights'."""
    assert lines(run) == []
    assert list(rows(run)) == [5, 10, 12]
    known = record.read_summary(run)["weights_sha256"]
    weights = {step: row[0] for step, row in rows(run).items()}
    assert (known["step_5"], known["step_10"], known["last"]) == (*weights.values(),)
    assert known["best"] in weights.values()
    assert len({*weights.values()}) == 3, "negative control"
    plan = record.read_json(run / chain.PLAN)
    assert plan["segments"] == {"every_steps": 5, "last_step": 12}
    environment = record.read_environment(run)
    assert plan["imported_files"].items() <= environment["imported_files"].items()


@pytest.mark.long
@pytest.mark.parametrize("step", [5, 10, 12])
def test_a_killed_run_has_the_same_chain(step: int, run: Path, tmp_path: Path) -> None:
    """It is killed as soon as a row is there: last.pt may be of an earlier step by
    then."""
    folder = tmp_path / "run"
    process = begin("train.py", f"hydra.run.dir={folder}", *QUICK, *KEEPING)
    path = folder / chain.FILE
    until(lambda: path.exists() and f"\n{step}," in path.read_text(), process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    done = command("scripts/resume.py", str(folder))
    assert done.returncode == 0 or "finished" in done.stderr, done.stderr
    assert rows(folder) == rows(run)
    assert lines(folder) == []


def test_a_row_without_its_checkpoint_is_written_again(copy: Path, run: Path) -> None:
    """As after a kill between the two, or a power cut in a row. Then the resumed run's
    folder has all kept checkpoints."""
    kept = copy / "checkpoints" / "step_5.pt"
    shutil.copy(kept, copy / "checkpoints" / "last.pt")
    (copy / "checkpoints" / "step_10.pt").unlink()
    edit_summary(copy, status="running")
    text = (copy / chain.FILE).read_text()
    (copy / chain.FILE).write_text(text[:-10])
    assert command("scripts/resume.py", str(copy)).returncode == 0
    assert rows(copy) == rows(run)
    assert lines(copy) == []
    assert list(record.kept_checkpoints(copy)) == [5, 10]


@pytest.mark.long
def test_a_longer_run_has_the_chain_of_its_length(tmp_path: Path) -> None:
    """The row of the former last step goes, and all others are those of an
    uninterrupted run."""
    words = (*KEEPING, "trainer.validate_every_steps=4")
    short = trained(tmp_path / "short", *words)
    assert list(rows(short)) == [5, 10, 12]
    whole = trained(tmp_path / "whole", *words, "trainer.max_steps=15")
    done = command("scripts/resume.py", str(short), "trainer.max_steps=15")
    assert done.returncode == 0, done.stderr
    assert rows(short) == rows(whole)
    assert list(rows(short)) == [5, 10, 15]
    assert lines(short) == []


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:

    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return change


def edit_row(step: int, column: int, value: str) -> Callable[[Path], None]:

    def change(folder: Path) -> None:
        table = (folder / chain.FILE).read_text().splitlines()
        number = next(i for i, line in enumerate(table) if line.startswith(f"{step},"))
        cells = table[number].split(",")
        cells[column] = value
        table[number] = ",".join(cells)
        (folder / chain.FILE).write_text("\n".join(table) + "\n")

    return change


def drop_row(folder: Path) -> None:
    """Remove a row, and make those behind it follow from the one before."""
    kept = untrusted.read_rows(folder / chain.FILE, chain.FIELDS)
    kept = [row for row in kept if row["step"] != "5"]
    before = ""
    text = ",".join(chain.FIELDS) + "\n"
    for row in kept:
        words = [row["step"], row["weights"], row["state"]]
        before = code.sha256(",".join([before, *words]).encode())
        text += ",".join([*words, before]) + "\n"
    (folder / chain.FILE).write_text(text)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (edit_row(5, 1, "0" * 64), "chain.csv: step 5 does not follow"),
        (edit_row(10, 2, "0" * 64), "chain.csv: step 10 does not follow"),
        (edit_row(0, 2, "0" * 64), "chain.csv: its first row is not that of plan.json"),
        (edit_row(12, 0, "13"), "chain.csv: step 13 does not follow"),
        (drop_row, "chain.csv: its steps are not those of plan.json"),
        (
            edit(chain.PLAN, '"every_steps": 5', '"every_steps": 6'),
            "its first row is not",
        ),
        (edit("config.yaml", "lr: 0", "lr: 1"), "plan.json: settings_sha256 optimizer"),
        (edit("config.yaml", "init: 0", "init: 1"), "plan.json: seeds seeds.init"),
        (
            edit("environment.json", 'tiny/cnn.py": "', 'tiny/cnn.py": "f'),
            "imported_files",
        ),
        (
            lambda folder: (folder / chain.PLAN).unlink(),
            "chain.csv: without the other file",
        ),
        (
            lambda folder: (folder / chain.FILE).unlink(),
            "plan.json: without the other file",
        ),
    ],
)
def test_a_chain_that_was_edited_contradicts(
    change: Callable[[Path], None], line: str, copy: Path
) -> None:
    """Negative control: `test_a_run_has_a_chain_of_its_plan_and_checkpoints`."""
    change(copy)
    assert any(line in found for found in lines(copy)), lines(copy)


@pytest.mark.parametrize("text", ["step,weights,state,digest\nx,,,\n", "a,b\n", ""])
def test_a_chain_that_cannot_be_read_is_an_input_error(text: str, copy: Path) -> None:
    (copy / chain.FILE).write_text(text)
    assert "chain.csv: expected" in refusal(
        command("scripts/compare.py", str(copy), str(copy))
    )


def test_other_weights_in_a_chain_are_no_same_bits(copy: Path, run: Path) -> None:
    """compare.py reads the chain of both. Negative control: the record as it was."""
    words = ("scripts/compare.py", str(copy), str(run), "--json")
    assert json.loads(command(*words).stdout)["same"] is True
    edit_row(10, 1, "0" * 64)(copy)
    done = command(*words)
    found = json.loads(done.stdout)
    assert (done.returncode, found["same"]) == (1, False)
    assert found["other_results"] == ["chain.csv: other weights in step 10"]
    assert any(
        entry.startswith("summary.json: command, ") for entry in found["not_compared"]
    )
