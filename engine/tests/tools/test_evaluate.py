"""Saved weights reproduce the recorded numbers and the model, bit for bit."""

import hashlib
import json
import os
import random
import shutil
import warnings
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch

import seedbed
from seedbed import record
from seedbed.datasets import SPLITS
from seedbed.errors import InputError
from seedbed.record.code import Tree
from seedbed.tools import request
from seedbed.training import checkpoint
from tests import tiny
from tests.made_up_runs import contents, edit_summary, write_csv
from tests.running import QUICK, ROOT, command, made_once, refusal, trained
from tests.tiny.data import Noisy
from tests.ways import differences

SCRIPT = "scripts/evaluate.py"


@pytest.fixture(scope="session")
def run(shared: Path) -> Path:
    """Return a run whose best weights are not its last ones."""
    words = ("data.batch_size=1000", "optimizer.lr=0.1")  # three epochs, unstable
    return (
        made_once(shared / "tools", lambda folder: trained(folder / "run", *words))
        / "run"
    )


def alter_weights(path: Path) -> None:
    """Flip a bit of one weight in a checkpoint, and write it with a right checksum."""
    state = checkpoint.load(path)
    first = next(
        value for value in state["model"].values() if value.is_floating_point()
    )
    first.view(torch.int32).view(-1)[0] ^= 1
    checkpoint.save(state, path, keep_previous=False)


def numbers(*words: str) -> dict[str, str]:
    done = command(SCRIPT, *words)
    assert done.returncode == 0, done.stderr
    pairs = (line.split() for line in done.stdout.splitlines())
    return {key: value for key, value in pairs if key.endswith(("_loss", "_accuracy"))}


def recorded(run: Path, phase: str, step: str) -> dict[str, str]:
    (row,) = (
        r for r in record.read_metrics(run) if (r["phase"], r["step"]) == (phase, step)
    )
    return {f"{phase}_loss": row["loss"], f"{phase}_accuracy": row["accuracy"]}


def test_best_and_last_weights_have_the_bits_of_the_record(
    run: Path, tmp_path: Path
) -> None:
    """Validation and test of the best weights, test of the last, predictions byte for
    byte; the run stays unchanged. Negative control: the two checkpoints have different
    steps and numbers."""
    out = tmp_path / "predictions.csv"
    before = contents(run)
    best = numbers(str(run), "--split", "validation")
    tested = numbers(str(run), "--predictions", str(out))
    last = numbers(str(run), "--checkpoint", "last")
    rows = [r for r in record.read_metrics(run) if r["phase"] == "validation"]
    top = max(rows, key=lambda row: (float(row["accuracy"]), -int(row["step"])))
    assert top["step"] != "12"
    assert best == recorded(run, "validation", top["step"])
    assert (
        best["validation_loss"] != recorded(run, "validation", "12")["validation_loss"]
    )
    assert tested == recorded(run, "test", top["step"])
    assert last == recorded(run, "test", "12") != tested
    head, *cells = [line.split(",") for line in out.read_text().splitlines()]
    assert head[3:] == [f"probability_{label}" for label in range(len(head) - 3)]
    assert all(len(row) == len(head) > 3 for row in cells)
    assert out.read_bytes() == (run / "test_predictions.csv").read_bytes()
    assert contents(run) == before


@pytest.mark.long
@pytest.mark.parametrize("name", ["Words", "CutOnce"])
def test_what_constructors_keep_in_a_class_is_the_same_in_every_process(
    name: str, tmp_path: Path
) -> None:
    """A vocabulary of all splits, or a split drawn once: training, resuming and
    evaluating have the same test values. Negative control: those of the training
    samples are others."""
    spec = {"_target_": f"tests.tiny.data.{name}", "samples": 24}
    splits = {split: {**spec, "part": split} for split in SPLITS}
    words = (*tiny.overrides(tiny.DENSE, tiny.DATA | splits), "schedule=constant")
    whole = trained(tmp_path / "whole", *words)
    resumed = trained(tmp_path / "resumed", *words, "trainer.max_steps=7")
    again = command("scripts/resume.py", str(resumed), "trainer.max_steps=12")
    assert again.returncode == 0, again.stderr
    assert differences(whole, resumed) == []
    asked = (str(whole), "--checkpoint", "last", "--trust", "tests.tiny")
    assert numbers(*asked) == recorded(whole, "test", "12")
    at_train = numbers(*asked, "--split", "train")
    assert at_train["train_loss"] != recorded(whole, "test", "12")["test_loss"]


