"""What cannot alter bits is one list: no training process can import what is on it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from seedbed.record import neutral
from tests.running import ROOT

ENGINE = ROOT / "src" / "seedbed"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("src/project/models/cnn.py", True),
        ("src/project/vocabulary.txt", True),
        ("engine/src/seedbed/rng.py", True),
        ("engine/src/seedbed/training/loop.py", True),
        ("pyproject.toml", True),
        ("my_project/model.py", True),
        ("kernel.cu", True),
        ("engine/src/seedbed/compare/causes.py", False),
        ("engine/src/seedbed/sweeps/report.py", False),
        ("src/compare/model.py", True),
        ("engine/src/seedbed/compare.py", True),
        ("README.md", False),
        ("notes/results.csv", False),
        ("tests/test_a.py", False),
        ("engine/measure/timing.py", False),
        ("train.py", False),
        (".ci/run.py", False),
    ],
)
def test_what_a_training_process_can_import_can_alter_bits(path: str, expected: bool) -> None:
    """Everything in src but for the rooms that it never imports, and code beside src."""
    assert neutral.may_be_imported(path) == expected


def test_every_neutral_room_is_there() -> None:
    """A room that was renamed would silently count as code of the run."""
    assert all((ENGINE / room / "__init__.py").is_file() for room in neutral.ROOMS)


def imported(path: Path) -> set[str]:
    """Return the modules that a file imports, inside functions too, by dotted name."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("room", ["names.py", "rng.py", "record", "config"])
def test_what_every_room_stands_on_imports_none_of_the_neutral_rooms(room: str) -> None:
    """Negative control: compare imports its own files."""
    above = tuple(f"seedbed.{name}" for name in (*neutral.ROOMS, "worker", "training", "loggers"))
    place = ENGINE / room
    files = [place] if place.is_file() else sorted(place.glob("*.py"))
    assert files
    for path in files:
        assert not [name for name in imported(path) if name.startswith(above)], path
    assert any(n.startswith(above) for n in imported(ENGINE / "compare" / "causes.py"))


IMPORTS = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    room = importlib.import_module(f"seedbed.{name}")
    for module in pkgutil.iter_modules(room.__path__):
        importlib.import_module(f"seedbed.{name}.{module.name}")
print(*{"torch", "matplotlib"} & set(sys.modules))
"""


@pytest.mark.parametrize(
    ("rooms", "slow"),
    [(["record", "config", "launch", "compare", "sweeps"], []), (["data"], ["torch"])],
)
def test_what_starts_training_processes_imports_neither_torch_nor_matplotlib(
    rooms: list[str], slow: list[str]
) -> None:
    """Comparing, verifying and composing start at once; negative control: a room of training."""
    words = [sys.executable, "-c", IMPORTS, *rooms]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT / "src")
    assert done.stdout.split() == slow
