"""Every page of the documentation: its files and its commands, as they stand there, run.

A block of Python or YAML whose first line names a file (`# src/project/...`, `# configs/...`) is
that file. Lines of shell blocks that begin with `python` are run in their order, in a copy of the
project with these files; trainings are short. Links lead somewhere.
"""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests import pages
from tests.running import QUICK, ROOT

PAGES = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").glob("*.md"))]
# What this machine may lack: downloads, other packages, hours, a GPU, other machines.
NOT_HERE = re.compile(
    r"mnist_cnn|data=mnist\b|measure/|launcher=submitit|launcher=ray|sweeper=|logger=|torchrun|cuda"
    r"|variance_sources|probe_ops|golden\.renew|evaluate\.py|fault_score|tests\.edits"
)
ANSWER_IS_NO = re.compile(r"compare|verify|sweep_report")  # their status is 1 where it is


def commands(page: str) -> list[str]:
    """Return the command lines of a page that can be run here, each once."""
    shown = (ROOT / page).read_text()
    lines = [line for b in pages.blocks(shown, "sh", "bash") for line in b.splitlines()]
    lines = [line.split("  #")[0].strip() for line in lines if line.startswith("python ")]
    named = re.compile(r"\b(RUN|SWEEP|FOLDER|NAME|STEP)\b|\.\.\.|[|>&;$]")
    kept = [line for line in lines if not NOT_HERE.search(line) and not named.search(line)]
    return list(dict.fromkeys(kept))


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)])
def test_the_commands_of_a_page_run(page: str, tmp_path: Path) -> None:
    root = pages.copy_project(tmp_path / "project", pages.files((ROOT / page).read_text()))
    pages.commit(root, "The page")
    for line in commands(page):
        _, *words = shlex.split(line)
        for word in words:  # a folder of a line above, which this line uses anew
            key, _, folder = word.partition("=")
            if key in ("hydra.run.dir", "hydra.sweep.dir"):
                shutil.rmtree(root / folder, ignore_errors=True)
        quick = QUICK if words[0] == "train.py" and "--cfg" not in words else ()
        done = pages.run(root, *words, *quick)
        expected = (0, 1) if ANSWER_IS_NO.search(line) else (0,)
        assert done.returncode in expected, (line, done.stdout[-500:], done.stderr[-1500:])


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "engine/README.md"])
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    """Files exist, and so do the headings that links name."""
    for target in re.findall(r"\]\(([^)\s]+)\)", (ROOT / page).read_text()):
        if not target.startswith("http"):
            name, _, anchor = target.partition("#")
            path = (ROOT / page).parent / name if name else ROOT / page
            assert path.exists(), target
            assert not anchor or anchor in headings(path), target


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as forges derive them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
