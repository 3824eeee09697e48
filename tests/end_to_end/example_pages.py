"""The examples of docs/examples: their files and commands, taken out of the pages."""

import ast
import re
import shlex
import shutil
from dataclasses import dataclass
from pathlib import Path

from tests.running import ROOT

FOLDER = ROOT / "docs" / "examples"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


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

    @property
    def lines(self) -> int:
        """Count the lines of code and YAML, without comments, docstrings and blank lines."""
        return sum(count_lines(path, text) for path, text in self.files.items())


def read(folder: Path = FOLDER) -> dict[str, Example]:
    """Return every example by its name; sections without a command are none."""
    found = {}
    for page in sorted(folder.glob("*.md")):
        _, *sections = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)
        for section in sections:
            heading, _, body = section.partition("\n")
            blocks = _BLOCK.findall(body)
            commands = [text for language, text in blocks if language == "sh"]
            if not commands:
                continue
            files = dict(_file(text) for language, text in blocks if language in ("python", "yaml"))
            lines = "".join(commands).splitlines()
            words = [shlex.split(line) for line in lines if line.startswith("python train.py")]
            name = f"{page.stem}: {heading}"
            found[name] = Example(name, files, [line[2:] for line in words])
    return found


def _file(block: str) -> tuple[str, str]:
    first, _, content = block.partition("\n")
    assert re.fullmatch(r"# (src|configs)/[\w/]+\.(py|yaml)", first), first
    return first.removeprefix("# "), content


def project(root: Path, examples: dict[str, Example]) -> Path:
    """Make a copy of the project with every file of the examples in it.

    A page may show a file that the project has: it is the same one.
    """
    for name in ("configs", "scripts", "src"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "train.py", root)
    for example in examples.values():
        for name, content in example.files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            assert not path.exists() or path.read_text() == content, f"{name} is there already"
            path.write_text(content)
    return root


def count_lines(path: str, text: str) -> int:
    """Count the lines of a file, without comments, docstrings and blank lines."""
    left = text.splitlines()
    if path.endswith(".py"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                first = node.body[0] if node.body else None
                if ast.get_docstring(node) is not None and first is not None:
                    for number in range(first.lineno, (first.end_lineno or first.lineno) + 1):
                        left[number - 1] = ""
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in left)
