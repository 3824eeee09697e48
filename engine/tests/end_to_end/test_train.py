"""train.py from the shell: the same seed has the same bits; bad input is refused in one
line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from seedbed import project, record
from seedbed.cli import train as train_command
from tests.running import QUICK, ROOT, called, refusal, trained
from tests.ways import differences


def test_the_same_seed_gives_the_same_bits(quick_run: Path, tmp_path: Path) -> None:
    """seed=0 is a seed like any other. Negative control: with another seed every part
    differs."""
    again = trained(tmp_path / "again", "seed=0")
    assert differences(quick_run, again) == []
    a, b = (record.read_json(run / "environment.json") for run in (quick_run, again))
    assert {key for key in a.keys() | b.keys() if a.get(key) != b.get(key)} <= {
        "started_at",
        "git",
    }
    found = set(differences(quick_run, trained(tmp_path / "other", "seed=1")))
    assert found >= {
        "step 1: sample_ids",
        "metrics.csv",
        "fingerprints.csv",
        "test_predictions.csv",
        "last.pt: model",
        "last.pt: optimizer",
        "best.pt: model",
        "summary: fingerprints",
    }


def test_the_record_is_complete(quick_run: Path) -> None:
    """A finished run has every promised file, and plain torch loads its weights."""
    names = {path.name for path in quick_run.iterdir()}
    assert names >= {
        "config.yaml",
        "environment.json",
        "code.zip",
        "source.patch",
        "metrics.csv",
        "fingerprints.csv",
        "loss_curve.png",
        "checkpoints",
        "summary.json",
        "train.log",
        "test_predictions.csv",
    }
    assert {path.name for path in (quick_run / "checkpoints").iterdir()} >= {
        "last.pt",
        "best.pt",
    }
    assert torch.load(quick_run / "checkpoints" / "best.pt", weights_only=True)["model"]
    environment = json.loads((quick_run / "environment.json").read_text())
    assert environment["flags"]["on_nondeterministic"] == "error"
    assert environment["env"]["PYTHONHASHSEED"] == "0"
    assert len(environment["git"]["commit"]) == 40
    assert len(next(iter(environment["data_sha256"].values()))) == 64
    summary = record.read_summary(quick_run)
    metrics = record.read_metrics(quick_run)
    assert (summary["status"], summary["steps"]) == ("finished", 12)
    assert repr(summary["metrics"]["test_accuracy"]) in metrics[-1].values()
    losses = [row["loss"] for row in metrics if row["phase"] == "train"]
    assert [repr(float(torch.tensor(float(loss)))) for loss in losses] == losses, (
        "all their bits"
    )


@pytest.mark.parametrize("wanted", [True, pytest.param(False, marks=pytest.mark.long)])
def test_two_runs_in_the_same_instant_never_share_a_folder(
    wanted: bool, tmp_path: Path
) -> None:
    """If both ask for the same folder, one is refused; default names differ.

    Both are started from another folder, as by `cd build && python ../train.py`: run
    folders are relative to it, files of the configuration to the project.
    """
    words = [sys.executable, str(ROOT / "train.py"), *QUICK, "files=[train.py]"]
    words += ["trainer.max_steps=1", *(["hydra.run.dir=runs/wanted"] if wanted else [])]
    jobs = [
        subprocess.Popen(
            words, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        for _ in range(2)
    ]
    messages = [job.communicate()[1].decode() for job in jobs]
    assert sorted(job.returncode for job in jobs) == ([0, 2] if wanted else [0, 0])
    assert sum(len(message.strip().splitlines()) for message in messages) == wanted
    folders = list((tmp_path / "runs").iterdir())
    assert len(folders) == 2 - wanted
    for folder in folders:
        assert record.read_summary(folder)["status"] == "finished"
        assert [*record.read_json(folder / "environment.json")["files_sha256"]] == [
            "train.py"
        ]


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (
            "trainer.max_epoch=3",
            "trainer.max_epoch: expected a known key, got a new one; did",
        ),
        ("data=squars", "did you mean squares"),
        ("modle=cnn", "did you mean model"),
        ("+sed=1", "did you mean seed"),
        ("+lr=1", "did you mean optimizer.lr"),
        (
            "+data.num_worker=1",
            "data.num_worker: expected a known key, got a new one; did",
        ),
        ("optimizer=lion", "optimizer: expected one of adamw, sgd, got lion"),
        ("model.classes=2", "to add it: +model.classes="),
        ("+model=lstm", "model: expected one option, got two; leave out the +"),
        ("seed=${seeds.init}", "in a circle: seeds.init -> seed -> seeds.init"),
        (
            "data.train={colour:1}",
            "data.train.colour: expected a known key, got a new one; known",
        ),
        (
            "hydra.sweeper.params={seed:1}",
            "hydra.sweeper.params: expected a section of a YAML",
        ),
        ("data.task=x", "data.task: expected a mapping, got x"),
        ("trainer.max_steps=abc", "trainer.max_steps: expected an integer, got abc"),
        ("optimizer.lr=[1]", "optimizer.lr: expected a number, got [1]"),
        (
            "trainer.compile=maybe",
            "trainer.compile: expected one of false, true, default, reduce-overhead,",
        ),
        ("optimizer.lr=null", "optimizer.lr: expected a number, got null"),
        ("tags=abc", "tags: expected a list, got abc"),
        ("seeds=3", "seeds: expected a mapping, got 3"),
        ("model=null", "model: expected one of cnn, "),
        ("+logger=3", "logger: expected one of csv, "),
        (
            "schedule.factor=1",
            "schedule.warmup_epochs, schedule.final_fraction; to add it",
        ),
        (
            "trainer=gpu",
            "trainer: expected one of default, got gpu; here: trainer.device=cuda",
        ),
        (
            "hydra/launcher=ray",
            "install a plugin of Hydra that has it, such as hydra-submitit",
        ),
        ("hydra/launcher=joblip", "did you mean joblib"),
        ("seed=1,2", "seed: "),
        ("seed=[", "overrides: "),
        ("--resolve", "overrides: "),
        ("--config-name=nothing", "nothing: "),
        ("data.batch_size=0", "data.batch_size: "),
        ("~data.train", "data.train"),
        ("~data", "data: expected an option, got none; choose one"),
        ("~model", "model: expected an option, got none; choose one"),
        ("resume=runs/x", "resume: expected a known key, got a new one; here: "),
        ("+seed=1", "seed: "),
        ("hydra.run.dir=null", "hydra.run.dir"),
        (
            "-m hydra.sweep.dir=/proc/x",
            "hydra.sweep.dir: expected a folder that can be written",
        ),
        ("--config-dir=/nonexistent", "/nonexistent"),
        ("--config-dir=own experiment=broken", "broken.yaml, line 2"),
    ],
)
def test_a_bad_command_line_is_refused_in_one_line(
    overrides: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line names the key or the nearest one, or file and line; no run folder is
    left."""
    broken = tmp_path / "own" / "experiment" / "broken.yaml"
    broken.parent.mkdir(parents=True)
    broken.write_text("a: [1, 2\nb: }")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(project.PROJECT, str(ROOT))
    # the command sets it; here it is unset again
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    message = refusal(called(train_command.main, *overrides.split()))
    assert key in message
    assert ": expected " in message
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [broken]
    assert not list(tmp_path.glob("runs/*"))
