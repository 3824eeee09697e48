"""docs/methods.md: its files and commands, taken out of the page itself, run."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from seedbed import record
from tests.running import ROOT

PAGE = ROOT / "docs" / "methods.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
COMMANDS = [text.splitlines() for language, text in BLOCKS if language == "sh"]
# In an order of its own, each once: what the commands are about, and a column of metrics.csv.
ABOUT = ["vae kl", "wgan critic_loss", "tuning learning_rate_rest", "average metric",
         "halving learning_rate", "norm gradient_norm"]  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a copy of the project with every file of the page in it."""
    root = tmp_path_factory.mktemp("project")
    for name in ("configs", "src"):
        shutil.copytree(ROOT / name, root / name)
    shutil.copy2(ROOT / "train.py", root)
    for language, text in BLOCKS:
        path = root / text.partition("\n")[0].removeprefix("# ")
        if language in ("python", "yaml"):
            path.parent.mkdir(exist_ok=True)
            assert not path.exists()
            path.write_text(text)
    return root


@pytest.mark.parametrize("about", ABOUT)
def test_the_commands_of_the_page_run(about: str, project: Path) -> None:
    """Each leaves a finished record with the column that it is about."""
    for line in COMMANDS[ABOUT.index(about)]:
        _, *words = shlex.split(line)
        folder = [] if "hydra.run.dir" in line else [f"hydra.run.dir=runs/{about.split()[0]}"]
        done = subprocess.run(
            [sys.executable, *words, *folder, "determinism.threads=1"],
            cwd=project,
            env={**os.environ, "PYTHONPATH": str(project / "src")},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    run = project / "runs" / about.split()[0]
    assert record.read_summary(run)["status"] == "finished"
    rows = [row for row in record.read_metrics(run) if row["phase"] == "train"]
    assert all(row[about.split()[1]] for row in rows)


def test_every_command_is_about_something() -> None:
    assert len(ABOUT) == len(COMMANDS)