def test_a_sweep_has_a_row_for_each_run(run: Path, tmp_path: Path) -> None:
    """JSON keeps all digits; a run without a checkpoint is named, with exit status
    2."""
    sweep = tmp_path / "sweep"
    out = tmp_path / "predictions.csv"
    for name in ("0", "1"):
        shutil.copytree(run, sweep / name)
    (sweep / "1" / "checkpoints" / "best.pt").unlink()
    done = command(SCRIPT, str(sweep), "--split", "validation", "--json")
    assert "1/checkpoints/best.pt: expected a checkpoint" in refusal(done)
    row, failed = json.loads(done.stdout)
    assert row["run"] == str(sweep / "0")
    assert "1/checkpoints/best.pt: expected a checkpoint" in failed["error"]
    assert "expected one run" in refusal(
        command(SCRIPT, str(sweep), "--predictions", str(out))
    )
    done = command(SCRIPT, str(run), "model.channels=[8,8,8]")
    assert "expected state of this model" in refusal(done)
    with pytest.raises(InputError, match="a single value"):
        request.settings_of(run, ["model=lstm"])


@pytest.mark.long
def test_other_data_is_evaluated(run: Path) -> None:
    """Training samples as the test set are evaluated like the training split:
    unaugmented."""
    train = numbers(str(run), "--split", "train")
    other = numbers(str(run), "data.test.split=train", "data.test.samples=4000")
    assert list(train.values()) == list(other.values())
    again = numbers(str(run), "data=squares", "data.name=again")
    assert again == numbers(str(run)) != other


def test_the_process_starts_under_the_preset(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its variables are set before Python starts, and it is offline unless told
    otherwise."""
    start = Mock(return_value=0)
    monkeypatch.setattr(request, "run_passing_signals", start)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    for online in (False, True):
        assert request.start(
            request.settings_of(run, []), {}, online, Tree(), "evaluate"
        ) == (0, None)
        environment = start.call_args.args[1]
        assert environment["OMP_NUM_THREADS"] == "1"
        assert ("SEEDBED_OFFLINE" in environment) is not online


def test_a_strangers_record_executes_nothing(run: Path, tmp_path: Path) -> None:
    """Classes of untrusted packages are refused, in the record and in overrides."""
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    path = copy / "config.yaml"
    text = path.read_text().replace("tiny.cnn.CNN", "shutil.rmtree")
    path.write_text(text)
    assert "--trust shutil" in refusal(command(SCRIPT, str(copy)))
    path.write_text(f"{(run / 'config.yaml').read_text()}# not as its mark says\n")
    with pytest.raises(InputError, match="--trust shutil"):
        request.settings_of(copy, ["data.test._target_=shutil.move"])


def test_weights_are_the_checkpoints(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is in evaluation mode; the run and the caller's generators stay
    unchanged. Negative
    control: the best weights are not the last ones."""
    monkeypatch.syspath_prepend(ROOT / "src")  # the package tiny
    before = contents(run)
    flat = []
    for name in ("best", "last"):
        draws = []
        for loads in (False, True):
            torch.manual_seed(5), random.seed(5), np.random.seed(5)
            if loads:
                model = seedbed.load(run, checkpoint=name)
            draws.append((torch.rand(()), random.random(), np.random.random()))
        assert draws[0] == draws[1]
        saved = torch.load(run / "checkpoints" / f"{name}.pt", weights_only=True)[
            "model"
        ]
        assert model.state_dict().keys() == saved.keys()
        bits = [value.numpy().tobytes() for value in model.state_dict().values()]
        assert bits == [value.numpy().tobytes() for value in saved.values()]
        assert not model.training
        flat.append(bits)
    assert flat[0] != flat[1]
    assert contents(run) == before
    with pytest.raises(InputError, match=r"none\.pt: expected a checkpoint, got none"):
        seedbed.load(run, checkpoint="none")


NET = """
from torch import nn

class Net(nn.Sequential):
    def __init__(self, outputs, file=None):
        super().__init__(nn.Flatten(), nn.Linear(64, outputs))
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a run of code and files that the test may change: mine.py, weights.bin,
    words/a."""
    monkeypatch.setenv(
        "PYTHONPATH", f"{os.environ['PYTHONPATH']}{os.pathsep}{tmp_path}"
    )
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").write_text(NET)
    (tmp_path / "weights.bin").write_text("0")
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "a").write_text("a")
    model = tiny.replaced(
        "model", "mine.Net", outputs=4, file=str(tmp_path / "weights.bin")
    )
    return trained(tmp_path / "run", *model, f"files=[{tmp_path / 'words'}]")


