"""`verify` replays a run from its record alone, without trusting the record."""

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from seedbed import config, launch, record
from seedbed.compare import verify
from seedbed.errors import InputError
from seedbed.record import untrusted
from tests.end_to_end.live import begin, until
from tests.made_up_runs import contents, edit_summary, write_csv, write_run
from tests.run.runs import LSTM, begun
from tests.running import QUICK, command, refusal, train, trained
from tests.tools.test_evaluate import alter_weights

STEPS = 12  # of tests.running.QUICK
# What no replay of a whole run can tell, beside entries of summary.json.
NOT_COMPARED = (
    *(
        "config.yaml: *.name",
        "environment.json: git",
        "code.zip: modules",
        "checkpoints: origin",
    ),
    *(
        "config.mark",
        "interpolations.json",
        "loss_curve.png",
        "source.patch",
        "train.log",
    ),
)


@pytest.fixture
def copy(quick_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(quick_run, tmp_path / "copy"))


def edit_stage(folder: Path, step: int, stage: str) -> None:
    """Flip one bit of one fingerprint of a record."""
    rows = record.read_fingerprints(folder)
    rows[step - 1][stage] = f"{int(rows[step - 1][stage], 16) ^ 1:016x}"
    write_csv(folder / "fingerprints.csv", record.FINGERPRINT_FIELDS, rows)


def edit_text(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def replayed(
    run: Path, folder: Path, start: int = 0, steps: int | None = None
) -> verify.Outcome:
    """Replay a run in a folder: `steps` steps after `start`, or all of them."""
    return verify.replay(run, folder, verify.range_of(verify.read(run), start, steps))


def test_a_run_is_reproduced_from_its_record(copy: Path) -> None:
    """A run replayed from its record alone has the same bits, up to its last
    prediction.

    Another switch of the interpreter is listed.
    """
    environment = record.read_json(copy / "environment.json")
    assert environment["interpreter"]["optimize"] == 0
    environment["interpreter"]["optimize"] = 1
    record.write_json(copy / "environment.json", environment)
    before = contents(copy)
    done = command("scripts/verify.py", str(copy))
    assert "interpreter.optimize  1  0" in done.stdout
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("REPRODUCED")
    assert "final predictions" in done.stdout
    assert contents(copy) == before, "verify wrote into the record"


def test_a_replay_stops_at_the_first_bit_that_differs(
    copy: Path, tmp_path: Path
) -> None:
    """A flipped bit of one fingerprint is located by step and stage, and ends the
    replay there."""
    edit_stage(copy, 5, "gradients")
    edit_stage(copy, 5, "weights")
    edit_stage(copy, 7, "batch")
    kept = tmp_path / "kept"
    done = command("scripts/verify.py", str(copy), "--keep", str(kept))
    assert done.returncode == 1, done.stderr
    assert done.stdout.startswith(
        "NOT REPRODUCED: the runs diverge at step 5: gradients"
    )
    assert [row["step"] for row in record.read_fingerprints(kept)] == [
        "1",
        "2",
        "3",
        "4",
        "5",
    ]


@pytest.mark.long
def test_a_run_continued_under_other_settings_says_so(tmp_path: Path) -> None:
    """It cannot be repeated from its start, which the refusal of the change says, too.

    Negative control: without a record of that resume, nothing explains the difference.
    """
    run = tmp_path / "run"
    words = (*LSTM, "trainer.max_steps=null", "trainer.max_epochs=1")
    assert train(run, *words).returncode == 0
    longer = ("scripts/resume.py", str(run), "trainer.max_epochs=2")
    assert "cannot repeat it from its start" in command(*longer).stderr
    assert command(*longer, "--allow-changed").returncode == 0
    done = command("scripts/verify.py", str(run))
    assert done.returncode == 1, done.stderr
    told = "A was continued under other settings or code: trainer.max_epochs 1 -> 2"
    assert f"{told} at step 4. " in done.stdout
    assert "--from-step 4, if its checkpoint was kept" in done.stdout
    assert "Nothing recorded explains it" not in done.stdout
    edit_summary(run, resumes=[])
    done = command("scripts/verify.py", str(run))
    assert done.returncode == 1, done.stderr
    assert "Nothing recorded explains it" in done.stdout


def test_metrics_are_compared_with_a_tolerance(copy: Path) -> None:
    """The replay runs to its end; different bits still exit with status 1."""
    edit_stage(copy, 5, "gradients")
    edit_summary(
        copy, metrics=record.read_summary(copy)["metrics"] | {"test_loss": 9.0}
    )
    words = ("--tolerance", "test_loss=0.1", "--tolerance", "test_accuracy=0")
    done = command("scripts/verify.py", str(copy), *words)
    assert done.returncode == 1, done.stderr
    ends = {
        line.split()[0]: line for line in done.stdout.splitlines() if "within" in line
    }
    assert ends["test_loss"].endswith("NOT within 0.1")
    assert ends["test_accuracy"].endswith("  within 0")


def test_a_forged_result_is_not_reproduced(copy: Path, tmp_path: Path) -> None:
    """Every result that a record states is compared with the replay."""
    true = record.read_summary(copy)["metrics"]
    edit_summary(copy, metrics=true | {"test_accuracy": 0.99})
    outcome = replayed(copy, tmp_path / "replay")
    assert not outcome.reproduced
    [line] = outcome.forged
    assert line.startswith("summary.json: metrics.test_accuracy is 0.99")
    edit_summary(copy, metrics=true)
    edit_text(copy / "test_predictions.csv", "\n0,", "\n0,7")
    outcome = replayed(copy, tmp_path / "second")
    assert not outcome.reproduced
    assert outcome.comparison.difference is not None
    assert outcome.comparison.difference.stage == "final_table"


def test_two_rows_of_a_step_and_phase_are_refused(copy: Path) -> None:
    """Of a better test row before the true one, readers that index rows by name keep
    the last."""
    lines = (copy / "metrics.csv").read_text().splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if ",test," in line)
    cells = lines[place].split(",")
    lines.insert(place, ",".join([*cells[:4], "0.99", *cells[5:]]))
    (copy / "metrics.csv").write_text("".join(lines))
    with pytest.raises(
        InputError, match="one row of a step and phase, got two of step 12, test"
    ):
        verify.read(copy)


