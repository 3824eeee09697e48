"""`compare`: the first difference between two records, and their changes;
guarantees.py."""

import hashlib
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import guarantees
import pytest

from seedbed import compare, names, record
from seedbed.cli.compare import main
from seedbed.compare import Difference, first_difference
from seedbed.errors import InputError
from seedbed.record import untrusted
from tests.made_up_runs import (
    contents,
    edit_summary,
    fingerprint_rows,
    metrics,
    write_result,
    write_run,
)
from tests.running import called

STEPS = 12
Make = Callable[..., compare.Record]


@pytest.fixture
def made(tmp_path: Path) -> Make:
    """Return a function that writes a run, by the arguments of write_run, and reads
    it."""
    numbers = itertools.count()

    def make(*steps: int, **what: Any) -> compare.Record:
        return compare.read(write_run(tmp_path / str(next(numbers)), *steps, **what))

    return make


def place(difference: Difference | None) -> tuple[int, str] | None:
    return difference and (difference.step, difference.stage)


@pytest.mark.parametrize(
    "stage", [stage for stage in names.STAGES if stage != "buffers"]
)
@pytest.mark.parametrize("bit", [0, 63])
def test_a_flipped_bit_is_found_where_it_is(made: Make, stage: str, bit: int) -> None:
    """`compare` names the step and the first stage in causal order, even if all later
    ones differ. Negative control: nothing is flipped."""
    result = compare.compare(made(STEPS), made(STEPS))
    assert (result.difference, result.steps, result.notes) == (None, STEPS, ())
    assert set(names.STAGES) - {"buffers"} <= set(result.stages)
    rows = fingerprint_rows(STEPS)
    digits = rows[4][stage]
    flipped = f"{int(digits, 16) ^ (1 << bit):016x}"
    for row in rows[4:]:
        row |= dict.fromkeys(names.STAGES[names.STAGES.index(stage) :], flipped)
    found = compare.compare(made(STEPS), made(STEPS, fingerprints=rows)).difference
    assert found is not None
    assert (found.step, found.stage, found.located) == (5, stage, True)
    assert (found.a, found.b) == (digits, flipped)


def test_only_a_stage_whose_step_before_was_compared_is_located() -> None:
    """If steps between two rows are missing, a difference may have arisen in any
    stage."""
    a = fingerprint_rows(30, every=10)
    b = fingerprint_rows(30)
    for row in b[19:]:
        row["loss"] = "0" * 16
    sparse = first_difference(a, b)
    dense = first_difference(fingerprint_rows(30), b)
    assert place(sparse) == place(dense) == (20, "loss")
    assert sparse is not None
    assert dense is not None
    assert (sparse.located, sparse.equal_through) == (False, 10)
    assert (dense.located, dense.equal_through) == (True, 19)


def test_intervals_that_differ_are_compared_at_common_steps(made: Make) -> None:
    """Rows of every 2 and every 3 steps share every sixth; no common step is an
    InputError.

    An interrupted run is compared with a finished one at the steps that both have.
    """

    def run(steps: int, every: int, batch: str | None = None) -> compare.Record:
        rows = fingerprint_rows(steps, every)
        rows[-1]["batch"] = batch or rows[-1]["batch"]
        config = {"fingerprint": {"every_steps": every}}
        return made(steps, rows=[], config=config, fingerprints=rows)

    result = compare.compare(run(13, 2), run(12, 3))
    assert (result.difference, result.steps) == (None, 2)
    assert result.notes[-1].startswith("fingerprint.every_steps is 2 in A, 3 in B")
    assert place(compare.compare(run(13, 2), run(12, 3, "0" * 16)).difference) == (
        12,
        "batch",
    )
    with pytest.raises(InputError, match="expected a recorded step"):
        compare.compare(run(5, 2), run(5, 3))
    result = compare.compare(run(20, 1), run(7, 1))
    assert (result.difference, result.steps) == (None, 7)
    assert result.notes == (
        "A is recorded to step 20 and B to step 7: common steps are compared",
    )


