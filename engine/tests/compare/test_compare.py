"""compare: the first difference between two records, and what can explain it."""

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from seedbed import compare, names, record
from seedbed.compare import Difference, causes, first_difference
from seedbed.compare.stages import STAGES, in_order, stage_of
from seedbed.errors import InputError
from seedbed.record.change import Change
from tests.made_up_runs import fingerprint_rows, metrics, write_csv, write_run

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "compare.py"
STEPS = 12
# One folder is enough for all examples of a property: each writes the whole file anew.
FILES = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("original") / "run", STEPS)


@pytest.fixture(scope="module")
def copy(original: Path) -> Path:
    return Path(shutil.copytree(original, original.with_name("copy")))


def compared(a: Path, b: Path) -> compare.Comparison:
    return compare.compare(compare.read(a), compare.read(b))


def place(difference: Difference | None) -> tuple[int, str] | None:
    return difference and (difference.step, difference.stage)


# The fingerprints


@FILES
@given(
    row=st.integers(0, STEPS - 1),
    stage=st.sampled_from([stage for stage in names.STAGES if stage != "buffers"]),
    digit=st.integers(0, 15),
    flip=st.integers(1, 15),
)
def test_a_flipped_digit_of_a_copied_fingerprints_is_found_where_it_is(
    original: Path, copy: Path, row: int, stage: str, digit: int, flip: int
) -> None:
    """One hexadecimal digit in one stage: `compare` names its step and its stage."""
    rows = fingerprint_rows(STEPS)
    digits = rows[row][stage]
    flipped = f"{int(digits[digit], 16) ^ flip:x}"
    rows[row][stage] = digits[:digit] + flipped + digits[digit + 1 :]
    write_csv(copy / "fingerprints.csv", record.FINGERPRINT_FIELDS, rows)
    difference = compared(original, copy).difference

    assert (row + 1, stage) == place(difference)
    assert difference is not None
    assert difference.located
    assert (digits, rows[row][stage]) == (difference.a, difference.b)


def test_a_copied_record_without_a_flipped_digit_is_the_same(
    original: Path, tmp_path: Path
) -> None:
    """The negative control: nothing was flipped, and everything was compared."""
    result = compared(original, Path(shutil.copytree(original, tmp_path / "copy")))

    assert result.difference is None
    assert result.steps == STEPS
    assert set(names.STAGES) - {"buffers"} <= set(result.stages)
    assert result.notes == ()


@FILES
@given(row=st.integers(0, STEPS - 1), bit=st.integers(0, 63))
def test_a_flipped_bit_of_a_loss_is_found_without_fingerprints(
    tmp_path: Path, row: int, bit: int
) -> None:
    """One bit of one float64 in metrics.csv: the right step, and the training loss."""
    rows = [each for each in metrics(STEPS) if each["phase"] == "train"]
    a, b = (tmp_path / name for name in ("a", "b"))
    for folder in (a, b):
        shutil.rmtree(folder, ignore_errors=True)
        write_run(folder, STEPS, rows=rows, fingerprints=[])
    assert compared(a, b).difference is None  # the negative control

    (word,) = struct.unpack("<Q", struct.pack("<d", float(rows[row]["loss"])))
    (loss,) = struct.unpack("<d", struct.pack("<Q", word ^ (1 << bit)))
    rows[row]["loss"] = repr(loss)
    write_csv(b / "metrics.csv", record.METRIC_FIELDS, rows)
    result = compared(a, b)

    assert (row + 1, "train_loss") == place(result.difference)
    assert result.notes == ("no fingerprints in either: compared by losses and metrics alone",)


@pytest.mark.parametrize("stage", names.STAGES)
def test_the_first_stage_in_causal_order_is_named(stage: str) -> None:
    """When a stage and all after it differ, as they do in a real run, the cause comes first."""
    start = names.STAGES.index(stage)
    other = fingerprint_rows(9)
    for row in other[4:]:
        row.update(dict.fromkeys(names.STAGES[start:], "0" * 16))

    assert (5, stage) == place(first_difference(fingerprint_rows(9), other))


