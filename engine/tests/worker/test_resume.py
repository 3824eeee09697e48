"""Resuming a run: the same bits wherever it stopped; what changed is printed, or refused."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from seedbed import launch, record
from seedbed.errors import InputError
from seedbed.launch import resume
from seedbed.record import Change, Origin, code, plots
from seedbed.training import checkpoint
from seedbed.worker import experiment, restore
from tests.ways import differences
from tests.worker import runs
from tests.worker.runs import EARLY_STOPPING, LSTM, StopAt, resumed, work

pytestmark = pytest.mark.usefixtures("this_process_trains")

Whole = Callable[..., Path]


def begun(folder: Path, *overrides: str) -> Path:
    return runs.begun(folder, *LSTM, *overrides)


@pytest.fixture
def whole(whole: Whole) -> Whole:
    return partial(whole, *LSTM)


def stopped(folder: Path, check: int = 9, *overrides: str) -> Path:
    """Return a tiny run that was interrupted in the middle."""
    assert work(begun(folder, *overrides), StopAt(check)) == 143
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("every", "overrides"),
    [
        pytest.param(1, (), marks=pytest.mark.long),
        (7, EARLY_STOPPING),
        # No processor refuses an RNN in bfloat16.
        pytest.param(
            *(5, ("trainer.precision=bfloat16", "model=rnn")),
            marks=(pytest.mark.processor, pytest.mark.long),
        ),
    ],
)
def test_a_run_stopped_at_any_point_ends_with_the_same_bits(
    every: int, overrides: tuple[str, ...], whole: Whole, tmp_path: Path
) -> None:
    """Between any two steps, in any validation, in the test; early stopping counts on."""
    reference, counted = whole(*overrides), StopAt()
    assert work(begun(tmp_path / "counted", *overrides), counted) == 0
    for check in range(1, 100, every):
        if check > counted.checks:
            break
        resumed(tmp_path / str(check), reference, check, *LSTM, *overrides)
    assert check > 14, "it was not stopped everywhere"


def test_a_run_stopped_again_and_again_ends_with_the_same_bits(
    whole: Whole, tmp_path: Path
) -> None:
    """A resume that is interrupted at once, or after a few steps, is resumed."""
    folder = begun(tmp_path / "run")
    stops = 0
    while work(folder, StopAt((1, 9, 4)[stops % 3])) != 0:
        stops += 1
    assert stops > 3
    assert differences(whole(), folder) == []
    assert len(record.read_summary(folder)["resumes"]) == stops


class Killed(BaseException):
    """Stands for SIGKILL."""


def test_a_damaged_checkpoint_falls_back_and_says_so(
    whole: Whole, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run goes on from the one before it, to the same bits."""
    folder = stopped(tmp_path / "run")
    (folder / "checkpoints" / "last.pt").write_bytes(b"")
    assert work(folder) == 0
    assert "last.pt: expected a checkpoint of Seedbed" in capsys.readouterr().out
    assert differences(whole(), folder) == []


def refused(folder: Path, capsys: pytest.CaptureFixture[str], **request: Any) -> str:
    """Return the one line of a resume that is refused; the record must stay as it was."""
    before = content(folder)
    capsys.readouterr()
    assert work(folder, **request) == 2
    assert content(folder) == before
    out, errors = capsys.readouterr()
    assert out == ""
    (line,) = errors.splitlines()
    return str(line)


def test_damaged_checkpoints_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With none that is good there is nothing to go on from."""
    folder = stopped(tmp_path / "run")
    for name in ("last.pt", "previous.pt"):
        os.truncate(folder / "checkpoints" / name, 1000)
    line = refused(folder, capsys)
    assert "last.pt" in line
    assert "previous.pt" in line


@pytest.mark.parametrize(
    ("damage", "table"),
    [(lambda path: os.truncate(path, 100), "metrics.csv"), (os.unlink, "fingerprints.csv")],
)
def test_tables_shorter_than_the_checkpoint_says_are_refused(
    damage: Callable[[Path], None], table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A shortened table could never become the one of a run that was not stopped."""
    folder = stopped(tmp_path / "run")
    damage(folder / table)
    assert f"{table}: expected at least" in refused(folder, capsys)


def test_a_checkpoint_of_another_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line says that it does not fit."""
    folder = stopped(tmp_path / "run")
    other = stopped(tmp_path / "other", 9, "model.hidden_size=5")
    shutil.rmtree(folder / "checkpoints")
    shutil.copytree(other / "checkpoints", folder / "checkpoints")
    assert "model.hidden_size 5 -> 4" in refused(folder, capsys)
    line = refused(folder, capsys, allow_changed=True)
    assert "expected a checkpoint of this model and optimizer" in line


def test_what_cannot_alter_bits_may_change(
    whole: Whole, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said, recorded and kept, and the bits are the same."""
    folder = stopped(tmp_path / "run")
    step = record.read_summary(folder)["steps"]
    changed = {"data.num_workers": 1, "data.prefetch_factor": 5, "data.persistent_workers": False}
    assert work(folder, StopAt(2), settings=changed) == 143
    out = capsys.readouterr().out
    assert f"changed since step {step}: data.num_workers 0 -> 1" in out
    assert record.read_config(folder).data.num_workers == 1
    assert work(folder) == 0
    assert differences(whole(), folder) == []
    first, second = record.read_summary(folder)["resumes"]
    assert first["step"] == step
    assert first["changes"]["data.num_workers"] == [0, 1]
    assert second["changes"] == {}
    assert record.altered(record.read_summary(folder)) == []


