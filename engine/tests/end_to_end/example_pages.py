"""The examples of docs/examples: their files and commands, taken out of the pages."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from tests import pages
from tests.running import TEMPLATE

FOLDER = TEMPLATE / "docs" / "examples"


@dataclass(frozen=True)
class Example:
    """A section of a page.

    Attributes:
        name: `page: heading`.
        files: content by path.
        commands: overrides of each `python train.py`, in order; the last one is what it is about.
    """

    name: str
    files: dict[str, str]
    commands: list[list[str]]


def read(folder: Path = FOLDER) -> dict[str, Example]:
    """Return every example by its name; sections without a command are none."""
    found = {}
    for page in sorted(folder.glob("*.md")):
        _, *sections = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
        for section in sections:
            heading, _, body = section.partition("\n")
            commands = pages.blocks(body, "sh")
            if not commands:
                continue
            lines = "".join(commands).splitlines()
            words = [shlex.split(line) for line in lines if line.startswith("python train.py")]
            name = f"{page.stem}: {heading}"
            found[name] = Example(name, pages.files(body), [line[2:] for line in words])
    return found
