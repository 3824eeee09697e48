"""Documentation pages: their code blocks and scripts, and project copies with their
files."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from seedbed import offline, project
from tests import running
from tests.running import ENGINE, TEMPLATE

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, *languages: str) -> list[str]:
    """Return the code blocks of a page in the given languages, in order."""
    return [text for language, text in _BLOCK.findall(page) if language in languages]


def files(page: str) -> dict[str, str]:
    """Return the files that a page shows, by the path in their first line."""
    found = {}
    for text in blocks(page, "python", "yaml"):
        first, _, content = text.partition("\n")
        if re.fullmatch(r"# (src|configs)/[\w/]+\.(py|yaml)", first):
            found[first.removeprefix("# ")] = content
    return found


def copy_project(root: Path, added: Mapping[str, str]) -> Path:
    """Copy the project and add a page's files; those that it already has must be the
    same."""
    root.mkdir(exist_ok=True)
    for name in ("configs", "scripts", "src"):
        shutil.copytree(
            TEMPLATE / name, root / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in (".gitignore", "requirements.txt", "train.py"):
        shutil.copy2(TEMPLATE / name, root)
    for name, content in added.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        assert not path.exists() or path.read_text() == content, (
            f"{name} is there already"
        )
        path.write_text(content)
    return root


def variables(root: Path) -> dict[str, str]:
    """Return the environment of a project copy, which precedes this checkout; no
    downloads."""
    places = (str(root / "src"), str(root), str(ENGINE))
    own = {
        "PYTHONPATH": os.pathsep.join(places),
        project.PROJECT: str(root),
        offline.VARIABLE: "1",
    }
    return {**os.environ, **own}


def run(root: Path, *words: str, **how: Any) -> subprocess.CompletedProcess[str]:
    """Run Python in a project copy."""
    return running.run(root, sys.executable, *words, env=variables(root), **how)


def script(folder: Path, name: str) -> Path:
    """Write an example of docs/own-loop.md as a script; return its path."""
    page = (TEMPLATE / "docs" / "own-loop.md").read_text()
    [text] = [
        text for text in blocks(page, "python") if text.startswith(f"# {name}.py")
    ]
    path = folder / f"{name}.py"
    path.write_text(text)
    return path


def run_here(
    monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, *words: object
) -> None:
    """Run an example of docs/own-loop.md in this process, with some arguments."""
    path = script(folder, name)
    monkeypatch.setattr(sys, "argv", [str(path), *map(str, words)])
    runpy.run_path(str(path), run_name="__main__")