@pytest.mark.parametrize("every", [0, 1])
@pytest.mark.parametrize(
    ("phase", "field"), [("train", "loss"), ("validation", "accuracy")]
)
def test_the_last_bit_is_found(made: Make, phase: str, field: str, every: int) -> None:
    """Fingerprints omit evaluation and may be equal or missing. Negative control: equal
    metrics."""
    rows = metrics(40)
    changed = next(
        row for row in rows if row["phase"] == phase and int(row["step"]) >= 20
    )
    changed[field] = repr(math.nextafter(float(changed[field]), 9))
    fingerprints = fingerprint_rows(40 * every)
    a = made(fingerprints=fingerprints)
    b = made(fingerprints=fingerprints, rows=rows)
    assert place(compare.compare(a, b).difference) == (20, f"{phase}_{field}")
    control = compare.compare(a, made(fingerprints=fingerprints))
    assert control.difference is None
    none = ("no fingerprints in A and B: compared by losses and metrics alone",)
    assert control.notes == (() if every else none)


@pytest.mark.parametrize("name", ["weights", "predictions"])
def test_runs_that_logged_nothing_are_compared_by_how_they_ended(
    made: Make, name: str
) -> None:
    """Without fingerprints and losses, the final weights and predictions are
    compared."""
    final = {"weights": "1" * 16, "predictions": "2" * 16}
    a, b, c = (
        made(fingerprints=[], rows=[], summary={"fingerprints": final | changed})
        for changed in ({}, {}, {name: "3" * 16})
    )
    assert compare.compare(a, b).difference is None
    assert place(compare.compare(a, c).difference) == (40, f"final_{name}")


def test_the_number_of_shards_is_no_difference_of_the_samples(made: Make) -> None:
    """The hashes of samples are those of shards, so they are left out; the rest is
    compared.

    Negative control: with equal numbers of shards they are compared.
    """

    def run(shards: int, **changed: str) -> compare.Record:
        rows = [row | changed for row in fingerprint_rows(9)]
        return made(
            9, rows=[], config={"trainer": {"shards": shards}}, fingerprints=rows
        )

    one = run(1)
    samples = {"sample_ids": "0" * 16, "batch": "0" * 16}
    assert place(compare.compare(one, run(1, **samples)).difference) == (
        1,
        "sample_ids",
    )
    same = compare.compare(one, run(4, **samples))
    assert same.difference is None
    assert same.notes[0].startswith("trainer.shards is 1 in A, 4 in B")
    found = compare.compare(one, run(4, **samples, loss="1" * 16)).difference
    assert place(found) == (1, "loss")


def test_a_resume_that_can_have_altered_bits_is_told(made: Make) -> None:
    """The notes name such a resume, and different tested steps.
    Negative control: a resume that cannot have altered bits has no note."""
    for keys in (["optimizer.lr"], []):
        entry = {"step": 7, "changes": {"optimizer.lr": [1, 2]}, "can_alter_bits": keys}
        a = made(summary={"tested_step": 4})
        b = made(summary={"tested_step": 5, "resumes": [entry]})
        assert compare.compare(a, b).notes == (
            "A tested the weights of step 4, B of step 5: not compared",
            *(
                f"B was resumed at step 7 with changes that can alter bits: {key}"
                for key in keys
            ),
        )


def changes(
    a: compare.Record, b: compare.Record, alters_bits: bool = True
) -> list[str]:
    found = record.changes(a.origin, b.origin)
    return [change.key for change in found if change.alters_bits is alters_bits]