@pytest.fixture(scope="module")
def checkpointed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with checkpoints of steps 5, 10 and 12."""
    return trained(
        tmp_path_factory.mktemp("steps") / "run", "trainer.checkpoint_every_steps=5"
    )


def test_a_part_is_reproduced(checkpointed: Path, tmp_path: Path) -> None:
    """A part starts at the beginning or a checkpoint; its schedule is that of the whole
    run."""
    first = replayed(checkpointed, tmp_path / "first", steps=4)
    last = replayed(checkpointed, tmp_path / "last", start=10)
    assert first.reproduced
    assert last.reproduced
    assert [row["step"] for row in first.replay.fingerprints] == ["1", "2", "3", "4"]
    assert [row["step"] for row in last.replay.fingerprints] == ["11", "12"]
    assert "validation_loss" in last.comparison.stages
    assert "validation_loss" not in first.comparison.stages


def test_a_part_with_another_bit_is_not(checkpointed: Path, tmp_path: Path) -> None:
    """Negative control: a bit outside the part does not count. A part starts at a
    checkpoint."""
    with pytest.raises(
        InputError, match="expected the step of a checkpoint, 10 or 12, got 7"
    ):
        replayed(checkpointed, tmp_path / "none", 7)
    copy = Path(shutil.copytree(checkpointed, tmp_path / "copy"))
    edit_stage(copy, 9, "loss")
    assert replayed(copy, tmp_path / "one", 10, 1).reproduced
    edit_stage(copy, 11, "loss")
    found = replayed(copy, tmp_path / "two", 10, 1).comparison.difference
    assert found is not None
    assert (found.step, found.stage) == (11, "loss")


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that was stopped after step 7; it validates after every 4 steps."""
    folder = begun(
        tmp_path_factory.mktemp("stopped") / "run", *QUICK, "data.batch_size=1000"
    )
    environment = launch.training_environment(config.check(record.read_config(folder)))
    asked = json.dumps({"last_step": 7})
    done = command(
        "-m", "seedbed.worker", "train", str(folder), asked, environment=environment
    )
    assert done.returncode == 143, done.stderr
    return folder


