"""An evaluation of saved weights gives the numbers that the run recorded, bit for bit."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from seedbed import record
from seedbed.errors import InputError
from seedbed.tools import request
from tests.made_up_runs import contents
from tests.running import command, refusal

SCRIPT = "scripts/evaluate.py"


def numbers(*words: str) -> dict[str, str]:
    done = command(SCRIPT, *words)
    assert done.returncode == 0, done.stderr
    pairs = (line.split() for line in done.stdout.splitlines())
    return {key: value for key, value in pairs if key.endswith(("_loss", "_accuracy"))}


def recorded(run: Path, phase: str, step: str) -> dict[str, str]:
    (row,) = (r for r in record.read_metrics(run) if (r["phase"], r["step"]) == (phase, step))
    return {f"{phase}_loss": row["loss"], f"{phase}_accuracy": row["accuracy"]}


def test_best_and_last_weights_have_the_bits_of_the_record(run: Path, tmp_path: Path) -> None:
    """Validation and test of the best weights, test of the last, predictions to the byte; nothing
    is written into the run. Control: the two checkpoints are of different steps and numbers."""
    out, before = tmp_path / "predictions.csv", contents(run)
    best = numbers(str(run), "--split", "validation")
    tested = numbers(str(run), "--predictions", str(out))
    last = numbers(str(run), "--checkpoint", "last")
    rows = [r for r in record.read_metrics(run) if r["phase"] == "validation"]
    top = max(rows, key=lambda row: (float(row["accuracy"]), -int(row["step"])))
    assert top["step"] != "12"
    assert best == recorded(run, "validation", top["step"])
    assert best["validation_loss"] != recorded(run, "validation", "12")["validation_loss"]
    assert tested == recorded(run, "test", top["step"])
    assert last == recorded(run, "test", "12") != tested
    assert out.read_bytes() == (run / "test_predictions.csv").read_bytes()
    assert contents(run) == before


def test_a_sweep_has_a_row_for_each_run(run: Path, tmp_path: Path) -> None:
    """With all digits as JSON; a run without a checkpoint is named, and status 2."""
    sweep, out = tmp_path / "sweep", tmp_path / "predictions.csv"
    for name in ("0", "1"):
        shutil.copytree(run, sweep / name)
    (sweep / "1" / "checkpoints" / "best.pt").unlink()
    done = command(SCRIPT, str(sweep), "--split", "validation", "--json")
    assert "1/checkpoints/best.pt: expected a checkpoint" in refusal(done)
    (row,) = json.loads(done.stdout)
    assert row["run"] == str(sweep / "0")
    assert "expected one run" in refusal(command(SCRIPT, str(sweep), "--predictions", str(out)))
    done = command(SCRIPT, str(run), "model.channels=[8,8,8]")
    assert "expected state of this model" in refusal(done)


@pytest.mark.long
def test_other_data_is_evaluated(run: Path) -> None:
    """The test set replaced by the training samples is the training split: without augmentation."""
    train = numbers(str(run), "--split", "train")
    other = numbers(str(run), "data.test.split=train", "data.test.samples=4000")
    assert list(train.values()) == list(other.values())
    again = numbers(str(run), "data=squares", "data.name=again")
    assert again == numbers(str(run)) != other


def test_the_process_starts_under_the_preset(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables are there before Python starts, and no address may be opened unless told."""
    started: list[Mapping[str, str]] = []

    def start(_command: Sequence[str], environment: Mapping[str, str], *_: Any) -> int:
        started.append(environment)
        return 0

    monkeypatch.setattr(request, "run_passing_signals", start)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    for online in (False, True):
        assert request.start(request.settings_of(run, []), {}, online) == (0, None)
    assert [env["OMP_NUM_THREADS"] for env in started] == ["1", "1"]
    assert ["SEEDBED_OFFLINE" in env for env in started] == [True, False]


def test_a_strangers_record_executes_nothing(run: Path, tmp_path: Path) -> None:
    """Classes of packages that are not trusted here are refused, before and after overrides."""
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    path = copy / "config.yaml"
    text = path.read_text().replace("tiny.cnn.CNN", "shutil.rmtree")
    path.write_text(text)
    assert "--trust shutil" in refusal(command(SCRIPT, str(copy)))
    with pytest.raises(InputError, match="--trust shutil"):
        request.settings_of(run, ["data.test._target_=shutil.move"])
    path.write_text(text.replace("name: cnn", "name: ${oc.env:HOME}"))
    with pytest.raises(InputError, match="where a record has a value"):
        request.settings_of(copy, [])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model=lstm", "with a value of its own"),
        ("data=adding", "kind sequence"),
        ("data.eval_batch_size=0", "expected an integer >= 1"),
    ],
)
def test_invalid_overrides_are_named(run: Path, override: str, message: str) -> None:
    """Before a process is started."""
    with pytest.raises(InputError, match=message):
        request.settings_of(run, [override])
