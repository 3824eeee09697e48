"""Every command in the README is run, as it stands there, on shorter runs."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import pages
from tests.end_to_end.test_bad_input import wait_for_rows
from tests.running import QUICK, ROOT

README = (ROOT / "README.md").read_text()
MAKE_TARGETS = {"make train", "make test"}  # run by .ci/run
FIRST_RUN = "python train.py determinism=strict seed=0"  # what make train runs


def commands() -> list[str]:
    """Return every command of the README, in blocks and in sentences, each once."""
    shown = pages.blocks(README, "bash")
    lines = [line.split("#")[0].strip() for block in shown for line in block.splitlines()]
    inline = re.findall(r"`(python (?:train\.py|scripts/)[^`]*)`", README)
    return [line for line in dict.fromkeys([*lines, *inline]) if line]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder like a clone, with the model of the README in it."""
    folder = pages.copy_project(tmp_path_factory.mktemp("clone"), pages.files(README))
    pages.commit(folder, "The clone")
    run(folder, "python train.py seed=1 hydra.run.dir=runs/c")
    run(folder, "python train.py -m seed=0,1 hydra.sweep.dir=sweeps/a")
    return folder


def run(clone: Path, line: str) -> "subprocess.CompletedProcess[str]":
    words = [sys.executable, *shlex.split(line)[1:]]
    if "train.py" in line and "--cfg" not in line:
        words += ["--cfg", "job"] if "mnist_cnn" in line else QUICK  # the former would download
    return subprocess.run(
        words, cwd=clone, env=environment(clone), capture_output=True, text=True, check=False
    )


def environment(clone: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(clone / "src")}


def shape(line: str) -> str:
    """Return a printed line with its hashes, numbers and spaces replaced."""
    line = re.sub(r"\b[0-9a-f]{16}\b", "HASH", line)
    return " ".join(re.sub(r"\d[\d,]*(\.\d+)?", "N", line).split())


def interrupt_a_run(clone: Path, folder: str) -> None:
    words = [sys.executable, "train.py", *QUICK, "trainer.max_steps=300", f"hydra.run.dir={folder}"]
    process = subprocess.Popen(words, cwd=clone, env=environment(clone), stdout=subprocess.DEVNULL)
    wait_for_rows(clone / folder / "metrics.csv", 3)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143


def test_the_readme_is_short() -> None:
    """The README is an overview; details are in docs/."""
    assert len(README.splitlines()) <= 150


@pytest.mark.long
def test_the_outputs_of_the_readme_are_what_is_printed(clone: Path) -> None:
    """Every line has the words and the format shown; the two runs print the same hashes."""
    first, second = pages.blocks(README, "text")
    printed = run(clone, FIRST_RUN).stdout
    assert missing_lines(first, printed) == []
    negative_control = printed.replace("fingerprints: ", "bytes: ")
    assert [line.split()[0] for line in missing_lines(first, negative_control)] == ["fingerprints:"]

    lines = [line for line in commands() if re.search(r"runs/[ab]\b", line)][:4]
    train_a, train_b, compare, verify = (
        run(clone, line.replace("runs/", "printed/")).stdout for line in lines
    )
    hashes = re.findall("^fingerprints: .*$", train_a, re.MULTILINE)
    assert hashes == re.findall("^fingerprints: .*$", train_b, re.MULTILINE) != []
    assert missing_lines(second, (compare + verify).replace("printed/", "runs/")) == []


def missing_lines(shown: str, printed: str) -> list[str]:
    """Return the lines of a block that a command does not print; `...` stands for any."""
    shapes = {shape(line) for line in printed.splitlines()}
    return [line for line in shown.splitlines() if line != "..." and shape(line) not in shapes]


@pytest.mark.long
@pytest.mark.parametrize("line", [c for c in commands() if c not in MAKE_TARGETS])
def test_every_command_of_the_readme_works(clone: Path, line: str) -> None:
    """Each ends with the exit status that the README implies."""
    if "resume.py" in line:
        interrupt_a_run(clone, "interrupted")
        line = line.replace("runs/a", "interrupted")
    for name in ("a", "b"):  # made by a line above, maybe in another test process
        made = "train.py" in line or (clone / "runs" / name).exists()
        if f"runs/{name}" in line and not made:
            assert run(clone, f"python train.py seed=0 hydra.run.dir=runs/{name}").returncode == 0
    for folder in re.findall(r"hydra\.(?:run|sweep)\.dir=(\S+)", line):
        shutil.rmtree(clone / folder, ignore_errors=True)  # made for another line
    done = run(clone, line)
    differ = "compare.py" in line and "runs/c" in line  # which has another seed
    expected = 1 if differ else 0
    assert done.returncode == expected, (done.stdout[-500:], done.stderr[-500:])


def test_every_script_of_the_readme_exists_and_helps() -> None:
    """-h shows usage and an example."""
    scripts = set(re.findall(r"python (scripts/\w+\.py)", README))
    assert len(scripts) >= 5
    for script in scripts:
        done = subprocess.run(
            [sys.executable, str(ROOT / script), "-h"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0
        assert "usage:" in done.stdout
        assert "example" in done.stdout


@pytest.mark.parametrize(
    "page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *sorted(
        str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md"))],
)  # fmt: skip
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