def test_an_interrupted_run_is_reproduced_as_far_as_it_went(interrupted: Path) -> None:
    """The replay ends where the run did, with the same weights, last.pt and summary."""
    before = contents(interrupted)
    done = command("scripts/verify.py", str(interrupted), "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert (found["same"], found["steps_compared"], found["other_results"]) == (
        True,
        7,
        [],
    )
    for entry in found["not_compared"]:
        assert entry.startswith(("summary.json: command, ", *NOT_COMPARED)), entry
    assert contents(interrupted) == before


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            {"metrics": {"validation_accuracy": 1.0}},
            "metrics.validation_accuracy is 1.0 in",
        ),
        (
            {"last_metrics": {"validation_loss": 1.0}},
            "last_metrics.validation_loss is 1.0 in the",
        ),
        (
            {"last_metrics": {"test_loss": 1.0}},
            "(last_metrics.test_loss): test results, but the",
        ),
        ({"best_step": 8}, "best_step is 8 in the record, 4 by its tables and replay"),
        (
            {"metrics": {"f1": 1.0}},
            "metrics.f1 is 1.0 in the record, None by its tables",
        ),
        (
            {"metrics": {"test_accuracy": 1.0}},
            "(metrics.test_accuracy): test results, but the",
        ),
        ({"steps": 6}, "steps is 6 in the record, 7 by its tables and replay"),
        ({"steps": 12}, "fingerprints.weights is"),
        (
            {"objective": {"name": "validation_loss", "value": 0.0}},
            "objective.value is 0.0 in",
        ),
        (
            {"fingerprints": {"predictions": "00" * 8}},
            "(fingerprints.predictions): test results",
        ),
        ({"parameters": 5}, "parameters is 5 in the record"),
        (
            {"fingerprints": {"weights": "00" * 8}},
            "fingerprints.weights is '0000000000000000' in",
        ),
    ],
)
def test_what_an_unfinished_run_states_agrees_with_its_tables(
    change: dict[str, Any], line: str, interrupted: Path, tmp_path: Path
) -> None:
    """Negative control: the test above."""
    forged = Path(shutil.copytree(interrupted, tmp_path / "run"))
    ((key, value),) = change.items()
    before = record.read_summary(forged)[key]
    edit_summary(forged, **{key: before | value if isinstance(value, dict) else value})
    outcome = replayed(forged, tmp_path / "replay")
    assert not outcome.reproduced
    assert any(line in found for found in outcome.forged)


@pytest.mark.parametrize("status", ["failed", "interrupted", "running", "done"])
def test_results_of_a_run_that_did_not_finish_are_not_reproduced(
    copy: Path, status: str
) -> None:
    """A finished record with another status, a forged test row and forged predictions;
    negative
    control: test_a_run_is_reproduced_from_its_record."""
    summary = record.read_summary(copy)
    edit_summary(
        copy, status=status, metrics=summary["metrics"] | {"test_accuracy": 1.0}
    )
    rows = record.read_metrics(copy)
    rows[-1]["accuracy"] = "1.0"
    write_csv(copy / "metrics.csv", tuple(rows[0]), rows)
    (copy / "test_predictions.csv").write_text("sample_id,target,prediction\n0,1,1\n")
    done = command("scripts/verify.py", str(copy))
    assert done.returncode == 1, done.stderr
    first, second, *_ = done.stdout.splitlines()
    assert first.startswith("NOT REPRODUCED")
    assert "metrics.csv, test_predictions.csv, summary.json (" in second
    assert f"test results, but the run is {status}" in second


def test_a_part_states_what_it_leaves_out(quick_run: Path) -> None:
    done = command("scripts/verify.py", str(quick_run), "--steps", "3")
    assert done.returncode == 0, done.stderr
    first, second, *_ = done.stdout.splitlines()
    assert first == f"REPRODUCED {quick_run}: steps 1 to 3"
    assert second.startswith("not compared: steps 4 to 12; results; summary.json; ")
    assert "; checkpoints/best.pt; checkpoints/last.pt" in second
    assert second.endswith(" (keys: --json)")


def test_checkpoints_have_the_weights_of_their_step(
    copy: Path, quick_run: Path, tmp_path: Path
) -> None:
    """best.pt of another seed, and last.pt with one other bit and a right checksum, are
    named. Negative control: test_a_run_is_reproduced_from_its_record."""
    other = trained(tmp_path / "other", "seed=1")
    shutil.copy(other / "checkpoints" / "best.pt", copy / "checkpoints" / "best.pt")
    last = copy / "checkpoints" / "last.pt"
    alter_weights(last)
    done = command("scripts/verify.py", str(copy))
    assert done.returncode == 1, done.stderr
    first, *lines = done.stdout.splitlines()[:3]
    assert first.startswith("NOT REPRODUCED")
    told = "whose SHA-256 is in summary.json, got others"
    for name, line in zip(("best", "last"), lines, strict=True):
        assert f"checkpoints/{name}.pt: expected the weights" in line
        assert told in line
    edit_summary(copy, weights_sha256={})
    done = command("scripts/verify.py", str(copy))
    for name in ("best", "last"):
        assert f"  checkpoints/{name}.pt: other state than in the replay" in done.stdout
    assert "  checkpoints/last.pt: other state than in chain.csv" in done.stdout
    last.write_bytes(b"XX" + last.read_bytes()[2:])
    assert (
        "last.pt: expected the content that was written"
        in command("scripts/verify.py", str(copy)).stdout
    )


