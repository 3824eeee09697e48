"""Every page of the documentation: its files and trainings run as shown, and its links
work.

A block of Python or YAML whose first line names a file (`# src/project/...`, `#
configs/...`) is that file. Training commands in shell blocks are run, shortened, in a
project with these files and those of docs/your-code.md.
"""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests import pages
from tests.running import QUICK, TEMPLATE

PAGES = [
    "README.md",
    *(f"docs/{page.name}" for page in sorted((TEMPLATE / "docs").glob("*.md"))),
]
EXAMPLE = "docs/your-code.md"  # whose files other pages use
# Commands with downloads, other packages, hours of training, a GPU, an error, or
# placeholders.
NOT_HERE = re.compile(
    r"mnist_cnn|fashion|SparseModel|data=mnist\b|launcher=submitit|launcher=ray|sweeper=|logger=|cuda"
    r"|variance_sources|[|>&;$]|\.\.\.|\b[A-Z]+\b"
)


def trainings(page: str) -> list[str]:
    """Return the training commands in the shell blocks of a page that can run here."""
    text = (TEMPLATE / page).read_text().replace("\\\n", " ")
    shown = pages.blocks(text, "sh", "bash")
    lines = [
        line.split("  #")[0].strip() for block in shown for line in block.splitlines()
    ]
    train = "python train.py"
    found = [
        line for line in lines if line.startswith(train) and not NOT_HERE.search(line)
    ]
    return list(dict.fromkeys(found))  # each once


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in PAGES if trainings(page)])
def test_the_trainings_of_a_page_run(page: str, tmp_path: Path) -> None:
    shown = {}
    for name in (EXAMPLE, page):
        shown |= pages.files((TEMPLATE / name).read_text())
    root = pages.copy_project(tmp_path / "project", shown)
    for line in trainings(page):
        _, *words = shlex.split(line)
        for word in words:  # a folder that an earlier line may have filled
            key, _, folder = word.partition("=")
            if key in ("hydra.run.dir", "hydra.sweep.dir"):
                shutil.rmtree(root / folder, ignore_errors=True)
        pages.run(root, *words, *(() if "--cfg" in words else QUICK))


@pytest.mark.long
def test_the_cells_of_the_page_on_notebooks_run(tmp_path: Path) -> None:
    root = pages.copy_project(tmp_path / "project", {})
    pages.run(root, "train.py", "hydra.run.dir=runs/a", *QUICK)
    cells = pages.blocks((TEMPLATE / "docs/notebooks.md").read_text(), "python")
    assert any("seedbed.load" in cell for cell in cells)
    pages.run(
        root, "-c", "\n".join(["import matplotlib; matplotlib.use('Agg')", *cells])
    )


@pytest.mark.parametrize("page", [*PAGES, "CONTRIBUTING.md", "engine/README.md"])
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    """The files and headings that links name exist."""
    for target in re.findall(r"\]\(([^)\s]+)\)", (TEMPLATE / page).read_text()):
        if not target.startswith("http"):
            name, _, anchor = target.partition("#")
            path = (TEMPLATE / page).parent / name if name else TEMPLATE / page
            assert path.exists(), target
            assert not anchor or anchor in headings(path), target


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as forges derive them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles
    }
