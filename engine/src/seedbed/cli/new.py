"""Make this checkout a project of its own: rename src/project, and take the examples out.

python scripts/new.py NAME          leaves a data set and a model of three lines to start from
python scripts/new.py NAME --keep   keeps the examples, too

Everything is staged and nothing committed: `git diff --cached --stat` shows it, `git commit` keeps
it, `git reset --hard` takes it back.
"""

import argparse
import importlib.util
import keyword
import re
import subprocess
import sys
from pathlib import Path

from seedbed.errors import InputError

ROOT = Path(__file__).resolve().parents[1]
# Stems of the examples' files in src/project/ and configs/; what is not named here is yours.
EXAMPLES = {
    *("adding", "augment", "images", "mnist", "mnist5k", "sums"),
    *("cnn", "recurrent", "lstm", "rnn", "arguments", "gpt", "language_model"),
    *("adding_lstm", "adding_rnn", "char_gpt", "mnist_cnn"),
}
LEFT = {"data: mnist5k": "data: points", "model: cnn": "model: dense"}
OURS = {"scripts/new.py", "tests/end_to_end/test_new.py"}
# How files name the project's package: in Python and YAML, in paths, in lists of packages.
PACKAGE = re.compile(
    r"(?<![\w.-])project(?=\.[a-z_]+\b)|(?<=\bsrc/)project\b"
    r"|(?<=^from )project(?= import)|(?<=\bimport )project(?=\"|$)"
    r"|(?<=\")project(?=\"|/\w+/\w+\.py)|(?<=[\[,])project(?=,(?:seedbed|torch)\b)",
    re.MULTILINE,
)
LISTED = {
    "configs/config.yaml": re.compile(r"(?<=^  - )project\b", re.MULTILINE),
    "pyproject.toml": re.compile(r"(?<=[\"'])project(?=[\"'.])|(?<=src/)project\b"),
}


def main() -> int:
    """Rename and clear; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", help="of the package, such as waves")
    parser.add_argument("--keep", action="store_true", help="keep the examples")
    arguments = parser.parse_args()
    require_possible(arguments.name)
    if not arguments.keep:
        take_examples_out()
    rename(arguments.name)
    git("add", "--all")
    print(
        f"src/{arguments.name}/ is yours, with configs/config.yaml, configs/data/, configs/model/, "
        "configs/experiment/ and tests/project/.\n"
        "next: python train.py; python -m pytest tests/project; git commit"
    )
    return 0


def require_possible(name: str) -> None:
    """Raise InputError unless a package of this name can be made here, and taken back by git."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise InputError(
            "NAME: expected a package's name (lower-case letters, digits and _, a letter first, no "
            f"Python keyword), got {name!r}; try make new NAME=waves"
        )
    if importlib.util.find_spec(name) is not None or (ROOT / name).exists():
        raise InputError(f"NAME: expected a new name, got {name}, which is there; choose another")
    if not (ROOT / "src/project").is_dir():
        raise InputError("NAME: expected src/project to rename, got none; it has its name already")
    if git("status", "--porcelain"):
        raise InputError(
            "checkout: expected no uncommitted changes, got some; commit them, so that git can "
            "take back what this does"
        )


def take_examples_out() -> None:
    """Delete the examples, their tests, and what measures them; train what is left by default."""
    groups = ("data", "model", "method", "experiment")
    places = ("src/project", *(f"configs/{group}" for group in groups))
    files = git("ls-files", *places).splitlines()
    examples = [path for path in files if Path(path).stem in EXAMPLES]
    beside = ("scripts/measure", "tests/measure", "docs/examples/lightning")
    measuring = [place for place in beside if (ROOT / place).exists()]
    git("rm", "-r", "--quiet", *examples, "tests/project/examples", *measuring)
    config = ROOT / "configs/config.yaml"
    text = config.read_text()
    for default in LEFT:
        text = text.replace(f"  - {default}\n", f"  - {LEFT[default]}\n")
    config.write_text(text)
    # The engine's own tests train the examples; with them out, `pytest` is for what is left.
    pyproject = ROOT / "pyproject.toml"
    pyproject.write_text(
        pyproject.read_text().replace('testpaths = ["tests"]', 'testpaths = ["tests/project"]')
    )


def rename(name: str) -> None:
    """Move the package, and write its name wherever the old one stands."""
    git("mv", "src/project", f"src/{name}")
    named = git(
        "ls-files", "*.py", "*.yaml", "pyproject.toml", "README.md", "docs/*.md"
    ).splitlines()
    for path in sorted({*named} - OURS):
        text = (ROOT / path).read_text()
        renamed = LISTED.get(path, PACKAGE).sub(name, text)
        if renamed != text:
            (ROOT / path).write_text(renamed)
    for words in (["check", "--quiet", "--select", "I", "--fix"], ["format", "--quiet"]):
        # Imports are sorted by name, and lines have another length.
        subprocess.run([sys.executable, "-m", "ruff", *words], cwd=ROOT, check=False)


def git(*words: str) -> str:
    """Run git in this checkout; return what it prints."""
    try:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    except FileNotFoundError:
        raise InputError("git: expected the command, got none; install git") from None
    except subprocess.CalledProcessError as error:
        reason = " ".join(error.stderr.split())
        raise InputError(
            f"git {words[0]}: expected success, got {reason}; see git status"
        ) from None
    return done.stdout
