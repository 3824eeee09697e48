"""compare: the first difference between two records, what differs between them; guarantees."""

import json
import math
from pathlib import Path
from typing import Any

import guarantees
import pytest

from seedbed import compare, names, record
from seedbed.cli.compare import main
from seedbed.compare import Difference, first_difference
from seedbed.errors import InputError
from tests.made_up_runs import (
    contents,
    edit_summary,
    fingerprint_rows,
    metrics,
    write_csv,
    write_run,
)
from tests.running import called

STEPS = 12


def compared(a: Path, b: Path) -> compare.Comparison:
    return compare.compare(compare.read(a), compare.read(b))


def place(difference: Difference | None) -> tuple[int, str] | None:
    return difference and (difference.step, difference.stage)


@pytest.mark.parametrize("stage", [stage for stage in names.STAGES if stage != "buffers"])
@pytest.mark.parametrize("bit", [0, 63])
def test_a_flipped_bit_is_found_where_it_is(tmp_path: Path, stage: str, bit: int) -> None:
    """`compare` names its step and its stage, the first in causal order when all after it differ,
    too; negative control: nothing is flipped."""
    a, b = write_run(tmp_path / "a", STEPS), write_run(tmp_path / "b", STEPS)
    result = compared(a, b)
    assert (result.difference, result.steps, result.notes) == (None, STEPS, ())
    assert set(names.STAGES) - {"buffers"} <= set(result.stages)
    rows = fingerprint_rows(STEPS)
    digits = rows[4][stage]
    flipped = f"{int(digits, 16) ^ (1 << bit):016x}"
    for row in rows[4:]:
        row |= dict.fromkeys(names.STAGES[names.STAGES.index(stage) :], flipped)
    write_csv(b / "fingerprints.csv", record.FINGERPRINT_FIELDS, rows)
    found = compared(a, b).difference
    assert found is not None
    assert (found.step, found.stage, found.located) == (5, stage, True)
    assert (found.a, found.b) == (digits, flipped)


def test_only_a_stage_whose_step_before_was_compared_is_located() -> None:
    """Between rows that lie apart, a difference may have arisen on any stage."""
    a, b = fingerprint_rows(30, every=10), fingerprint_rows(30)
    for row in b[19:]:
        row["loss"] = "0" * 16
    sparse, dense = first_difference(a, b), first_difference(fingerprint_rows(30), b)
    assert place(sparse) == place(dense) == (20, "loss")
    assert sparse is not None
    assert dense is not None
    assert (sparse.located, sparse.equal_through) == (False, 10)
    assert (dense.located, dense.equal_through) == (True, 19)


def test_intervals_that_differ_are_compared_at_common_steps(tmp_path: Path) -> None:
    """Every 2 and every 3 steps share every sixth; without a common step nothing is "the same".

    A run that was interrupted equals the finished one in the steps that both have.
    """

    def run(name: str, steps: int, every: int) -> Path:
        config = {"fingerprint": {"every_steps": every}}
        rows = fingerprint_rows(steps, every)
        return write_run(tmp_path / name, steps, rows=[], config=config, fingerprints=rows)

    a, b = run("a", 13, 2), run("b", 12, 3)
    result = compared(a, b)
    assert (result.difference, result.steps) == (None, 2)
    assert result.notes[-1].startswith("fingerprint.every_steps is 2 in A, 3 in B")
    other = fingerprint_rows(13, 3)
    other[3]["batch"] = "0" * 16
    write_csv(b / "fingerprints.csv", record.FINGERPRINT_FIELDS, other)
    assert place(compared(a, b).difference) == (12, "batch")
    with pytest.raises(InputError, match="expected a recorded step"):
        compared(run("c", 5, 2), run("d", 5, 3))
    result = compared(run("e", 20, 1), run("f", 7, 1))
    assert (result.difference, result.steps) == (None, 7)
    assert result.notes == ("A is recorded to step 20 and B to step 7: common steps are compared",)


@pytest.mark.parametrize("every", [0, 1])
@pytest.mark.parametrize(("phase", "field"), [("train", "loss"), ("validation", "accuracy")])
def test_the_last_bit_is_found(tmp_path: Path, phase: str, field: str, every: int) -> None:
    """Also where fingerprints, which tell nothing of evaluation, are equal, or there are none."""
    rows = metrics(40)
    changed = next(row for row in rows if row["phase"] == phase and int(row["step"]) >= 20)
    changed[field] = repr(math.nextafter(float(changed[field]), 9))
    more = {"fingerprints": fingerprint_rows(40 * every)}
    a, b, c = (
        write_run(tmp_path / name, rows=each, **more)
        for name, each in (("a", metrics(40)), ("b", rows), ("c", metrics(40)))
    )
    assert place(compared(a, b).difference) == (20, f"{phase}_{field}")
    control = compared(a, c)
    assert control.difference is None
    none = ("no fingerprints in A and B: compared by losses and metrics alone",)
    assert control.notes == (() if every else none)