def test_nothing_is_read_beyond_the_first_difference() -> None:
    """Two records that still grow can be compared as they do: iterators are not exhausted."""

    def growing() -> Iterator[dict[str, str]]:
        yield from [{**fingerprint_rows(1)[0], "weights": "0" * 16}]
        raise AssertionError("read on")

    assert place(first_difference(fingerprint_rows(5), growing())) == (1, "weights")
    with pytest.raises(AssertionError, match="read on"):
        first_difference(
            fingerprint_rows(5),
            (row for rows in [growing()] for row in [*fingerprint_rows(1), *rows]),
        )


@pytest.mark.parametrize("length", range(6))
def test_a_fingerprints_equals_each_of_its_beginnings(length: int) -> None:
    """A replay that has not come to the end differs nowhere yet."""
    assert first_difference(fingerprint_rows(6), fingerprint_rows(length)) is None
    assert first_difference(fingerprint_rows(length), fingerprint_rows(6)) is None


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


# Whole records


def test_intervals_that_differ_are_compared_at_common_steps(tmp_path: Path) -> None:
    """Fingerprints every 2 and every 3 steps share every sixth; the report says so."""
    every = [{"fingerprint": {"every_steps": n}} for n in (2, 3)]
    a = write_run(
        tmp_path / "a", 13, rows=[], config=every[0], fingerprints=fingerprint_rows(13, 2)
    )
    other = fingerprint_rows(13, 3)
    b = write_run(
        tmp_path / "b", 13, rows=[], config=every[1], fingerprints=other, summary={"steps": 0}
    )
    result = compared(a, b)

    assert (result.difference, result.steps) == (None, 2)
    assert result.notes[-1].startswith("fingerprints every 2 steps in A, every 3 in B")
    other[3]["batch"] = "0" * 16
    write_csv(b / "fingerprints.csv", record.FINGERPRINT_FIELDS, other)
    assert place(compared(a, b).difference) == (12, "batch")


def test_intervals_without_a_common_step_cannot_be_compared(tmp_path: Path) -> None:
    """Steps 2, 4 beside 3: an error that names both, not a "same" about nothing."""
    a = write_run(tmp_path / "a", 5, fingerprints=fingerprint_rows(5, 2))
    b = write_run(tmp_path / "b", 5, fingerprints=fingerprint_rows(5, 3))

    with pytest.raises(InputError, match=r"got steps 3 beside 2, 4; run both with one fingerprint"):
        compared(a, b)


def test_a_shorter_run_is_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    """An interrupted run equals the finished one in the steps that both have."""
    a = write_run(tmp_path / "a", 20)
    b = write_run(tmp_path / "b", 7, rows=metrics(20)[:7], summary={"status": "interrupted"})
    result = compared(a, b)

    assert (result.difference, result.steps) == (None, 7)
    assert result.notes == (
        "A is recorded to step 20 and B to step 7: the steps that both have are compared",
    )


@pytest.mark.parametrize(
    ("phase", "field", "stage"),
    [
        ("train", "learning_rate", "train_learning_rate"),
        ("train", "metric", "train_metric"),
        ("validation", "loss", "validation_loss"),
        ("validation", "metric", "validation_metric"),
    ],
)
def test_a_metric_that_differs_under_equal_fingerprints_is_found(
    tmp_path: Path, phase: str, field: str, stage: str
) -> None:
    """The fingerprints says nothing of evaluation; metrics.csv does."""
    rows = metrics(40)
    changed = next(row for row in rows if row["phase"] == phase and int(row["step"]) >= 20)
    changed[field] = "0.125"
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b", rows=rows)

    assert (20, stage) == place(compared(a, b).difference)


def test_logging_and_validating_at_other_steps_makes_no_difference(tmp_path: Path) -> None:
    """Rows that only one run wrote are no difference."""
    a = write_run(tmp_path / "a", 40)
    b = write_run(tmp_path / "b", 40, rows=metrics(40, every=7, epoch_steps=40))

    assert compared(a, b).difference is None