def test_a_change_that_can_alter_bits_is_refused_under_strict(
    whole: Whole,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Asked for, or found in config.yaml or in the environment; --allow-changed lets it be."""
    folder = stopped(tmp_path / "run")
    assert "optimizer.lr" in refused(folder, capsys, settings={"optimizer.lr": 0.5})
    with monkeypatch.context() as patch:
        patch.setenv("OMP_SCHEDULE", "static")
        line = refused(folder, capsys)
        assert "env.OMP_SCHEDULE None -> static" in line
        assert "--allow-changed" in line
    path = folder / "config.yaml"
    text = path.read_text()
    path.write_text(text.replace("weight_decay: ", "weight_decay: 1"))
    assert "optimizer.weight_decay" in refused(folder, capsys)
    path.write_text(text)

    assert work(folder, settings={"optimizer.lr": 0.5}, allow_changed=True) == 0
    assert "optimizer.lr 0.0" in capsys.readouterr().out
    assert record.read_config(folder).optimizer.lr == 0.5
    assert record.read_summary(folder)["resumes"][0]["changes"]["optimizer.lr"][1] == 0.5
    [(step, keys)] = record.altered(record.read_summary(folder))
    assert (step, keys) == (record.read_summary(folder)["resumes"][0]["step"], ["optimizer.lr"])
    assert "last.pt: model" in differences(whole(), folder)


def test_a_run_without_a_checkpoint_starts_from_the_beginning(
    whole: Whole, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed before its first one, and it says so, or before all but config.yaml was written."""
    for name, left in (("early", 3), ("earliest", 1)):
        folder = stopped(tmp_path / name)
        shutil.rmtree(folder / "checkpoints")
        if left == 1:
            for path in folder.iterdir():
                if path.name != "config.yaml":
                    path.unlink()
        capsys.readouterr()
        assert work(folder) == 0
        said = "from the start: it has no checkpoint" in capsys.readouterr().out
        assert said is (name == "early")
        assert differences(whole(), folder) == []
        assert record.read_summary(folder)["resumes"] == []


def no_worker(*_args: Any) -> int:
    raise AssertionError("the training process was started")


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["data.num_worker=3"], "data.num_worker: expected a key of the run's config.yaml"),
        (["data.num_workers=-1"], "data.num_workers: expected an integer from 0 to 1024, got -1"),
        (["nonsense"], "overrides: expected Hydra's key=value syntax"),
    ],
)
def test_bad_overrides_are_refused(
    overrides: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any process is started, in one line that names the key."""
    folder = begun(tmp_path / "run")
    monkeypatch.setattr(launch, "run_worker", no_worker)
    with pytest.raises(InputError) as caught:
        resume.resume_run(folder, overrides, allow_changed=False)
    assert str(caught.value).startswith(expected)


def test_folders_that_hold_no_run_to_go_on_with_are_refused(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No run, one that finished, a newer format, a damaged configuration."""
    monkeypatch.setattr(launch, "run_worker", no_worker)

    def line(folder: Path) -> str:
        before = content(folder)
        with pytest.raises(InputError) as caught:
            resume.resume_run(folder, [], allow_changed=True)
        assert content(folder) == before
        return str(caught.value)

    assert "expected YAML, got No such file" in line(tmp_path)
    assert "expected a run to resume, got one that finished" in line(whole())
    newer = begun(tmp_path / "newer")
    (newer / "summary.json").write_text(json.dumps({"format_version": 99, "status": "running"}))
    assert "expected a record of format 2 or older, got 99" in line(newer)
    (newer / "summary.json").unlink()
    (newer / "config.yaml").write_text("seed: [")
    assert "config.yaml: expected" in line(newer)


def test_changes_of_the_environment_are_found() -> None:
    """What reaches the arithmetic can alter bits (test_compare.py has more); kernels cannot."""
    made = {"versions": {"torch": "2.15.0", "omegaconf": "2.3.1"}, "git": {"commit": None},
            "platform": "Linux-6.1-x86_64-with-glibc2.36"}  # fmt: skip
    for now, alters in (
        ({}, []),
        ({"versions": made["versions"] | {"torch": "2.14.0"}}, [True]),
        ({"versions": made["versions"] | {"omegaconf": "2.3.0"}}, [False]),
        ({"platform": "Linux-6.2-x86_64-with-glibc2.36"}, []),
        ({"platform": "Linux-6.1-x86_64-with-glibc2.37"}, [True]),
        ({"git": {"commit": "0" * 40}}, [True]),
    ):
        found = record.changes(Origin({}, made), Origin({}, made | now))
        assert [change.alters_bits for change in found] == alters


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (FileNotFoundError(2, "No such file", "digit.png"), 1, "FileNotFoundError: "),
        (BrokenPipeError(32, "Broken pipe"), 1, "BrokenPipeError: "),
        (OSError(28, "No space left on device", "last.pt"), 2, "last.pt: expected room on the"),
    ],
)
def test_whatever_stops_a_run_its_record_says_so(
    error: OSError, status: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A data set's missing file as well as a full disk, which alone is a request refused."""

    def stop(*_: Any) -> None:
        raise error

    monkeypatch.setattr("seedbed.worker.experiment.run_experiment", stop)
    assert work(begun(tmp_path / "run")) == status
    summary = record.read_summary(tmp_path / "run")
    assert summary["status"] == "failed"
    assert summary["error"].startswith(reason)


def test_a_second_ctrl_c_at_start_up_leaves_the_record_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It waits for the imports' end."""

    def twice(*_: Any) -> Any:
        stop._ask(signal.SIGINT, None)
        stop._since -= 2  # seconds
        stop._ask(signal.SIGINT, None)
        return {}, b""

    folder = stopped(tmp_path / "run")
    before, stop = content(folder), StopAt()
    capsys.readouterr()
    with monkeypatch.context() as patch:
        patch.setattr(code, "git_state", twice)
        assert work(folder, stop) == 130
    assert content(folder) == before
    resume_it = f"interrupted before it resumed\nresume it: python scripts/resume.py {folder}\n"
    assert capsys.readouterr() == (resume_it, "")
    assert work(folder) == 0


def test_a_run_that_is_to_end_before_its_checkpoint_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And can be resumed."""
    folder = stopped(tmp_path / "run")
    line = refused(folder, capsys, settings={"trainer.max_epochs": 1}, allow_changed=True)
    assert line.startswith("error: trainer.max_steps: expected a run of at least ")
    assert work(folder) == 0


def test_the_code_of_steps_that_are_left_is_kept_for_good(tmp_path: Path) -> None:
    """Resumed again from the same step, or from an earlier one, what came between made no step."""
    path = tmp_path / code.ARCHIVE
    changed = [Change("src/a.py", "1", "2", kind="code")]
    path.write_bytes(b"A: steps 1 to 200")
    restore.keep_code(tmp_path, 100, [Change("seed", 0, 1)])
    for content, step in ((b"B", 200), (b"C", 200), (b"D", 150)):
        restore.keep_code(tmp_path, step, changed)
        path.write_bytes(content)
    kept = {path.name: path.read_bytes() for path in tmp_path.glob("code_until_*")}
    assert kept == {"code_until_step_200.zip": b"A: steps 1 to 200"}
    restore.keep_code(tmp_path, 300, changed)  # negative control: D made steps
    assert (tmp_path / "code_until_step_300.zip").read_bytes() == b"D"


@pytest.mark.parametrize("written", [True, False])
def test_best_weights_are_those_that_the_checkpoint_calls_the_best(
    written: bool, whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before or after they are written: who resumes has them, and ends with the same."""
    folder, original = begun(tmp_path / "run"), checkpoint.save

    def deadly(state: dict[str, Any], path: Path, **options: bool) -> None:
        is_best = path.name == "best.pt"
        if written or not is_best:
            original(state, path, **options)
        if is_best:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", deadly)
        with pytest.raises(Killed):
            work(folder)
    best = folder / "checkpoints" / "best.pt"
    assert best.exists() is written
    assert work(folder, StopAt(1)) == 143
    known = checkpoint.load(best.with_name("last.pt"))["progress"]["best_step"]
    assert checkpoint.load(best)["step"] == known
    assert work(folder) == 0
    assert differences(whole(), folder) == []


@pytest.mark.parametrize(
    ("stop", "status", "said"),
    [(KeyboardInterrupt(), 143, "resume it: python scripts/resume.py "),
     (OSError(28, "No space left on device"), 2, "error: ")],
)  # fmt: skip
def test_a_run_that_is_stopped_at_its_very_end_can_be_finished(
    stop: BaseException, status: int, said: str, whole: Whole, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """By Ctrl-C or a full disk while the picture is drawn: the record says that it goes on."""

    def stopped(_folder: Path) -> None:
        raise stop

    folder = begun(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(plots, "loss_curve", stopped)
        assert work(folder) == status
    out, errors = capsys.readouterr()
    assert "finished" not in out
    assert (out + errors).splitlines()[-1].startswith(said)
    assert record.read_summary(folder)["status"] == "running"
    assert work(folder) == 0
    assert differences(whole(), folder) == []


def test_a_resume_that_fails_early_keeps_what_the_summary_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = stopped(tmp_path / "run")
    before = record.read_summary(run)

    def closed(*_: object) -> None:
        raise BrokenPipeError

    monkeypatch.setattr(experiment, "print_header", closed)
    assert work(run) == 1
    after = record.read_summary(run)
    assert (after["status"], after["steps"]) == ("failed", before["steps"])
    assert after["metrics"] == before["metrics"]