@pytest.mark.parametrize("name", ["weights", "predictions"])
def test_runs_that_logged_nothing_are_compared_by_how_they_ended(tmp_path: Path, name: str) -> None:
    """Without a fingerprints and without losses the final weights and predictions still speak."""
    final = {"weights": "1" * 16, "predictions": "2" * 16}
    silent: dict[str, Any] = {"fingerprints": [], "rows": []}
    a, b, c = (
        write_run(tmp_path / run, **silent, summary={"fingerprints": final | changed})
        for run, changed in (("a", {}), ("b", {}), ("c", {name: "3" * 16}))
    )
    assert compared(a, b).difference is None
    assert place(compared(a, c).difference) == (40, f"final_{name}")


def test_the_number_of_shards_is_no_difference_of_the_samples(tmp_path: Path) -> None:
    """Their hashes are of shards, so they are left out and the rest is compared.

    Negative control: with one number of shards they count.
    """
    other = fingerprint_rows(9)
    for row in other:
        row |= {"sample_ids": "0" * 16, "batch": "0" * 16}

    def run(name: str, shards: int, rows: list[dict[str, str]]) -> Path:
        config = {"trainer": {"shards": shards}}
        return write_run(tmp_path / name, 9, rows=[], config=config, fingerprints=rows)

    one = run("one", 1, fingerprint_rows(9))
    assert place(compared(one, run("other", 1, other)).difference) == (1, "sample_ids")
    same = compared(one, run("four", 4, other))
    assert same.difference is None
    assert same.notes[0].startswith("trainer.shards is 1 in A, 4 in B")
    found = compared(one, run("loss", 4, [row | {"loss": "1" * 16} for row in other])).difference
    assert place(found) == (1, "loss")


def test_a_resume_that_can_have_altered_bits_is_told(tmp_path: Path) -> None:
    """A record of two configurations says so; negative control: a resume with other workers is not
    told."""
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    for keys in (["optimizer.lr"], []):
        entry = {"step": 7, "changes": {"optimizer.lr": [1, 2]}, "can_alter_bits": keys}
        edit_summary(b, resumes=[entry])
        told = [note for note in compared(a, b).notes if "can alter bits" in note]
        assert told == [
            f"B was resumed at step 7 with changes that can alter bits: {key}" for key in keys
        ]
    for run, step in ((a, 4), (b, 5)):
        edit_summary(run, tested_step=step)
    assert "A tested the weights of step 4, B of step 5: not compared" in compared(a, b).notes


def changes(a: Path, b: Path) -> list[record.Change]:
    return record.changes(compare.read(a).origin, compare.read(b).origin)


def test_seeds_come_first_then_settings_then_the_environment_then_code(tmp_path: Path) -> None:
    """Everything that can alter bits, each once; control: what cannot is told from it."""
    config = {
        "seed": 1, "seeds": {"init": 1}, "optimizer": {"lr": 0.1}, "fingerprint": {"x": 1},
        "determinism": {"threads": 4}, "TORCH_LOGS": "own",
        "data": {"num_workers": 2, "root": "/elsewhere", "validation": {"path": "/elsewhere"}},
    }  # fmt: skip
    environment = {
        "cpu": {"model": "Another", "cores": 7, "threads": 4},
        "env": {"TORCH_LOGS": "x", "TORCHELASTIC_RUN_ID": "x"},
        "imported_files": {"src/project/cnn.py": "12"},
    }
    a = write_run(tmp_path / "a", environment={"imported_files": {"src/project/cnn.py": "00"}})
    b = write_run(tmp_path / "b", config=config, environment=environment)
    found = changes(a, b)
    serious = [change.key for change in found if change.alters_bits]
    assert serious == [
        *("seed", "seeds.init", "TORCH_LOGS", "data.validation.path"),
        *("determinism.threads", "optimizer.lr"),
        *("cpu.model", "env.TORCH_LOGS", "src/project/cnn.py"),
    ]
    harmless = {change.key for change in found if not change.alters_bits}
    assert harmless >= {"data.num_workers", "data.root", "fingerprint.x", "cpu.cores"}


