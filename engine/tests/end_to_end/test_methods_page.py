"""docs/methods.md: its files and commands, taken out of the page itself, run."""

import shlex
from pathlib import Path

import pytest

from seedbed import record
from tests import pages
from tests.running import ROOT

pytestmark = pytest.mark.long

PAGE = (ROOT / "docs" / "methods.md").read_text()
COMMANDS = [text.splitlines() for text in pages.blocks(PAGE, "sh")]
# In an order of its own, each once: what the commands are about, and a column of metrics.csv.
ABOUT = ["vae kl", "wgan critic_loss", "tuning learning_rate_rest", "average metric",
         "halving learning_rate", "norm gradient_norm"]  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a copy of the project with every file of the page in it."""
    return pages.copy_project(tmp_path_factory.mktemp("project"), pages.files(PAGE))


@pytest.mark.parametrize("about", ABOUT)
def test_the_commands_of_the_page_run(about: str, project: Path) -> None:
    """Each leaves a finished record with the column that it is about."""
    for line in COMMANDS[ABOUT.index(about)]:
        _, *words = shlex.split(line)
        folder = [] if "hydra.run.dir" in line else [f"hydra.run.dir=runs/{about.split()[0]}"]
        done = pages.run(project, *words, *folder, "determinism.threads=1")
        assert done.returncode == 0, done.stderr
    run = project / "runs" / about.split()[0]
    assert record.read_summary(run)["status"] == "finished"
    rows = [row for row in record.read_metrics(run) if row["phase"] == "train"]
    assert all(row[about.split()[1]] for row in rows)


def test_every_command_is_about_something() -> None:
    assert len(ABOUT) == len(COMMANDS)