@pytest.mark.parametrize("name", ["weights", "predictions"])
def test_runs_that_logged_nothing_are_compared_by_how_they_ended(tmp_path: Path, name: str) -> None:
    """Without a fingerprints and without losses the final weights and predictions still speak."""
    final = {"weights": "1" * 16, "predictions": "2" * 16}
    silent: dict[str, Any] = {"fingerprints": [], "rows": []}
    a = write_run(tmp_path / "a", **silent, summary={"fingerprints": final})
    b = write_run(tmp_path / "b", **silent, summary={"fingerprints": final})
    assert compared(a, b).difference is None
    c = write_run(tmp_path / "c", **silent, summary={"fingerprints": {**final, name: "3" * 16}})

    assert (40, f"final_{name}") == place(compared(a, c).difference)


def test_the_number_of_shards_is_no_difference_of_the_samples(tmp_path: Path) -> None:
    """Their hashes are of shards, so they are left out and the rest is compared.

    Negative control: with one number of shards they count.
    """
    other = fingerprint_rows(9)
    for row in other:
        row |= {"sample_ids": "0" * 16, "batch": "0" * 16}

    one = write_run(tmp_path / "one", 9, rows=[], config={"trainer": {"shards": 1}})

    def beside(shards: int, rows: list[dict[str, str]]) -> compare.Comparison:
        folder = tmp_path / f"{shards} {rows[0]['loss']}"
        config = {"trainer": {"shards": shards}}
        return compared(one, write_run(folder, 9, rows=[], config=config, fingerprints=rows))

    assert place(beside(1, other).difference) == (1, "sample_ids")
    same = beside(4, other)
    assert same.difference is None
    assert same.notes[0].startswith("trainer.shards is 1 in A, 4 in B: sample ids and batches")
    found = beside(4, [row | {"loss": "1" * 16} for row in other]).difference
    assert place(found) == (1, "loss")
    assert found is not None
    assert found.located


# Causes


def test_a_resume_that_can_have_altered_bits_is_told(copy: Path, original: Path) -> None:
    """A record of two configurations says so; negative control: a resume with other workers is not
    told."""
    path = copy / "summary.json"
    for keys in (["optimizer.lr"], []):
        entry = {"step": 7, "changes": {"optimizer.lr": [1, 2]}, "can_alter_bits": keys}
        path.write_text(json.dumps(json.loads(path.read_text()) | {"resumes": [entry]}))
        told = [note for note in compared(original, copy).notes if "can alter bits" in note]
        assert told == [
            f"B was resumed at step 7 with changes that can alter bits: {key}" for key in keys
        ]


def test_each_stage_is_explained() -> None:
    """What can be compared has a meaning, a place to look at, and causes."""
    assert set(compare.COLUMNS) == set(STAGES)
    assert [column for column in compare.COLUMNS if column in names.STAGES] == [*names.STAGES]
    assert all(
        stage.name and stage.phase and stage.look and stage.keys for stage in STAGES.values()
    )


@pytest.mark.parametrize(
    ("stage", "first"),
    [
        ("sample_ids", "seed"),
        ("batch", "seed"),
        ("loss", "seed"),
        ("gradients", "determinism.cudnn.benchmark"),
        ("weights", "optimizer.lr"),
        ("optimizer", "optimizer.lr"),
    ],
)
def test_the_likeliest_cause_comes_first(tmp_path: Path, stage: str, first: str) -> None:
    """With everything different at once, each stage blames what acts on it."""
    config = {
        "seed": 1,
        "seeds": dict.fromkeys(names.STREAMS, 1),
        "optimizer": {"lr": 0.1},
        "determinism": {"cudnn": {"benchmark": True}},
    }
    environment = {"versions": {"torch": "2.11.0"}, "cpu": {"model": "Another"}}
    a = compare.read(write_run(tmp_path / "a"))
    b = compare.read(write_run(tmp_path / "b", config=config, environment=environment))
    ranked = [
        change.key for change in causes.rank(Difference(1, stage, "", ""), causes.changes(a, b))
    ]

    assert first == ranked[0]