@pytest.mark.long
def test_code_that_was_not_imported_is_named_and_not_run(copy: Path) -> None:
    """A changed file and an additional one in code.zip. Negative control: the record as
    it was is replayed with its own code."""
    assert command("scripts/verify.py", str(copy), "--restore-code").returncode == 0
    files = untrusted.read_zip(copy / "code.zip")
    name = next(each for each in files if each.endswith("tiny/cnn.py"))
    for changed, text in (
        (name, b"import os\n" + files[name]),
        ("src/sitecustomize.py", b""),
    ):
        (copy / "code.zip").write_bytes(untrusted.zipped({**files, changed: text}))
        done = command("scripts/verify.py", str(copy))
        assert done.returncode == 1, done.stderr
        assert (
            f"code.zip: {changed} is not the file that imported_files names"
            in done.stdout
        )
        refused = refusal(command("scripts/verify.py", str(copy), "--restore-code"))
        assert f"got another {changed}" in refused


def test_a_record_that_claims_more_steps_is_not_reproduced(
    copy: Path, tmp_path: Path
) -> None:
    """A replay has no rows beyond the steps that the configuration trains for."""
    rows = record.read_fingerprints(copy)
    rows.append(rows[-1] | {"step": str(STEPS + 1)})
    write_csv(copy / "fingerprints.csv", record.FINGERPRINT_FIELDS, rows)
    outcome = replayed(copy, tmp_path / "replay")
    assert not outcome.reproduced
    assert (outcome.steps.last, outcome.reached_step) == (STEPS + 1, STEPS)


def test_what_cannot_be_trusted_is_refused(copy: Path) -> None:
    """An untrusted class raises an InputError before anything is built, run or
    written."""
    edit_text(copy / "config.yaml", "_target_: tiny.cnn.CNN", "_target_: os.system")
    before = contents(copy)
    with pytest.raises(InputError, match=r"got os\.system .* in the") as caught:
        replayed(copy, copy.parent / "replay")
    assert str(caught.value).startswith(str(copy)), "a path that can be opened"
    assert not (copy.parent / "replay").exists()
    assert contents(copy) == before


def test_a_live_run_and_one_of_other_random_numbers_are_refused(copy: Path) -> None:
    """Negative control: a run that was killed, so that nothing holds its lock, is
    read."""
    edit_summary(copy, status="running")
    with record.lock(copy), pytest.raises(InputError, match="process is still alive"):
        verify.read(copy)
    assert verify.read(copy).summary["status"] == "running"
    edit_summary(copy, format_version=1)
    with pytest.raises(InputError, match="of other random numbers"):
        verify.replay(copy, copy.parent / "replay", verify.Range(0, 1, ends=False))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere: expected a run folder"),
        (["{run}", "--from-step", "12"], "--from-step: expected a step below 12"),
        (["{run}", "--keep", "{run}"], "--keep: expected a new folder"),
        (
            ["{run}", "--tolerance", "mae=1"],
            "--tolerance: expected a metric of the record",
        ),
    ],
)
def test_bad_arguments_end_in_one_line(
    quick_run: Path, words: list[str], message: str
) -> None:
    """They exit with status 2 before anything is trained."""
    done = command("scripts/verify.py", *(word.format(run=quick_run) for word in words))
    assert message in refusal(done)


def test_data_that_is_missing_is_named_at_once(copy: Path) -> None:
    """Before anything is started, with its digest. Negative controls: data that is
    here, or that a data set may download."""
    verify.require_data(verify.read(copy), online=False)
    environment = record.read_json(copy / "environment.json")
    known = {"none/a.csv": "ab" * 32, "none/b.csv": "cd" * 32, "train.py": "00"}
    record.write_json(copy / "environment.json", {**environment, "files_sha256": known})
    line = refusal(command("scripts/verify.py", str(copy)))
    assert f"none at none/a.csv (SHA-256 {'ab' * 32}), none/b.csv" in line
    assert "train.py" not in line
    verify.require_data(verify.read(copy), online=True)


def test_a_folder_of_data_that_states_its_digests_is_missed(tmp_path: Path) -> None:
    """Negative control: the folder is there."""
    run = write_run(tmp_path / "run", config={"data": {"root": str(tmp_path / "data")}})
    with pytest.raises(InputError, match=r"data \(SHA-256 .*00ff"):
        verify.require_data(verify.read(run), online=False)
    (tmp_path / "data").mkdir()
    there = {"root": str(tmp_path / "data")}
    other = write_run(tmp_path / "other", config={"data": {**there, "train": there}})
    verify.require_data(verify.read(other), online=False)


def test_no_replay_outlives_a_terminated_verify(
    quick_run: Path, tmp_path: Path
) -> None:
    """SIGTERM also ends the replay; the exit status of verify is 143."""
    kept = tmp_path / "kept"
    process = begin("-m", "seedbed", "verify", str(quick_run), "--keep", str(kept))
    until((kept / "metrics.csv").exists, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    with record.lock(kept):  # no process holds it
        assert record.read_summary(kept)["status"] != "running"