def test_changed_code_and_data_are_named(mine: Path, tmp_path: Path) -> None:
    """In a line each; the exit status is 1 unless --allow-changed. What is overridden
    is not a change. Negative control: the record as it was, before the edits and
    without them again."""
    words = (SCRIPT, str(mine), "--trust", "mine.Net")
    first = command(*words)
    assert (first.returncode, first.stderr) == (0, "")
    (tmp_path / "mine.py").write_text(NET + "# edited\n")
    (tmp_path / "weights.bin").write_text("1")
    (tmp_path / "words" / "b").write_text("new")
    code = "code has changed since the record: elsewhere/mine.py"
    data = f"data have changed since the record: {tmp_path / 'weights.bin'} and 1 more"
    for option, status, prefix in (
        ((), 1, "warning"),
        (("--allow-changed",), 0, "note"),
    ):
        done = command(*words, *option)
        assert (done.returncode, done.stdout) == (status, first.stdout)
        assert done.stderr.splitlines() == [f"{prefix}: {code}", f"{prefix}: {data}"]
    with pytest.warns(UserWarning, match="changed since") as warned:
        seedbed.load(mine, trust=["mine.Net"])
    assert [str(each.message) for each in warned] == [code, data]
    (tmp_path / "mine.py").write_text(NET)
    done = command(*words, "model.file=null", "files=[]")
    assert (done.returncode, done.stderr) == (0, ""), "overridden on purpose"
    (tmp_path / "weights.bin").unlink()
    (tmp_path / "words" / "b").unlink()
    assert f"record: {tmp_path / 'weights.bin'}\n" in command(*words).stderr
    (tmp_path / "weights.bin").write_text("0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seedbed.load(mine, trust=["mine.Net"])


def test_another_training_set_is_named(run: Path, tmp_path: Path) -> None:
    """By the digest that the data set itself states. Negative control: the other
    tests."""
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    path = copy / "environment.json"
    path.write_text(
        path.read_text().replace(hashlib.sha256(b"no file").hexdigest(), "0" * 64)
    )
    done = command(SCRIPT, str(copy))
    assert done.returncode == 1
    assert done.stderr == "warning: data have changed since the record: data.train\n"
    assert (
        command(SCRIPT, str(copy), "data=squares", "data.train.samples=3000").returncode
        == 0
    )


class Globbed(Noisy):
    """As many noisy samples as a folder has files."""

    def __init__(self, root: str, copies: int) -> None:
        super().__init__(copies * len([*Path(root).glob("*.png")]))


def test_files_that_are_not_here_are_named_where_a_data_set_fails(
    tmp_path: Path,
) -> None:
    """By evaluate.py, export.py and `seedbed.data`. Negative control: other data on
    purpose, and an error while they are here."""
    for name in ("images", "others"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").touch()
    target = f"{__name__}.Globbed"
    splits = {"train": 48, "validation": 24, "test": 25}
    data = tiny.DATA | {
        name: {"_target_": target, "root": str(tmp_path / "images"), "copies": copies}
        for name, copies in splits.items()
    }
    run = trained(tmp_path / "run", *tiny.overrides(data=data))
    trust = ("--trust", target)
    none = command(SCRIPT, str(run), *trust, "data.test.copies=0")
    line = "expected at least one sample, got none"
    assert refusal(none) == f"data.test: {line}"
    (tmp_path / "images").rename(tmp_path / "moved")
    missing = f"{line}; the run read {tmp_path / 'images'}, which is not here"
    out = str(tmp_path / "model.pt2")
    assert missing in refusal(command(SCRIPT, str(run), *trust))
    done = command("scripts/export.py", str(run), *trust, "--out", out)
    assert missing in refusal(done)
    with pytest.raises(InputError, match="which is not here"):
        seedbed.data(run, trust=[target])
    words = [f"data.{name}.root={tmp_path / 'moved'}" for name in splits]
    done = command(SCRIPT, str(run), *trust, *words)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("split", ["validation", "test"])
def test_other_samples_than_those_that_the_run_evaluated_are_named(
    run: Path, tmp_path: Path, split: str
) -> None:
    """Negative controls: the record as it was, and samples that were asked for."""
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    words = (SCRIPT, str(copy), "--split", split)
    assert command(*words).returncode == 0
    hashes = record.read_summary(copy)["fingerprints"]
    edit_summary(copy, fingerprints=hashes | {f"{split}_samples": "0" * 16})
    done = command(*words)
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"warning: the {split} samples are not those that the run"
    )
    assert command(*words, "--allow-changed").returncode == 0
    assert command(*words, "data.eval_batch_size=100").returncode == 0


@pytest.mark.parametrize("name", ["best", "last"])
def test_weights_of_another_run_are_refused(
    run: Path, tmp_path: Path, name: str
) -> None:
    """best.pt of another seed, and one altered bit with a right checksum: by evaluate,
    load and resume. Negative controls: other tests, and a step without fingerprints."""
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    path = copy / "checkpoints" / f"{name}.pt"
    step = 12
    if name == "best":
        step = checkpoint.load(path)["step"]
        state = checkpoint.load(path)
        state["model"] = {key: value.flip(0) for key, value in state["model"].items()}
        checkpoint.save(state, path)
    else:
        alter_weights(path)
    message = (
        f"{name}.pt: expected the weights of step {step} whose SHA-256 is in"
        " summary.json"
    )
    for option in ((), ("--allow-changed",)):
        assert message in refusal(
            command(SCRIPT, str(copy), "--checkpoint", name, *option)
        )
    with pytest.raises(InputError, match=message):
        seedbed.load(copy, checkpoint=name)
    if name == "last":
        done = command(
            "scripts/resume.py", str(copy), "trainer.max_steps=20", "--allow-changed"
        )
        assert "expected the weights of step 12" in refusal(done)
    edit_summary(copy, weights_sha256={})  # as of a killed run
    message = (
        f"{name}.pt: expected the weights of step {step} in fingerprints.csv, got"
        " others"
    )
    assert message in refusal(command(SCRIPT, str(copy), "--checkpoint", name))
    rows = [row for row in record.read_fingerprints(copy) if row["step"] != str(step)]
    write_csv(copy / "fingerprints.csv", record.FINGERPRINT_FIELDS, rows)
    done = command(SCRIPT, str(copy), "--checkpoint", name)
    assert (done.returncode, "the weights are not compared" in done.stderr) == (1, True)


@pytest.mark.parametrize("change", [{"swapped": True}, {"step": 999}])
def test_weights_that_hide_from_their_fingerprints_are_refused(
    change: dict[str, object], run: Path, tmp_path: Path
) -> None:
    """As if a method had swapped them in, or as those of a step without a row."""
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    path = copy / "checkpoints" / "best.pt"
    state = checkpoint.load(path) | change
    state["model"] = {key: value.flip(0) for key, value in state["model"].items()}
    checkpoint.save(state, path)
    assert "best.pt: expected the weights of step" in refusal(
        command(SCRIPT, str(copy))
    )


@pytest.mark.long
def test_overrides_reach_what_was_made_from_them(tmp_path: Path) -> None:
    """As at the start: a length that data sets copied, a seed of data. Negative
    control: values that are set explicitly, and a record without interpolations.json,
    keep theirs."""
    run = trained(
        tmp_path / "run",
        "experiment=adding_lstm",
        "data.length=6",
        "trainer.max_steps=1",
    )
    before = numbers(str(run))
    longer = numbers(str(run), "data.length=8")
    assert longer == numbers(str(run), "data.test.length=8") != before
    assert (
        numbers(str(run), "seeds.data=9")
        == numbers(str(run), "data.test.seed=9")
        != before
    )
    assert numbers(str(run), "data.length=8", "data.test.length=6") == before
    done = command(
        "scripts/resume.py", str(run), "data.length=8", "trainer.max_steps=2"
    )
    assert "data.length 6 -> 8, data.test.length 6 -> 8 and 3 more" in done.stderr
    (run / "interpolations.json").unlink()
    assert numbers(str(run), "data.length=8") == before


SHARED = """
dataset:
  _target_: tiny.data.Squares
  seed: "${seeds.split}"
  samples: "${data.samples}"
samples: 200
input_shape: [1, 8, 8]
outputs: 4
task: {name: classification}
batch_size: 20
"""


@pytest.mark.long
def test_overrides_of_shared_arguments_reach_all_data_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also through what they were made from; what no class takes is refused.

    Negative control: a key of one split wins over a shared one.
    """
    project = Path(shutil.copytree(ROOT, tmp_path / "project"))
    (project / "configs" / "data" / "shared.yaml").write_text(SHARED)
    monkeypatch.setenv("SEEDBED_PROJECT", str(project))
    run = tmp_path / "run"
    words = (*QUICK, "data=shared", f"hydra.run.dir={run}", "trainer.max_steps=2")
    done = command(str(project / "train.py"), *words)
    assert done.returncode == 0, done.stderr
    assert record.read_config(run).data.dataset.samples == 200

    def samples(*words: str) -> int:
        done = command(SCRIPT, str(run), *words, "--json")
        assert done.returncode == 0, done.stderr
        return int(json.loads(done.stdout)["samples"])

    assert [
        samples(),
        samples("data.dataset.samples=100"),
        samples("data.samples=50"),
    ] == [*(200, 100, 50)]
    assert samples("data.dataset.samples=100", "data.test.samples=30") == 30
    line = refusal(command(SCRIPT, str(run), "data.dataset.nonsense=3"))
    assert line.startswith("data.train: expected arguments of Squares"), line
    done = command(
        "scripts/resume.py", str(run), "data.dataset.samples=100", "trainer.max_steps=3"
    )
    assert "data.dataset.samples 200 -> 100" in refusal(done)


SCALED = """
from tiny.data import Squares

class Scaled(Squares):
    def __init__(self, statistics=None, **options):
        super().__init__(**options)
        self.scale = statistics["scale"] if statistics else 100.0

    def fetch(self, ids, draws):
        images, targets = super().fetch(ids, draws)
        return images / self.scale, targets

def of_images(dataset):
    return {"scale": 0.5}
"""


@pytest.mark.long
def test_statistics_of_the_run_stay_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With data=NAME, for the run's own data set and another. Negative control: a run
    without."""
    project = Path(shutil.copytree(ROOT, tmp_path / "project"))
    (project / "src" / "scaled.py").write_text(SCALED)
    squares = (
        (ROOT / "configs/data/squares.yaml")
        .read_text()
        .replace("tiny.data.Squares", "scaled.Scaled")
    )
    asking = squares.replace(
        "  seed: ${seeds.split}", "  seed: ${seeds.split}\n  statistics: null"
    )
    spec = "statistics: {_target_: scaled.of_images}\n"
    for name, text in (
        ("plain", squares),
        ("scaled", asking + spec),
        ("other", asking + spec),
    ):
        (project / "configs" / "data" / f"{name}.yaml").write_text(text)
    monkeypatch.setenv("SEEDBED_PROJECT", str(project))

    def train(name: str) -> Path:
        words = (
            *QUICK,
            f"data={name}",
            f"hydra.run.dir={tmp_path / name}",
            "trainer.max_steps=2",
        )
        done = command(str(project / "train.py"), *words)
        assert done.returncode == 0, done.stderr
        return tmp_path / name

    run = train("scaled")
    plain = train("plain")
    before = numbers(str(run))
    for words in (
        ["data=scaled"],
        ["data=other"],
        ["data=other", "data.test.samples=500"],
    ):
        assert numbers(str(run), *words) == before
    assert numbers(str(run), "data=other", "data.test.statistics={scale: 1}") != before
    numbers(str(plain), "data=plain")
    line = refusal(command(SCRIPT, str(plain), "data=scaled"))
    assert line.startswith(
        "data.train.statistics: expected a run with statistics, got one that"
    )
    code = project / "src" / "scaled.py"
    code.write_text(SCALED.replace("images / self.scale", "images / unknown"))
    done = command(SCRIPT, str(run), "--json")
    assert done.returncode == 1
    number = (
        code.read_text().splitlines().index("        return images / unknown, targets")
        + 1
    )
    place = f"in your code: {code}:{number}"
    assert done.stderr.splitlines()[-1] == place
    reason = json.loads(done.stdout)["error"]
    assert reason == f"NameError: name 'unknown' is not defined; {place}"
    for path in (run / "checkpoints").iterdir():
        path.unlink()
    (run / "statistics.json").unlink()
    line = refusal(command(SCRIPT, str(run)))
    assert "best.pt: expected a checkpoint, got none" in line