def test_the_seed_that_was_changed_is_named_and_not_what_follows_it() -> None:
    """A stream's own seed is named; so are threads, and not the variables that carry them."""

    def ranked(stage: str, **changed: tuple[object, object]) -> list[str]:
        pairs = {key.replace("__", "."): values for key, values in changed.items()}
        found = [Change(key, *values) for key, values in pairs.items()]
        return [change.key for change in causes.rank(Difference(1, stage, "", ""), found)]

    streams = {f"seeds__{stream}": (0, 1) for stream in ("order", "init", "dropout")}
    assert ranked("sample_ids", seed=(0, 1), **streams) == ["seed"]
    assert ranked("loss", seed=(0, 1), **streams) == ["seed"]
    assert ranked("loss", **streams) == ["seeds.init", "seeds.dropout"]
    assert ranked("sample_ids", seed=(0, 1), seeds__order=(0, 7)) == ["seeds.order", "seed"]
    threads = {"determinism__threads": (2, 1), "determinism__env__OMP_NUM_THREADS": ("2", "1")}
    assert ranked("gradients", **threads) == ["determinism.threads"]
    threads["determinism__env__OMP_NUM_THREADS"] = ("2", "4")
    assert "determinism.env.OMP_NUM_THREADS" in ranked("gradients", **threads)


def test_what_lies_before_a_difference_is_said_in_plain_words() -> None:
    """The beginning of a run is no lack; control: a later step of which nothing is known."""

    def said(step: int, stage: str, *equal: str, through: int | None = None) -> str:
        difference = Difference(step, stage, "", "", equal, through, located=False)
        return list(causes.describe(difference))[3].strip()

    assert said(1, "sample_ids") == (
        "nothing comes before it: it is the first stage of the run's first step"
    )
    assert said(1, "train_loss") == (
        "it is in the run's first step, and no stage before it was compared"
    )
    assert said(1, "batch", "sample_ids") == "equal before it: at step 1 sample ids"
    assert said(20, "sample_ids", through=10) == "equal before it: all steps compared up to 10"
    assert said(20, "sample_ids") == "nothing before it was compared"


def test_columns_of_parameter_groups_are_called_as_stages_are() -> None:
    """Each is a learning rate, of a group; control: a value that a method logs."""
    columns = ("train_kl", "train_learning_rate_embed", "train_learning_rate", "loss")
    called = [stage_of(column).name for column in in_order(columns)]
    assert called == ["loss", "training kl", "learning rate", "learning rate of embed"]
    held_out = "validation_learning_rate_x"
    assert (in_order([held_out]), stage_of(held_out).phase) == ((held_out,), "evaluation")


def test_what_follows_from_a_setting_is_not_listed_beside_it() -> None:
    """Seeds of streams follow the seed; negative control: a stream with a seed of its own."""
    keys = ("seed", "seeds.init", "trainer.log_every_steps")
    found = [Change(key, 0, 1) for key in keys]
    own = Change("seeds.order", 0, 7)

    assert [change.key for change in causes.others(found)] == ["seed", "trainer.log_every_steps"]
    assert causes.others([*found, own], found[:1]) == [found[2], own]


def imported(*names: str, digest: str) -> dict[str, Any]:
    """Return what environment.json says of imported files that are all alike."""
    return {"imported_files": dict.fromkeys(names, digest)}


def test_code_comes_after_settings(tmp_path: Path) -> None:
    """The number of threads is the cause, then the files that the runs imported."""
    files = ("src/my_project/model.py", "src/project/models/cnn.py")
    a = write_run(tmp_path / "a", environment=imported(*files, digest="a"))
    threads = {"determinism": {"threads": 1}}
    b = write_run(tmp_path / "b", config=threads, environment=imported(*files, digest="b"))
    found = causes.changes(compare.read(a), compare.read(b))
    ranked = [c.key for c in causes.rank(Difference(1, "gradients", "", ""), found)]
    assert ranked[0] == "determinism.threads"
    assert set(ranked[1:]) == set(files)


def test_an_argument_of_a_class_is_named_where_nothing_known_differs() -> None:
    """An optimizer of one's own can change a loss; negative control: a setting of the engine."""
    difference = Difference(3, "loss", "", "", equal_through=2)
    own = Change("optimizer.fault", None, "weight_bit")
    known = Change("trainer.log_every_steps", 1, 2)

    assert causes.rank(difference, [own, known]) == [own]
    text = "\n".join(causes.explain(difference, [own, known]))
    assert "Nothing that is known to act there differs; these settings do" in text
    assert "optimizer.fault" in text
    assert "Nothing recorded explains it" in "\n".join(causes.explain(difference, [known]))


