"""The rooms: who imports whom, who may draw or set a flag, what may be deleted."""

import ast
import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import lines
from tests.rooms import ROOMS, table
from tests.running import QUICK, ROOT

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
BUILT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info")


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a copy of the repository, whose packages come before the installed ones."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=root,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(root / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    code = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    return run(root, "-c", code, "--no-cache")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Copy what lies in the repository, without what was built or run in it."""
    root = tmp_path / "copy"
    for name in ("configs", "docs", "scripts", "src", "tests"):
        shutil.copytree(ROOT / name, root / name, ignore=BUILT)
    for path in (ROOT / "pyproject.toml", ROOT / "train.py", *ROOT.glob("requirements*")):
        shutil.copy2(path, root)
    return root


def delete(root: Path, *rooms: str) -> None:
    for path in dict.fromkeys(root / path for room in rooms for path in ROOMS[room].paths):
        if not path.exists():
            continue  # in a room that was deleted as a whole
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)  # the room was deleted before


class TestImports:
    def test_every_contract_is_kept(self) -> None:
        """No room imports one above it, there is no cycle, and every file has a room."""
        done = lint_imports(ROOT)
        assert done.returncode == 0, done.stdout

    @pytest.mark.parametrize(
        ("file", "line", "contract"),
        [
            ("seedbed/errors.py", "from seedbed import worker", "A room imports only"),
            ("seedbed/odd.py", "", "A room imports only"),
            ("seedbed/record/folder.py", "from seedbed.record import plots", "No cycle"),
            ("seedbed/worker/best.py", "import project", "The engine never imports"),
            ("project/models/dense.py", "from seedbed import determinism", "The project imports"),
            ("seedbed/config/check.py", "import torch", "import no torch"),
        ],
    )
    def test_an_import_in_a_function_breaks_a_contract(
        self, copy: Path, file: str, line: str, contract: str
    ) -> None:
        """Negative control of each contract: nothing hides in a function."""
        with (copy / "src" / file).open("a") as source:
            source.write(f"\n\ndef hidden() -> None:\n    {line or 'pass'}\n")
        if file.endswith("folder.py"):
            with (copy / "src/seedbed/record/plots.py").open("a") as source:
                source.write("\n\ndef back() -> None:\n    from seedbed.record import folder\n")
        done = lint_imports(copy)
        broken = [text for text in done.stdout.splitlines() if " BROKEN" in text]
        assert done.returncode == 1
        assert any(contract in text for text in broken), done.stdout

    def test_who_starts_or_reads_a_run_loads_no_torch(self) -> None:
        """The contract lets functions of `rng` and `determinism` import it: none is called."""
        rooms = ("compare", "config", "launch", "record", "sweeps")
        files = [file for room in rooms for file in (ROOT / "src/seedbed" / room).glob("*.py")]
        names = [".".join(file.relative_to(ROOT / "src").with_suffix("").parts) for file in files]
        assert len(names) > len(rooms)
        code = f"import {', '.join(names)}, sys; sys.exit('torch' in sys.modules)"
        done = run(ROOT, "-c", code)
        assert done.returncode == 0, done.stderr


class TestBans:
    def violations(self, root: Path, *options: str) -> list[dict[str, Any]]:
        done = run(
            root,
            *("-m", "ruff", "check", "--no-cache", "--select", "TID251"),
            *("--output-format", "json", *options, "."),
        )
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    @pytest.mark.parametrize(
        ("file", "line"),
        [
            ("seedbed/worker/best.py", "import random"),
            ("seedbed/worker/best.py", "from numpy.random import default_rng"),
            ("seedbed/fingerprint.py", "torch.manual_seed(0)"),
            ("seedbed/fingerprint.py", "torch.backends.cudnn.benchmark = True"),
            ("seedbed/fingerprint.py", "torch.set_num_threads(1)"),
        ],
    )
    def test_drawing_or_setting_a_flag_elsewhere_fails_lint(
        self, copy: Path, file: str, line: str
    ) -> None:
        """Negative control: lint finds nothing before, and the line afterwards."""
        assert self.violations(copy) == []
        with (copy / "src" / file).open("a") as source:
            source.write(f"\n\ndef hidden() -> None:\n    {line}\n")
        (found,) = self.violations(copy)
        assert found["filename"].endswith(file)

    def test_the_list_of_exceptions_is_exact(self, copy: Path) -> None:
        """Whoever reads where random numbers come from reads no file that draws none."""
        listed = {
            pattern
            for pattern, codes in SETTINGS["ruff"]["lint"]["per-file-ignores"].items()
            if "TID251" in codes and any(copy.glob(pattern))
        }
        settings = (copy / "pyproject.toml").read_text().replace('"TID251"]', "]")
        (copy / "pyproject.toml").write_text(settings)
        found = {
            Path(violation["filename"]).relative_to(copy) for violation in self.violations(copy)
        }
        needed = {
            pattern
            for pattern in listed
            if any(path.match(pattern) or path.is_relative_to(pattern[:-3]) for path in found)
        }
        assert needed == listed