def test_seeds_come_first_then_settings_then_the_environment_then_code(
    made: Make,
) -> None:
    """Changes that can alter bits are listed once each. Negative control: harmless ones
    are not."""
    config = {
        "seed": 1,
        "seeds": {"init": 1},
        "optimizer": {"lr": 0.1},
        "fingerprint": {"x": 1},
        "determinism": {"threads": 4},
        "TORCH_LOGS": "own",
        "data": {
            "num_workers": 2,
            "root": "/elsewhere",
            "validation": {"path": "/elsewhere"},
        },
    }
    environment = {
        "cpu": {"model": "Another", "cores": 7, "threads": 4},
        "env": {"TORCH_LOGS": "x", "TORCHELASTIC_RUN_ID": "x"},
        "imported_files": {"src/project/cnn.py": "12"},
    }
    a = made(environment={"imported_files": {"src/project/cnn.py": "00"}})
    b = made(config=config, environment=environment)
    assert changes(a, b) == [
        *("seed", "seeds.init", "TORCH_LOGS", "data.validation.path"),
        *("determinism.threads", "optimizer.lr"),
        *("cpu.model", "env.TORCH_LOGS", "src/project/cnn.py"),
    ]
    undefined = made(config={"optimizer": {"lr": math.nan}})
    assert changes(undefined, undefined) == [], "NaN is what it was"
    harmless = changes(a, b, alters_bits=False)
    assert {"data.num_workers", "data.root", "fingerprint.x", "cpu.cores"} <= set(
        harmless
    )


@pytest.mark.parametrize(
    ("digests", "part", "alters"),
    [
        (None, "train", True),
        ({"images": None}, "train", True),
        ({"images": "00ff"}, "train", False),
        ({"images": "00ff"}, "validation", True),
    ],
)
def test_where_data_lies_can_alter_bits_unless_digests_are_the_same(
    made: Make, digests: object, part: str, alters: bool
) -> None:
    """The place of held-out data always can, because the digests only cover training
    data."""
    environment = {"data_sha256": digests}
    other = made(config={"data": {part: {"path": "/b.csv"}}}, environment=environment)
    assert (
        changes(made(environment=environment), other) == [f"data.{part}.path"] * alters
    )