def test_where_data_lies_can_alter_bits_unless_digests_are_the_same(tmp_path: Path) -> None:
    """Also where held-out data lies, of which the digests say nothing."""

    def altering(digest: object, part: str) -> list[str]:
        folder = tmp_path / f"{digest} {part}"
        environment = {"data_sha256": digest}
        config = {"data": {part: {"path": "/b/data.csv"}}}
        a = write_run(folder / "a", environment=environment)
        b = write_run(folder / "b", config=config, environment=environment)
        return [change.key for change in changes(a, b) if change.alters_bits]

    assert altering(None, "train") == ["data.train.path"]
    assert altering({"images": None}, "train") == ["data.train.path"]
    assert altering({"images": "00ff"}, "train") == []
    assert altering({"images": "00ff"}, "validation") == ["data.validation.path"]


def test_the_command_names_what_differs_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit status 0 for the same bits, 1 with step, stage and setting for others, 2 for no run."""
    rows = fingerprint_rows(40)
    rows[16]["weights"] = "0" * 16
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", config={"data": {"num_workers": 2}})
    write_run(tmp_path / "c", config={"optimizer": {"lr": 0.1}}, fingerprints=rows)
    before = contents(tmp_path)
    monkeypatch.chdir(tmp_path)
    same, other, none = (called(main, "a", name) for name in "bcd")
    assert (same.returncode, other.returncode, none.returncode) == (0, 1, 2)
    assert "Differences that changed no bit" in same.stdout
    assert "data.num_workers" in same.stdout
    lines = other.stdout.splitlines()
    assert "The runs diverge at step 17: weights (optimizer)" in lines
    assert ["optimizer.lr", "0.003", "0.1"] in [line.split() for line in lines]
    assert none.stderr.startswith("error: d: expected a run folder")
    assert (none.stdout, none.stderr.count("\n")) == ("", 1)
    assert contents(tmp_path) == before


def test_json_is_one_object(tmp_path: Path) -> None:
    """With what the report says, also where a metric is no number that JSON has."""
    write_run(tmp_path / "a", summary={"metrics": {"loss": 0.5, "x": float("nan")}})
    write_run(tmp_path / "b", config={"seed": 1}, summary={"metrics": {"loss": 0.25}})
    done = called(main, str(tmp_path / "a"), str(tmp_path / "b"), "--json")

    def refuse(word: str) -> None:
        raise AssertionError(word)

    said = json.loads(done.stdout, parse_constant=refuse)
    assert done.returncode == 0
    assert (said["same"], said["step"], said["stage"]) == (True, None, None)
    assert said["metrics"] == {"a": {"loss": 0.5, "x": "nan"}, "b": {"loss": 0.25}}
    assert [(c["key"], c["a"], c["b"]) for c in said["changes"]] == [("seed", 0, 1)]


def steps_decrease(run: Path) -> None:
    rows = fingerprint_rows(40)
    write_csv(run / "fingerprints.csv", record.FINGERPRINT_FIELDS, [*rows, rows[3]])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: edit_summary(run, format_version=99), "b: expected a record of format"),
        (steps_decrease, r"b/fingerprints.csv: expected steps that increase, got 4 after 40"),
        (lambda run: (run / "summary.json").unlink(), r"b: expected a run folder .* got a folder"),
        (lambda run: (run / "fingerprints.csv").unlink(), r"fingerprints.csv: expected a table"),
    ],
)
def test_a_damaged_record_is_an_input_error(tmp_path: Path, damage: Any, message: str) -> None:
    """Damaged or too new: one line that says what is wrong with which file."""
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    compared(a, b)  # the negative control: it could be compared before
    damage(b)
    with pytest.raises(InputError, match=message) as caught:
        compared(a, b)
    assert "\n" not in str(caught.value)


def test_a_cell_is_what_a_comparison_says(tmp_path: Path) -> None:
    """`same`, or the first step and stage; negative controls: a shorter run, an interrupted one."""
    base = compare.read(write_run(tmp_path / "base", 40))
    assert guarantees.verdict(base, compare.read(write_run(tmp_path / "again", 40))) == "same"
    rows = fingerprint_rows(40)
    rows[2]["gradients"] = "f" * 16
    other = compare.read(write_run(tmp_path / "other", fingerprints=rows))
    assert guarantees.verdict(base, other) == "step 3, gradients"
    shorter = compare.read(write_run(tmp_path / "shorter", 30))
    assert guarantees.verdict(base, shorter) == "30 steps instead of 40"
    stopped = write_run(tmp_path / "stopped", 40, summary={"status": "interrupted"})
    with pytest.raises(InputError, match="expected a finished run"):
        guarantees.verdict(base, compare.read(stopped))
