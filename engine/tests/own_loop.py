"""The examples of docs/own-loop.md, taken out of the page itself."""

import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.running import TEMPLATE

PAGE = (TEMPLATE / "docs" / "own-loop.md").read_text()
EXAMPLES = dict(re.findall(r"^```python\n# (\w+)\.py.*?\n(.*?)^```$", PAGE, re.M | re.S))


def write(folder: Path, name: str) -> Path:
    """Write an example as a script; return its path."""
    path = folder / f"{name}.py"
    path.write_text(EXAMPLES[name])
    return path


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, *words: object) -> None:
    """Run an example in this process, with some arguments."""
    path = write(folder, name)
    monkeypatch.setattr(sys, "argv", [str(path), *map(str, words)])
    runpy.run_path(str(path), run_name="__main__")