def test_the_command_names_what_differs_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit status: 0 for equal bits, 1 (with step, stage and setting) for others, 2 for
    no run."""
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


def test_a_diff_of_code_that_did_not_run_says_so(tmp_path: Path) -> None:
    """Of the run whose code.zip is not what it imported. Negative control: the other
    run."""
    for name, text, digest in (("a", b"A = 1\n", "0" * 64), ("b", b"A = 2\n", None)):
        files = {"a.py": digest or hashlib.sha256(text).hexdigest()}
        run = write_run(tmp_path / name, environment={"imported_files": files})
        (run / "code.zip").write_bytes(untrusted.zipped({"a.py": text}))
    table = tmp_path / "b" / "fingerprints.csv"
    table.write_text(table.read_text().replace("\n17,", "\n17,0"))
    lines = called(main, str(tmp_path / "a"), str(tmp_path / "b")).stdout.splitlines()
    assert "+A = 2" in lines
    notes = [line for line in lines if line.startswith("note: ")]
    assert notes == ["note: a.py in code.zip of run A is not what it imported"]


def test_an_edited_result_is_no_equal_record(tmp_path: Path) -> None:
    """Status 1, with the value of the table, also in a record of an earlier version.
    Negative
    control: the record before the edit."""
    for name, extra in (("new", {}), ("old", {"last_metrics": None})):
        a, b = (
            write_result(tmp_path / name / side, accuracy=0.98, environment={})
            for side in "ab"
        )
        for run in (a, b):
            summary = {
                k: v for k, v in record.read_summary(run).items() if k not in extra
            }
            (run / "summary.json").write_text(json.dumps(summary))
        done = called(main, str(a), str(b), "--json")
        assert (done.returncode, json.loads(done.stdout)["same"]) == (0, True)
        edit_summary(b, metrics={**summary["metrics"], "test_accuracy": 0.99})
        done = called(main, str(a), str(b), "--json")
        found = json.loads(done.stdout)
        line = "summary.json: metrics.test_accuracy is 0.99, but 0.98 in metrics.csv"
        assert (done.returncode, found["same"]) == (1, False)
        assert found["other_results"] == [f"other results in {b}: {line}"]
        assert line in called(main, str(a), str(b)).stdout


@pytest.mark.parametrize("split", ["validation", "test"])
def test_other_evaluated_samples_are_named(made: Make, split: str) -> None:
    """Negative control: in other batches, the same samples have other hashes."""
    prints = [{"weights": "0" * 16, f"{split}_samples": digit * 16} for digit in "01"]
    a, b = (made(STEPS, summary={"fingerprints": each}) for each in prints)
    result = compare.compare(a, b)
    assert place(result.difference) == (STEPS, f"final_{split}_samples")
    assert result.notes == (
        f"A and B evaluated other {split} samples, or had other draws for them",
    )
    batches = {"data": {"eval_batch_size": 7}}
    other = made(STEPS, summary={"fingerprints": prints[1]}, config=batches)
    result = compare.compare(a, other)
    assert (result.difference, result.notes) == (None, ())


def test_other_predictions_are_a_difference_and_other_names_of_samples_none(
    made: Make,
) -> None:
    """Of equal outputs: the fingerprint of predictions is of those. Negative control:
    equal ones. Runs that tested the weights of other steps are not compared."""
    tables = (
        "sample_id,target,prediction,name\n0,1.0,1.0,a/0.png\n",
        "sample_id,target,prediction,name\n0,1.0,1.0,b/0.png\n",
        "sample_id,target,prediction,name\n0,1.0,2.0,a/0.png\n",
    )
    runs = [made(STEPS) for _ in tables]
    for run, table in zip(runs, tables, strict=True):
        Path(run.name, "test_predictions.csv").write_text(table)
    assert compare.compare(runs[0], runs[1]).difference is None
    assert place(compare.compare(runs[0], runs[2]).difference) == (STEPS, "final_table")
    runs[2].summary["tested_step"] = 5
    assert compare.compare(runs[0], runs[2]).difference is None


def test_json_is_one_object(tmp_path: Path) -> None:
    """It has the content of the report; NaN, which JSON lacks, is the string "nan" in
    metrics."""
    write_run(tmp_path / "a", summary={"metrics": {"loss": 0.5, "x": float("nan")}})
    write_run(tmp_path / "b", config={"seed": 1}, summary={"metrics": {"loss": 0.25}})
    done = called(main, str(tmp_path / "a"), str(tmp_path / "b"), "--json")

    said = json.loads(done.stdout, parse_constant=pytest.fail)
    assert done.returncode == 0
    assert (said["same"], said["step"], said["stage"]) == (True, None, None)
    assert said["metrics"] == {"a": {"loss": 0.5, "x": "nan"}, "b": {"loss": 0.25}}
    assert [(c["key"], c["a"], c["b"]) for c in said["changes"]] == [("seed", 0, 1)]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda run: edit_summary(run, format_version=99),
            "b: expected a record of format",
        ),
        (
            lambda run: (run / "fingerprints.csv").open("a").write("4,,,,,,,\n"),
            "b/fingerprints.csv: expected steps that increase, got 4 after 40",
        ),
        (
            lambda run: (run / "summary.json").unlink(),
            r"b: expected a run folder .* got a folder",
        ),
        (
            lambda run: (run / "fingerprints.csv").unlink(),
            r"fingerprints.csv: expected a table",
        ),
    ],
)
def test_a_damaged_record_is_an_input_error(
    tmp_path: Path, damage: Any, message: str
) -> None:
    """Damaged or too new records raise an InputError: one line with the file and the
    problem."""
    path = write_run(tmp_path / "b")
    compare.read(path)  # the negative control: it could be read before
    damage(path)
    with pytest.raises(InputError, match=message) as caught:
        compare.read(path)
    assert "\n" not in str(caught.value)


def test_a_cell_of_the_guarantees_is_what_a_comparison_says(made: Make) -> None:
    """`same`, or the first step and stage. Negative controls: a shorter or interrupted
    run."""
    rows = fingerprint_rows(40)
    rows[2]["gradients"] = "f" * 16
    base = made()
    assert guarantees.verdict(base, made()) == "same"
    assert guarantees.verdict(base, made(fingerprints=rows)) == "step 3, gradients"
    assert guarantees.verdict(base, made(30)) == "30 steps instead of 40"
    with pytest.raises(InputError, match="expected a finished run"):
        guarantees.verdict(base, made(summary={"status": "interrupted"}))