def imports_of(path: Path, outermost_only: bool) -> Iterator[str]:
    """Yield the modules that a file imports; those in functions are imported when asked for."""
    tree = ast.parse(path.read_text())
    for node in tree.body if outermost_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield str(node.module)
            yield from (f"{node.module}.{name.name}" for name in node.names)


def exists(root: Path, module: str) -> bool:
    path = root / module.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").exists()


def loose_ends(root: Path, rooms: tuple[str, ...]) -> list[str]:
    """Return the imports and configurations that lead to a module that was deleted."""
    gone = [
        Path(path).with_suffix("")
        for room in rooms
        for path in ROOMS[room].paths
        if path.startswith(("src/", "tests/"))
    ]
    deleted = {".".join(path.parts).removeprefix("src.") for path in gone}
    ends = []
    for file in sorted(root.glob("**/*.py")):
        only = not file.is_relative_to(root / "src/seedbed")
        for module in imports_of(file, outermost_only=only):
            if any(module == name or module.startswith(f"{name}.") for name in deleted):
                ends.append(f"{file.relative_to(root)}: {module}")
    for file in sorted(root.glob("configs/**/*.yaml")):
        ends += [
            f"{file.relative_to(root)}: {name}" for name in deleted if name in file.read_text()
        ]
    return ends


class TestDeleting:
    def test_what_may_be_deleted_is_there(self) -> None:
        """But for what `make new` took out."""
        taken_out = {"scripts/measure", "tests/measure", "configs/experiment/variance_sources.yaml"}
        paths = {path for room in ROOMS.values() for path in room.paths}
        assert {path for path in paths if not (ROOT / path).exists()} <= taken_out

    def test_the_readme_has_the_table(self) -> None:
        """The README says what these tests delete: `python -m tests.rooms` prints it."""
        assert "\n".join(table()) in (ROOT / "README.md").read_text()

    @pytest.mark.parametrize("room", ROOMS)
    @pytest.mark.long
    def test_nothing_that_stays_needs_a_room(self, copy: Path, room: str) -> None:
        """Neither files nor configurations lead to it, and the contracts hold without it."""
        delete(copy, room)
        assert loose_ends(copy, (room,)) == []
        done = lint_imports(copy)
        assert done.returncode == 0, done.stdout

    def test_a_loose_end_is_found(self, copy: Path) -> None:
        """Negative control: an import of a deleted room, and a configuration that names it."""
        delete(copy, "probe")
        (copy / "scripts/odd.py").write_text("from seedbed.probe import report\n")
        (copy / "configs/odd.yaml").write_text("_target_: seedbed.probe.report.Odd\n")
        assert loose_ends(copy, ("probe",)) == [
            "scripts/odd.py: seedbed.probe",
            "scripts/odd.py: seedbed.probe.report",
            "configs/odd.yaml: seedbed.probe",
        ]

    def test_training_needs_no_optional_room(self, copy: Path) -> None:
        """With all of them gone, three steps train."""
        delete(copy, *ROOMS)
        self.train(copy)

    @pytest.mark.long
    @pytest.mark.parametrize("room", ROOMS)
    def test_training_needs_no_room(self, copy: Path, room: str) -> None:
        """With one of them gone, three steps train."""
        delete(copy, room)
        self.train(copy)

    @pytest.mark.parametrize("words", [("train.py", "-m", "seed=0,1"), ("scripts/resume.py", "s")])
    def test_who_asks_for_a_deleted_room_is_told(self, copy: Path, words: tuple[str, ...]) -> None:
        """Sweeps are the room that plain commands lead to."""
        delete(copy, "sweeps")
        (copy / "s").mkdir()
        (copy / "s/sweep.json").write_text("{}")
        done = run(copy, *words)
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
        assert "error: src/seedbed/sweeps: expected this part of Seedbed" in done.stderr

    def train(self, copy: Path) -> None:
        words = ("trainer.max_steps=3", "hydra.run.dir=runs/a")
        done = run(copy, "train.py", *QUICK, *words)
        assert done.returncode == 0, done.stderr
        assert len((copy / "runs/a/fingerprints.csv").read_text().splitlines()) == 4


def test_the_bits_of_a_run_can_be_trusted_after_reading_5500_lines() -> None:
    """Each file of the rooms is in one list, and those to read for the bits are short together."""
    files = lines.reading_list()
    others = [*lines.RESUMING, *lines.DESCRIBING, *lines.OTHERS]
    assert all(file.is_file() for file in (*files, *lines.paths(others)))
    assert len({*others}) == len(others)
    assert all(any(name.startswith(f"{room}/") for room in lines.READING) for name in others)
    assert lines.count(files) <= lines.MOST_TO_READ