def test_every_setting_of_a_loop_of_ones_own_can_be_a_cause() -> None:
    """Known ones first, whatever sections it has; control: a setting of the engine."""
    difference = Difference(1, "train_learning_rate", "", "")
    keys = ("clip", "schedule.name", "lr")
    own = {key: Change(key, 1, 2, kind="configuration") for key in keys}
    known = Change("trainer.log_every_steps", 1, 2, kind="configuration")
    ranked = causes.rank(difference, [known, *own.values()])
    assert [change.key for change in ranked] == ["lr", "schedule.name", "clip"]


def test_what_torchrun_says_to_its_processes_is_no_difference(tmp_path: Path) -> None:
    """An identifier that is new each time is left out; a variable of the user's is not."""
    env = {"TORCHELASTIC_RUN_ID": "x", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TORCH_LOGS": "y"}
    a = write_run(tmp_path / "a")
    b = write_run(tmp_path / "b", environment={"env": env})
    found = causes.changes(compare.read(a), compare.read(b))

    assert [change.key for change in found] == ["env.TORCH_LOGS"]


def test_weights_that_were_equal_once_do_not_blame_the_initial_weights() -> None:
    """A difference at step 9 after 8 equal steps is not in the seed of the initial weights."""
    found = [Change("seeds.init", 0, 1)]

    assert causes.rank(Difference(1, "loss", "", ""), found) == found
    assert causes.rank(Difference(9, "loss", "", "", equal_through=8), found) == []


def test_a_stage_that_is_not_located_blames_the_others_after_its_own() -> None:
    """Where steps were not compared, causes of every stage count, those of the one seen first."""
    found = [Change(key, 0, 1) for key in ("optimizer.lr", "model.width")]
    located = Difference(30, "loss", "", "", equal_through=29)
    somewhere = Difference(30, "loss", "", "", equal_through=20, located=False)

    assert [change.key for change in causes.rank(located, found)] == ["model.width"]
    assert [change.key for change in causes.rank(somewhere, found)] == [
        "model.width",
        "optimizer.lr",
    ]


@pytest.mark.parametrize("stage", STAGES)
def test_places_and_times_are_never_causes(tmp_path: Path, stage: str) -> None:
    """Where data lies and when a run ran changes no bit; the digest of the data does."""
    config = {
        "data": {"root": "elsewhere", "mirrors": ["file:/x"], "train": {"csv": "/b/data.csv"}},
        "hydra": {"run": {"dir": "runs/b"}},
        "fingerprint": {"every_steps": 5},
        "determinism": {"fingerprint_every_steps": 5},
    }
    environment = {"env": {"PWD": "/somewhere", "TMPDIR": "x", "HOSTNAME": "elsewhere"}}
    a = compare.read(write_run(tmp_path / "a"))
    b = compare.read(write_run(tmp_path / "b", config=config, environment=environment))
    found = causes.changes(a, b)

    assert len(found) == 9
    assert causes.rank(Difference(2, stage, "", "", located=False), found) == []
    digest = Change("data_sha256.images", "00ff", "ff00", kind="environment")
    assert [digest] == causes.rank(Difference(2, "batch", "", "", located=False), [*found, digest])


@pytest.mark.parametrize(
    ("stage", "key"),
    [
        ("loss", "model.drop_path"),
        ("loss", "model.time_steps"),
        ("loss", "model.pretrained.file"),
        ("weights", "optimizer.time"),
        ("weights", "schedule.time"),
        ("batch", "data.train.path_length"),
    ],
)
@pytest.mark.parametrize("values", [(0.1, 0.2), ("/a", "/b")])
def test_an_argument_is_a_cause_whatever_it_is_called(
    stage: str, key: str, values: tuple[object, object]
) -> None:
    """Words of places and times in the name of a model's argument do not hide it."""
    change = Change(key, *values)

    assert causes.rank(Difference(1, stage, "", ""), [change]) == [change]


def test_where_data_lies_is_a_cause_unless_digests_say_that_it_is_the_same(tmp_path: Path) -> None:
    """Last of all with other digests or none; negative control: never with equal ones."""
    config = {"data": {"train": {"path": "/b/data.csv", "augment": False}}}

    def blamed(digest: object, stage: str = "batch") -> list[str]:
        folder = tmp_path / f"{digest} {stage}"
        runs = [
            write_run(folder / name, config=each, environment={"data_sha256": digest})
            for name, each in (("a", {}), ("b", config))
        ]
        found = causes.changes(*map(compare.read, runs))
        return [change.key for change in causes.rank(Difference(1, stage, "", ""), found)]

    assert blamed(None) == ["data.train.augment", "data.train.path"]
    assert blamed({"images": None}) == ["data.train.augment", "data.train.path"]
    assert blamed({"images": "00ff"}) == ["data.train.augment"]


def test_the_digest_of_training_data_says_nothing_of_held_out_data(tmp_path: Path) -> None:
    """Another folder of validation data can explain another validation loss."""
    digest = {"data_sha256": {"images": "00ff"}}

    def validation(path: str) -> dict[str, Any]:
        return {"data": {"validation": {"path": path}}}

    runs = [
        write_run(tmp_path / path[1:], config=validation(path), environment=digest)
        for path in ("/a", "/b")
    ]
    found = causes.changes(*map(compare.read, runs))

    assert found == [Change("data.validation.path", "/a", "/b")]
    assert causes.rank(Difference(1, "validation_loss", "", ""), found) == found


def test_a_flag_is_no_cause_beside_the_setting_that_asked_for_it() -> None:
    """What is in force because it was asked for is named once; what nobody asked for stays."""
    asked = Change("determinism.cudnn.benchmark", False, True)
    in_force = Change("flags.cudnn.benchmark", False, True, kind="environment")
    difference = Difference(1, "gradients", "", "")

    assert causes.rank(difference, [asked, in_force]) == [asked]
    assert causes.rank(difference, [in_force]) == [in_force]


def test_a_changed_file_is_a_cause_where_it_acts(tmp_path: Path) -> None:
    """Of two files changed, the model's explains the forward pass and the source's the batch."""
    files = ("engine/src/seedbed/data/source.py", "src/project/models/cnn.py")
    a, b = (write_run(tmp_path / name, environment=imported(*files, digest=name)) for name in "ab")
    found = causes.changes(compare.read(a), compare.read(b))

    def blamed(stage: str) -> str:
        return causes.rank(Difference(1, stage, "", ""), found)[0].key

    assert {"code"} == {change.kind for change in found}
    assert blamed("loss") == "src/project/models/cnn.py"
    assert blamed("batch") == "engine/src/seedbed/data/source.py"
    assert causes.changes(compare.read(b), compare.read(b)) == []


# The command


def run_script(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[1] / "src")},
    )


