"""Claims on real trainings, by the commands that `new` prints."""

import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from seedbed import project, record
from seedbed.record import chain, text
from tests import pages
from tests.claims import made_up
from tests.claims.made_up import report
from tests.running import ENGINE, QUICK, ROOT, called, command, refusal, run

SETTINGS = [*QUICK, "trainer.rehearse_resume=false"]


def train(printed: list[str], folder: Path, *more: str) -> None:
    """Run a printed command, with its sweep in another folder."""
    [line] = printed
    _, *words = shlex.split(line)
    kept = [word for word in words if not word.startswith("hydra.sweep.dir=")]
    done = command(*kept, f"hydra.sweep.dir={folder}", *more)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_trained_claim_is_decided(tmp_path: Path) -> None:
    """Each run has the digest in its plan, before step 1. A verified run is no more
    listed. Negative controls: a seed that is trained without the digest, or longer."""
    settings = {"settings": SETTINGS, "seeds": [3, 5]}
    path = made_up.write_claim(tmp_path, **settings, smallest_difference=0.0)
    printed = report(path, 0, "new")
    place = path.parent / "sweeps"
    for name, lines in printed["commands"].items():
        train(lines, place / name)
    found = report(path, None)
    assert (found["refused"], found["notes"]) == ([], [])
    assert [row["state"] for row in found["runs"]] == ["finished"] * 4
    for row in found["runs"]:
        folder = Path(row["run"])
        plan = (folder / chain.PLAN).read_bytes()
        assert json.loads(plan)["claim"] == printed["digest"]
        first = (folder / chain.FILE).read_text().splitlines()[1].split(",")
        assert first[:3] == ["0", "", record.code.sha256(plan)]
    [compared] = found["comparisons"]
    assert "optimizer.lr" in [each["key"] for each in compared["differs"]]
    assert found["holds"] is (compared["verdict"] == "better")
    run = Path(found["runs"][0]["run"])
    assert command("-m", "seedbed", "verify", str(run)).returncode == 0
    assert [row["verified"] for row in report(path, None)["runs"]].count("yes") == 1
    [line] = printed["commands"]["base"]
    other = line.replace(printed["digest"], "0" * 64).replace("seed=3,5", "seed=3")
    words = [word for word in shlex.split(other)[1:] if not word.startswith("hydra.")]
    words.remove("-m")
    done = command(*words, f"hydra.run.dir={text.quoted(run)}")
    assert "a run counts only for the claim that it began with" in refusal(done)
    last = next((place / "base").glob("*_seed=5"))
    shutil.rmtree(last)
    line = line.replace("seed=3,5", "seed=5")
    train([line.replace(f" claim={printed['digest']}", "")], place / "without")
    found = report(path, 2)
    assert "base: expected finished runs of seeds 5, got none" in found["refused"][0]
    [note] = found["notes"]
    assert "has not the digest of the claim: does not count" in note
    train([line.replace("max_steps=12", "max_steps=13")], place / "longer")
    longer = "trainer.max_steps: expected 12 of the claim, got 13"
    assert longer in report(path, 2)["refused"][0]


def git(root: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    return run(root, "git", *who, *words).stdout.strip()


@pytest.mark.long
def test_a_commit_is_trained_in_its_own_checkout(tmp_path: Path) -> None:
    """Of two commits, the runs have the code of each; the same code for both is
    refused. By real commands, in a repository of its own."""
    root = tmp_path / "project"
    shutil.copytree(ROOT, root, ignore=shutil.ignore_patterns("__pycache__", "sweeps"))
    shutil.copytree(ENGINE.parent / "scripts", root / "scripts")
    (root / ".gitignore").write_text("__pycache__\n/sweeps\n.seedbed\n")
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "before")
    before = git(root, "rev-parse", "HEAD")
    model = root / "src/tiny/cnn.py"
    model.write_text(model.read_text().replace("nn.ReLU()", "nn.GELU()"))
    variants: dict[str, Any] = {"relu": {"commit": before}, "gelu": []}
    path = made_up.write_claim(
        root, settings=SETTINGS, seeds=2, variants=variants, title="GELU is better"
    )
    words = ("scripts/claim.py", "new", "claim.yaml", "--json")
    refused = pages.run(root, *words, status=2)
    assert "in which all code and configuration is committed" in refused.stderr
    git(root, "add", "-A")
    git(root, "commit", "-qm", "after")
    commands = json.loads(pages.run(root, *words).stdout)["commands"]
    left_out = ("PYTHONPATH", project.PROJECT)
    own = {name: it for name, it in os.environ.items() if name not in left_out}
    for lines in commands.values():
        for line in lines:
            if line.startswith("python "):
                line = sys.executable + line.removeprefix("python")
            run(root, "bash", "-c", line, env=own)
    words = ("scripts/claim.py", "check", "claim.yaml", "--json")
    found = json.loads(pages.run(root, *words, status=None).stdout)
    assert found["refused"] == []
    assert found["commits"]["relu"] == before != found["commits"]["gelu"]
    [compared] = found["comparisons"]
    assert "src/tiny/cnn.py" in [each["key"] for each in compared["differs"]]
    assert found["runs"][0]["verify"].endswith(" --restore-code")
    assert path.is_file()


def test_python_m_seedbed_claim_is_the_same_command(tmp_path: Path) -> None:
    """Negative control: an unknown action is refused."""
    path = made_up.write_claim(tmp_path)
    lines = called(made_up.command.main, "new", str(path)).stdout
    done = command("-m", "seedbed", "claim", "status", str(path), "--json")
    assert json.loads(done.stdout)["digest"] in lines
    done = command("-m", "seedbed", "claim", "forget", str(path))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