def digest(folder: Path) -> list[tuple[str, str]]:
    return [
        (str(path), hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]


def test_same_runs_exit_0_and_nothing_is_written_into_them(tmp_path: Path) -> None:
    """The picture goes into the current directory, and the run folders stay as they are."""
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "runs" / "b", config={"data": {"num_workers": 2}})
    before = digest(tmp_path / "runs")
    done = run_script("runs/a", "runs/b", cwd=tmp_path)

    assert (done.returncode, done.stderr) == (0, "")
    assert "The same bits at every step compared (40)" in done.stdout
    assert "data.num_workers" in done.stdout
    assert (tmp_path / "comparison_a_b.png").read_bytes().startswith(b"\x89PNG")
    assert before == digest(tmp_path / "runs")


def test_different_runs_exit_1_and_name_step_stage_and_cause(tmp_path: Path) -> None:
    """The negative control: one digit and one learning rate, and the report leads with both."""
    rows, losses = fingerprint_rows(40), metrics(40)
    rows[16]["weights"] = "0" * 16
    losses[17]["loss"] = "9.5"
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", fingerprints=rows, rows=losses, config={"optimizer": {"lr": 0.1}})
    done = run_script("a", "b", "--out", "picture.png", cwd=tmp_path)
    lines = done.stdout.splitlines()

    assert (done.returncode, done.stderr) == (1, "")
    assert "The runs diverge at step 17: weights (optimizer)" in lines
    cause = lines.index("Likely causes, likeliest first") + 2
    assert lines[cause].split() == ["optimizer.lr", "0.003", "0.1"]
    table = lines.index("Training loss")
    assert lines[table + 1].split() == ["step", "run", "A", "run", "B", "difference"]
    assert [lines[table + 2].split()[place] for place in (0, 3)] == ["1", "0"]
    assert any(line.split()[:1] == ["18"] and "9.5" in line for line in lines[table:])
    assert (tmp_path / "picture.png").exists()


def cut_off(run: Path) -> None:
    path = run / "fingerprints.csv"
    path.write_bytes(path.read_bytes()[:-20])


def newer_format(run: Path) -> None:
    path = run / "summary.json"
    path.write_text(path.read_text().replace('"format_version": 1', '"format_version": 2'))


def step_back(run: Path) -> None:
    rows = fingerprint_rows(40)
    write_csv(run / "fingerprints.csv", record.FINGERPRINT_FIELDS, [*rows, rows[3]])


def no_number(run: Path) -> None:
    write_csv(run / "metrics.csv", record.METRIC_FIELDS, [{**metrics(1)[0], "loss": "much"}])


def nothing_recorded(run: Path) -> None:
    for name, fields in (
        ("fingerprints.csv", record.FINGERPRINT_FIELDS),
        ("metrics.csv", record.METRIC_FIELDS),
    ):
        write_csv(run / name, fields, [])
    (run / "summary.json").write_text('{"format_version": 1, "status": "failed", "steps": 0}')


def no_run(run: Path) -> None:
    (run / "summary.json").unlink()


def no_folder(run: Path) -> None:
    shutil.rmtree(run)


def missing_fingerprints(run: Path) -> None:
    (run / "fingerprints.csv").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_off, r"b/fingerprints.csv: expected 8 columns in line 41, got a line that is cut"),
        (newer_format, r"b: expected a record of format 1 or older, got 2"),
        (step_back, r"b/fingerprints.csv: expected steps that increase, got 4 after 40"),
        (no_number, r"b/metrics.csv: expected numbers, got could not convert .*'much'"),
        (nothing_recorded, r"b: expected a recorded step that .*a has too, got none"),
        (no_run, r"b: expected a run folder .* got a folder without them"),
        (no_folder, r"b: expected a run folder .* got no folder"),
        (missing_fingerprints, r"b/fingerprints.csv: expected a CSV file"),
    ],
)
def test_a_record_that_cannot_be_compared_is_an_input_error(
    tmp_path: Path, damage: Any, message: str
) -> None:
    """Damaged, foreign, too new or empty: one line that says what is wrong with which file."""
    a, b = write_run(tmp_path / "a"), write_run(tmp_path / "b")
    compared(a, b)  # the negative control: it could be compared before
    damage(b)

    with pytest.raises(InputError, match=message) as caught:
        compared(a, b)
    assert "\n" not in str(caught.value)


def test_bad_input_exits_2_with_one_line(tmp_path: Path) -> None:
    """No traceback, nothing on standard output, no picture."""
    write_run(tmp_path / "a")
    done = run_script("a", "b", cwd=tmp_path)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: b: expected a run folder")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.glob("*.png"))


@pytest.mark.parametrize("out", ["a/comparison.png", "b/x/../c.png", "c.pdf", "nowhere/c.png"])
def test_a_picture_that_cannot_be_put_there_exits_2(tmp_path: Path, out: str) -> None:
    """Not into a run folder, not under a name that promises another format, not into nothing."""
    write_run(tmp_path / "a", 3)
    write_run(tmp_path / "b", 3)
    before = digest(tmp_path)
    done = run_script("a", "b", "--out", out, cwd=tmp_path)

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert before == digest(tmp_path)


def test_help_shows_usage_and_an_example(tmp_path: Path) -> None:
    """-h is enough to use the command."""
    done = run_script("-h", cwd=tmp_path)

    assert done.returncode == 0
    assert "usage: python scripts/compare.py RUN_A RUN_B" in done.stdout
    assert "example:" in done.stdout
